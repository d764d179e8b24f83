"""Making sub-environments, each of which must be an environment, and not one that is there already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gymnasium import Space
from gymnasium.vector import SyncVectorEnv, VectorEnv

from parenv.envs.factories import Factories
from parenv.errors import ConfigurationError
from parenv.memory.status_slot import StatusSlot


def make_envs(factories: Factories, env_ids: range, progress: StatusSlot, others: Sequence[Any] = ()) -> list[Any]:
    """Make sub-environments, or one ``VectorEnv`` with as many as it has.

    Args:
        factories: make them.
        env_ids: of the sub-environments.
        progress: where to say what is going on.
        others: environments of the same env_ids, which must not be made again.

    Raises:
        ConfigurationError: what is made is no environment, or one that is there already.
    """
    envs: list[Any] = []
    for env_id in env_ids:
        progress.begin("making the environment", env_id)
        env = factories.make(env_id)
        check_made(env, env_id, [*enumerate(others, env_ids.start), *enumerate(envs, env_ids.start)])
        envs.append(env)
        if isinstance(envs[0], VectorEnv):
            break
    progress.begin("making the environment")
    return envs


def check_made(env: Any, env_id: int, there: Iterable[tuple[int, Any]]) -> None:
    """Check what was made for an env_id.

    Args:
        env: what was made.
        env_id: for which.
        there: environments that are in use already, with their env_ids.

    Raises:
        ConfigurationError: it is no environment of Gymnasium, or is one of those, perhaps in other wrappers.
    """
    spaces = ("single_observation_space", "single_action_space") if isinstance(env, VectorEnv) else _SPACES
    if not all(isinstance(getattr(env, name, None), Space) for name in spaces):
        raise ConfigurationError(f"for env_id {env_id} the factory made {_what(env)}")
    mine = _cores(env)
    for other_id, other in there:
        if any(core is another for core in mine for another in _cores(other)):
            raise ConfigurationError(
                f"env_id {env_id} was given the environment of env_id {other_id}, {env}, so episodes would be mixed: "
                "the factory must make another one in each call, as lambda: gym.make(...) does"
            )


_SPACES = ("observation_space", "action_space")


def _cores(env: Any) -> list[Any]:
    core = getattr(env, "unwrapped", env)
    return [core, *(part.unwrapped for part in core.envs)] if isinstance(core, SyncVectorEnv) else [core]


def _what(env: Any) -> str:
    kind = type(env)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if hasattr(env, "possible_agents") or hasattr(env, "agents"):
        title = (getattr(env, "metadata", None) or {}).get("name", name)
        if hasattr(env, "agent_iter"):
            return (
                f"{title}, a PettingZoo environment whose agents act in turns (AECEnv). Convert it with "
                f"pettingzoo.utils.aec_to_parallel, and {_ONE_ENV}"
            )
        return f"{title}, a PettingZoo environment whose agents act together (ParallelEnv). {_ONE_ENV.capitalize()}"
    return f"a {name}, which has no observation_space and action_space of Gymnasium: it must be a gymnasium.Env"


_ONE_ENV = (
    "wrap that in a gymnasium.Env with one action for all agents (a Dict or Tuple space), since sub-environments here "
    "are environments of Gymnasium"
)
