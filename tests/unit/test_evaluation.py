"""Check the parts of an evaluation that need no worker: its results file, statistics and digests."""

from __future__ import annotations

import functools
import json
import math
import resource
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nets import Wrapped
from scipy import stats
from scripts import printed_by

from parenv import ConfigurationError, ParenvError, save_checkpoint
from parenv.envs.seeding import task_episode_seed
from parenv.evaluation import EvaluatedEpisode, EvaluationReport, EvaluationResult
from parenv.evaluation.identity import identity_of
from parenv.evaluation.policies import loaded
from parenv.evaluation.progress import ProgressLine
from parenv.evaluation.results import ResultsFile, read
from parenv.experience.episode_figures import student_t
from parenv.statistics import EpisodeStatistics

ABOUT = {"policy": "0123", "tasks": {"a": "4567"}, "seed": 0}
SCALE = 3


def played(task: str, index: int, episode_return: float = 1.0, **more: Any) -> EvaluatedEpisode:
    given = {"length": 5, "success": None, "ended_by": "terminated", "seconds": 0.5, **more}
    return EvaluatedEpisode(task, index, 7, episode_return, **given)


def test_episode_seeds_are_unique_and_depend_on_seed_task_and_index() -> None:
    seeds = [task_episode_seed(0, "reach", index) for index in range(100_000)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**32 for seed in seeds)
    others = [task_episode_seed(1, "reach", index) for index in range(1000)]
    others += [task_episode_seed(0, "push", index) for index in range(1000)]
    assert not set(others) & set(seeds[:1000])


