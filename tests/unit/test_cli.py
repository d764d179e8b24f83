"""Check the parts of the command that start no process: names, plans, tables, reports and error messages."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import parenv.bench
from parenv.bench import benchmark as bench_module
from parenv.bench import output_files
from parenv.bench.agent import RandomNetwork
from parenv.bench.bench_display import (
    BenchDisplay,
    closing_lines,
    cost_table,
    failures,
    medians_table,
    throughput_tables,
)
from parenv.bench.benchmark import BenchReport, Progress, Throughput, bench
from parenv.bench.display import in_text
from parenv.bench.environment import environment_factory, named_factory, tried_out
from parenv.bench.measuring import (
    Found,
    Opened,
    Spread,
    Subject,
    grid,
    in_one_line,
    interleaved,
    machine,
    rollout_length,
    worker_counts,
)
from parenv.bench.subjects import acting, random_rows, step_cost
from parenv.cli import evaluate as evaluate_module
from parenv.cli.main import main, parser
from parenv.errors import ConfigurationError, RestartLimitError, WorkerError
from parenv.memory.spaces import leaves
from parenv.policy.devices import on_device
from parenv.worker.actor import Actor

AGENTS = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = torch.nn.Linear(4, 2, bias=False)

    def forward(self, observations):
        return self.scores(observations).argmax(-1)

def policy():
    return Net()

def with_learn():
    return Net(), print

def with_learn_and_loss():
    return Net(), print, print

def wrong_size():
    return torch.nn.Linear(8, 2)
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Sensitive(gym.Env[Any, Any]):
    """Environment with the given spaces that asserts that each action is in its action space."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 0.0, False, False, {}


def a_report() -> BenchReport:
    return BenchReport(
        environment="Some-v0",
        machine=machine(),
        repeats=3,
        slice_s=0.5,
        seconds=10.0,
        costs_s={"env step": Spread(2e-6, 1e-6, 3e-6)},
        sizes_bytes={"weights": 1000},
        throughput=(
            Throughput("SyncVectorEnv", 8, 0, Spread(1000.0, 900.0, 1100.0)),
            Throughput("AsyncVectorEnv", 8, None, None, "OSError: no more processes"),
            Throughput("ParallelVectorEnv", 8, 2, Spread(2000.0, 1900.0, 2100.0)),
            Throughput("SyncVectorEnv", 64, 0, Spread(1500.0, 1400.0, 1600.0)),
        ),
        cost_failures={"env reset": "ValueError: no seed"},
    )


def test_a_report_ends_with_the_fastest_systems_of_each_size_and_warns_of_a_busy_machine() -> None:
    idle = replace(a_report(), machine={**machine(), "cores": 2, "load_average": 0.5})
    pools = (
        Throughput("AsyncWorkerPool, sync", 64, 2, Spread(3000.0, 3000.0, 3000.0)),
        Throughput("AsyncWorkerPool, async", 64, 1, Spread(4000.0, 4000.0, 4000.0)),
        Throughput("AsyncWorkerPool, async", 64, 2, None, "OSError: no more processes"),
    )
    _, *fastest, advise = closing_lines(replace(idle, throughput=(*idle.throughput, *pools)))
    assert fastest == [
        "Fastest with 8 envs: ParallelVectorEnv, 2 workers, 2,000 env steps per second.",
        "Fastest with 64 envs: AsyncWorkerPool, async, 1 worker, 4,000 env steps per second.",
    ]
    assert advise == "In a training loop, pool.advice() also measures your learner, and names the setting to change."
    busy = replace(idle, machine={**idle.machine, "load_average": 1.5})
    assert "the load average before was 1.5 on 2 cores. Repeat" in closing_lines(busy)[1]


