"""Where things lie in the driver's memory, for placements whose workers have memory of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from parenv.memory.agent_layout import AgentsSpec
from parenv.memory.layout import RolloutSpec
from parenv.memory.step_buffer import StepBufferSpec


@dataclass(frozen=True)
class SlotMap:
    """Where the rollouts of every worker lie in the pool's memory.

    Args:
        memory: the pool's, all of it.
        spec: what a slot holds.
        offset: where the slots begin, in bytes.
        slot_bytes: distance between two.
        together: whether all workers fill one slot.
        shares: sub-environments of each worker.
        credits: how many rollouts of one worker can be under way at once.
        policies: where policies have names: by index, the one that each is a version of.
    """

    memory: Any
    spec: RolloutSpec | AgentsSpec
    offset: int
    slot_bytes: int
    together: bool
    shares: tuple[int, ...]
    credits: int
    policies: Callable[[], Mapping[int, str]] = dict


@dataclass(frozen=True)
class BoardMap:
    """Where the rows of every worker lie in the driver's memory.

    Args:
        memory: the driver's, all of it.
        spec: what the step buffer holds.
        offset: where it begins, in bytes.
        shares: rows of each worker.
    """

    memory: Any
    spec: StepBufferSpec
    offset: int
    shares: tuple[int, ...]


@dataclass(frozen=True)
class WeightsMap:
    """Where the versions of the weights lie.

    Args:
        memory: that they lie in.
        offset: of the first place, in bytes.
        nbytes: of one version.
        float32: ``(begin, stop)`` of the parts of a version that hold float32 numbers, in order.
    """

    memory: Any
    offset: int
    nbytes: int
    float32: tuple[tuple[int, int], ...]


class WeightsPlace(NamedTuple):
    """The weights of one policy in one version.

    Args:
        key: of the place where they lie.
        version: of the policy.
        weights: where versions of it lie.
        slot: which of these places it is.
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
