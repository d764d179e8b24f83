"""Check what workers have in common with the user's script: its names, its keys and its settings."""

from __future__ import annotations

import contextlib
import multiprocessing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from inside import pid_of
from scripts import printed_by

from parenv import NotPicklableError, ParallelVectorEnv, WorkerOptions

pytestmark = pytest.mark.timeout(200)
START_METHODS = ("fork", "spawn")


class Base(gym.Env[Any, Any]):
    """Environment without content."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, False, False, {}


MANAGED = """
import contextlib, logging, multiprocessing, os, signal, sys
import gymnasium as gym, numpy as np
from parenv import AsyncWorkerPool, ParallelVectorEnv, WorkerOptions

class Shared(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)
    def __init__(self, counts, log, lock):
        self.counts, self.log, self.lock = counts, log, lock
    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        with self.lock:
            self.counts["steps"] = self.counts.get("steps", 0) + 1
            self.log.append(int(action))
        return np.zeros(1, np.float32), 0.0, False, False, {}

if __name__ == "__main__":
    multiprocessing.current_process().authkey = b"of the script"
    with multiprocessing.Manager() as manager:
        counts, log, lock = manager.dict(), manager.list(), manager.Lock()
"""
IN_A_VECTOR_ENV = """
        workers = WorkerOptions(start_method=sys.argv[1])
        with contextlib.closing(
            ParallelVectorEnv([lambda: Shared(counts, log, lock)] * 4, num_workers=2, workers=workers)
        ) as envs:
            envs.reset()
            for _ in range(10):
                envs.step(np.array([0, 1, 0, 1]))
        print(counts["steps"], sorted(log) == [0] * 20 + [1] * 20)
"""
IN_A_POOL = """
        logging.disable()
        # A worker that dies while it waits for a lock of a manager would keep it.
        lock = contextlib.nullcontext()
        def zeros(observations):
            return np.zeros(len(observations), int)
        make = lambda: Shared(counts, log, lock)
        with AsyncWorkerPool(make, zeros, num_workers=1, num_envs=1, rollout_length=4) as pool:
            stream = pool.rollouts()
            next(stream)
            os.kill(pool._session.workers.pid(0), signal.SIGKILL)
            while not next(stream).restarted.any():
                pass
            before = len(log)
            next(stream)
            next(stream)
            print(len(log) > before)
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_environments_share_objects_of_a_manager_with_the_main_process(start_method: str) -> None:
    assert printed_by(MANAGED + IN_A_VECTOR_ENV, start_method) == "40 True\n"


@pytest.mark.more
def test_a_worker_that_is_replaced_shares_objects_of_a_manager_too() -> None:
    assert printed_by(MANAGED + IN_A_POOL) == "True\n"


def test_the_key_of_managers_is_on_no_command_line_and_in_no_environment() -> None:
    envs = ParallelVectorEnv([Base], num_workers=1, workers=WorkerOptions(start_method="spawn"))
    with contextlib.closing(envs):
        envs.reset()
        key = bytes(multiprocessing.current_process().authkey)
        seen = b"".join(Path(f"/proc/{pid_of(envs, 0)}/{name}").read_bytes() for name in ("cmdline", "environ"))
        assert seen
        assert key not in seen
        assert key.hex().encode() not in seen


def test_an_object_that_only_children_inherit_is_refused_with_a_way_out_in_arguments_of_calls_too() -> None:
    with contextlib.closing(ParallelVectorEnv([Base], num_workers=1)) as envs:
        envs.reset()
        with pytest.raises(NotPicklableError, match=r"Queue\) cannot be sent .*Share a multiprocessing.Manager"):
            envs.set_attr("queue", [multiprocessing.Queue()])
        envs.step(np.zeros(1, int))