def test_the_fastest_system_may_be_of_another_library_and_a_system_that_also_acts_is_named_beside_it() -> None:
    def rate(system: str, num_workers: int | None, steps: float | None) -> Throughput:
        found = None if steps is None else Spread(steps, steps, steps)
        return Throughput(system, 8, num_workers, found, None if found else "OSError: lost")

    rows = [rate("SyncVectorEnv", 0, 9000.0), rate("ParallelVectorEnv", 2, 5000.0), rate("SB3 DummyVecEnv", 0, 8000.0)]
    acting = [rate("AsyncWorkerPool, sync", 2, 3000.0), rate("AsyncWorkerPool, async", 2, 1000.0)]

    def fastest(*rows: Throughput) -> list[str]:
        return [line for line in closing_lines(replace(a_report(), throughput=rows)) if line.startswith("Fastest")]

    first = "Fastest with 8 envs: SyncVectorEnv, 9,000 env steps per second."
    assert fastest(*rows) == [first]
    also = (
        "Fastest with 8 envs that also runs the policy: AsyncWorkerPool, sync, 2 workers, 3,000 env steps per second."
    )
    assert fastest(*rows, *acting) == [first, also]
    assert fastest(*rows[1:], *acting)[0].startswith("Fastest with 8 envs: SB3 DummyVecEnv, 8,000 ")
    assert fastest(rate("SyncVectorEnv", 0, None), rate("ParallelVectorEnv", 2, 5000.0))[0].startswith(
        "Fastest with 8 envs: ParallelVectorEnv, 2 workers, 5,000 "
    )
    assert fastest(rate("SyncVectorEnv", 0, None)) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, WorkerError("worker 0 is lost", worker=0)])
