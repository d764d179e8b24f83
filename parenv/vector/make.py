"""Make a ParallelVectorEnv from an env id."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id

from parenv.errors import ConfigurationError
from parenv.options import Placing
from parenv.vector.env import ParallelVectorEnv


def make_vec(
    id: str | EnvSpec,
    num_envs: int = 1,
    vectorization_mode: str | None = None,
    vector_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] | None = None,
    placement: Placing = None,
    **kwargs: Any,
) -> ParallelVectorEnv:
    """Make a :class:`ParallelVectorEnv`, with the arguments of ``gymnasium.make_vec``.

    Args:
        id: Id of the environment, or its spec. ``"module:Name-v0"`` imports a module first. An id without a version
            means the latest version.
        num_envs: Number of sub-environments.
        vectorization_mode: ``None`` or ``"async"``.
        vector_kwargs: Arguments of :class:`ParallelVectorEnv`.
        wrappers: Wrappers of each sub-environment, the innermost first.
        placement: Machines of the workers, as in :class:`ParallelVectorEnv`. It needs
            ``vector_kwargs={"num_workers": ...}``. Default: this machine.
        **kwargs: Arguments of ``gymnasium.make``.

    Raises:
        ConfigurationError: The vectorization mode is another one.
        gymnasium.error.Error: Gymnasium has no such environment.
        ModuleNotFoundError: The module does not exist.

    >>> envs = make_vec("CartPole-v1", num_envs=4, vector_kwargs={"num_workers": 2})
    >>> envs
    ParallelVectorEnv(CartPole-v1, num_envs=4, choice='2 workers, because num_workers=2 was given')
    >>> envs.close()
    """
    mode = getattr(vectorization_mode, "value", vectorization_mode)
    if mode not in (None, "async"):
        raise ConfigurationError(
            f'vectorization_mode must be None or "async", got {mode!r}. Leave it out, or use gymnasium.make_vec.'
        )
    spec = copy.deepcopy(id if isinstance(id, EnvSpec) else _find_spec(id))
    known = spec.kwargs
    num_envs = known.pop("num_envs", num_envs)
    vector_kwargs = known.pop("vector_kwargs", vector_kwargs) or {}
    if placement is not None:
        vector_kwargs = {**vector_kwargs, "placement": placement}
    wrappers = known.pop("wrappers", wrappers) or ()
    known.pop("vectorization_mode", None)
    arguments = {**known, **kwargs}
    spec.kwargs = {}

    def make_one() -> gym.Env[Any, Any]:
        env: gym.Env[Any, Any] = gym.make(spec, **arguments)
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    envs = ParallelVectorEnv([make_one] * num_envs, **vector_kwargs)
    envs.spec = copy.deepcopy(spec)
    envs.spec.kwargs = {**arguments, "vectorization_mode": "async"}
    more = {"num_envs": num_envs, "vector_kwargs": vector_kwargs, "wrappers": wrappers}
    envs.spec.kwargs |= {name: value for name, value in more.items() if value not in (1, {}, ())}
    return envs


def _find_spec(id: str) -> EnvSpec:
    """Find the spec of an env id by the rules of ``gymnasium.make``."""
    module, _, name = id.rpartition(":")
    if module:
        importlib.import_module(module)
    namespace, of, version = parse_env_id(name)
    if version is None and (latest := find_highest_version(namespace, of)) is not None:
        name = get_env_id(namespace, of, latest)
        gym.logger.warn(f"Using the latest versioned environment `{name}` instead of the unversioned one `{id}`.")
    return gym.spec(name)
