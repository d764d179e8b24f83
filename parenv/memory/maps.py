"""Maps of the memory of the main process, for placements whose workers have memory of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from parenv.memory.layout import SlotSpec
from parenv.memory.step_buffer import StepBufferSpec


@dataclass(frozen=True)
class SlotMap:
    """Places of the rollouts in the memory of a pool.

    Args:
        memory: All memory of the pool.
        spec: Content of a slot.
        offset: Offset of the first slot in bytes.
        slot_bytes: Distance between two slots in bytes.
        together: Whether all workers fill one slot.
        shares: Number of sub-environments of each worker.
        credits: Maximum number of rollouts of one worker in progress at once.
        policies: Function that returns the policy that each named policy is a version of, by index.
    """

    memory: Any
    spec: SlotSpec
    offset: int
    slot_bytes: int
    together: bool
    shares: tuple[int, ...]
    credits: int
    policies: Callable[[], Mapping[int, str]] = dict


@dataclass(frozen=True)
class StepBufferMap:
    """Places of the rows of a vector env in the memory of the main process.

    Args:
        memory: All memory of the vector env.
        spec: Content of the step buffer.
        offset: Offset of the step buffer in bytes.
        shares: Number of rows of each worker.
    """

    memory: Any
    spec: StepBufferSpec
    offset: int
    shares: tuple[int, ...]


@dataclass(frozen=True)
class WeightsMap:
    """Places of the versions of the weights of one policy.

    Args:
        memory: Memory with all versions.
        offset: Offset of the first place in bytes.
        nbytes: Size of one version in bytes.
        float32: ``(begin, stop)`` of the parts of a version that hold float32 numbers, in order.
    """

    memory: Any
    offset: int
    nbytes: int
    float32: tuple[tuple[int, int], ...]


class WeightsPlace(NamedTuple):
    """Place of the weights of one policy in one version.

    Args:
        key: Key of the place.
        version: Version of the policy.
        weights: Places of all its versions.
        slot: Number of the place among these.
    """

    key: Any
    version: int
    weights: WeightsMap
    slot: int


@dataclass(frozen=True)
class VersionMap:
    """Places of the weights of all policies of a pool.

    Args:
        policies: Names of the policies; empty for a single policy without a name.
        weights: Places of the weights, by name of each policy with a module.
        table: Function that returns the rows of a version by its number, see
            :class:`~parenv.policy.assignment.PolicyRow`.
    """

    policies: tuple[str, ...]
    weights: Mapping[str, WeightsMap]
    table: Callable[[int], Mapping[str, Any]]

    def needed(self, policy_version: int) -> Iterator[WeightsPlace]:
        """Yield the weights that a version consists of."""
        for row in self.table(policy_version).values():
            if row.of in self.weights:
                yield WeightsPlace((row.of, row.place), row.number, self.weights[row.of], row.place)


AnyWeights = VersionMap | None
"""``None``: there are no policies in this process."""