@pytest.mark.parametrize(
    ("out", "words"),
    [
        (None, "no results are stored. Pass --out PATH to store each episode."),
        ("new.jsonl", "new.jsonl has not been written yet. Run the command again."),
        ("old.jsonl", "the episodes so far are in old.jsonl. Run the command again with --resume to continue."),
    ],
)
def test_an_evaluation_that_ends_early_names_its_results_and_how_to_continue(
    out: str | None,
    words: str,
    error: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def end(*arguments: Any, **options: Any) -> Any:
        raise error

    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.jsonl").touch()
    (tmp_path / "my_agent.py").write_text("def make():\n    return None\n")
    monkeypatch.setattr(evaluate_module, "evaluate", end)
    interrupted = error is KeyboardInterrupt
    arguments = ["eval", "my_agent:make", "CartPole-v1", *(["--out", out] if out else [])]
    assert main(arguments) == (130 if interrupted else 1)
    last = "interrupted" if interrupted else "worker 0 is lost"
    assert capsys.readouterr().err == f"parenv eval: {words}\nparenv eval: {last}\n"


def test_a_message_of_a_command_names_its_flags(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.jsonl").touch()
    (tmp_path / "my_lean_agent.py").write_text("def make():\n    return lambda observations: observations[:, 2] > 0\n")
    assert main(["eval", "my_lean_agent:make", "CartPole-v1", "--out", "old.jsonl"]) == 2
    assert capsys.readouterr().err == (
        "parenv eval: --out 'old.jsonl' exists already. Pass --resume to continue it, or name another file.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["NoSuchThing-v0"], "the environment 'NoSuchThing-v0' must be registered with Gymnasium"),
        (["NoSuchThing"], "the environment NoSuchThing does not run: NameNotFound in being made"),
        (
            ["no_such_module_at_all:make"],
            "the module 'no_such_module_at_all' of 'no_such_module_at_all:make' cannot be imported",
        ),
        (["no_such_module_at_all:Env-v0"], "ModuleNotFoundError in being made"),
        (["math:no_such_function"], "'math:no_such_function' does not exist, because "),
        (["math:pi"], "'math:pi' must be a callable factory, got 3.14"),
        (["math:"], "a factory must be named module:name"),
        (["builtins:dict"], "must make a gymnasium.Env, got {}"),
        (["CartPole-v1", "--agent", "math:nothing"], "has no attribute 'nothing'"),
        (["CartPole-v1", "--agent", "builtins:input"], "the agent builtins:input cannot be made"),
        (["CartPole-v1", "--agent", "builtins:tuple"], "the agent builtins:tuple cannot be made: IndexError"),
        (["CartPole-v1", "--agent", "my_agents:wrong_size"], "the agent cannot act on 64 observations of Box([-4.8"),
        (["CartPole-v1", "--seconds", "0"], "seconds must be positive, got 0.0"),
        (["CartPole-v1", "--repeats", "0"], "repeats must be"),
        (["CartPole-v1", "--num-envs", "0"], "num_envs must be"),
        (["CartPole-v1", "--num-workers", "0"], "num_workers must be"),
        (["CartPole-v1", "--json", "/no/such/place.json"], "there is no directory /no/such"),
        (["CartPole-v1", "--plot", "/no/such/place.png"], "there is no directory /no/such"),
        (["CartPole-v1", "--json", "/"], "/ cannot be written: it is a directory"),
        (["CartPole-v1", "--plot", "/tmp/place.xyz"], "the format of a plot must be one of "),
    ],
)
def test_invalid_arguments_are_refused_before_anything_starts(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(bench_module, "interleaved", pytest.fail)
    (tmp_path / "my_agents.py").write_text(AGENTS)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["bench", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("parenv bench: ")
    assert words in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("arguments", [[], ["bench"], ["no_such_command"], ["bench", "CartPole-v1", "--repeats", "x"]])
def test_a_wrong_command_line_ends_with_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: parenv" in capsys.readouterr().err


def test_the_command_has_the_defaults_of_the_function() -> None:
    options = vars(parser().parse_args(["bench", "CartPole-v1"]))
    defaults = bench.__kwdefaults__
    for name in ("agent", "seconds", "num_workers", "repeats", "pool"):
        assert options[name] == defaults[name]
    assert tuple(options["num_envs"]) == defaults["num_envs"]


def test_ctrl_c_prints_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_module, "interleaved", interrupt)
    assert main(["bench", "CartPole-v1", "--no-pool"]) == 130
    assert capsys.readouterr().err == "parenv bench: interrupted\n"


def test_an_error_of_parenv_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: Any) -> Any:
        raise RestartLimitError(0, [0, 1], [OSError("no room")])

    monkeypatch.setattr(bench_module, "interleaved", fail)
    assert main(["bench", "CartPole-v1", "--no-pool"]) == 1
    words = "worker 0 (env_ids 0-1) has died 1 times, more often than RestartPolicy allows:\n1. OSError: no room\n"
    assert capsys.readouterr().err == f"parenv bench: {words}"


def test_an_environment_is_named_by_id_or_by_module_and_factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium as gym\nclass Makers:\n    def pole():\n        return gym.make('CartPole-v1')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("CartPole-v1", "gymnasium:CartPole-v1", "my_envs:Makers.pole"):
        found = tried_out(name)
        assert (found.name, found.action_space) == (name, spaces.Discrete(2))
        assert found.step_s > 0
    assert named_factory("my_envs:Makers.pole") is environment_factory("my_envs:Makers.pole")


def test_the_error_for_an_environment_that_raises_has_the_step_and_the_action() -> None:
    def broken() -> Any:
        env = Sensitive(spaces.Discrete(2), spaces.Discrete(2))
        env.step = lambda action: 1 / 0  # type: ignore[method-assign]
        return env

    with pytest.raises(
        ConfigurationError, match=r"broken does not run: ZeroDivisionError in env step 1 with the action"
    ):
        tried_out(broken)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([2, 3], start=[1, 1]),
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.MultiBinary([2, 2]),
        spaces.Box(-2.0, 3.0, (2, 2)),
        spaces.Box(-np.inf, 0.0, (3,), np.float64),
        spaces.Box(5.0, np.inf, ()),
        spaces.Box(0, 255, (3,), np.uint8),
        spaces.Dict(a=spaces.Discrete(3), b=spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.MultiBinary(2)])),
    ],
    ids=str,
)
def test_the_small_network_fits_any_space_of_fixed_size_and_any_device(space: Any) -> None:
    def make() -> Any:
        return Sensitive(space, space)

    environment, network = tried_out(make), RandomNetwork(space, space)
    acting(environment, network, 4)()
    elsewhere = Actor(on_device(network, "meta"), leaves(space), leaves(space), "meta")
    assert {actions.device.type for actions in elsewhere.act(random_rows(space, 4), None)[0]} == {"meta"}