def write_many(path: Path) -> None:
    with ResultsFile(path, ABOUT, resume=False) as file:
        for index in range(10):
            file.write(played("a", index))


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Limit the files of this process to 400 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_complete_lines(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with pytest.raises(ParenvError, match=r"cannot be written: File too large. Earlier episodes are stored"):
        write_many(path)
    assert path.read_bytes().endswith(b"}\n")
    assert [one.index for one in read(path)[1]] == list(range(len(path.read_bytes().splitlines()) - 1))


def test_a_results_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "results.jsonl"
    written = [
        played("a", 0, 0.1 + 0.2, success=True, infos={"x": np.float32(0.5), "y": [np.int64(3), math.nan]}),
        EvaluatedEpisode("a", 1, 7, math.nan, 0, None, "worker_died", 0.0, {}, "WorkerDiedError: gone"),
    ]
    with ResultsFile(path, ABOUT, resume=True) as file:
        for one in written:
            file.write(one)
    with ResultsFile(path, ABOUT, resume=True) as file:
        first, second = file.found
    assert (first.episode_return, first.success, first.infos) == (0.1 + 0.2, True, {"x": 0.5, "y": [3, "nan"]})
    assert second.is_lost
    assert second.error == "WorkerDiedError: gone"
    assert math.isnan(second.episode_return)
    assert json.loads(path.read_text().splitlines()[1])["return"] == 0.1 + 0.2


def test_a_file_that_is_in_use_or_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ResultsFile(path, ABOUT, resume=False) as file:
        file.write(played("a", 0))
        with pytest.raises(ConfigurationError, match="is in use by another evaluation"):
            ResultsFile(path, ABOUT, resume=True)
    path.write_text(path.read_text() + '{"task": "a"}\n')
    before = path.read_text()
    with pytest.raises(ConfigurationError, match=r"line 3 of .* is damaged.* Remove that line"):
        ResultsFile(path, ABOUT, resume=True)
    assert path.read_text() == before


def test_the_mean_and_the_success_rate_have_the_intervals_of_scipy() -> None:
    returns = np.random.default_rng(0).normal(3, 2, 30)
    report = EvaluationReport([played("a", i, x, success=i < 12) for i, x in enumerate(returns)])
    one = report.tasks["a"]
    wanted = stats.ttest_1samp(returns, 0).confidence_interval(0.95)
    assert one.mean_return == pytest.approx(returns.mean())
    assert one.mean_interval == pytest.approx((wanted.low, wanted.high))
    assert one.iqm_return == pytest.approx(stats.trim_mean(returns, 0.25))
    low, high = stats.bootstrap(
        (returns,), lambda x, axis: stats.trim_mean(x, 0.25, axis=axis), method="percentile", n_resamples=20_000
    ).confidence_interval
    assert one.iqm_interval == pytest.approx((low, high), abs=0.1)
    share = stats.binomtest(12, 30).proportion_ci(method="wilson")
    assert one.success_interval == pytest.approx((share.low, share.high))
    assert report.overall.mean_interval == pytest.approx(one.mean_interval)


@pytest.mark.parametrize("freedom", [1, 1.5, 2, 4, 20.5, 1e3, 1e6])
def test_quantiles_of_students_t_are_the_ones_of_scipy(freedom: float) -> None:
    shares = [0.5, 0.6, 0.9, 0.95, 0.975, 0.995]
    found = [student_t(share, freedom) for share in shares]
    assert found == pytest.approx(stats.t.ppf(shares, freedom), rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("count", [0, 1, 2, 31])
def test_a_pool_and_a_report_show_the_same_numbers_for_the_same_episodes(count: int) -> None:
    generator = np.random.default_rng(count)
    returns, seconds = generator.normal(3, 2, count).tolist(), generator.random(count).tolist()
    lengths = generator.integers(1, 100, count).tolist()
    ended_by = generator.choice(["terminated", "truncated", "worker_died"], count).tolist()
    of_pool = EvaluationResult(3, 640, EpisodeStatistics.of(returns, lengths, seconds, [0] * count, ended_by))
    columns = enumerate(zip(returns, lengths, seconds, ended_by, strict=True))
    report = EvaluationReport(
        [played("a", i, value, length=n, seconds=s, ended_by=why) for i, (value, n, s, why) in columns]
    )
    figures = of_pool.episodes.figures
    names = [field.name for field in fields(figures)] + ["mean_interval", "iqm_interval"]
    shown, wanted = ({name: getattr(one, name) for name in names} for one in (figures, report.overall))
    np.testing.assert_equal(shown, wanted)
    assert figures.cells() == report.overall.cells()
    metrics = of_pool.metrics()
    assert {name: metrics[name] for name in report.metrics() if "/a/" not in name} == {
        name: value for name, value in metrics.items() if name not in ("eval/policy_version", "eval/env_steps")
    }
    if count:
        head, row = str(of_pool.episodes).splitlines()
        assert [line.split() for line in str(report).splitlines()[:2]] == [head.split(), ["a", *row.split()]]


@pytest.mark.more
def test_intervals_have_about_their_nominal_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parenv.experience.episode_figures.RESAMPLES", 200)
    normal = np.random.default_rng(1).normal
    covered = np.zeros(3)
    runs = 200
    for _ in range(runs):
        one = [played("a", i, x) for i, x in enumerate(normal(0, 1, 20))]
        one += [played("b", i, x) for i, x in enumerate(normal(4, 3, 40))]
        report = EvaluationReport(one)
        low, high = report.overall.mean_interval
        covered[0] += low <= 2 <= high
        low, high = report.tasks["b"].iqm_interval
        covered[1] += low <= 4 <= high
        other = [played(e.task, e.index, x) for e, x in zip(one, [*normal(1, 1, 20), *normal(4, 3, 40)], strict=True)]
        low, high = EvaluationReport(other).compare(report).interval
        covered[2] += low <= (stats.norm.cdf(1 / math.sqrt(2)) + 0.5) / 2 <= high
    assert np.all(covered / runs > 0.88)
    assert np.all(covered / runs < 0.995)


def test_the_probability_of_improvement_counts_pairs() -> None:
    mine = EvaluationReport([played("a", i, x) for i, x in enumerate([1.0, 2.0, 3.0])])
    theirs = EvaluationReport([played("a", i, x) for i, x in enumerate([2.0, 2.0])])
    found = mine.compare(theirs)
    assert found.probability == pytest.approx((0 + 0 + 0.5 + 0.5 + 1 + 1) / 6)
    assert theirs.compare(mine).probability == pytest.approx(1 - found.probability)
    with pytest.raises(ConfigurationError, match=r"needs the same tasks, got \['a', 'b'\]"):
        mine.compare(EvaluationReport([played("b", 0)]))
    with pytest.raises(ConfigurationError, match="got none of 'a'"):
        mine.compare(EvaluationReport([played("a", 0, math.nan, ended_by="worker_died")]))


def test_lost_episodes_count_as_failures_only() -> None:
    lost = played("a", 2, math.nan, ended_by="step_timeout")
    report = EvaluationReport([played("a", 0, 1.0), lost, played("a", 1, 3.0)])
    assert report.overall.mean_return == 2.0
    assert report.overall.failures == {"step_timeout": 1}
    metrics = report.metrics()
    assert metrics["eval/a/lost_episodes"] == metrics["eval/lost_episodes"] == 1.0
    assert all(math.isfinite(value) for value in metrics.values())
    assert "eval/a/success_rate" not in metrics
    assert [one.index for one in report.episodes] == [0, 1, 2]
    assert "-" in str(EvaluationReport([lost]))
    assert math.isnan(EvaluationReport([]).overall.mean_return)


class Settings:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


def scaled(x: int, by: int = SCALE) -> int:
    return x * by


def different_values() -> list[Any]:
    captured = [lambda x, a=a: x + a for a in (1, 2)]
    torch.manual_seed(0)
    return [
        1,
        True,
        "1",
        (1,),
        [1],
        {"a": 1},
        {"a": 2},
        {1, 2},
        np.arange(3),
        np.arange(3.0),
        torch.arange(3),
        torch.nn.Linear(2, 2),
        torch.nn.Linear(2, 2),
        torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()),
        *captured,
        scaled,
        functools.partial(scaled, 1),
        functools.partial(scaled, 2),
        functools.partial(scaled, by=1),
        Settings(a=1),
        Settings(a=2),
        Settings,
        np.add,
        np,
        Path("a"),
        None,
        lambda: SCALE,
        lambda: scaled(1),
        Settings(a=1).__init__,  # type: ignore[misc]
    ]


def test_digests_are_equal_for_equal_values_and_only_for_them() -> None:
    first, second = (list(map(identity_of, different_values())) for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)
    assert identity_of({"a": 1, "b": 2}) == identity_of({"b": 2, "a": 1})
    endless: list[Any] = []
    endless.append(endless)
    assert identity_of(endless)


def test_a_digest_depends_on_globals_that_a_function_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity_of(lambda: SCALE)
    monkeypatch.setitem(globals(), "SCALE", 4)
    assert identity_of(lambda: SCALE) != before


def test_the_progress_line_ends_with_all_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ProgressLine(total=4, done=2)
    shown.update(None, {"a": 2})
    shown.update(played("a", 2), {"a": 1})
    shown.update(played("a", 3), {"a": 0})
    shown.update(None, {"a": 0}, last=True)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "[##########..........] 2 of 4 episodes"
    assert last == "[####################] 4 of 4 episodes, 0:00 left"


SHOW = """
import functools, random, sys
import gymnasium as gym
sys.path.insert(0, sys.argv[1])
from parenv.evaluation.identity import identity_of
captured = {"b", "a", "c"}
def make(size=3):
    return gym.make("CartPole-v1"), size, captured
class Own:
    def act(self, observations):
        return observations
print(identity_of([make, lambda: make(), functools.partial(gym.make, "CartPole-v1"), gym.make, Own(), Own().act]))
"""


def test_digests_are_equal_in_every_process() -> None:
    shown = {printed_by(SHOW, str(Path(__file__).parents[1])) for _ in range(2)}
    assert len(shown) == 1


@pytest.mark.parametrize("of_file", [False, True], ids=["plain file", "compiled file"])
@pytest.mark.parametrize("of_policy", [False, True], ids=["plain policy", "compiled policy"])
def test_a_checkpoint_fits_a_policy_of_which_only_one_is_compiled(
    tmp_path: Path, of_file: bool, of_policy: bool
) -> None:
    trained, policy = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    saved = Wrapped(trained) if of_file else trained
    save_checkpoint(tmp_path / "best.ckpt", {"weights": dict(saved.state_dict())})
    loaded(Wrapped(policy) if of_policy else policy, tmp_path / "best.ckpt")
    assert torch.equal(policy.weight, trained.weight)
