"""What the workers say of their sub-environments, put together to the spaces of a vector env."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from parenv.memory.spaces import rebuild
from parenv.protocol.data import pack
from parenv.protocol.messages import Ready
from parenv.vector.configuration import ObservationMode


@dataclass(frozen=True)
class Spaces:
    """The spaces of a vector env, and of its first sub-environment as they really are.

    Args:
        first_observation: the first sub-environment's.
        single_observation: as ``observation_mode`` wants it.
        observation: batched.
        single_action: of every sub-environment.
        action: batched.
    """

    first_observation: Space[Any]
    single_observation: Space[Any]
    observation: Space[Any]
    single_action: Space[Any]
    action: Space[Any]


def join_spaces(ready: Sequence[Ready], mode: ObservationMode) -> Spaces:
    """Check that the sub-environments go together.

    Raises:
        RuntimeError: they do not, as ``SyncVectorEnv`` has it.
    """
    num_envs = sum(one.num_envs for one in ready)
    observations = _distinct(ready, "observation_space")
    first = observations[0][0]
    if isinstance(mode, tuple):
        batched, single = mode
    elif mode == "same":
        batched, single = batch_space(first, num_envs), first
    else:
        single = first
        batched = batch_differing_spaces([observations[i][0] for i in _which(ready, observations)])
    for space, env_id in observations[1:] if mode == "same" else observations:
        fits = mode != "same" and is_space_dtype_shape_equiv(space, single)
        if not fits:
            hint = "; if that is intended, use observation_mode='different'" if mode == "same" else ""
            raise RuntimeError(
                f"the observation space of env_id {env_id}, {space}, does not go together with {single} for "
                f"observation_mode={mode!r}{hint}"
            )
    actions = _distinct(ready, "action_space")
    if len(actions) > 1:
        raise RuntimeError(
            f"the action space of env_id {actions[1][1]}, {actions[1][0]}, is not that of env_id 0, {actions[0][0]}: "
            "to batch actions all must be equal"
        )
    return Spaces(first, single, batched, actions[0][0], batch_space(actions[0][0], num_envs))


def _distinct(ready: Sequence[Ready], name: str) -> list[tuple[Space[Any], int]]:
    """The different spaces of that name, each with the first env_id that has it."""
    found: dict[Any, tuple[Space[Any], int]] = {}
    first_env_id = 0
    for one in ready:
        descriptions, which = one.spaces[name]
        for i, description in enumerate(descriptions):
            found.setdefault(_key(description), (rebuild(description), first_env_id + which.index(i)))
        first_env_id += one.num_envs
    return list(found.values())


def _which(ready: Sequence[Ready], distinct: Sequence[tuple[Space[Any], int]]) -> list[int]:
    """Which of the distinct observation spaces each sub-environment has."""
    numbers: dict[Any, int] = {}
    which = []
    for one in ready:
        descriptions, of_each = one.spaces["observation_space"]
        keys = [_key(description) for description in descriptions]
        which += [numbers.setdefault(keys[i], len(numbers)) for i in of_each]
    return which


def _key(description: Any) -> Any:
    text, buffers = pack(description)
    return text, tuple(bytes(buffer) for buffer in buffers)