@pytest.mark.parametrize("text_is", ["observation_space", "action_space"])
def test_a_space_without_a_fixed_size_needs_an_agent_or_no_pool(text_is: str) -> None:
    both = {"observation_space": spaces.Discrete(2), "action_space": spaces.Discrete(2), text_is: spaces.Text(3)}
    with pytest.raises(ConfigurationError) as refused:
        RandomNetwork(**both)
    assert re.fullmatch(
        r"the default policy, a small network, does not support Text\(.*\)\. "
        r"Pass another policy with agent=\.\.\. or --agent module:factory\.",
        str(refused.value),
    )
    hint = f"{refused.value} Or compare vector envs only, with pool=False or --no-pool."
    with pytest.raises(ConfigurationError, match=f"^{re.escape(hint)}$"):
        bench(lambda: Sensitive(**both))


def test_bench_takes_the_policy_of_an_agent_that_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agents_that_learn.py").write_text(AGENTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(bench_module, "interleaved", lambda subjects, *_: [Found([1.0]) for _ in subjects])
    for name in ("policy", "with_learn", "with_learn_and_loss"):
        assert bench("CartPole-v1", agent=f"agents_that_learn:{name}").sizes_bytes["weights"] == 64


def test_advise_is_deprecated_and_runs_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agents_to_advise.py").write_text(AGENTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(bench_module, "interleaved", lambda subjects, *_: [Found([1.0]) for _ in subjects])
    with pytest.warns(DeprecationWarning, match=r"^parenv\.bench\.advise is deprecated and runs bench\. For"):
        report = parenv.bench.advise("CartPole-v1", agent=import_module("agents_to_advise").with_learn, num_workers=2)
    assert report.sizes_bytes["weights"] == 64
    assert main(["advise", "CartPole-v1", "--agent", "agents_to_advise:policy", "--num-workers", "1"]) == 0
    printed = capsys.readouterr()
    assert "env steps per second" in printed.out
    assert printed.err == (
        "parenv advise is deprecated and runs bench. For the bottleneck of a training loop, print pool.advice().\n"
    )
    with pytest.raises(SystemExit, match="2"):
        main(["advise", "CartPole-v1", "--rollout-length", "8"])
    assert "argument --rollout-length: parenv bench chooses the length itself." in capsys.readouterr().err


def test_the_plan_fits_the_machine_and_the_budget() -> None:
    assert [worker_counts(cores) for cores in (1, 2, 3, 4, 6)] == [(1,), (1, 2), (1, 2, 3), (1, 2, 4), (1, 2, 4, 6)]
    assert grid([64, 8, 8], [1, 16, 1]) == [(8, 1), (64, 1), (64, 16)]
    assert [rollout_length(row_s, 0.4) for row_s in (1e-6, 1e-3, 2e-3, 10.0)] == [128, 64, 32, 1]


def test_a_report_survives_json() -> None:
    report = a_report()
    assert BenchReport.from_json(report.to_json()) == report
    content = json.loads(report.to_json())
    assert content["throughput"][1]["failure"] == "OSError: no more processes"
    del content["cost_failures"]
    assert BenchReport.from_json(json.dumps(content)).cost_failures == {}


def test_the_description_of_the_machine_can_be_stored_as_json() -> None:
    facts = machine()
    assert json.loads(json.dumps(facts)) == facts
    assert {"gymnasium", "numpy", "torch"} <= set(facts["packages"])
    assert f"{facts['cores']} cores" in in_one_line(facts)


