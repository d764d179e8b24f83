"""Join the spaces of all workers to the spaces of a vector env."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from gymnasium import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from parenv.envs.autoreset import Autoreset
from parenv.envs.factories import Factories, given_spaces
from parenv.envs.factories import Spaces as Given
from parenv.errors import ConfigurationError
from parenv.memory.layout import aligned
from parenv.memory.sampling import set_generators
from parenv.memory.spaces import alike, each_once, has_custom, leaves, rebuild
from parenv.memory.step_buffer import StepBufferSpec
from parenv.process.free_memory import check_fits, in_words
from parenv.protocol.messages import StepReady
from parenv.vector.vector_plan import ObservationMode

INFO_BYTES = 1024
SpacesOfWorker = Mapping[str, tuple[Sequence[Space[Any]], Sequence[int]]]
"""Different spaces of a worker's sub-environments by name, and the index of the space of each sub-environment."""


@dataclass(frozen=True)
class Spaces:
    """Spaces of a vector env.

    Args:
        first_observation: Observation space of the first sub-environment.
        single_observation: Observation space of one sub-environment by ``observation_mode``.
        observation: Batched observation space.
        single_action: Action space of every sub-environment.
        action: Batched action space.
    """

    first_observation: Space[Any]
    single_observation: Space[Any]
    observation: Space[Any]
    single_action: Space[Any]
    action: Space[Any]


def rebuilt(ready: Sequence[StepReady]) -> list[SpacesOfWorker]:
    """Rebuild the spaces that workers describe. The first spaces get the random states of the first sub-environment.

    Raises:
        ProtocolError: A description is invalid.
    """
    found: list[SpacesOfWorker] = [
        {name: (list(map(rebuild, described)), which) for name, (described, which) in one.spaces.items()}
        for one in ready
    ]
    for one in ready[:1]:
        for name, of_each in one.generators.items():
            set_generators(found[0][name][0][0], of_each)
    return found


def spaces_of_custom_classes(
    of_workers: Sequence[SpacesOfWorker], factories: Factories, here: Sequence[Any]
) -> Given | None:
    """Return the spaces of an environment of this process, if workers have spaces of custom classes.

    Workers send such spaces as text. If this process cannot make an environment, the spaces stay text.

    Args:
        of_workers: Spaces of the sub-environments of each worker.
        factories: Factories of the sub-environments.
        here: Sub-environments that this process has. Without one, it makes one and closes it.
    """
    first = [of_workers[0][name][0][0] for name in ("observation_space", "action_space")]
    if not any(map(has_custom, first)):
        return None
    with contextlib.suppress(Exception):
        made = (here[0].observation_space, here[0].action_space) if here else given_spaces("make", factories)
        return made if made and all(map(alike, first, made)) else None
    return None


def join_spaces(
    of_workers: Sequence[SpacesOfWorker], mode: ObservationMode, given: Given | None, class_name: str
) -> Spaces:
    """Check that the spaces of all sub-environments are compatible, and batch them.

    Args:
        of_workers: Spaces of the sub-environments of each worker.
        mode: ``"same"``, ``"different"``, or the batched and the single space.
        given: Observation and action space that replace equal ones, or ``None``.
        class_name: Class of the vector env, for messages.

    Raises:
        ConfigurationError: The spaces of the first sub-environment differ from ``given``.
        RuntimeError: The spaces are not compatible, by the rules of ``SyncVectorEnv``.
    """
    if given is not None:
        of_workers = _with_given(of_workers, {"observation_space": given[0], "action_space": given[1]})
    observations, which = _distinct(of_workers, "observation_space")
    num_envs, first = len(which), observations[0]
    if isinstance(mode, tuple):
        batched, single = mode
    elif mode == "same":
        batched, single = batch_space(first, num_envs), first
    else:
        single = first
        batched = batch_differing_spaces([observations[i] for i in which])
    for number, space in enumerate(observations):
        fits = number == 0 if mode == "same" else is_space_dtype_shape_equiv(space, single)
        if not fits:
            # User code matches these texts, which are Gymnasium's.
            chosen, are_not, remedy = (
                ("'same'", "are not equivalent", "If this is intentional, use `observation_mode='different'` instead.")
                if mode == "same"
                else (
                    "'different' or custom space",
                    "do not share a common shape and dtype",
                    "Give them one shape and dtype.",
                )
            )
            raise RuntimeError(
                f"{class_name}(..., observation_mode={chosen}) however the sub-environments observation spaces "
                f"{are_not}. single_observation_space={single}, but env_id {which.index(number)} has {space}. {remedy}"
            )
    actions, which = _distinct(of_workers, "action_space")
    if len(actions) > 1:
        raise RuntimeError(
            f"all sub-environments must have the same action space, but env_id {which.index(1)} has {actions[1]}, and "
            f"env_id 0 has {actions[0]}. Wrap the environments so that their actions are equal."
        )
    return Spaces(first, single, batched, actions[0], batch_space(actions[0], num_envs))


def step_buffer_spec(spaces: Spaces, num_envs: int, autoreset: Autoreset) -> StepBufferSpec:
    """Describe the step buffer for sub-environments with these spaces.

    Raises:
        ConfigurationError: The machine has not enough memory.
    """
    observed, acted = leaves(spaces.first_observation), leaves(spaces.single_action)
    final_bytes = sum(leaf.nbytes for leaf in observed) if autoreset.resets_in_step else 0
    spec = StepBufferSpec(num_envs, observed, acted, aligned(INFO_BYTES + final_bytes))
    observation = in_words(sum(leaf.nbytes for leaf in observed if leaf.dtype is not None))
    check_fits(
        "the vector env",
        spec.fields()[1],
        f"observations of {observation} each from {num_envs} sub-environments, and their actions and infos",
        "fewer sub-environments, or smaller observations, such as uint8 instead of float32",
    )
    return spec


def _with_given(of_workers: Sequence[SpacesOfWorker], given: Mapping[str, Space[Any]]) -> list[SpacesOfWorker]:
    """Replace the spaces that equal the given spaces by them."""
    for name, space in given.items():
        if not alike(first := of_workers[0][name][0][0], space):
            raise ConfigurationError(
                f"spaces must have the {name} of the sub-environments, {first}, got {space}. Leave spaces out."
            )
    return [
        {
            name: ([given[name] if alike(space, given[name]) else space for space in distinct], which)
            for name, (distinct, which) in spaces.items()
        }
        for spaces in of_workers
    ]


def _distinct(of_workers: Sequence[SpacesOfWorker], name: str) -> tuple[list[Space[Any]], list[int]]:
    """Return the different spaces with this name, and the index of the space of each sub-environment."""
    distinct, numbers = each_once([space for spaces in of_workers for space in spaces[name][0]])
    begins = accumulate((len(spaces[name][0]) for spaces in of_workers), initial=0)
    return distinct, [
        numbers[begin + i] for begin, spaces in zip(begins, of_workers, strict=False) for i in spaces[name][1]
    ]
