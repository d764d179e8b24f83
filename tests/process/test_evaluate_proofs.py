"""Check that evaluations of ten tasks write the same file on 1, 3 and 16 workers, and after kills and Ctrl-C."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch

import parenv
from parenv import RestartPolicy, WorkerOptions

pytestmark = pytest.mark.timeout(900)  # The first test in a process also runs the undisturbed evaluation.
EPISODES = 50
SIZES = {8: 4, 17: 6, 147: 7}
"""Number of outputs by number of observations."""
OFTEN = WorkerOptions(restart=RestartPolicy(max_restarts=10_000, window_s=1.0, backoff_s=0.01))
RUN = """
import sys
from test_evaluate_proofs import WorkerOptions, evaluate
evaluate(sys.argv[1], num_workers=2, resume=True)
"""


class Agent(torch.nn.Module):
    """Network with a part for each size of observations. Actions for HalfCheetah depend on all bits of the outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        nets = {str(size): torch.nn.Linear(64, outputs) for size, outputs in SIZES.items()}
        self.heads = torch.nn.ModuleDict(nets)
        self.bodies = torch.nn.ModuleDict(
            {str(size): torch.nn.Sequential(torch.nn.Linear(size, 64), torch.nn.Tanh()) for size in SIZES}
        )

    def forward(self, observations: Any) -> Any:
        name = str(observations.shape[1])
        if name == "4":
            return (
                observations[:, 2] + 0.2 * observations[:, 3] > 0
            ).long()  # This rule balances the pole for a while.
        found = self.heads[name](self.bodies[name](observations.float()))
        return found.tanh() if name == "17" else found.argmax(-1)


def make_short(name: str, steps: int) -> Any:
    return gym.make(name, max_episode_steps=steps)


def make_grid(name: str) -> Any:
    """Make an environment of MiniGrid with flat images as observations."""
    import minigrid  # noqa: F401  registers the environments

    env = gym.make(name, max_steps=40)
    return gym.wrappers.FlattenObservation(gym.wrappers.FilterObservation(env, ["image"]))


def make_pole(length: float) -> Any:
    env = gym.make("CartPole-v1")
    env.unwrapped.length = length  # type: ignore[attr-defined]
    return env


TASKS = {
    "pole": "CartPole-v1",
    "long pole": partial(make_pole, 1.0),
    "short pole": partial(make_pole, 0.25),
    "lander": "LunarLander-v3",
    "short lander": partial(make_short, "LunarLander-v3", 60),
    "cheetah": partial(make_short, "HalfCheetah-v5", 100),
    "shorter cheetah": partial(make_short, "HalfCheetah-v5", 30),
    "empty grid": partial(make_grid, "MiniGrid-Empty-5x5-v0"),
    "grid with a door": partial(make_grid, "MiniGrid-DoorKey-5x5-v0"),
    "grid of four rooms": partial(make_grid, "MiniGrid-FourRooms-v0"),
}


def evaluate(out: str | Path, **more: Any) -> parenv.evaluation.EvaluationReport:
    return parenv.evaluate(Agent(), TASKS, episodes=EPISODES, out=out, seed=3, **{"workers": OFTEN, **more})


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file, sorted and without the durations of the episodes."""
    _, *lines = map(json.loads, path.read_text().splitlines())
    return sorted(json.dumps({**line, "seconds": 0}) for line in lines)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the lines of an evaluation with one worker and without kills."""
    for library in ("Box2D", "mujoco", "minigrid"):
        pytest.importorskip(library)
    out = tmp_path_factory.mktemp("undisturbed") / "results.jsonl"
    report = evaluate(out, num_workers=1)
    assert report.overall.failures == {}
    lines = lines_of(out)
    assert len(set(lines)) == len(TASKS) * EPISODES
    for name in ("cheetah", "shorter cheetah", "lander", "short lander"):
        assert len(np.unique(report.returns(name))) > 10
    return lines


@pytest.mark.more
@pytest.mark.parametrize("num_workers", [3, 16])
def test_the_file_is_the_same_on_any_number_of_workers(num_workers: int, undisturbed: Any, tmp_path: Path) -> None:
    evaluate(tmp_path / "results.jsonl", num_workers=num_workers)
    assert lines_of(tmp_path / "results.jsonl") == undisturbed


@pytest.mark.more
def test_the_file_is_the_same_with_centralized_inference(undisturbed: Any, tmp_path: Path) -> None:
    evaluate(tmp_path / "results.jsonl", workers=WorkerOptions(step_workers=3))
    assert lines_of(tmp_path / "results.jsonl") == undisturbed


@contextmanager
def workers_killed_after_each(lines: int, out: Path) -> Iterator[list[int]]:
    """Kill a random worker after each further number of lines. Yield the process ids of killed workers, a growing list.

    Lines are counted instead of seconds, because an evaluation takes more seconds on a busy machine.
    """
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        choose, wanted = random.Random(0), lines
        while not over.wait(0.005):
            if not out.exists() or (written := out.read_bytes().count(b"\n")) < wanted:
                continue
            with suppress(psutil.NoSuchProcess):
                workers = [one for server in psutil.Process().children() for one in server.children()]
                if workers:
                    (victim := choose.choice(workers)).kill()
                    killed.append(victim.pid)
                    wanted = written + lines

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_the_file_is_the_same_with_workers_killed_after_each_40_lines(undisturbed: Any, tmp_path: Path) -> None:
    with workers_killed_after_each(40, tmp_path / "results.jsonl") as killed:
        report = evaluate(tmp_path / "results.jsonl", num_workers=3, retries=1000)
    assert report.overall.failures == {}
    assert killed
    assert lines_of(tmp_path / "results.jsonl") == undisturbed


def wait_for_lines(out: Path, wanted: int, running: subprocess.Popen[bytes]) -> None:
    """Wait until a running process has written a number of lines."""
    deadline = time.monotonic() + 250
    while not out.exists() or out.read_bytes().count(b"\n") < wanted:
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.more
def test_the_file_is_the_same_with_a_main_process_that_is_killed(undisturbed: Any, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    # The process must not write the last line before the signal arrives.
    for wanted in (30, 150, 151, 300):
        running = subprocess.Popen([sys.executable, "-c", RUN, str(out)], cwd=Path(__file__).parent)
        wait_for_lines(out, wanted, running)
        running.kill()
        running.wait()
    assert len(lines_of(out)) < len(undisturbed)
    evaluate(out, num_workers=1, resume=True)
    assert lines_of(out) == undisturbed


@pytest.mark.more
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("where", ["num_workers=2", "num_workers=0", "workers=WorkerOptions(step_workers=2)"])
def test_ctrl_c_ends_an_evaluation_and_leaves_whole_lines(where: str, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    command = [sys.executable, "-c", RUN.replace("num_workers=2", where), str(out)]
    running = subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.PIPE)
    wait_for_lines(out, 20, running)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors
    assert out.read_bytes().endswith(b"}\n")
    assert len(lines_of(out)) >= 19
