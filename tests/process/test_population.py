"""Check populations on worker processes: determinism, deaths of workers and members, checkpoints and fitness."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from members import Short, after, first_turns, known_of, population, rows_of

import parenv
from parenv import ConfigurationError, ParenvError, RestartPolicy, Stop, WorkerOptions
from parenv.errors import PoolClosedError, RestartLimitError
from parenv.population import Fitness, Generational, Member, Report, Tournament, Uniform

EVOLVES = [Tournament(size=2, every=32, resample=0.2), Generational(every=32, fraction=0.34)]


def make_normalised() -> Any:
    env = gym.wrappers.NormalizeObservation(Short())
    return gym.wrappers.NormalizeReward(env)


@pytest.mark.more
@pytest.mark.parametrize(
    ("evolve", "env_fn"), [(EVOLVES[0], Short), (EVOLVES[1], Short), (EVOLVES[0], make_normalised)]
)
def test_a_sync_population_does_not_depend_on_the_number_of_workers(evolve: Any, env_fn: Any, tmp_path: Path) -> None:
    runs = [
        after(tmp_path / str(num_workers), 42, num_workers=num_workers, evolve=evolve, env_fn=env_fn)
        for num_workers in (0, 1, 3)
    ]
    assert runs[0] == runs[1] == runs[2]
    lineage, known = runs[0]
    assert sum(row["event"] == "copy" for row in lineage) >= 3
    assert len(set(map(str, known))) == 42


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_killed_workers_change_nothing_in_a_sync_population(tmp_path: Path) -> None:
    undisturbed = after(tmp_path / "undisturbed", 60)
    killed: list[int] = []
    known = []
    options = WorkerOptions(restart=RestartPolicy(max_restarts=100, backoff_s=0.01))
    with population(lineage=tmp_path / "killed", workers=options) as members:
        for report in members.reports(Stop(env_steps=32 * 60)):
            known.append(known_of(report))
            assert report.metrics is not None
            victim = int(report.metrics["pid"])
            if len(known) % 7 == 0 and victim not in killed:
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)
        assert members.statistics().worker_restarts >= len(killed) - 2
    assert len(killed) > 3
    assert (first_turns(tmp_path / "killed", 60), known) == undisturbed


@pytest.mark.more
@pytest.mark.parametrize("evolve", EVOLVES)
@pytest.mark.parametrize("turns", [7, 20])
def test_a_run_continues_bitwise_from_a_checkpoint(evolve: Any, turns: int, tmp_path: Path) -> None:
    whole = after(tmp_path / "whole", 42, evolve=evolve)
    path, checkpoint = tmp_path / "parts", tmp_path / "checkpoint"
    known = []
    with population(lineage=path, evolve=evolve) as members:
        for report in members.reports(Stop(env_steps=32 * (turns + 4))):
            if len(known) < turns:
                known.append(known_of(report))
                parenv.save_checkpoint(checkpoint, members.state_dict())
    with population(lineage=path, evolve=evolve, num_workers=3) as members:
        members.load_state_dict(parenv.load_checkpoint(checkpoint))
        assert members.statistics().turns >= turns
        known += [known_of(report) for report in members.reports(Stop(env_steps=32 * (42 - turns)))]
    assert (first_turns(path, 42), known) == whole


@pytest.mark.more
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_interrupt_between_two_waits_loses_no_report(
    num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, known = after(tmp_path / "undisturbed", 12), []
    checkpoint = tmp_path / "checkpoint"
    with population(lineage=tmp_path / "interrupted", num_workers=num_workers) as members:
        take_answers = members._session._take_answers

        def interrupted() -> None:
            signal.raise_signal(signal.SIGINT)
            take_answers()

        while len(known) < 6:
            known.append(known_of(next(members.reports())))
            with monkeypatch.context() as patched:
                patched.setattr(members._session, "_take_answers", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    known += map(known_of, members.reports(Stop(env_steps=32 * 20)))
        parenv.save_checkpoint(checkpoint, members.state_dict())
    with population(lineage=tmp_path / "interrupted", num_workers=num_workers) as members:
        members.load_state_dict(parenv.load_checkpoint(checkpoint))
        known += [known_of(report) for report in members.reports(Stop(env_steps=32 * (12 - len(known))))]
    assert (first_turns(tmp_path / "interrupted", 12), known) == undisturbed


def test_a_checkpoint_of_another_population_is_refused(tmp_path: Path) -> None:
    with population(num_workers=0) as members:
        next(members.reports())
        state = members.state_dict()
        with pytest.raises(ConfigurationError, match="has not begun to train"):
            members.load_state_dict(state)
    with (
        population(num_workers=0, seed=6) as members,
        pytest.raises(ConfigurationError, match="seed must be 5 as in the state, but the population has 6"),
    ):
        members.load_state_dict(state)


@pytest.mark.more
def test_perturbed_values_act_from_the_first_update_of_a_child(tmp_path: Path) -> None:
    with population(size=4, evolve=Tournament(size=3, every=32), seed=2) as members:
        reports = list(members.reports(Stop(env_steps=32 * 40)))
    children = [report for report in reports if report.parent is not None]
    assert len(children) > 5
    updates = [[0] for _ in range(4)]
    for report in reports:
        assert report.metrics is not None
        assert report.metrics["lr"] == report.hyperparameters["lr"]
        # A child inherits the count of updates, as every part that is not a hyperparameter.
        before = report.metrics["updates"] - 2
        assert before == updates[report.member][-1] if report.parent is None else before in updates[report.parent]
        updates[report.member].append(report.metrics["updates"])


TARGET = 1.2


def quadratic(theta: Any) -> float:
    """Return the objective of the toy example of Jaderberg et al. 2017 (arXiv:1711.09846), section 3.3."""
    return float(TARGET - (theta**2).sum())


def make_theta(hyperparameters: dict[str, float]) -> Member:
    return Member(lambda observations: np.zeros(len(observations), np.int64), theta=np.array([0.9, 0.9]))


def ascend(theta: Any, hyperparameters: dict[str, float]) -> Any:
    """Take four steps of gradient ascent on the surrogate, which weights each parameter by a hyperparameter."""
    weights = np.array([hyperparameters["h0"], hyperparameters["h1"]])
    for _ in range(4):
        theta = theta - 0.01 * 2 * weights * theta
    return theta


def learn_theta(member: Member, rollout: Any) -> None:
    member.theta = ascend(member.theta, member.hyperparameters)


TOY: dict[str, Any] = {
    "make_member": make_theta,
    "learn": learn_theta,
    "size": 2,
    "num_envs": 1,
    "rollout_length": 4,
    "hyperparameters": {"h0": Uniform(0, 1), "h1": Uniform(0, 1)},
    "initial": [{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 0.95}],
    "fitness": Fitness(episodes=0, score=lambda member, episodes: quadratic(member.theta)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_quadratic_of_the_paper_is_solved_and_every_row_of_the_lineage_is_exact(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "lineage"
    with population(**TOY, evolve=Tournament(size=1, every=4), mode=mode, lineage=path, seed=1) as members:
        for _ in members.reports(Stop(env_steps=4 * 300)):
            pass
        best = members.best
        assert best is not None
        theta_of_best, score_of_best = members.member(best).theta, members.scores[best]
    rows = rows_of(path)
    thetas, values = [np.array([0.9, 0.9])] * 2, [dict(one) for one in TOY["initial"]]
    scores: list[float | None] = [None, None]
    parents: list[int | None] = [None, None]
    ancestors, turns, copies = [0, 1], [0, 0], 0
    for row, following in zip(rows[1:], [*rows[2:], {}], strict=True):
        member = row["member"]
        if row["event"] == "turn":
            assert row["hyperparameters"] == values[member]
            thetas[member] = ascend(thetas[member], values[member])
            turns[member] += 1
            scores[member], other = quadratic(thetas[member]), scores[1 - member]
            assert (row["turn"], row["score"]) == (turns[member], scores[member])
            assert (row["parent"], row["ancestor"]) == (parents[member], ancestors[member])
            parents[member] = None
            if following:
                loses = other is not None and other > row["score"]
                assert loses == (following["event"] == "copy" and following["member"] == member)
        else:
            parent, copies = row["parent"], copies + 1
            assert parent == 1 - member
            assert (row["score"], row["parent_score"]) == (scores[member], scores[parent])
            assert (row["turn"], row["parent_turn"]) == (turns[member], turns[parent])
            assert row["inherited"] == values[parent]
            thetas[member], values[member] = thetas[parent], row["hyperparameters"]
            for name, value in values[member].items():
                steps = [float(np.clip(row["inherited"][name] + step, 0, 1)) for step in (0.2, -0.2)]
                assert value in steps
            scores[member], parents[member], ancestors[member] = None, parent, ancestors[parent]
    assert copies > 10
    assert len(set(ancestors)) == 1
    assert quadratic(theta_of_best) == score_of_best
    assert score_of_best > 1.19


def test_the_quadratic_is_not_solved_without_copies() -> None:
    thetas = [np.array([0.9, 0.9])] * 2
    for _ in range(300):
        thetas = [ascend(theta, values) for theta, values in zip(thetas, TOY["initial"], strict=True)]
    assert max(map(quadratic, thetas)) == pytest.approx(TARGET - 0.81)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.usefixtures("warnings_are_expected")
def test_a_member_that_raises_has_died_and_becomes_the_child_of_one_that_lives(num_workers: int) -> None:
    def fails(member: Member, rollout: Any) -> None:
        if member.hyperparameters["h0"] > 0.9:
            raise OverflowError(f"member {member.number} went too far")
        learn_theta(member, rollout)

    toy = {**TOY, "learn": fails, "size": 3}
    toy["initial"] = [{"h0": 1.0, "h1": 0.5}, {"h0": 0.5, "h1": 0.5}, {"h0": 0.4, "h1": 0.5}]
    evolve = Tournament(size=2, every=4, perturb=0.01)
    with population(**toy, evolve=evolve, num_workers=num_workers) as members:
        reports = list(members.reports(Stop(env_steps=4 * 10)))
        assert members.statistics().deaths == sum(bool(report.error) for report in reports) > 0
        metrics = members.metrics()
        assert metrics["population/deaths"] == members.statistics().deaths
        assert metrics["population/best_score"] == max(members.scores.values())
    of_first = [report for report in reports if report.member == 0]
    assert of_first[0].error == "OverflowError: member 0 went too far"
    assert np.isnan(of_first[0].score)
    assert of_first[0].num_steps == 0
    lives = next(report for report in of_first if not report.error)
    assert lives.parent in (1, 2)
    assert lives.hyperparameters["h0"] < 0.9


@pytest.mark.more
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("evolve", [Tournament(size=1, every=4), Generational(every=4, fraction=0.5)])
@pytest.mark.usefixtures("warnings_are_expected")
def test_the_last_error_is_raised_if_all_members_have_died(num_workers: int, evolve: Any) -> None:
    def fails(member: Member, rollout: Any) -> None:
        raise OverflowError(f"member {member.number} went too far")

    members = population(**{**TOY, "learn": fails}, evolve=evolve, num_workers=num_workers)
    with pytest.raises(OverflowError, match="went too far") as raised:
        list(members.reports(Stop(env_steps=100)))
    assert raised.value.__notes__ == ["All 2 members of the population have died. This is the last error."]
    assert members.closed


@pytest.mark.usefixtures("warnings_are_expected")
def test_a_member_that_kills_three_workers_has_died() -> None:
    def kills(member: Member, rollout: Any) -> None:
        if member.hyperparameters["h0"] > 0.9:
            os.kill(os.getpid(), signal.SIGKILL)
        learn_theta(member, rollout)

    options = WorkerOptions(restart=RestartPolicy(backoff_s=0.01))
    evolve = Tournament(size=1, every=4, perturb=0.01)
    toy = {**TOY, "initial": [{"h0": 1.0, "h1": 0.5}, {"h0": 0.5, "h1": 0.5}]}
    with population(**{**toy, "learn": kills}, evolve=evolve, workers=options, mode="async") as members:
        reports = []
        for report in members.reports():
            reports.append(report)
            if report.member == 0 and report.parent == 1:
                break
        assert members.statistics().lost_turns == 3
    died = next(report for report in reports if report.error)
    assert died.member == 0
    assert "was killed by SIGKILL" in died.error


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_workers_that_die_more_often_than_allowed_end_the_population() -> None:
    def kills(member: Member, rollout: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    options = WorkerOptions(restart=RestartPolicy(max_restarts=1))
    members = population(**{**TOY, "learn": kills}, evolve=Tournament(size=1, every=4), workers=options)
    with pytest.raises(RestartLimitError):
        list(members.reports())
    assert members.closed
    with pytest.raises(PoolClosedError, match="the population is closed"):
        members.reports()


def test_a_nan_score_ranks_below_every_other() -> None:
    score = Fitness(episodes=0, score=lambda member, episodes: np.nan if member.number == 0 else -member.number)
    toy = {**TOY, "fitness": score, "size": 3}
    with population(**toy, evolve=Tournament(size=2, every=4), num_workers=0) as members:
        reports = list(members.reports(Stop(env_steps=4 * 9)))
        assert members.best == 1
    assert {report.parent for report in reports if report.member == 0} == {None, 1}
    assert {report.parent for report in reports if report.member == 1} == {None}
    assert {report.parent for report in reports if report.member == 2} == {None, 1}


class Shaped(Short):
    """Environment with a shaped reward, which does not count for the fitness."""

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, 100.0, *rest


def test_fitness_is_measured_in_environments_of_its_own() -> None:
    with population(
        env_fn=Shaped, fitness=Fitness(episodes=5, deterministic=False, env_fn=Short), num_workers=0
    ) as members:
        report = next(members.reports())
    assert report.mean_return == 300.0
    assert len(report.episodes) == 5
    assert 0 <= report.score <= 3
    assert report.score == report.episodes.mean_return


def test_normalization_statistics_belong_to_a_member_and_are_inherited() -> None:
    envs: list[Any] = []

    def make_env() -> Any:
        envs.append(gym.wrappers.NormalizeObservation(Short()))
        return envs[-1]

    def learn_counts(member: Member, rollout: Any) -> dict[str, float]:
        return {"count": float(envs[0].obs_rms.count)}

    toy = {**TOY, "env_fn": make_env, "learn": learn_counts, "rollout_length": 30, "size": 3, "initial": ()}
    toy["fitness"] = Fitness(episodes=4, score=lambda member, episodes: float(member.number == 0))
    with population(**toy, evolve=Tournament(size=2, every=30), num_workers=0) as members:
        reports = list(members.reports(Stop(env_steps=30 * 9)))
        measuring = envs[1]
        assert measuring.obs_rms.count == envs[0].obs_rms.count
        assert not measuring.update_running_mean
    counts = {(report.member, report.turn): report.metrics["count"] for report in reports if report.metrics}
    # Each training round has 30 steps and 11 resets. A child continues with the statistics of its parent.
    assert counts == {(member, turn): pytest.approx(41 * turn, abs=0.01) for member, turn in counts}


def test_a_member_acts_deterministically_only_for_its_fitness() -> None:
    asked = []

    class Careful(parenv.Policy):
        def act(self, observations: Any, carry: Any) -> parenv.Action:
            asked.append(self.settings.get("deterministic"))
            return parenv.Action(np.zeros(len(observations), np.int64))

    toy = {**TOY, "make_member": lambda h: Member(Careful(), theta=np.zeros(2)), "fitness": Fitness(episodes=1)}
    with population(**toy, evolve=Tournament(size=1, every=4), num_workers=0) as members:
        asked.clear()
        next(members.reports())
    assert asked[:4] == [None] * 4
    assert set(asked[4:]) == {True}


class Placed:
    """Part of a member that stores the device to which it is moved."""

    def parameters(self) -> list[Any]:
        return []

    def to(self, device: str) -> None:
        self.device = device

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.more
def test_each_worker_trains_its_members_on_its_own_device() -> None:
    def make_placed(hyperparameters: dict[str, float]) -> Member:
        return Member(lambda observations: np.zeros(len(observations), np.int64), learner=Placed())

    def learn_there(member: Member, rollout: Any) -> dict[str, float]:
        return {"second": member.learner.device == "cpu:0", "worker": rollout.worker}

    toy = {**TOY, "make_member": make_placed, "learn": learn_there, "fitness": Fitness(episodes=1)}
    options = WorkerOptions(device=("cpu", "cpu:0"))
    with population(**toy, evolve=Tournament(size=1, every=4), workers=options) as members:
        metrics = [report.metrics for report in members.reports(Stop(env_steps=4 * 20))]
    assert all(one is not None and one["second"] == one["worker"] for one in metrics)
    assert len({str(one) for one in metrics}) == 2


@pytest.mark.more
def test_states_of_members_are_not_sent_in_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    from_frames = parenv.placement.local.from_frames  # type: ignore[attr-defined]

    def counting(frames: Any) -> Any:
        heard.append(sum(memoryview(frame).nbytes for frame in frames))
        return from_frames(frames)

    monkeypatch.setattr("parenv.placement.local.from_frames", counting)

    def make_large(hyperparameters: dict[str, float]) -> Member:
        return Member(lambda observations: np.zeros(len(observations), np.int64), weights=np.zeros(250_000))

    toy = {**TOY, "make_member": make_large, "learn": lambda member, rollout: None, "fitness": Fitness(episodes=1)}
    with population(**toy, evolve=Tournament(size=1, every=4)) as members:
        reports = list(members.reports(Stop(env_steps=4 * 20)))
        assert members.statistics().member_bytes > 2_000_000
    assert len(reports) == 20
    assert sum(heard) / 20 < 2_000


@pytest.mark.more
def test_many_members_take_little_more_memory_than_their_states() -> None:
    def make_bytes(hyperparameters: dict[str, float]) -> Member:
        return Member(lambda observations: np.zeros(len(observations), np.int64), weights=np.ones(100_000))

    toy = {**TOY, "make_member": make_bytes, "learn": lambda member, rollout: None, "size": 100, "initial": ()}
    toy["fitness"] = Fitness(episodes=0, score=lambda member, episodes: member.number)
    with population(**toy, evolve=Tournament(size=3, every=4), mode="async") as members:
        for _ in members.reports(Stop(env_steps=4 * 400)):
            pass
        taken = 512 * os.fstat(members._session._memory.fd).st_blocks
    assert taken < 1.2 * 102 * 800_000


@pytest.mark.more
def test_rounds_in_progress_at_the_end_of_a_stream_are_reported_by_the_next() -> None:
    with population() as members:
        first = list(members.reports(Stop(env_steps=32 * 3)))
        second = list(members.reports(Stop(env_steps=32 * 3)))
    assert [report.member for report in [*first, *second]] == list(range(6))
    assert all(isinstance(report, Report) for report in first)


def test_a_stream_ends_with_a_score_or_in_time() -> None:
    with population(num_workers=0) as members:
        *_, last = members.reports(Stop(mean_return=1.0))
        assert last.score >= 1.0
        assert list(members.reports(Stop(seconds=1e-9))) == []
        with pytest.raises(ConfigurationError, match=r"evaluation_return needs a pool, .* Use Stop\(mean_return=475\)"):
            members.reports(Stop(evaluation_return=475))


@pytest.mark.more
def test_a_deleted_population_leaves_nothing_behind() -> None:
    members = population()
    next(members.reports())
    assert repr(members).startswith("<Population of 6 members on 2 workers: Tournament(")
    del members


def make_none(hyperparameters: dict[str, float]) -> Any:
    return torch.nn.Linear(3, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 1}, "size must be at least 2, got 1"),
        ({"size": 0}, "size must be an integer of at least 2, got 0"),
        ({"evolve": "tournament"}, r"evolve must be a Tournament\(...\) or a Generational\(...\)"),
        ({"evolve": Tournament(size=6)}, "Tournament.size must be at most 5 in a population of 6"),
        ({"learn": None}, r"learn must be a callable \(member, rollout\)"),
        ({"make_member": 3}, "make_member must be a callable"),
        ({"hyperparameters": {"lr": 0.1}}, "must map names to ranges.*, got 'lr'"),
        ({"initial": [{"lr": 1.0}]}, r"initial\[0\]\['lr'\] must be within LogUniform.*, got 1.0"),
        ({"initial": [{"lr": 0.01}] * 7}, "for at most size=6 members, got 7"),
        ({"num_workers": 7}, "num_workers must be at most size=6, .* got 7"),
        ({"env_fn": [Short, Short]}, "env_fn must be one factory, .* got a sequence of 2"),
        ({"env_fn": "NoSuchEnv-v0"}, "must be registered with Gymnasium"),
        ({"mode": "fast"}, "mode must be one of 'sync', 'async'"),
        ({"fitness": {"episodes": 3}}, r"fitness must be Fitness\(episodes=3\)"),
        (
            {"workers": WorkerOptions(device=("cpu", "cuda:99"))},
            "WorkerOptions.device must name a device .* got 'cuda:99'",
        ),
        ({"workers": WorkerOptions(on_env_error="restart_env")}, r"WorkerOptions\.on_env_error needs a pool"),
        ({"workers": WorkerOptions(step_workers=1)}, r"WorkerOptions\.step_workers needs a pool"),
        ({"workers": WorkerOptions(rollout_device="cuda")}, r"WorkerOptions\.rollout_device needs a pool"),
        ({"lineage": "/dev/null/lineage"}, "the folder of /dev/null/lineage cannot be made: File exists"),
        ({"make_member": make_none}, "make_member must return a parenv.population.Member"),
    ],
)
def test_invalid_arguments_are_refused_before_training(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        population(**given)


def test_fitness_without_episodes_needs_a_score() -> None:
    with pytest.raises(ConfigurationError, match=r"Fitness\.episodes must be an integer of at least 1"):
        Fitness(episodes=0)
    with pytest.raises(ConfigurationError, match=r"Fitness\.score must be callable"):
        Fitness(score=3)  # type: ignore[arg-type]


def test_a_member_has_no_state_before_its_first_training_round() -> None:
    with population(num_workers=0) as members:
        with pytest.raises(ConfigurationError, match="member 3 has no state before its first training round"):
            members.member(3)
        with pytest.raises(ConfigurationError, match="the number of a member must be 0 to 5, got 6"):
            members.member(6)
        assert members.best is None


@pytest.mark.more
def test_a_full_disk_is_one_error_that_names_the_lineage(tmp_path: Path) -> None:
    path = tmp_path / "lineage"
    path.symlink_to("/dev/full")
    with (
        pytest.raises(ParenvError, match=f"^the lineage {path} cannot be written: No space left on device") as caught,
        population(lineage=path, num_workers=1) as members,
    ):
        next(members.reports())
    assert caught.value.__context__ is caught.value.__cause__
