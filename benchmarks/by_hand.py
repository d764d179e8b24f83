"""Is a vector env near the loop that one would write by hand? Steps and processor time of both, in windows in turn.

By hand is a worker for each pipe, arrays in shared memory, and nothing else: no infos, errors, limits or spaces other
than arrays.

python benchmarks/by_hand.py                  all cases
python benchmarks/by_hand.py cartpole-64 ...  some of: cartpole-8, cartpole-64, lunarlander-16, halfcheetah-16
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import psutil
from lib.common import IdealLoops, keep
from lib.stepping import MAKERS, bare_loop, sampled_actions

from parenv import ParallelVectorEnv

WORKERS, WINDOW_S, WINDOWS, WARM_UPS = 2, 0.15, 21, 2
CASES = {"cartpole-8": 8, "cartpole-64": 64, "lunarlander-16": 16, "halfcheetah-16": 16}
LIMIT, BY_HAND, SYNC = "two bare loops", "by hand", "SyncVectorEnv"


class ByHand:
    """Forked workers that are told by pipes, and arrays that all see."""

    def __init__(self, make: Callable[[], Any], num_envs: int, actions: Any) -> None:
        env = make()
        shape, dtype = env.observation_space.shape, env.observation_space.dtype
        env.close()
        self._observations = _shared((num_envs, *shape), dtype)
        self._rewards, self._flags = _shared((num_envs,), "f8"), _shared((2, num_envs), "?")
        self._actions = _shared(actions[0].shape, actions.dtype)
        self._pipes, self.processes = [], []
        for rows in np.array_split(np.arange(num_envs), WORKERS):
            ours, theirs = multiprocessing.Pipe()
            worker = multiprocessing.get_context("fork").Process(
                target=self._work, args=(make, rows, theirs), daemon=True
            )
            worker.start()
            self._pipes.append(ours)
            self.processes.append(worker.pid)

    def _work(self, make: Callable[[], Any], rows: Any, pipe: Any) -> None:
        envs = [make() for _ in rows]
        for env in envs:
            env.reset()
        own = slice(rows[0], rows[-1] + 1)
        while pipe.recv_bytes():
            observations, rewards, ends, truncations = [], [], [], []
            for env, action in zip(envs, self._actions[own], strict=True):
                observation, reward, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    observation, _ = env.reset()
                observations.append(observation)
                rewards.append(reward)
                ends.append(terminated)
                truncations.append(truncated)
            np.stack(observations, out=self._observations[own], casting="same_kind")
            self._rewards[own], self._flags[0, own], self._flags[1, own] = rewards, ends, truncations
            pipe.send_bytes(b"x")

    def reset(self) -> None:
        """Workers have done so."""

    def step(self, actions: Any) -> Any:
        """Step all."""
        self._actions[:] = actions
        for pipe in self._pipes:
            pipe.send_bytes(b"x")
        for pipe in self._pipes:
            pipe.recv_bytes()
        return self._observations.copy(), self._rewards.copy(), *self._flags.copy()

    def close(self) -> None:
        """End the processes."""
        for pid in self.processes:
            psutil.Process(pid).kill()


def _shared(shape: Sequence[int], dtype: Any) -> Any:
    import mmap

    count = int(np.prod(shape))
    return np.ndarray(shape, dtype, mmap.mmap(-1, max(1, count * np.dtype(dtype).itemsize)))


class Window(NamedTuple):
    """What one window had.

    Args:
        rate: env steps per second.
        driver_us: processor time of this process for a step of all, in microseconds.
        worker_us: the same of each worker.
    """

    rate: float
    driver_us: float
    worker_us: float


def window(envs: Any, actions: Any, processes: Sequence[int]) -> Window:
    """Step for a while."""
    workers = [psutil.Process(pid) for pid in processes]
    before, own = sum(map(_processor_s, workers)), time.process_time()
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < WINDOW_S:
        for _ in range(8):
            envs.step(actions[count % 64])
            count += 1
    driver_us = (time.process_time() - own) / count * 1e6
    worker_us = (sum(map(_processor_s, workers)) - before) / max(1, len(workers)) / count * 1e6
    return Window(count * actions.shape[1] / elapsed, driver_us, worker_us)


def _processor_s(process: psutil.Process) -> float:
    with open(f"/proc/{process.pid}/schedstat") as file:
        return int(file.read().split()[0]) * 1e-9


def compare(case: str) -> dict[str, Any]:
    """Everybody in turn: medians, and medians of ratios of the windows of one turn."""
    name, num_envs = case.split("-")[0], CASES[case]
    make = MAKERS[name]
    actions, factories = sampled_actions(make, num_envs), [make] * num_envs
    with contextlib.ExitStack() as stack:
        by_hand = ByHand(make, num_envs, actions)  # It forks, and so comes before anything has threads.
        loops = IdealLoops(lambda: bare_loop(make, actions[:, : num_envs // WORKERS]), WORKERS)
        stack.callback(loops.close)
        stepped: dict[str, Any] = {
            BY_HAND: by_hand,
            SYNC: gym.vector.SyncVectorEnv(factories),
            "parenv, two workers": ParallelVectorEnv(factories, num_workers=WORKERS),
            "parenv, caller and one worker": ParallelVectorEnv(factories, num_workers=1, caller_steps=True),
            "parenv, the same, spin_us=100": ParallelVectorEnv(
                factories, num_workers=1, caller_steps=True, spin_us=100
            ),
            "parenv, the same, spin_us=0": ParallelVectorEnv(factories, num_workers=1, caller_steps=True, spin_us=0),
        }
        found: dict[str, list[Window]] = {LIMIT: [], **{name: [] for name in stepped}}
        for envs in stepped.values():
            stack.callback(envs.close)
            envs.reset()
        for _ in range(WARM_UPS + WINDOWS):
            found[LIMIT].append(Window(loops.rate(WINDOW_S), 0.0, 0.0))
            for name, envs in stepped.items():
                found[name].append(window(envs, actions, _workers(envs)))
    return _summary({name: windows[WARM_UPS:] for name, windows in found.items()})


def _workers(envs: Any) -> list[int]:
    if isinstance(envs, ParallelVectorEnv):
        workers = envs._session.backend.workers  # type: ignore[attr-defined]
        return [workers.pid(worker) for worker in range(envs.num_workers)]
    return list(getattr(envs, "processes", ()))


def _summary(found: dict[str, list[Window]]) -> dict[str, Any]:
    def ratio(name: str, reference: str) -> float:
        pairs = zip(found[name], found[reference], strict=True)
        return round(statistics.median(one.rate / other.rate for one, other in pairs), 3)

    return {
        name: {
            "env_steps_per_s": round(statistics.median(one.rate for one in windows)),
            "driver_us": round(statistics.median(one.driver_us for one in windows), 1),
            "worker_us": round(statistics.median(one.worker_us for one in windows), 1),
            **{f"ratio_to_{reference}": ratio(name, reference) for reference in (LIMIT, BY_HAND, SYNC)},
        }
        for name, windows in found.items()
    }


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        found = compare(case)
        keep("by_hand", case, found)
        print(case)
        for name, one in found.items():
            print(f"  {name:32}", *one.values())