def test_tables_show_medians_ranges_ratios_and_failures() -> None:
    throughput = a_report().throughput
    first, second = throughput_tables(throughput)
    assert [line.split() for line in in_text(first)[2:]] == [
        ["SyncVectorEnv", "1,000", "900", "to", "1,100", "1.00"],
        ["AsyncVectorEnv", "failed"],
        ["ParallelVectorEnv,", "2", "workers", "2,000", "1,900", "to", "2,100", "2.00"],
    ]
    assert [line.split() for line in in_text(second)[2:]] == [
        ["SyncVectorEnv", "1,500", "1,400", "to", "1,600", "1.00"]
    ]
    assert medians_table(throughput, "title").rows == [
        ("SyncVectorEnv", "1,000", "1.00", "1,500", "1.00"),
        ("AsyncVectorEnv", "failed", "", "", ""),
        ("ParallelVectorEnv, 2 workers", "2,000", "2.00", "", ""),
    ]
    assert [line.split() for line in in_text(cost_table(a_report()))[2:]] == [
        ["env", "step", "2", "µs", "1", "µs", "to", "3", "µs"],
        ["env", "reset", "failed"],
        ["weights", "1", "kB"],
    ]
    assert failures(a_report()) == [
        "env reset failed: ValueError: no seed",
        "AsyncVectorEnv, 8 envs failed: OSError: no more processes",
    ]


def test_measurements_alternate_and_a_failure_ends_only_its_own_subject() -> None:
    log: list[str] = []

    def subject(name: str, figures: list[float], **options: Any) -> Subject:
        left = iter([0.0, *figures])

        def measure(seconds: float) -> float:
            log.append(name)
            return next(left)

        return Subject(name, lambda: Opened(measure, lambda: log.append(f"close {name}")), **options)

    def refuse() -> Opened:
        raise OSError("no more processes\nsecond line")

    subjects = [
        subject("a", [1.0, 2.0]),
        subject("b", [3.0]),
        Subject("c", refuse),
        subject("d", [4.0, 5.0], forks=True),
    ]
    told: list[str] = []
    found = interleaved(subjects, 2, 0.1, lambda doing, repeat, found: told.append(f"{repeat} {doing}"))
    assert [one.values for one in found] == [[1.0, 2.0], [3.0], [], [4.0, 5.0]]
    assert found[1].failure is not None
    assert found[1].failure.startswith("StopIteration")
    assert found[2].failure == "OSError: no more processes"
    assert log == ["d", "a", "b", *"abdabd", "close b", "close a", "close d"]
    assert told[:4] == ["0 starting d", "0 starting a", "0 starting b", "0 starting c"]


