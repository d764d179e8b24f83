"""The ledger environment: every observation spells out where it comes from, so that a rollout can be audited."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from parenv.experience.rollout import Rollout

REWARD_MODULUS = 1 << 20


class LedgerEnv(gym.Env[Any, Any]):
    """Observation ``[env_id, episode, step]`` as int64, reward a hash of them.

    Episodes end at lengths that differ by env_id and episode, in turn by termination and by truncation. The observation
    buffer is one array that is reused and changed in place.

    Args:
        env_id: what it calls itself.
        max_length: the longest episode, in env steps.
    """

    def __init__(self, env_id: int, max_length: int = 7) -> None:
        self.observation_space = gym.spaces.Box(-1, 1 << 40, (3,), np.int64)
        self.action_space = gym.spaces.Discrete(2)
        self._buffer = np.array([env_id, -1, 0], np.int64)
        self._max_length = max_length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed)
        self._buffer[1] += 1
        self._buffer[2] = 0
        return self._buffer, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step; the action does not matter."""
        self._buffer[2] += 1
        env_id, episode, step = self._buffer.tolist()
        ended = step >= episode_length(env_id, episode, self._max_length)
        terminated = ended and episode % 2 == 0
        return self._buffer, ledger_reward(env_id, episode, step), terminated, ended and not terminated, {}


def episode_length(env_id: Any, episode: Any, max_length: int) -> Any:
    """Env steps of an episode, 1 to ``max_length``."""
    return 1 + (env_id * 5 + episode * 3) % max_length


def ledger_reward(env_id: Any, episode: Any, step: Any) -> Any:
    """The reward for arriving at this observation; exact in float32."""
    return float((env_id * 7919 + episode * 104729 + step * 1299709) % REWARD_MODULUS)


class LedgerError(AssertionError):
    """A rollout of ledger environments is not what they wrote."""


def check_ledger(rollout: Rollout, expected: dict[int, tuple[int, int]], max_length: int = 7) -> int:
    """Audit a rollout: order, loss, duplication, torn rows, episode ends, true next observations, and new beginnings.

    Args:
        rollout: of ledger environments, as arrays.
        expected: by env_id the ``(episode, step)`` that its next observation must show; updated.
        max_length: that of the environments.

    Returns:
        Env steps audited.

    Raises:
        LedgerError: the first thing that is wrong.
    """
    observations, following = rollout.observations, rollout.next_observations()
    for column, env_id in enumerate(np.asarray(rollout.env_ids).tolist()):
        episode, step = (0, 0) if rollout.restarted[column] else expected.get(env_id, (0, 0))
        for row in range(len(rollout.rewards)):
            _equal(observations[row, column].tolist(), [env_id, episode, step], "observation", row, column)
            step += 1
            _equal(following[row, column].tolist(), [env_id, episode, step], "next observation", row, column)
            _equal(float(rollout.rewards[row, column]), ledger_reward(env_id, episode, step), "reward", row, column)
            ended = step >= episode_length(env_id, episode, max_length)
            flags = [bool(rollout.terminated[row, column]), bool(rollout.truncated[row, column])]
            _equal(
                flags, [ended and episode % 2 == 0, ended and episode % 2 == 1], "terminated, truncated", row, column
            )
            if ended:
                episode, step = episode + 1, 0
        _equal(rollout.last_observations[column].tolist(), [env_id, episode, step], "last observation", -1, column)
        expected[env_id] = (episode, step)
    return rollout.num_steps


def _equal(got: Any, wanted: Any, what: str, row: int, column: int) -> None:
    if got != wanted:
        raise LedgerError(f"{what} at [{row}, {column}] is {got}, should be {wanted}")
