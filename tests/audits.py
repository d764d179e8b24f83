"""Audits of pools and vector envs of ledgers, which can run until a condition holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from parenv import AsyncWorkerPool, ParallelVectorEnv, Stop
from parenv.testing import check_ledger
from parenv.testing.ledger import episode_length, ledger_reward

LATE_S = 120.0


def pause() -> None:
    time.sleep(0.005)


def until(holds: Callable[[], Any], act: Callable[[], object] = pause, seconds: float = LATE_S) -> float:
    """Repeat an action until a condition holds; return the seconds that it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, "the condition did not hold in time"
        act()
    return time.monotonic() - began


class Audit:
    """Audit that takes rollouts of ledgers and checks every transition.

    Args:
        pool: Pool whose environments are ledgers.
        seconds: Time limit of the stream of rollouts, in seconds.
    """

    def __init__(self, pool: AsyncWorkerPool, seconds: float = 250.0) -> None:
        self.pool, self.expected = pool, dict[int, tuple[int, ...]]()
        self._rollouts: Iterator[Any] = pool.rollouts(Stop(seconds=seconds))

    def next(self) -> Any:
        rollout = next(self._rollouts)
        check_ledger(rollout, self.expected)
        return rollout

    def take(self, env_steps: int) -> None:
        while env_steps > 0:
            env_steps -= self.next().num_steps

    def until(self, holds: Callable[[], Any], seconds: float = LATE_S) -> float:
        """Take rollouts until a condition holds; return the seconds that it took."""
        return until(holds, self.next, seconds)


class VectorAudit:
    """Audit that steps a vector env of ledgers in ``SAME_STEP`` mode and checks every row.

    Args:
        envs: Vector env, which is reset first.
    """

    def __init__(self, envs: ParallelVectorEnv) -> None:
        self.envs, self.restarts = envs, np.zeros(envs.num_envs, np.int64)
        self.last = np.array([[env_id, -1, 0] for env_id in range(envs.num_envs)])
        self.reset()

    def reset(self, masked: bool = False, restarted: Any = ()) -> None:
        """Reset the vector env and check the first observations of the next episodes.

        The next episode has number 0 if its sub-environment is restarted during the reset: the new one is reset once.
        """
        size = self.envs.num_envs
        observations, infos = self.envs.reset(options={"reset_mask": np.ones(size, bool)} if masked else None)
        assert not infos
        episodes = np.where(np.isin(range(size), restarted), -1, self.last[:, 1]) + 1
        assert observations.tolist() == [[i, episodes[i], 0] for i in range(size)]
        self.last = observations

    def step(self) -> list[int]:
        """Take a step, and return the env_ids that are flagged as restarted."""
        size = self.envs.num_envs
        observations, rewards, terminated, truncated, infos = self.envs.step(np.zeros(size, np.int64))
        flags = infos.get("worker_restarted", np.zeros(size, bool))
        for i in range(size):
            _, episode, step = self.last[i].tolist()
            ended = step + 1 >= episode_length(i, episode, 7)
            if flags[i]:
                expected = [i, 0, 0], 0.0, False, True
                assert infos["final_obs"][i].tolist() == self.last[i].tolist()
            else:
                after = [i, episode + 1, 0] if ended else [i, episode, step + 1]
                reward = ledger_reward(i, episode, step + 1)
                expected = after, reward, ended and episode % 2 == 0, ended and episode % 2 == 1
                assert not ended or infos["final_obs"][i].tolist() == [i, episode, step + 1]
            assert (observations[i].tolist(), rewards[i], terminated[i], truncated[i]) == expected
        self.last, self.restarts = observations, self.restarts + flags
        return np.flatnonzero(flags).tolist()
