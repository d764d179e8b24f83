"""Environments that are made again after some episodes, for simulators that leak memory or become slow."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium as gym

from parenv.envs.factories import EnvFactory, Factories
from parenv.envs.normalising import get_statistics, set_statistics
from parenv.envs.seeding import reset_seed
from parenv.errors import ConfigurationError

_SPACES = ("observation_space", "action_space")


class Recycler:
    """Counts episodes, and chooses the seeds of new environments.

    Args:
        episodes: Number of episodes of each environment.

    Attributes:
        begun: Number of episodes that the present environment has begun.
    """

    def __init__(self, episodes: int) -> None:
        self._episodes, self.begun = episodes, 0
        self._first: int | None = None
        self._resets = 0

    @property
    def is_due(self) -> bool:
        """True if the next reset needs a new environment."""
        return self.begun >= self._episodes

    def seed(self, seed: int | None) -> int | None:
        """Count a reset, and return its seed.

        The first reset of a new environment is seeded by the first seed and the number of resets since. Otherwise, all
        environments of a factory could repeat the same episodes.
        """
        self._resets += 1
        if seed is not None:
            self._first, self._resets = seed, 0
        elif not self.begun and self._first is not None:
            seed = reset_seed(self._first, self._resets)
        self.begun += 1
        return seed

    def get_state(self) -> list[Any]:
        """Return the counts as plain data."""
        return [self.begun, self._first, self._resets]

    def set_state(self, state: list[Any]) -> None:
        """Continue from a state."""
        self.begun, self._first, self._resets = state


class RecycledEnv(gym.Wrapper[Any, Any, Any, Any]):
    """An environment of Gymnasium that is made again after some episodes.

    Statistics of normalization wrappers and values of ``set_wrapper_attr`` go to the new environment.

    Args:
        env: First environment.
        make: Factory of the next ones.
        episodes: Number of episodes of each.
    """

    def __init__(self, env: Any, make: EnvFactory, episodes: int) -> None:
        super().__init__(env)
        self._make, self._recycler = make, Recycler(episodes)
        self._values: dict[str, Any] = {}

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, in a new environment if it is due."""
        self._renew()
        seed = self._recycler.seed(options.pop("seed", None))
        return self.env.reset(seed=seed, **options)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of this and of later environments."""
        is_set = super().set_wrapper_attr(name, value, force=force)
        if is_set:
            self._values[name] = value
        return is_set

    def get_state(self) -> list[Any]:
        """Return the counts, for a run that continues."""
        return self._recycler.get_state()

    def set_state(self, state: list[Any]) -> None:
        """Continue from a state."""
        self._recycler.set_state(state)

    def _renew(self) -> None:
        """Make a new environment if the next reset needs one."""
        if not self._recycler.is_due:
            return
        statistics = get_statistics([self.env])
        with contextlib.suppress(Exception):
            self.env.close()
        made = self._make()
        _check_spaces(self.env, made)
        set_statistics([made], statistics)
        self.env, self._recycler.begun = made, 0
        for name, value in self._values.items():
            super().set_wrapper_attr(name, value)


class RecycledAgents:
    """A multi-agent environment that is made again after some episodes. It forwards all attributes.

    Values of attributes that are set go to the new environment.

    Args:
        env: First environment.
        make: Factory of the next ones.
        episodes: Number of episodes of each.
    """

    def __init__(self, env: Any, make: EnvFactory, episodes: int) -> None:
        self.__dict__.update(_env=env, _make=make, _recycler=Recycler(episodes), _values={})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_env"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_env"], name, value)
        self.__dict__["_values"][name] = value

    def step(self, actions: Any) -> Any:
        """Take a step."""
        return self._env.step(actions)

    def reset(self, **options: Any) -> Any:
        """Begin an episode, in a new environment if it is due."""
        mine, recycler = self.__dict__, self._recycler
        if recycler.is_due:
            with contextlib.suppress(Exception):
                self._env.close()
            mine["_env"], recycler.begun = self._make(), 0
            for name, value in self._values.items():
                setattr(self._env, name, value)
        return self._env.reset(seed=recycler.seed(options.pop("seed", None)), **options)


def with_recycling(factories: Factories, episodes: int | None) -> Factories:
    """Return factories of environments that are made again after so many episodes. ``None``: the same factories."""
    return factories if episodes is None else factories.wrapped(recycled, episodes)


def recycled(make: EnvFactory, episodes: int | None) -> Any:
    """Return an environment of a factory that is made again after so many episodes. ``None``: never.

    Raises:
        ConfigurationError: The factory makes vector envs.
    """
    env = make()
    if episodes is None:
        return env
    if isinstance(env, gym.vector.VectorEnv):
        raise ConfigurationError(
            f"recycle_episodes={episodes} cannot be used with a factory of vector envs, got a {type(env).__name__}. "
            "Pass a factory of single environments, or leave recycle_episodes out."
        )
    has_agents = hasattr(env, "possible_agents") or not isinstance(env, gym.Env)
    return (RecycledAgents if has_agents else RecycledEnv)(env, make, episodes)


def _check_spaces(before: Any, made: Any) -> None:
    for name in _SPACES:
        if getattr(made, name) != getattr(before, name):
            raise ConfigurationError(
                f"an environment that recycle_episodes makes again must have the {name} of the first one, "
                f"{getattr(before, name)}, got {getattr(made, name)}. Make the factory return equal spaces."
            )
