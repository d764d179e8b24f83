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
    progress: StatusSlot,
    others: Sequence[Any] = (),
    accept: Callable[[Any, int], Any] | None = None,
) -> list[Any]:
    """Make sub-environments, or one ``VectorEnv`` with as many as it has.

    Args:
        factories: make them.
        env_ids: of the sub-environments.
        progress: where to say what is going on.
        others: environments of the same env_ids, which must not be made again.
        accept: refuses what is no environment; by default what is none of Gymnasium.

    Raises:
        ConfigurationError: A factory returns no environment, or the same one twice.
    """
    envs: list[Any] = []
    for env_id in env_ids:
        progress.begin("making the environment", env_id)
        env = factories.make(env_id)
        (accept or check_is_env)(env, env_id)
        check_is_another(env, env_id, [*enumerate(others, env_ids.start), *enumerate(envs, env_ids.start)])
        envs.append(env)
        if isinstance(envs[0], VectorEnv):
            break
    progress.begin("making the environment")
    return envs


Stepper = EnvStepper | VectorStepper
"""A worker's sub-environments, however they are held."""


def make_stepper(
    envs: Sequence[Any], first_env_id: int, progress: StatusSlot, fit: Fit | None = None, step_threads: int = 1
) -> Stepper:
    """Hold environments of one kind: single ones, or one ``VectorEnv``.

    Raises:
        ConfigurationError: a ``VectorEnv`` that does not say when it resets, or is to be stepped in threads, or
            different spaces.
    """
    if isinstance(envs[0], VectorEnv):
        (vector_env,) = envs
        if type(vector_env) is not SyncVectorEnv:
            if step_threads > 1:
                raise ConfigurationError(
                    f"step_threads={step_threads} needs single sub-environments, but env_fn makes a "
                    f"{type(vector_env).__name__}, which steps its own: give a factory of single ones"
                )
            return VectorStepper(vector_env, first_env_id, progress, fit)
        envs = vector_env.envs
    if step_threads > 1 and len(envs) > 1:
        return ThreadedStepper(envs, first_env_id, progress, fit, min(step_threads, len(envs)))
    return EnvStepper(envs, first_env_id, progress, fit)


def check_is_env(env: Any, env_id: int) -> None:
    """Check that what was made for an env_id is an environment of Gymnasium.

    Raises:
        ConfigurationError: it is not.
    """
    single = "single_" if isinstance(env, VectorEnv) else ""
    if not all(isinstance(getattr(env, f"{single}{kind}_space", None), Space) for kind in ("observation", "action")):
        raise ConfigurationError(f"for env_id {env_id} the factory made {_what(env)}")


def check_is_another(env: Any, env_id: int, there: Iterable[tuple[int, Any]]) -> None:
    """Check that an environment is not one of those that are in use already.

    Raises:
        ConfigurationError: it is, perhaps in other wrappers.
    """
    mine = _cores(env)
    for other_id, other in there:
        if any(core is another for core in mine for another in _cores(other)):
            raise ConfigurationError(
                f"env_id {env_id} was given the environment of env_id {other_id}, {env}, so episodes would be mixed: "
                "the factory must make another one in each call, as lambda: gym.make(...) does"
            )


def _cores(env: Any) -> list[Any]:
    core = getattr(env, "unwrapped", env)
    return [core, *(part.unwrapped for part in core.envs)] if isinstance(core, SyncVectorEnv) else [core]


def _what(env: Any) -> str:
    kind = type(env)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if hasattr(env, "possible_agents") or hasattr(env, "agents"):
        title = (getattr(env, "metadata", None) or {}).get("name", name)
        how = "in turns (AECEnv)" if hasattr(env, "agent_iter") else "together (ParallelEnv)"
        return f"{title}, a PettingZoo environment whose agents act {how}. {_POLICIES_BY_NAME}"
    if hasattr(env, "num_envs"):
        how = "Give factories of the single environments, such as lambda: gym.make(...)"
        return f"a {name}, a vector env that is not a gymnasium.vector.VectorEnv. {how}"
    return f"a {name}, which has no observation_space and action_space of Gymnasium: it must be a gymnasium.Env"


_POLICIES_BY_NAME = (
    'Give AsyncWorkerPool policies by name, AsyncWorkerPool(env_fn, {"runner": policy}), which takes environments of '
    "several agents; a single policy, and ParallelVectorEnv, take environments of Gymnasium"
)
