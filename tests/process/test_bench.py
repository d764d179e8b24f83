"""Check the measurements, files and errors of ``parenv bench`` in short runs with real processes."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
from envs import Plain

from parenv.bench.benchmark import BenchReport, Progress, bench
from parenv.bench.subjects import other_vector_envs
from parenv.cli.main import main

BROKEN = """
import gymnasium as gym

class Broken(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        raise ValueError("the simulator is not there")
"""


@pytest.mark.more
def test_a_closed_pipe_ends_the_command_without_a_message() -> None:
    arguments = [sys.executable, "-m", "parenv", "bench", "CartPole-v1", "--seconds", "0.5", "--num-workers", "1"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


@pytest.mark.more
def test_the_error_for_a_full_disk_is_one_line() -> None:
    arguments = ["CartPole-v1", "--seconds", "0.2", "--repeats", "1", "--num-envs", "1", "--num-workers", "1"]
    command = [sys.executable, "-m", "parenv", "bench", *arguments, "--no-pool", "--json", "/dev/full"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 1
    assert done.stderr == "parenv bench: /dev/full cannot be written: No space left on device\n"
    assert "SyncVectorEnv" in done.stdout


@pytest.mark.more
def test_every_system_is_measured_and_json_and_plot_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json, plot = tmp_path / "out.json", tmp_path / "out.png"
    arguments = ["CartPole-v1", "--seconds", "1", "--repeats", "2", "--num-envs", "2", "4", "--num-workers", "1", "2"]
    assert main(["bench", *arguments, "--json", str(json), "--plot", str(plot)]) == 0
    report = BenchReport.from_json(json.read_text())
    assert [one.failure for one in report.throughput if one.env_steps_per_second is None] == []
    assert report.cost_failures == {}
    assert all(cost.low > 0 for cost in report.costs_s.values())
    assert list(report.costs_s) == [
        "env step",
        "env reset",
        *(f"policy, batch {n}" for n in (1, 8, 64, 256)),
        "publish to 2 workers",
    ]
    assert report.sizes_bytes["rollout, per env step"] == 4 * 4 + 8 + 4 + 1 + 1
    assert {(one.system, one.num_workers) for one in report.throughput if one.num_envs == 4} == {
        ("ParallelVectorEnv, default", None),
        *(("ParallelVectorEnv", workers) for workers in (0, 1, 2)),
        ("ParallelVectorEnv, caller steps", 1),
        *((name, workers) for name, workers, _ in other_vector_envs()),
        *((f"AsyncWorkerPool, {mode}", workers) for mode in ("sync", "async") for workers in (1, 2)),
    }
    assert plot.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "round 2 of 2" in printed.out
    assert "AsyncWorkerPool, async, 2 workers" in printed.out
    (chosen,) = {one.choice for one in report.throughput if one.num_envs == 4 and one.choice}
    assert f"ParallelVectorEnv, default, 4 envs: {chosen}" in printed.out


@pytest.mark.more
def test_bench_takes_a_lambda_and_a_policy_and_reports_its_progress() -> None:
    told: list[Progress] = []
    report = bench(
        lambda: gym.make("CartPole-v1"),
        agent=lambda observations: (observations[:, 2] > 0).astype(int),
        seconds=0.5,
        repeats=1,
        num_envs=[2],
        num_workers=[1, 4],
        watch=told.append,
    )
    assert report.sizes_bytes["weights"] == 0
    assert {one.num_workers for one in report.throughput} == {None, 0, 1}
    assert [one.failure for one in report.throughput if one.failure] == []
    assert (told[0].repeat, told[-1].repeat, told[-1].repeats) == (0, 1, 1)


@pytest.mark.more
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_environment_that_fails_in_workers_fails_only_the_systems_with_workers() -> None:
    def break_in_workers(env: object) -> None:
        if os.getpid() != driver:
            raise ValueError("not here")

    driver = os.getpid()
    make = functools.partial(Plain, on_step=break_in_workers)
    report = bench(make, seconds=0.5, repeats=1, num_envs=[2], num_workers=[1], pool=False)
    failures = {(one.system, one.num_workers): one.failure for one in report.throughput}
    assert failures["SyncVectorEnv", 0] is None
    assert failures["ParallelVectorEnv", 0] is None
    for name, workers in (("AsyncVectorEnv", None), ("ParallelVectorEnv", 1)):
        failure = failures[name, workers]
        assert failure is not None
        assert "not here" in failure


@pytest.mark.more
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_report_lists_the_failures_of_an_environment_that_fails_after_the_trial() -> None:
    class BreaksLate(gym.Env[int, int]):
        observation_space = action_space = gym.spaces.Discrete(2)
        was_tried = False

        def reset(self, *, seed: int | None = None, options: object = None) -> tuple[int, dict[str, object]]:
            return 0, {}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, object]]:
            if self.was_tried:
                raise ValueError("the simulator is lost")
            return 0, 0.0, False, False, {}

        def close(self) -> None:
            BreaksLate.was_tried = True

    report = bench(BreaksLate, seconds=0.5, repeats=1, num_envs=[2], num_workers=[1], pool=False)
    assert list(report.costs_s) == ["env reset"]
    assert report.cost_failures == {"env step": "ValueError: the simulator is lost"}
    assert all(one.failure is not None for one in report.throughput)


@pytest.mark.more
def test_the_error_for_a_broken_environment_names_the_exception_and_the_step(tmp_path: Path) -> None:
    (tmp_path / "my_broken_env.py").write_text(BROKEN)
    ran = subprocess.run(
        [sys.executable, "-m", "parenv", "bench", "my_broken_env:Broken"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2
    assert ran.stdout == ""
    words = "parenv bench: the environment my_broken_env:Broken does not run: ValueError in env step 1 with the action"
    assert ran.stderr.startswith(words)
    assert ran.stderr.endswith(": the simulator is not there\n")
