"""Environments by name. Each is tried out in this process before any other process starts."""

from __future__ import annotations

import contextlib
import importlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from parenv.envs.factories import as_factories
from parenv.errors import ConfigurationError

TRIAL_STEPS = 100
TRIAL_SECONDS = 2.0
_VERSIONED = re.compile(r".*-v\d+")


@dataclass(frozen=True)
class Environment:
    """An environment that has been made, reset and stepped once.

    Args:
        name: Name for messages and titles.
        make: Function that makes an environment.
        observation_space: Observation space of one environment.
        action_space: Action space of one environment.
        step_s: Approximate duration of an env step, in seconds.
    """

    name: str
    make: Callable[[], Any]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    step_s: float


def named_factory(name: str) -> Callable[[], Any]:
    """Import a callable by ``module:name``. The name may have dots.

    Raises:
        ConfigurationError: The module or the name does not exist, or the object cannot be called.

    >>> named_factory("builtins:dict.fromkeys").__name__
    'fromkeys'
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise ConfigurationError(f"a factory must be named module:name, such as my_package.envs:make_env, got {name!r}")
    with refused(f"the module {module_name!r} of {name!r} cannot be imported"):
        found: Any = importlib.import_module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{name!r} does not exist, because {found!r} has no attribute {part!r}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigurationError(f"{name!r} must be a callable factory, got {found!r}")
    return found  # type: ignore[no-any-return]


def is_env_id(env: Any) -> bool:
    """Return whether a value is an env id, and not ``module:factory``.

    >>> is_env_id("CartPole-v1"), is_env_id("ale_py:ALE/Pong-v5"), is_env_id("my_package.envs:make_env")
    (True, True, False)
    """
    return isinstance(env, str) and (":" not in env or _VERSIONED.fullmatch(env) is not None)


def environment_factory(env: Any) -> Callable[[], Any]:
    """Return a factory for an env id, ``module:factory``, or a callable.

    As in Gymnasium, a text with a colon and a version at its end, such as ``"ale_py:ALE/Pong-v5"``, is an env id whose
    module is imported first.

    Raises:
        ConfigurationError: The value is none of them, or does not exist.
    """
    if isinstance(env, str) and not is_env_id(env):
        return named_factory(env)
    return as_factories(env).functions[0]


def tried_out(env: Any) -> Environment:
    """Make an environment in this process, read its spaces, and take some steps with random actions.

    Args:
        env: Env id, ``module:factory``, or a callable.

    Raises:
        ConfigurationError: The environment does not exist, or raises. The message names the call.
    """
    make, name = environment_factory(env), env if isinstance(env, str) else getattr(env, "__qualname__", repr(env))
    with _running(name, "being made"):
        one = make()
    if not isinstance(one, gym.Env):
        raise ConfigurationError(f"{name} must make a gymnasium.Env, got {one!r}")
    with contextlib.closing(one):
        one.action_space.seed(0)
        return Environment(name, make, one.observation_space, one.action_space, _mean_step_s(name, one))


def _mean_step_s(name: str, env: gym.Env[Any, Any]) -> float:
    with _running(name, "its first reset"):
        env.reset(seed=0)
    spent, began = 0.0, time.perf_counter()
    for step in range(1, TRIAL_STEPS + 1):
        action = env.action_space.sample()
        with _running(name, f"env step {step} with the action {action!r}"):
            before = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            spent += time.perf_counter() - before
        if terminated or truncated:
            with _running(name, f"the reset after env step {step}"):
                env.reset()
        if time.perf_counter() - began > TRIAL_SECONDS:
            break
    return spent / step


def _running(name: str, doing: str) -> contextlib.AbstractContextManager[None]:
    return refused(f"the environment {name} does not run", f" in {doing}")


@contextlib.contextmanager
def refused(what: str, doing: str = "", but: type[Exception] | tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn an exception of code that the user has given into a :class:`ConfigurationError` with a short message.

    Args:
        what: First words of the message.
        doing: Words behind the type of the exception, such as ``" in its first reset"``.
        but: Exceptions that pass unchanged.
    """
    try:
        yield
    except but:
        raise
    except Exception as error:
        raise ConfigurationError(f"{what}: {type(error).__name__}{doing}: {error}") from error
