"""An environment whose observations contain their origin, and an audit of its rollouts."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np

from parenv.envs.seeding import environment_seed
from parenv.experience.rollout import Rollout

REWARD_MODULUS = 1 << 20
MAX_RESTARTS, MAX_REPLACEMENTS = 200, 1000


class LedgerEnv(gym.Env[Any, Any]):
    """An environment with the observation ``[env_id, episode, step]`` as int64 and a hash of it as reward.

    The lengths of episodes differ by env_id and episode. Episodes end by termination and by truncation in turn. The
    environment reuses one observation array and changes it in place.

    Args:
        env_id: First number of every observation.
        max_length: Length of the longest episode, in env steps.
        pool_seed: Seed of the pool. With it, observations end with the generation, which follows from the seed of a
            reset. That proves that every restart and replacement has another seed.

    >>> from parenv import AsyncWorkerPool, Stop
    >>> def zeros(observations):
    ...     return np.zeros(len(observations), int)
    >>> makers = [functools.partial(LedgerEnv, env_id) for env_id in range(2)]
    >>> expected, audited = {}, 0
    >>> with AsyncWorkerPool(makers, zeros, num_workers=0, rollout_length=8) as pool:
    ...     for rollout in pool.rollouts(Stop(env_steps=64)):
    ...         audited += check_ledger(rollout, expected)
    >>> audited
    64
    """

    def __init__(self, env_id: int, max_length: int = 7, pool_seed: int | None = None) -> None:
        self._buffer = np.array([env_id, -1, 0] + [0] * (pool_seed is not None), np.int64)
        self.observation_space = gym.spaces.Box(-1, 1 << 40, self._buffer.shape, np.int64)
        self.action_space = gym.spaces.Discrete(2)
        self._max_length = max_length
        self._pool_seed = pool_seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed)
        self._buffer[1] += 1
        self._buffer[2] = 0
        if seed is not None and self._pool_seed is not None:
            self._buffer[3] = ledger_generation(self._pool_seed, int(self._buffer[0]), seed)
        return self._buffer, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step. The action has no effect."""
        self._buffer[2] += 1
        env_id, episode, step = self._buffer[:3].tolist()
        ended = step >= episode_length(env_id, episode, self._max_length)
        terminated = ended and episode % 2 == 0
        return self._buffer, ledger_reward(env_id, episode, step), terminated, ended and not terminated, {}


def episode_length(env_id: Any, episode: Any, max_length: int) -> Any:
    """Return the number of env steps of an episode, 1 to ``max_length``."""
    return 1 + (env_id * 5 + episode * 3) % max_length


def ledger_reward(env_id: Any, episode: Any, step: Any) -> Any:
    """Return the reward of the step to this observation, which is exact in float32."""
    return float((env_id * 7919 + episode * 104729 + step * 1299709) % REWARD_MODULUS)


def ledger_generation(pool_seed: int, env_id: int, seed: int) -> int:
    """Return ``1000 * restarts + replacements`` of the sub-environment to which a pool gives this seed."""
    # Few of both come first: a search through all replacements of every restart would take seconds.
    for both in range(MAX_RESTARTS + MAX_REPLACEMENTS):
        for restarts in range(max(0, both - MAX_REPLACEMENTS + 1), min(both + 1, MAX_RESTARTS)):
            if _seed(pool_seed, env_id, restarts, both - restarts) == seed:
                return MAX_REPLACEMENTS * restarts + both - restarts
    raise ValueError(f"seed must be one that a pool with seed={pool_seed} passes to env_id {env_id}, got {seed}")


_seed = functools.cache(environment_seed)


class LedgerError(AssertionError):
    """A rollout differs from the steps of its ledger environments."""


def check_ledger(rollout: Rollout, expected: dict[int, tuple[int, ...]], max_length: int = 7) -> int:
    """Audit a rollout for order, loss, duplication, torn rows, episode ends, next observations and restarts.

    An episode may be cut off between two rollouts if ``restarted`` is set. With generations, it may also be truncated
    within a rollout. In both cases the next episode must have a later generation. Steps that are not ``valid`` must be
    between the final observation of an episode and the first one of the next episode.

    Args:
        rollout: Rollout of ledger environments, as arrays.
        expected: ``(episode, step, ...)`` of the next observation, by env_id. It is updated.
        max_length: Maximum length of an episode of these environments. Default: 7.

    Returns:
        Number of audited env steps, without those that are not valid.

    Raises:
        LedgerError: The rollout is wrong. The message contains the first difference.
    """
    observations, following = rollout.observations, rollout.next_observations()
    for column, env_id in enumerate(np.asarray(rollout.env_ids).tolist()):
        generation = observations[0, column, 3:].tolist()
        episode, step, *before = expected.get(env_id, (0, 0, *generation))
        if rollout.restarted[column]:
            episode, step = 0, 0
            if env_id in expected:
                _check_later(generation, before, 0, column)
        else:
            generation = before
        for row in range(len(rollout.rewards)):
            _equal(observations[row, column].tolist(), [env_id, episode, step, *generation], "observation", row, column)
            only_resets = step > 0 and step >= episode_length(env_id, episode, max_length)
            _equal(bool(rollout.valid[row, column]), not only_resets, "valid", row, column)
            episode, step = (episode + 1, 0) if only_resets else (episode, step + 1)
            wanted = [env_id, episode, step, *generation]
            _equal(following[row, column].tolist(), wanted, "next observation", row, column)
            reward = 0.0 if only_resets else ledger_reward(env_id, episode, step)
            _equal(float(rollout.rewards[row, column]), reward, "reward", row, column)
            ended = step >= episode_length(env_id, episode, max_length)
            flags = [bool(rollout.terminated[row, column]), bool(rollout.truncated[row, column])]
            after = rollout.shifted_observations[row, column, 3:].tolist()
            at_end = [episode % 2 == 0, episode % 2 == 1]
            broken_off = after != generation
            _equal(flags, at_end if ended else [False, broken_off], "terminated, truncated", row, column)
            if broken_off:
                _check_later(after, generation, row, column)
                episode, step, generation = 0, 0, after
            elif ended and rollout.shifted_observations[row, column].tolist() != wanted:
                episode, step = episode + 1, 0
        wanted = [env_id, episode, step, *generation]
        _equal(rollout.last_observations[column].tolist(), wanted, "last observation", -1, column)
        expected[env_id] = (episode, step, *generation)
    return rollout.num_steps


def _check_later(generation: list[int], than: list[int], row: int, column: int) -> None:
    if generation and generation <= than:
        raise LedgerError(f"generation at [{row}, {column}] must be later than {than}, got {generation}")


def _equal(got: Any, wanted: Any, what: str, row: int, column: int) -> None:
    if got != wanted:
        raise LedgerError(f"{what} at [{row}, {column}] must be {wanted}, got {got}")
