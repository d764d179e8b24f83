"""Where a model of Stable-Baselines3 has its environments, and how others take their place for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from gymnasium import Env, Wrapper
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.monitor import Monitor, ResultsWriter
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from parenv.adapters.sb3.parallel_vec_env import ParallelVecEnv
from parenv.adapters.sb3.played_vec_env import PlayedVecEnv
from parenv.errors import ConfigurationError, NotPicklableError
from parenv.supervision.pickling import find_unpicklable
from parenv.worker.pickled_env import PickledEnv, set_generator


def wrappers_of(model: BaseAlgorithm) -> list[VecEnvWrapper]:
    """The wrappers around a model's vec env, the outermost first."""
    found, env = [], model.env
    while isinstance(env, VecEnvWrapper):
        found.append(env)
        env = env.venv
    return found


def innermost(model: BaseAlgorithm) -> VecEnv:
    """The vec env inside all wrappers.

    Raises:
        ConfigurationError: the model has none.
    """
    env = wrappers_of(model)[-1].venv if wrappers_of(model) else model.env
    if env is None:
        raise ConfigurationError(f"this {type(model).__name__} has no environment: give it one by model.set_env(...)")
    return env


def places_of(model: BaseAlgorithm, env: VecEnv) -> list[tuple[Any, str]]:
    """What holds this very vec env: the model or its innermost wrapper, and a replay buffer that relabels goals.

    Returns:
        Of each the holder, and the name of its attribute.
    """
    holders: list[tuple[Any, str]] = [(model, "env"), (getattr(model, "replay_buffer", None), "env")]
    holders += [(wrapper, "venv") for wrapper in wrappers_of(model)]
    return [(holder, name) for holder, name in holders if getattr(holder, "__dict__", {}).get(name) is env]


def factories_of(env: VecEnv) -> list[PickledEnv]:
    """What makes copies of the single environments of a vec env.

    Raises:
        ConfigurationError: it is of a class that does not have them.
        NotPicklableError: one of them cannot be copied; the message names it.
    """
    if type(env) is DummyVecEnv:
        return [_pickled(env_id, one) for env_id, one in enumerate(env.envs)]
    if isinstance(env, SubprocVecEnv):
        why = "does not keep what made its environments"
    elif isinstance(env, ParallelVecEnv | PlayedVecEnv):
        why = "has its environments in workers already"
    else:
        why = "is not known here"
    raise ConfigurationError(
        f"accelerate copies the environments of a DummyVecEnv to its own workers, but a {type(env).__name__} {why}: "
        "give the model make_vec_env(..., n_envs) without vec_env_cls, with any wrappers around it"
    )


def take_back_random_states(original: Any, envs: Any) -> bool:
    """Give environments the random states of their copies, as if they had been stepped themselves.

    Returns:
        Whether all copies have one that can leave a worker.
    """
    call = envs._pool.call if isinstance(envs, PlayedVecEnv) else envs._envs.call
    try:
        states = [call("get_wrapper_attr", name) for name in ("np_random", "np_random_seed")]
    except Exception:  # What an environment raises when it is asked, too.
        return False
    for env, *generator in zip(original.envs, *states, strict=True):
        set_generator(env, tuple(generator))
    return True


def results_writers(env: VecEnv) -> dict[int, ResultsWriter]:
    """By env_id, what writes a Monitor's file; it stays in the driver."""
    monitors = {i: monitor for i, one in enumerate(getattr(env, "envs", ())) for monitor in _monitors(one)}
    return {i: monitor.results_writer for i, monitor in monitors.items() if monitor.results_writer is not None}


def _pickled(env_id: int, env: Env[Any, Any]) -> PickledEnv:
    monitors = list(_monitors(env))
    with others_for_a_while(monitors, "results_writer", [None] * len(monitors)):
        try:
            return PickledEnv.of(env, env_id)
        except Exception as error:
            where = find_unpicklable(env, f"env_id {env_id}")
            raise NotPicklableError(
                f"{where} cannot travel to a worker process: {error}. Make it in the environment's reset, or use "
                "make_vec_env(..., vec_env_cls=parenv.adapters.sb3.ParallelVecEnv), whose factories run in the workers"
            ) from error


@contextlib.contextmanager
def others_for_a_while(holders: Sequence[Any], name: str, others: Sequence[Any]) -> Iterator[None]:
    """Other values of an attribute of several objects, which have their own back afterwards."""
    with contextlib.ExitStack() as undo:
        for holder, other in zip(holders, others, strict=True):
            undo.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, other)
        yield


def _monitors(env: Any) -> Iterator[Monitor[Any, Any]]:
    while isinstance(env, Wrapper):
        if isinstance(env, Monitor):
            yield env
        env = env.env
