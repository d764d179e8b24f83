"""Step rates of vector envs, relative to an upper bound: two independent processes that only call ``env.step``.

python benchmarks/vector_env.py                  all cases
python benchmarks/vector_env.py cartpole-64 ...  some cases: cartpole-8, cartpole-64, cartpole-256, lunarlander-16,
                                                 halfcheetah-16, pong-8, sleeping-64, many-1024
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import psutil
from lib import stepping, subjects
from lib.common import RESULTS, IdealLoops, interleaved, pss_mb, save, summary
from lib.stepping import MAKERS, STEP_SECONDS, bare_loop, sampled_actions, send_recv_rate, step_rate
from lib.subjects import Sleeper

from parenv import ParallelVectorEnv

WORKERS = 2
REPEATS = 5
NAMES = {
    "limit": "two independent processes",
    "parenv": "ParallelVectorEnv, 2 workers",
    "parenv auto": 'ParallelVectorEnv, "auto"',
    "parenv in process": "ParallelVectorEnv, in process",
    "parenv halves": "ParallelVectorEnv, send/recv, double buffering",
    "yardstick": "prototype: shared memory and eventfd",
    "sync": "gymnasium SyncVectorEnv",
    "async": "gymnasium AsyncVectorEnv",
    "sb3": "SB3 SubprocVecEnv",
}


class Yardstick:
    """Minimal vector env: forked workers, shared memory, and one wake-up per worker and step.

    It has no error handling, infos, timeouts, supervision of its processes, or spaces other than arrays. The
    constructor forks, so the calling process must not have threads yet.

    Args:
        make: Function that makes an environment.
        num_envs: Number of sub-environments.
        actions: Batches of actions, ``[64, num_envs, ...]``, for shape and dtype.
    """

    def __init__(self, make: Callable[[], Any], num_envs: int, actions: Any) -> None:
        import mmap

        env = make()
        shape, dtype = env.observation_space.shape, env.observation_space.dtype
        env.close()
        row = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = mmap.mmap(-1, num_envs * (row + 4096) + actions[0].nbytes + 4096)
        self._observations = np.ndarray((num_envs, *shape), dtype, memory)
        at = num_envs * row + 4096 - num_envs * row % 4096
        self._rewards = np.ndarray((num_envs,), "f8", memory, at)
        self._flags = np.ndarray((2, num_envs), "?", memory, at + 8 * num_envs)
        at += 8 * num_envs + 2 * num_envs
        self._actions = np.ndarray(actions[0].shape, actions.dtype, memory, at + 64 - at % 64)
        self._wake_ups, self._answers, self._pids = [os.eventfd(0) for _ in range(WORKERS)], os.eventfd(0), []
        share = num_envs // WORKERS
        for worker in range(WORKERS):
            pid = os.fork()
            if pid == 0:
                self._work(make, worker, range(worker * share, (worker + 1) * share))
            self._pids.append(pid)

    def _work(self, make: Callable[[], Any], worker: int, rows: range) -> None:
        envs = [make() for _ in rows]
        for env in envs:
            env.reset()
        while True:
            os.eventfd_read(self._wake_ups[worker])
            for env, row, action in zip(envs, rows, self._actions[rows.start : rows.stop].copy(), strict=True):
                observation, self._rewards[row], terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    observation, _ = env.reset()
                self._observations[row] = observation
                self._flags[:, row] = terminated, truncated
            os.eventfd_write(self._answers, 1)

    def step(self, actions: Any) -> Any:
        """Step all sub-environments. Return copies of observations, rewards, terminated and truncated."""
        self._actions[:] = actions
        for wake_up in self._wake_ups:
            os.eventfd_write(wake_up, 1)
        left = WORKERS
        while left:
            left -= os.eventfd_read(self._answers)
        return self._observations.copy(), self._rewards.copy(), *self._flags.copy()

    def close(self) -> None:
        """Kill the processes and close their eventfds."""
        for pid in self._pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        for wake_up in (*self._wake_ups, self._answers):
            os.close(wake_up)


def compare(case: str, num_envs: int) -> dict[str, Any]:
    """Measure all systems in turn with the same environments and actions, and return their summary."""
    make = MAKERS[case]
    actions = sampled_actions(make, num_envs)
    factories = [make] * num_envs
    with contextlib.ExitStack() as stack:
        yardstick = Yardstick(make, num_envs, actions)  # Forks, so it must be made before any threads start.
        stack.callback(yardstick.close)
        loops = IdealLoops(lambda: bare_loop(make, actions[:, : num_envs // WORKERS]), WORKERS)
        stack.callback(loops.close)
        stepped: dict[str, Any] = {
            "parenv": ParallelVectorEnv(factories, num_workers=WORKERS),
            "parenv auto": ParallelVectorEnv(factories, num_workers="auto"),
            "parenv in process": ParallelVectorEnv(factories, num_workers=0),
            "yardstick": yardstick,
            "sync": gym.vector.SyncVectorEnv(factories),
            "async": gym.vector.AsyncVectorEnv(factories, context="fork"),
        }
        if num_envs <= 64:
            from stable_baselines3.common.vec_env import SubprocVecEnv

            stepped["sb3"] = SubprocVecEnv(factories, start_method="fork")
        halves = ParallelVectorEnv(factories, num_workers=WORKERS, batch_size=num_envs // 2)
        for envs in (*(envs for name, envs in stepped.items() if name != "yardstick"), halves):
            stack.callback(envs.close)
            envs.reset()
        measures = {"limit": lambda: loops.rate(STEP_SECONDS)}
        measures |= {name: lambda envs=envs: step_rate(envs, actions) for name, envs in stepped.items()}  # type: ignore[misc]
        measures["parenv halves"] = lambda: send_recv_rate(halves, actions)
        found = summary(interleaved(measures, REPEATS), "limit")
        found["auto chose"] = {"num_workers": stepped["parenv auto"].num_workers}
    return found


def sleeping(num_envs: int) -> dict[str, Any]:
    """Measure environments that sleep, each in its own worker. ``recv`` returns eight of them at a time."""
    actions = np.zeros((64, num_envs), np.int64)
    with contextlib.ExitStack() as stack:
        loops = IdealLoops(lambda: bare_loop(Sleeper, actions[:, :1]), num_envs)
        stack.callback(loops.close)
        envs = ParallelVectorEnv([Sleeper] * num_envs, num_workers=num_envs, batch_size=8)
        peer = gym.vector.AsyncVectorEnv([Sleeper] * num_envs, context="fork")
        for one in (envs, peer):
            stack.callback(one.close)
            one.reset()
        return summary(
            interleaved(
                {
                    "limit": lambda: loops.rate(STEP_SECONDS),
                    "parenv send/recv": lambda: send_recv_rate(envs, actions),
                    "async": lambda: step_rate(peer, actions),
                },
                REPEATS,
            ),
            "limit",
        )


def many(num_envs: int) -> dict[str, Any]:
    """Measure seconds to the first observations of CartPoles, and the memory of all processes but the main process."""
    factories = [MAKERS["cartpole"]] * num_envs
    ParallelVectorEnv(factories[:1], num_workers=1).close()

    def start(make: Callable[[], Any]) -> dict[str, float]:
        began = time.perf_counter()
        envs = make()
        envs.reset(seed=0)
        seconds = time.perf_counter() - began
        children = psutil.Process().children(recursive=True)
        found = {"seconds": round(seconds, 2), "processes": len(children), "pss_mb": pss_mb([c.pid for c in children])}
        envs.close()
        return found

    return {
        "parenv, 16 workers": start(lambda: ParallelVectorEnv(factories, num_workers=16)),
        "gymnasium AsyncVectorEnv": start(lambda: gym.vector.AsyncVectorEnv(factories, context="fork")),
    }


def wake_up_us() -> dict[str, float]:
    """Return the median round-trip time over two eventfds in microseconds, on one core and between two cores."""
    found = {}
    for name, core in (("same core", 0), ("other core", 1)):
        there, back = os.eventfd(0), os.eventfd(0)
        pid = os.fork()
        if pid == 0:
            os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
            while True:
                os.eventfd_read(there)
                os.eventfd_write(back, 1)
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        times = []
        for _ in range(3000):
            began = time.perf_counter()
            os.eventfd_write(there, 1)
            os.eventfd_read(back)
            times.append(time.perf_counter() - began)
        os.sched_setaffinity(0, cores)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        found[name] = round(float(np.median(times)) * 1e6, 1)
    return found


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw a bar chart per case with the share of the upper bound that each system reaches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = [name for name in NAMES if name != "limit"]
    cases = [case for case in CASES if case in results and "parenv" in results[case]]
    colours = ["#08519c", "#3182bd", "#6baed6", "#bdd7e7", "#e6550d", "#969696", "#bdbdbd", "#d9d9d9"]
    # With more than two panels per row, the bars are too small on a phone.
    figure, axes = plt.subplots(-(-len(cases) // 2), 2, figsize=(9, 2.4 * -(-len(cases) // 2)), layout="constrained")
    for column, (axis, case) in enumerate(zip(axes.flat, cases, strict=False)):
        shares = [results[case].get(name, {}).get("ratio_to_limit", 0.0) for name in shown]
        axis.barh(range(len(shown)), shares, 0.8, color=colours)
        for row, share in enumerate(shares):
            axis.text(share + 0.01, row, f"{share:.2f}" if share else "not measured", va="center", fontsize=9)
        axis.set_yticks(range(len(shown)), [NAMES[name] for name in shown] if column % 2 == 0 else [], fontsize=9)
        axis.set(title=case, xlim=(0, 1.08), ylim=(len(shown) - 0.4, -0.6), xticks=[])
        axis.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    figure.suptitle("Env steps/s on 2 cores, as a share of two independent processes")
    figure.savefig(path, dpi=110)


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    **{
        f"{name}-{n}": lambda name=name, n=n: compare(name, n)  # type: ignore[misc]
        for name, n in (
            ("cartpole", 8), ("cartpole", 64), ("cartpole", 256), ("lunarlander", 16), ("halfcheetah", 16), ("pong", 8)
        )
    },
    # Runs before the sleeping environments, because their fork server imports torch and would count as memory here.
    "many-1024": lambda: many(1024),
    "sleeping-64": lambda: sleeping(64),
}  # fmt: skip


def main() -> None:
    """Measure the cases that the command line names, preserve the results of the others, and draw all."""
    file = RESULTS / "vector_env.json"
    results: dict[str, Any] = json.loads(file.read_text())["results"] if file.exists() and sys.argv[1:] else {}
    results["wake-up round trip, us"] = wake_up_us()
    for case in sys.argv[1:] or CASES:
        print(case)
        results[case] = CASES[case]()
    save("vector_env", results)
    draw(results, RESULTS / "vector_env.png")


if __name__ == "__main__":
    # By value, so that workers do not import these modules and with them torch.
    for module in (stepping, subjects):
        cloudpickle.register_pickle_by_value(module)
    main()
