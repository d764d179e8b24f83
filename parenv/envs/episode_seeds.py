"""Wrapper that resets an environment with a seed of its own for each episode, and reports the seed."""

from __future__ import annotations

import secrets
from typing import Any

import gymnasium as gym

from parenv.envs.factories import EnvFactory
from parenv.envs.seeding import reset_seed
from parenv.errors import ConfigurationError

EPISODE_SEED = "episode_seed"
"""Name of the info with the seed of the episode."""


class EpisodeSeeds(gym.Wrapper[Any, Any, Any, Any]):
    """Seeds every reset. Gymnasium seeds only the first one, so later episodes could not be repeated by themselves.

    The info ``"episode_seed"`` of each reset and step is the seed of the episode. The seeds of later episodes follow
    from the first seed.

    Args:
        env: Environment.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._first, self._number, self._seed = secrets.randbits(31), 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset with this seed, or with the next one."""
        self._number += 1
        if seed is not None:
            self._first, self._number = seed, 0
        self._seed = reset_seed(self._first, self._number)
        observation, info = self.env.reset(seed=self._seed, options=options)
        info[EPISODE_SEED] = self._seed
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and add the seed to the info."""
        returned = self.env.step(action)
        # The result may have the wrong number of values, which the caller explains.
        returned[-1][EPISODE_SEED] = self._seed
        return returned

    def get_state(self) -> list[int]:
        """Return the state of the seeds, for a run that continues."""
        return [self._first, self._number, self._seed]

    def set_state(self, state: list[int]) -> None:
        """Continue from a state."""
        self._first, self._number, self._seed = state


def with_episode_seeds(factory: EnvFactory) -> EpisodeSeeds:
    """Return an environment of a factory with :class:`EpisodeSeeds`.

    Raises:
        ConfigurationError: The factory makes something else than single environments of Gymnasium.
    """
    env = factory()
    if not isinstance(env, gym.Env):
        raise ConfigurationError(
            f"episode_seeds=True needs factories of single Gymnasium environments, got a {type(env).__name__}, which "
            "resets its own. Leave it out."
        )
    return EpisodeSeeds(env)
