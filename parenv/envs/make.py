"""Make the sub-environments of a worker, and the stepper that steps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gymnasium import Space
from gymnasium.vector import SyncVectorEnv, VectorEnv

from parenv.envs.factories import Factories
from parenv.envs.fitting import Fit
from parenv.envs.stepping import EnvStepper
from parenv.envs.threaded_stepping import ThreadedStepper
from parenv.envs.vector_stepping import VectorStepper
from parenv.errors import ConfigurationError
from parenv.memory.status_slot import StatusSlot


def make_envs(
    factories: Factories,
    env_ids: range,
    status: StatusSlot,
    others: Sequence[Any] = (),
    accept: Callable[[Any, int], Any] | None = None,
    made: Sequence[Any] = (),
) -> list[Any]:
    """Make sub-environments, or one ``VectorEnv`` with as many as it has.

    Args:
        factories: Factories of the sub-environments.
        env_ids: Indices of the sub-environments.
        status: Status slot for the current activity.
        others: Earlier environments of the same env_ids, which a factory must not return again. Default: none.
        accept: Function that raises if its argument is not an environment. Default: :func:`check_is_env`.
        made: The first of the sub-environments, if they exist already. Default: none.

    Raises:
        ConfigurationError: A factory does not return an environment, or returns the same one twice.
    """
    envs = list(made)
    for env_id in env_ids[len(envs) :]:
        status.begin("making the environment", env_id)
        env = factories.make(env_id)
        (accept or check_is_env)(env, env_id)
        check_is_another(env, env_id, [*enumerate(others, env_ids.start), *enumerate(envs, env_ids.start)])
        envs.append(env)
        if isinstance(envs[0], VectorEnv):
            break
    status.begin("making the environment")
    return envs


Stepper = EnvStepper | VectorStepper
"""Stepper of single sub-environments, or of one ``VectorEnv``."""


def make_stepper(
    envs: Sequence[Any], first_env_id: int, status: StatusSlot, fit: Fit | None = None, step_threads: int = 1
) -> Stepper:
    """Make the stepper of a worker's sub-environments.

    Args:
        envs: Single environments, or one ``VectorEnv``.
        first_env_id: Index of the first sub-environment in the whole pool.
        status: Status slot for the current activity.
        fit: Checks of observations. Default: the checks of default options.
        step_threads: Number of threads. Default: 1.

    Raises:
        ConfigurationError: A ``VectorEnv`` does not declare its autoreset mode or must be stepped in threads, or spaces
            are different.
    """
    if isinstance(envs[0], VectorEnv):
        (vector_env,) = envs
        if type(vector_env) is not SyncVectorEnv:
            if step_threads > 1:
                raise ConfigurationError(
                    f"step_threads={step_threads} needs single sub-environments, but env_fn makes a "
                    f"{type(vector_env).__name__}. Pass a factory of single environments, or leave step_threads out."
                )
            return VectorStepper(vector_env, first_env_id, status, fit)
        envs = vector_env.envs
    if step_threads > 1 and len(envs) > 1:
        return ThreadedStepper(envs, first_env_id, status, fit, min(step_threads, len(envs)))
    return EnvStepper(envs, first_env_id, status, fit)


def check_is_env(env: Any, env_id: int) -> None:
    """Check that a factory made an environment of Gymnasium.

    Raises:
        ConfigurationError: The object is not an environment of Gymnasium.
    """
    single = "single_" if isinstance(env, VectorEnv) else ""
    if not all(isinstance(getattr(env, f"{single}{kind}_space", None), Space) for kind in ("observation", "action")):
        raise ConfigurationError(f"env_fn must make gymnasium.Env objects, got for env_id {env_id} {_what(env)}")


def check_is_another(env: Any, env_id: int, there: Iterable[tuple[int, Any]]) -> None:
    """Check that an environment is not in use already.

    Raises:
        ConfigurationError: The environment is in use, perhaps in other wrappers.
    """
    mine = _cores(env)
    for other_id, other in there:
        if any(core is another for core in mine for another in _cores(other)):
            raise ConfigurationError(
                f"env_fn must make a new environment in each call, but returned the environment of env_id {other_id} "
                f"for env_id {env_id} too: {env}. Pass a factory such as lambda: gym.make(...)"
            )


def _cores(env: Any) -> list[Any]:
    core = getattr(env, "unwrapped", env)
    return [core, *(part.unwrapped for part in core.envs)] if isinstance(core, SyncVectorEnv) else [core]


def _what(env: Any) -> str:
    kind = type(env)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if hasattr(env, "possible_agents") or hasattr(env, "agents"):
        title = (getattr(env, "metadata", None) or {}).get("name", name)
        interface = "an AECEnv" if hasattr(env, "agent_iter") else "a ParallelEnv"
        return f"{title}, {interface} of PettingZoo. {_NAMED_POLICIES}"
    if hasattr(env, "num_envs"):
        how = "Pass factories of single environments, such as lambda: gym.make(...)"
        return f"a {name}, a vector env that is not a gymnasium.vector.VectorEnv. {how}"
    return f"a {name}, whose observation_space and action_space are not spaces of Gymnasium. Return a gymnasium.Env."


_NAMED_POLICIES = (
    "Multi-agent environments need an AsyncWorkerPool with named policies, such as "
    'AsyncWorkerPool(env_fn, {"runner": policy}).'
)