class Clock:
    """A clock that only its users move, in place of the module ``time``."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def move(self, seconds: float) -> float:
        self.now_s += max(seconds, 0.0)
        return 1.0


@pytest.mark.parametrize(
    ("starting_s", "closing_s", "overshoot_s", "total_s"),
    [
        (0.0, 0.0, 0.0, 60.0),
        (3.0, 1.0, 0.0, 60.0),
        (3.0, 1.5, 0.2, 60.0),
        (20.0, 10.0, 0.0, 3 * 30.0 + 15.0),  # Measurements keep a quarter of the time.
    ],
)
def test_the_time_of_a_benchmark_includes_starting_and_closing(
    starting_s: float, closing_s: float, overshoot_s: float, total_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("parenv.bench.measuring.time", clock)

    def opened() -> Opened:
        clock.move(starting_s)
        return Opened(
            lambda seconds: clock.move(seconds + (overshoot_s if seconds else 0)), lambda: clock.move(closing_s)
        )

    subjects = [Subject(str(weight), opened, weight) for weight in (0.25, 1.0, 2.0)]
    subjects.append(Subject("failing", lambda: Opened(lambda seconds: 1 / 0, lambda: None), 10.0))
    found = interleaved(subjects, 5, 60.0, lambda doing, repeat, found: None)
    assert [len(one.values) for one in found] == [5, 5, 5, 0]
    assert clock.now_s == pytest.approx(total_s, rel=0.1)
    light, middle, heavy, failed = (one.measured_s for one in found)
    assert failed == 0.0
    if not overshoot_s:
        assert (middle / light, heavy / middle) == (pytest.approx(4.0), pytest.approx(2.0))


def test_steps_of_one_step_episodes_are_measured_in_the_given_time() -> None:
    class OneStep(Sensitive):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            assert self.steps <= 100, "the measurement must end with the given time"
            return self.observation_space.sample(), 0.0, True, False, {}

    environment = tried_out(lambda: OneStep(spaces.Discrete(2), spaces.Discrete(2)))
    assert step_cost(environment).open().measure(0.0) > 0


def test_progress_is_plain_lines_in_a_file_and_a_live_table_in_a_terminal() -> None:
    plain, terminal = io.StringIO(), Terminal()
    for file in (plain, terminal):
        with BenchDisplay(file) as display:
            assert display.is_live == (file is terminal)
            for repeat in (0, 1, 1):
                display.update(Progress("the next one", repeat, 3, a_report().throughput))
            display.report(a_report())
        assert "ParallelVectorEnv, 2 workers" in file.getvalue()
        assert "AsyncVectorEnv, 8 envs failed: OSError" in file.getvalue()
    assert plain.getvalue().splitlines()[:2] == ["starting all systems", "round 1 of 3"]
    assert "round 1 of 3: the next one" in terminal.getvalue()


def visible(written: str) -> list[str]:
    return [line.rstrip() for line in re.sub(r"\x1b\[[\d?;]*[A-Za-z]", "", written).split("\n")]


@pytest.mark.parametrize("width", [34, 50, 80])
def test_values_are_not_cut_in_a_terminal_of_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with BenchDisplay(terminal) as display:
        display.report(a_report())
    lines = visible(terminal.getvalue())
    assert max(map(len, lines)) <= width
    for name, figure in (("SyncVectorEnv", "1,000"), ("env step", "2 µs"), ("weights", "1 kB")):
        assert [line for line in lines if re.search(rf"{name}\W* {figure}\W", line)]
    assert any("ParallelVectorEnv," in line and "2,000" in line for line in lines)
    assert width < 80 or sum("lowest to highest" in line for line in lines) == 3


def test_a_live_table_is_redrawn_if_the_terminal_is_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal, progress = Terminal(), Progress("the next one", 1, 3, a_report().throughput)
    with BenchDisplay(terminal) as display:
        for width in (80, 34):
            display._console.width = width
            display.update(progress)
        live = terminal.getvalue()
        display.report(a_report())
    # The live table uses the alternate screen, where each update is drawn from the upper left corner.
    assert live.startswith("\x1b[?1049h")
    assert terminal.getvalue()[len(live) :].startswith("\x1b[?25h\x1b[?1049l")
    assert max(map(len, visible(live.split("\x1b[H")[-1]))) <= 34


def test_square_brackets_are_not_markup() -> None:
    terminal = Terminal()
    failed = Throughput("AsyncVectorEnv", 8, None, None, "OSError: lost :ok: at [/dev/sim0] [red]")
    report = replace(a_report(), throughput=(failed,))
    with BenchDisplay(terminal) as display:
        display.update(Progress("[/next]", 1, 3, report.throughput))
        display.report(report)
    assert "round 1 of 3: [/next]" in terminal.getvalue()
    assert "failed: OSError: lost :ok: at [/dev/sim0] [red]" in terminal.getvalue()


def test_without_rich_a_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    terminal = Terminal()
    with BenchDisplay(terminal) as display:
        display.update(Progress("the next one", 1, 3, ()))
    assert terminal.getvalue() == "round 1 of 3\n"


def test_a_plot_without_matplotlib_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError, match=r"Run: pip install matplotlib$"):
        output_files.check_plotting()


def test_a_worker_host_runs_one_worker_per_usable_core_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[int] = []
    monkeypatch.setattr("parenv.cli.hosts.usable_cores", lambda: 3)
    monkeypatch.setattr("parenv.cli.hosts.read_host_keys", lambda path: None)
    monkeypatch.setattr("parenv.cli.hosts._leaving_on_signals", lambda: None)
    monkeypatch.setattr("parenv.cli.hosts.serve", lambda address, keys, num_workers, **more: served.append(num_workers))
    for more in ([], ["--num-workers", "7"]):
        main(["worker", "--connect", "tcp://127.0.0.1:5555", "--key", "key", *more])
    assert served == [3, 7]
