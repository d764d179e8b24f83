"""Convert the user's ``env_fn`` to one factory per sub-environment."""

from __future__ import annotations

import contextlib
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import gymnasium as gym
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec

from parenv.errors import ConfigurationError, embedded

_COMPLETE_ID = re.compile(r"[^:]+-v\d+")
_REGISTERED_ALREADY = r".*Overriding environment \S+ already in registry"
EnvFactory = Callable[[], Any]
EnvFn: TypeAlias = EnvFactory | str | EnvSpec | Sequence[EnvFactory | str | EnvSpec]
"""A callable without arguments, an env id or its spec, or a sequence with one of those for each sub-environment."""
Spaces = tuple[Space[Any], Space[Any]]
"""Observation and action space of one sub-environment."""


@dataclass(frozen=True)
class Factories:
    """Factories for all sub-environments of a pool.

    Args:
        functions: One factory for all sub-environments, or one for each.
        count: Required number of sub-environments, or ``None`` if one factory serves any number.
        registered: Specs that the main process has registered beside Gymnasium's own. A worker does not run the
            user's script, and registers them before it calls a factory.
    """

    functions: tuple[EnvFactory, ...]
    count: int | None
    registered: tuple[EnvSpec, ...]

    def make(self, env_id: int) -> Any:
        """Make one sub-environment, or a whole ``VectorEnv`` if the factory makes one."""
        return self.function(env_id)()

    def function(self, env_id: int) -> EnvFactory:
        """Return the factory of one sub-environment."""
        return self.functions[0 if self.count is None else env_id]

    def wrapped(self, make: Callable[..., Any], *arguments: Any) -> Factories:
        """Return factories that call ``make(factory, *arguments)``, see :func:`unwrapped`."""
        return replace(self, functions=tuple(partial(make, function, *arguments) for function in self.functions))

    def register(self) -> None:
        """Register the specs of the main process with Gymnasium in this process."""
        missing = [spec for spec in self.registered if spec.id not in gym.registry]
        gym.registry.update({spec.id: spec for spec in missing})
        if missing:
            # If an environment imports the module that registers them, Gymnasium would warn for each of them.
            warnings.filterwarnings("ignore", _REGISTERED_ALREADY)


def unwrapped(factory: EnvFactory, *makes: Callable[..., Any]) -> EnvFactory:
    """Return a factory without the wrappings by some functions, see :meth:`Factories.wrapped`."""
    while isinstance(factory, partial) and factory.func in makes:
        factory = factory.args[0]
    return factory


def as_factories(env_fn: Any) -> Factories:
    """Make factories from a callable, an env id, or a sequence of those.

    Raises:
        ConfigurationError: The argument has another type, or the id is not registered.
    """
    if isinstance(env_fn, str) or not isinstance(env_fn, Sequence):
        return Factories((_as_factory(env_fn),), None, _registered_by_the_user())
    if not env_fn:
        raise ConfigurationError(f"env_fn must be a sequence of at least one factory, got {env_fn!r}")
    return Factories(tuple(_as_factory(one) for one in env_fn), len(env_fn), _registered_by_the_user())


def given_spaces(spaces: Any, factories: Factories) -> Spaces | None:
    """Return the user's spaces, or with ``"make"`` the spaces of an environment that is made and closed.

    Raises:
        ConfigurationError: The argument is invalid.
    """
    if isinstance(spaces, str) and spaces == "make":
        with contextlib.closing(factories.make(0)) as env:
            single = "single_" if isinstance(env, gym.vector.VectorEnv) else ""
            return getattr(env, f"{single}observation_space"), getattr(env, f"{single}action_space")
    if spaces is None:
        return None
    if isinstance(spaces, tuple) and [isinstance(space, Space) for space in spaces] == [True, True]:
        return spaces
    raise ConfigurationError(
        'spaces must be None, "make", or a tuple of the observation and the action space of one sub-environment, '
        f"got {spaces!r}"
    )


def _as_factory(env_fn: Any) -> EnvFactory:
    if isinstance(env_fn, str) and _COMPLETE_ID.fullmatch(env_fn):
        try:
            gym.spec(env_fn)
        except gym.error.Error as error:
            raise ConfigurationError(
                f"the environment {env_fn!r} must be registered with Gymnasium: {embedded(error)}. "
                "Correct the id, or import the package that registers it."
            ) from error
    if isinstance(env_fn, str | EnvSpec):
        return partial(gym.make, env_fn)
    if isinstance(env_fn, gym.Env | gym.vector.VectorEnv):
        raise ConfigurationError(
            f"env_fn must be a factory of environments, got the environment {env_fn}. Pass lambda: gym.make(...)."
        )
    if not callable(env_fn):
        raise ConfigurationError(f"env_fn must be a callable, an env id or a sequence of those, got {env_fn!r}")
    try:
        signature = inspect.signature(env_fn)
    except ValueError:  # Functions in C may have no signature.
        return env_fn  # type: ignore[no-any-return]
    try:
        signature.bind()
    except TypeError as error:
        raise ConfigurationError(
            f"env_fn must be callable without arguments, got {env_fn!r} with the signature {signature}: "
            f"{embedded(error)}. To make different sub-environments, pass a list: "
            "[functools.partial(make, i) for i in range(8)]."
        ) from None
    return env_fn  # type: ignore[no-any-return]


def _registered_by_the_user() -> tuple[EnvSpec, ...]:
    return tuple(spec for spec in gym.registry.values() if not str(spec.entry_point).startswith("gymnasium.envs."))
