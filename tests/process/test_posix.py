"""Check the layer of any POSIX system on Linux: the same results, restarts, and nothing left after any end."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from scripts import printed_by

LIMIT_S = 120.0
STEPPING = """
import sys, numpy as np, parenv
from parenv.platform import system
workers = parenv.WorkerOptions(start_method=sys.argv[1])
envs = parenv.ParallelVectorEnv(["CartPole-v1"] * 4, num_workers=2, workers=workers)
rows = [envs.reset(seed=3)[0]] + [envs.step(np.arange(4) % 2)[0] for _ in range(40)]
envs.close()
print(system.NAME, float(np.array(rows).sum()).hex())
with parenv.AsyncWorkerPool(
    "CartPole-v1", lambda o: o[:, 2] > 0, num_workers=2, mode="sync", seed=5, workers=workers, rollout_length=8
) as pool:
    print(*sorted(float(rollout.observations.sum()).hex() for rollout, _ in zip(pool.rollouts(), range(6))))
"""
RESTARTED = """
import os, shutil, signal, sys, numpy as np, parenv
from parenv.process import launcher
with parenv.AsyncWorkerPool("CartPole-v1", lambda o: o[:, 2] > 0, num_workers=2, rollout_length=8) as pool:
    rollouts = pool.rollouts()
    next(rollouts)
    (fork_server,) = launcher._fork_servers.values()
    if "without its folder" in sys.argv:
        shutil.rmtree(fork_server.folder)
    os.kill(pool._session.workers.pid(1), signal.SIGKILL)
    while not next(rollouts).restarted.any():
        pass
    delivered = {1}
    while delivered != {0, 1}:
        delivered.add(next(rollouts).worker)
    print(pool.statistics().worker_restarts == 1, oct(os.stat(fork_server.folder).st_mode))
"""
WAITING = """
import os, sys, time, parenv
from parenv.process import launcher
envs = parenv.ParallelVectorEnv(["CartPole-v1"] * 2, num_workers=2)
envs.reset()
(fork_server,) = launcher._fork_servers.values()
workers = [envs._session.backend.workers.pid(worker) for worker in range(2)]
print(fork_server.folder, os.getpid(), fork_server._process.pid, *workers, flush=True)
time.sleep(1000)
"""


@pytest.mark.linux  # It runs the layer of Linux too.
@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.more)])
def test_results_are_the_same_as_on_linux(start_method: str) -> None:
    of_linux, of_posix = (
        printed_by(STEPPING, start_method, PARENV_PLATFORM=name).split() for name in ("linux", "posix")
    )
    assert [of_linux.pop(0), of_posix.pop(0)] == ["linux", "posix"]
    assert of_linux == of_posix


@pytest.mark.parametrize("how", ["as usual", "without its folder"])
def test_a_killed_worker_is_restarted(how: str) -> None:
    assert printed_by(RESTARTED, how, PARENV_PLATFORM="posix") == "True 0o40700\n"


@pytest.mark.parametrize("victims", ["main process", "fork server", "both", "main process, fork server stopped"])
def test_nothing_is_left_of_killed_processes(victims: str) -> None:
    environment = {**os.environ, "PARENV_PLATFORM": "posix"}
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        folder, *numbers = process.stdout.readline().decode().split()
        main_process, fork_server, *workers = map(int, numbers)
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        assert len(os.listdir(folder)) == 2
        watched = [psutil.Process(pid) for pid in workers]
        watched += psutil.Process(fork_server).children()
        if "stopped" in victims:
            os.kill(fork_server, signal.SIGSTOP)
        if victims in ("fork server", "both"):
            os.kill(fork_server, signal.SIGKILL)
        if victims != "fork server":
            os.kill(main_process, signal.SIGKILL)
        _, alive = psutil.wait_procs(watched, timeout=LIMIT_S)
        assert not alive
        deadline = time.monotonic() + LIMIT_S
        while Path(folder).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not Path(folder).exists()
        process.kill()


def test_a_finished_script_leaves_no_folder() -> None:
    folder = printed_by(WAITING.replace("time.sleep(1000)", ""), PARENV_PLATFORM="posix").split()[0]
    assert Path(folder).parent == Path(tempfile.gettempdir())
    assert not Path(folder).exists()


def test_addresses_are_short_if_the_temporary_folder_has_a_long_path(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    script = WAITING.replace("time.sleep(1000)", "")
    folder = printed_by(script, PARENV_PLATFORM="posix", TMPDIR=str(long)).split()[0]
    assert Path(folder).parent == Path("/tmp")
    assert not Path(folder).exists()
