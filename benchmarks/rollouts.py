"""Rate of rollouts with a policy, compared with the upper bound: the same work in independent processes.

python benchmarks/rollouts.py               all cases
python benchmarks/rollouts.py cartpole ...  some cases: cartpole, sleeping, pong
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import torch
from lib.common import IdealLoops, ideal_loop, interleaved, pss_mb, rate_alone, save, summary
from lib.subjects import Agent, PixelAgent, Sleeper, act_with, make_pong, zeros

from parenv import AsyncWorkerPool, TorchPolicy

SECONDS, REPEATS = 3.0, 5


def trivial_learner(rollout: Any) -> None:
    """Read the rewards of a rollout."""
    rollout.rewards.sum()


def compare(make_env: Any, agent: Any, num_envs: int, num_workers: int, modes: tuple[str, ...], T: int = 128) -> Any:
    """Measure pools in several modes and the ideal loops in turn, and return their summary.

    Args:
        make_env: Function that makes an environment.
        agent: Torch module, or ``None`` for a policy that returns zeros.
        num_envs: Number of sub-environments.
        num_workers: Number of workers, and of ideal loops.
        modes: Modes of the pools.
        T: Length of a rollout in env steps.
    """
    act = act_with(agent) if agent is not None else lambda observations: [0] * len(observations)
    policy = TorchPolicy(agent) if agent is not None else zeros
    share = num_envs // num_workers
    loops = IdealLoops(lambda: ideal_loop(make_env, act, share), num_workers)
    pools = {
        mode: AsyncWorkerPool(
            make_env,
            policy,
            num_envs=num_envs,
            num_workers=num_workers,
            mode=mode,
            rollout_length=T,  # type: ignore[arg-type]
        )
        for mode in modes
    }
    measures: Any = {"ideal": lambda: loops.rate(SECONDS)}
    for mode, pool in pools.items():
        learn = trivial_learner if mode == "sync" else None
        measures[mode] = lambda pool=pool, learn=learn: rate_alone(pool, SECONDS, learn)
    found = summary(interleaved(measures, REPEATS), "ideal")
    placement = {mode: pool._session.workers for mode, pool in pools.items()}
    for mode, workers in placement.items():
        found[mode]["pss_mb_of_all_workers"] = pss_mb([workers.pid(worker) for worker in range(len(workers.shares))])
    for pool in pools.values():
        pool.close()
    loops.close()
    return found


def cartpole() -> Any:
    """Measure 64 CartPoles in 2 workers with an MLP."""
    return compare(lambda: gym.make("CartPole-v1"), Agent(), 64, 2, ("async", "sync"))


def sleeping() -> Any:
    """Measure 64 environments that sleep, in 64 workers."""
    return compare(Sleeper, None, 64, 64, ("async",))


def pong() -> Any:
    """Measure 8 Pongs from pixels in 2 workers, with convolutions and with a policy that returns zeros."""
    return {
        "convolutions": compare(make_pong, PixelAgent(), 8, 2, ("async", "sync")),
        "no policy": compare(make_pong, None, 8, 2, ("async", "sync")),
    }


CASES = {"cartpole": cartpole, "sleeping": sleeping, "pong": pong}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        print(case)
        save(f"rollouts_{case}", CASES[case]())
