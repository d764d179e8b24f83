"""The examples run, learn, and show how little a loop changes."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_the_pool_version_is_shorter_and_has_at_most_20_lines_of_its_own(name: str) -> None:
    plain, pool = ((EXAMPLES / f"{name}{suffix}.py").read_text().splitlines() for suffix in ("_plain", ""))
    own = [line for line in difflib.ndiff(plain, pool) if re.match(r"\+ .*\S", line)]
    assert len(own) <= 20
    assert len(pool) < len(plain)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ppo_plain", []),
        ("ppo", []),
        ("dqn_plain", ["--learning-starts", "1000"]),
        ("dqn", ["--learning-starts", "1000"]),
        pytest.param("dqn", ["--learning-starts", "1000", "--mode", "async"], marks=pytest.mark.soak),
    ],
)
def test_an_example_runs_and_gets_better(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    curve: Any = load(name, monkeypatch).main(["--total-env-steps", "16000", *arguments])
    steps, seconds, _ = curve.points[-1]
    assert steps >= 16000
    assert seconds > 0
    assert max(mean for _, _, mean in curve.points) > 35


def test_replacing_one_import_changes_nothing_but_the_processes(tmp_path: Path) -> None:
    source = (EXAMPLES / "ppo_plain.py").read_text()
    old = "from gymnasium.vector import AutoresetMode, SyncVectorEnv\n"
    assert old in source
    new = "from gymnasium.vector import AutoresetMode\nfrom parenv import ParallelVectorEnv as SyncVectorEnv\n"
    shown = []
    for name, text in (("before.py", source), ("after.py", source.replace(old, new))):
        (tmp_path / name).write_text(text)
        command = [sys.executable, str(tmp_path / name), "--total-env-steps", "4000"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=EXAMPLES)
        assert done.returncode == 0, done.stderr
        shown.append(re.sub(r" +[0-9.]+ s ", " ", done.stdout))
    assert "mean return" in shown[0]
    assert shown[0] == shown[1]


def test_half_batches_step_every_environment_about_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, counts = load("half_batches", monkeypatch).main(["--env-steps", "4000", "--num-envs", "16"])
    assert steps >= 4000
    assert counts.max() - counts.min() <= 0.6 * counts.mean(), "more than a busy core explains"


def test_stable_baselines_gets_better_on_parallel_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, mean_return = load("sb3_ppo", monkeypatch).main(["--env-steps", "12000"])
    assert steps >= 12000
    assert mean_return > 50


def test_the_demo_trains_shows_progress_and_reports(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    load("ppo", monkeypatch)
    demo = load("demo", monkeypatch)
    demo.train(demo.Args(total_env_steps=4000))
    shown = capsys.readouterr()
    for figure in ("env steps", "env steps/s", "episodes", "mean return", "policy lag", "workers alive", "time left"):
        assert figure in shown.err
    assert "What it measured" in shown.out


README_EXAMPLES = {
    "the pool": ("", "PoolStatistics\\(env_steps=2", ""),
    "the vector env": ("print(observations.shape)", r"^\(64, 4\)$", ""),
    "gradients": ("print(agent.logits.weight.grad.shape, pool.policy_version)", r"^torch.Size\(\[2, 4\]\) 10$", ""),
    "a checkpoint": ("", "the episode of env_id 3: the environment has no get_state", "not restored: "),
}


@pytest.mark.parametrize("number", range(len(README_EXAMPLES)), ids=README_EXAMPLES.keys())
def test_the_examples_of_the_readme_run_as_plain_scripts(number: int, tmp_path: Path) -> None:
    more, shown, said = list(README_EXAMPLES.values())[number]
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    blocks = [block for block in blocks if "RemotePlacement" not in block]  # See tests/remote/test_readme.py.
    assert len(blocks) == len(README_EXAMPLES)
    (tmp_path / "example.py").write_text(blocks[number] + more)
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=True
    )
    assert re.search(shown, done.stdout.strip()), done.stdout + done.stderr
    assert all(line.startswith(said) and said for line in done.stderr.splitlines()), done.stderr


def test_every_figure_of_the_readme_is_in_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    table = importlib.import_module("table")
    readme = (ROOT / "README.md").read_text()
    assert [name for name, block in table.blocks().items() if block not in readme] == []
    assert table.everything() == (ROOT / "benchmarks" / "RESULTS.md").read_text()
    assert table.on_paper.scaling(table.read("remote")) == (ROOT / "benchmarks" / "scaling.md").read_text()


def test_stepping_pays_where_the_lines_cross(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    sentences = importlib.import_module("sentences")
    case = {"sync": {"median": 8 / 40e-6}, "parenv": {"median": 8 / 80e-6}}
    assert sentences.step_us(case, 8) == pytest.approx((40, 80))
    assert sentences.crossing_us((40, 80), (200, 160)) == pytest.approx(120), "60 µs and half of the work"


def test_what_rises_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    growth = importlib.import_module("growth")
    assert growth.exponent([1, 10, 100], [2, 2, 2]) == pytest.approx(1)
    assert growth.exponent([1, 4, 16], [3, 6, 12]) == pytest.approx(1.5)
    cheapest, last = {"min": 9, "median": 10, "max": 12}, {"min": 11, "median": 13, "max": 14}
    assert growth.rise([cheapest, last]) == "30 %"
    assert growth.rise([cheapest, last | {"min": 12.5}]) == "**30 %**"
    assert growth.rise([last, cheapest]) == "0 %"


CONSTANTS = {
    "0.4 %": "what rounding to bfloat16 changes at most",
    "5 s": "limit of a handshake",
    "three times": "limit of a key that offends",
    "two thirds": "workers by default",
    "ten minutes": "limit of a step by default",
    "two seconds": "limit of what is left behind, see tests/death",
    "60 s": "parenv bench --seconds by default",
    "15 s": "parenv advise --seconds by default",
    "a second": "a fraction of",
    "several times": "repeats of parenv bench",
}
NUMBER = r"\d[\d.,]*\s*|(?:an?|one|two|three|four|five|six|eight|ten|half|some|few|several)\s+"
UNIT = r"%|[µm]?s|[kMG]B|times|(?:micro|milli)?seconds?|minutes?|thirds?|quarters?"


def test_the_readme_has_no_figure_beside_constants_and_what_is_generated() -> None:
    written = re.sub(r"<!-- ([^>]+) -->.*?<!-- end of \1 -->", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    figures = re.findall(rf"\b(?:{NUMBER})(?:{UNIT})(?!\w)", written)
    assert {" ".join(figure.split()) for figure in figures} == CONSTANTS.keys()


def test_doctests_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--doctest-modules", str(ROOT / "parenv"), "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout
