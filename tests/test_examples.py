"""Check that the examples run and learn, and that they need few changes for parenv."""

from __future__ import annotations

import difflib
import doctest
import importlib
import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

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
def test_the_pool_version_is_shorter_and_adds_at_most_20_lines(name: str) -> None:
    plain, pool = ((EXAMPLES / f"{name}{suffix}.py").read_text().splitlines() for suffix in ("_plain", ""))
    own = [line for line in difflib.ndiff(plain, pool) if re.match(r"\+ .*\S", line)]
    assert len(own) <= 20
    assert len(pool) < len(plain)


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ppo", []),
        ("ppo_plain", []),
        ("dqn_plain", ["--learning-starts", "1000"]),
        ("dqn", ["--learning-starts", "1000"]),
        ("trpo", []),
        pytest.param("dqn", ["--learning-starts", "1000", "--mode", "async"], marks=pytest.mark.soak),
    ],
)
def test_an_example_runs_and_gets_better(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    curve: Any = load(name, monkeypatch).main(["--total-env-steps", "16000", *arguments])
    steps, seconds, _ = curve.points[-1]
    assert steps >= 16000
    assert seconds > 0
    assert max(mean for _, _, mean in curve.points) > 35


def test_a_recurrent_agent_repeats_its_actions_from_the_initial_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    example: Any = load("recurrent_ppo", monkeypatch)
    torch.manual_seed(0)
    args = example.Args(num_envs=4, rollout_length=24)
    agent = example.make_agent(args)
    with example.make_pool(args, agent) as pool:
        for rollout, _ in zip(pool.rollouts(), range(3), strict=False):
            block = rollout.to("cpu")
            ends = block.terminated | block.truncated
            policy, value = agent.unroll(block.observations, block.initial_carry, ends)
            torch.testing.assert_close(policy.log_prob(block.actions), block.extras["log_prob"])
            torch.testing.assert_close(value, block.extras["value"])
            assert ends.any()


@pytest.mark.more
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("recurrent_ppo", ["--total-env-steps", "2048", "--epochs", "2"]),
        ("mappo", ["--total-env-steps", "400", "--num-envs", "4", "--rollout-length", "50", "--epochs", "1"]),
        ("atari_ppo", ["--total-env-steps", "64", "--num-envs", "2", "--rollout-length", "16", "--epochs", "1"]),
    ],
)
def test_examples_that_learn_slowly_run(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    example: Any = load(name, monkeypatch)
    curve = example.main(arguments)
    assert curve.points[-1][0] == int(arguments[1])


@pytest.mark.more
def test_self_play_has_a_league_of_its_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = ["--total-env-steps", "3000", "--freeze-every", "1000", "--num-envs", "8", "--games", "10"]
    files = ["--plot", str(tmp_path / "elo.png"), "--save", str(tmp_path / "agent.pt")]
    league, won = load("self_play", monkeypatch).main([*size, *files])
    assert league.players[:2] == ("random", "agent@0")
    assert len(league.players) == 4
    assert league.games[-1].any()
    assert 0 <= won <= 10
    assert {path.name for path in tmp_path.iterdir()} == {"elo.png", "agent.pt"}


@pytest.mark.soak
def test_self_play_beats_a_random_player_and_all_past_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    league, won = load("self_play", monkeypatch).main(["--num-workers", "1"])
    assert won >= 95
    assert (league.payoff()[-1, :6] > 0.75).all()
    ratings = list(league.elo().values())
    assert ratings[-1] > ratings[4] > ratings[1]


def test_agents_whose_tool_hangs_or_dies_leave_the_other_sessions_and_the_pool_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = ["--num-sessions", "12", "--num-envs", "3", "--latency-s", "0.01", "--step-timeout-s", "5"]
    ends, num_envs = load("llm_agents", monkeypatch).main(size)
    assert ends == {"right": 10, "step_timeout": 1, "worker_died": 1}
    assert num_envs == 3


def test_the_table_of_examples_is_complete_and_has_their_numbers_of_lines() -> None:
    table = (EXAMPLES / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)\.py` \|.*\| (\d+) \|[^|]*\|[^|]*\|$", table, re.MULTILINE)
    assert {name: int(lines) for name, lines in rows} == {
        path.stem: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")
    }
    for picture in re.findall(r"\]\(([^)]+)\)", table):
        assert (EXAMPLES / picture).exists()


PROGRAMS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "script")
UNTRAINED = {"half_batches", "llm_agents"}
SYNONYMS = {"--env-steps", "--steps", "--min-size-to-sample", "--envs", "--workers", "--lr", "--ddpg", "--td3"}


def help_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run an example with ``--help``; return its exit status or its message."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return ended.value.code


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_flag_of_an_example_is_explained_and_has_one_spelling(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "torchrl_ppo":
        pytest.importorskip("torchrl", reason="needs parenv[torchrl]")
    assert help_of(name, monkeypatch) == 0
    shown = capsys.readouterr().out
    options = re.split(r"\n  (?=-)", shown.partition("options:")[2])[1:]
    assert len(options) > 3
    for option in options:
        explained = re.search(r"  +(?!\(default)\S.*|\n +(?!\(default)\S", option)
        assert explained, f"{name}: {option}"
    spelled = set(re.findall(r"--[a-z_-]+", shown))
    assert not spelled & SYNONYMS
    assert not [flag for flag in spelled if "_" in flag]
    missing = {"--save", "--plot", "--seed", "--env-id", "--num-workers"} - spelled
    assert name in UNTRAINED or missing <= ({"--num-workers"} if name.endswith("_plain") else set())


@pytest.mark.parametrize("name", ["sac", "sb3_ppo"])
def test_without_stable_baselines_an_example_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in ["stable_baselines3", *(one for one in sys.modules if one.startswith("stable_baselines3."))]:
        monkeypatch.setitem(sys.modules, loaded, None)
    assert re.fullmatch(rf'{name}\.py .* Stable-Baselines3: pip install "\.\[sb3\]"', help_of(name, monkeypatch))


def test_without_torchrl_its_example_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in ["torchrl", "torchrl.modules", "tensordict", "tensordict.nn"]:
        monkeypatch.setitem(sys.modules, loaded, None)
    shown = help_of("torchrl_ppo", monkeypatch)
    assert re.fullmatch(r'torchrl_ppo\.py .* TorchRL: pip install "\.\[torchrl\]"', shown)


@pytest.mark.more
@pytest.mark.filterwarnings("ignore")  # TorchRL warns about its next version.
def test_torchrl_learns_on_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchrl", reason="needs parenv[torchrl]")
    curve = load("torchrl_ppo", monkeypatch).main(["--total-env-steps", "6144"])
    assert curve.points[-1][0] == 6144
    assert curve.mean_return > 30


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["ppo_plain", "sac", "sb3_ppo", "dqn_ddp"])
def test_the_trained_agent_is_saved_and_its_curve_is_plotted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load("dqn", monkeypatch)
    size = ["--iterations", "3"] if name == "dqn_ddp" else ["--total-env-steps", "600"]
    weights, curve = tmp_path / ("agent.zip" if name == "sb3_ppo" else "agent.pt"), tmp_path / "curve.png"
    load(name, monkeypatch).main([*size, "--save", str(weights), "--plot", str(curve)])
    assert curve.read_bytes().startswith(b"\x89PNG")
    if name != "sb3_ppo":
        assert all(isinstance(value, torch.Tensor) for value in torch.load(weights, weights_only=True).values())
    assert weights.stat().st_size > 1000


def test_an_invalid_path_is_refused_before_the_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        load("ppo", monkeypatch).main(["--save", "/no/such/agent.pt"])
    assert "error: cannot write /no/such/agent.pt: there is no directory /no/such\n" in capsys.readouterr().err


@pytest.mark.more
def test_replacing_one_import_changes_nothing_but_the_processes(tmp_path: Path) -> None:
    source = (EXAMPLES / "ppo_plain.py").read_text()
    old = "from gymnasium.vector import AutoresetMode, SyncVectorEnv\n"
    assert old in source
    new = "from gymnasium.vector import AutoresetMode\nfrom parenv import ParallelVectorEnv as SyncVectorEnv\n"
    shown = []
    for name, text in (("before.py", source), ("after.py", source.replace(old, new))):
        (tmp_path / name).write_text(text)
        command = [sys.executable, str(tmp_path / name), "--total-env-steps", "2048"]
        environment = os.environ | {"PYTHONPATH": str(EXAMPLES)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=EXAMPLES, env=environment)
        assert done.returncode == 0, done.stderr
        shown.append(re.sub(r" +[0-9.]+ s ", " ", done.stdout))
    assert "mean return" in shown[0]
    assert shown[0] == shown[1]


def test_half_batches_step_every_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, counts = load("half_batches", monkeypatch).main(["--total-env-steps", "20000", "--num-envs", "16"])
    assert 20_000 <= steps == counts.sum() < 20_000 + 8
    assert counts.min() > 0, "the share of each half depends on the load of the machine, but must not be 0"


@pytest.mark.more
def test_stable_baselines_gets_better_on_parallel_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, mean_return = load("sb3_ppo", monkeypatch).main(["--total-env-steps", "12000"])
    assert steps >= 12000
    assert mean_return > 50


def test_the_demo_trains_shows_progress_and_reports(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    load("ppo", monkeypatch)
    demo = load("demo", monkeypatch)
    demo.train(demo.Args(total_env_steps=4000))
    shown = capsys.readouterr()
    for figure in ("env steps", "env steps/s", "episodes", "mean return", "policy lag", "workers alive", "time "):
        assert figure in shown.err
    assert "What it measured" in shown.out


EXAMPLES_OF_GUIDES = {
    "gradients": (
        "docs/guides/gradients.md",
        "print(agent.actor[0].weight.grad.shape, pool.policy_version)",
        r"torch.Size\(\[64, 4\]\) 40$",
        "",
    ),
    "a checkpoint": (
        "docs/guides/resume-and-replay.md",
        "",
        "8 parts not restored, such as the episode of env_id 0, whose environment has no get_state",
        "not restored: ",
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", EXAMPLES_OF_GUIDES)
def test_the_first_examples_of_guides_run_as_plain_scripts(name: str, tmp_path: Path) -> None:
    page, more, shown, said = EXAMPLES_OF_GUIDES[name]
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(blocks[0] + more)
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=True
    )
    assert re.search(shown, done.stdout.strip()), done.stdout + done.stderr
    assert all(line.startswith(said) and said for line in done.stderr.splitlines()), done.stderr


PACKAGE = ROOT / "parenv"
NEEDED_BY = {
    "adapters/torchrl/pool_collector": "torchrl",
    "adapters/tianshou/parallel_venv": "tianshou",
    "exporting/onnx_policy": "onnxscript",
}
"""Library that each of these modules needs. Without it, the examples in its docstrings are skipped."""


@pytest.mark.more
def test_doctests_pass() -> None:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>>" in path.read_text()]
    assert paths
    for path in paths:
        parts = path.relative_to(ROOT).with_suffix("").parts
        if importlib.util.find_spec(NEEDED_BY.get("/".join(parts[1:]), "numpy")) is None:
            continue
        module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0, path
