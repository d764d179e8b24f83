"""Check the examples with special learners: off-policy learners, several learners of one network, and populations."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from sampling import one_in
from test_examples import EXAMPLES, load

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
MARKER = "PARENV_TEST_RUN"
DYING = """
import os, sys, time
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from parenv import AsyncWorkerPool
from parenv.learning import all_reduce_gradients

dist.init_process_group("gloo")
module = nn.Linear(4, 2)

def lean(observations):
    return (observations[:, 2] > 0).astype(np.int64)

with AsyncWorkerPool("CartPole-v1", lean, num_envs=8, num_workers=4, mode="sync", rollout_length=8) as pool:
    for count, rollout in enumerate(pool.rollouts()):
        if count == 20 and dist.get_rank() == 1:
            while not os.path.exists(sys.argv[1]):
                time.sleep(0.01)
            os._exit(7)
        module(torch.tensor(rollout.observations)).square().mean().backward()
        all_reduce_gradients(module)
        if count == 10:
            print("learning", flush=True)
"""


@pytest.mark.more
@pytest.mark.parametrize("algorithm", one_in(2, ["sac", "ddpg", "td3"]))
def test_an_off_policy_learner_keeps_the_ratio_between_samples_and_inserts(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = ["--total-env-steps", "1000", "--learning-starts", "200", "--evaluation-episodes", "2"]
    sac: Any = load("sac", monkeypatch)
    curve = sac.main(["--algorithm", algorithm, *short, "--error-buffer", "4096"])
    samples, inserts = curve.limiter.samples, curve.limiter.inserts
    assert 1000 <= inserts < 1000 + 16
    assert len(curve.losses) == samples // 128
    assert abs((inserts - 200) * 64 - samples) <= 4096
    assert np.isfinite(curve.losses).all()
    assert -2000 < curve.evaluated < 0
    assert curve.points[-1][0] == inserts


@pytest.mark.more
def test_one_learner_reports_at_every_milestone_and_gets_better(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    load("dqn", monkeypatch)
    rows = load("dqn_ddp", monkeypatch).main(["--iterations", "20", "60", "--evaluation-episodes", "4"])
    assert [row.iterations for row in rows] == [20, 60]
    assert [row.env_steps for row in rows] == [20 * 128, 60 * 128]
    assert all(np.isfinite(row).all() for row in rows)
    assert 0 < rows[0].seconds < rows[1].seconds
    assert rows[1].steps_balanced > 30
    assert capsys.readouterr().out.splitlines()[1:] == [str(row) for row in rows]


@pytest.mark.more
def test_two_learners_report_once_and_count_all_env_steps(tmp_path: Path) -> None:
    command = [*TORCHRUN, str(EXAMPLES / "dqn_ddp.py"), "--iterations", "5", "12", "--learning-starts", "500"]
    with Learners(command, tmp_path) as learners:
        output, errors = learners.finish()
    assert learners.returncode == 0, errors
    title, *rows = [line.split() for line in output.splitlines()]
    assert title[:2] == ["iterations", "seconds"]
    assert [(row[0], row[3]) for row in rows] == [("5", "640"), ("12", "1536")]
    assert learners.left() == []


@pytest.mark.more
def test_a_learner_that_dies_ends_the_others_and_nothing_is_left_behind(tmp_path: Path) -> None:
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    with Learners([*TORCHRUN, str(script), str(tmp_path / "die")], tmp_path) as learners:
        learners.wait_for_lines(2)
        assert len(learners.left()) == 1 + 2 + 2 + 4, "the launcher, learners, their fork servers, workers"
        (tmp_path / "die").touch()
        errors = learners.finish()[1]
        assert learners.returncode == 1
        assert re.search(r"rank +: 1 \(local_rank: 1\)\n +exitcode +: 7 ", errors), errors
        deadline = time.monotonic() + 120
        while (left := learners.left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert left == []


class Learners:
    """Run of torchrun whose processes, including workers, have a mark. At its end, remaining processes are killed."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self.mark = str(directory)
        environment = {**os.environ, MARKER: self.mark, "OMP_NUM_THREADS": "1"}
        self._launcher = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def returncode(self) -> int | None:
        return self._launcher.returncode

    def wait_for_lines(self, count: int) -> None:
        """Wait until the run has written a number of lines to stdout."""
        assert self._launcher.stdout is not None
        for _ in range(count):
            assert self._launcher.stdout.readline(), self.finish()[1]

    def finish(self) -> tuple[str, str]:
        """Wait for the end of the run; return its stdout and stderr."""
        return self._launcher.communicate(timeout=250)

    def left(self) -> list[str]:
        """Return descriptions of its processes that still run."""
        return [f"{process.pid}: {' '.join(words)}" for process, words in self._processes()]

    def _processes(self) -> list[tuple[psutil.Process, list[str]]]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARKER) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append((process, process.cmdline()))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def __enter__(self) -> Learners:
        return self

    def __exit__(self, *exc: object) -> None:
        for process, _ in self._processes():
            process.kill()
        self._launcher.communicate()


@pytest.mark.more
def test_a_population_learns_and_its_lineage_is_plotted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = ["--size", "4", "--every", "256", "--tournament-size", "2", "--episodes", "2", "--total-env-steps", "4096"]
    files = [
        "--lineage",
        str(tmp_path / "l.jsonl"),
        "--plot",
        str(tmp_path / "l.png"),
        "--save",
        str(tmp_path / "b.pt"),
    ]
    curve: Any = load("population", monkeypatch).main([*size, *files])
    assert curve.points[-1][0] >= 4096
    assert (tmp_path / "l.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "b.pt").stat().st_size > 1000
    assert '"event":"copy"' in (tmp_path / "l.jsonl").read_text()
