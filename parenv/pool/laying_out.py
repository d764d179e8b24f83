"""Where the rollouts of a pool lie in its memory, once its workers have said what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from parenv.envs.factories import Spaces
from parenv.errors import ConfigurationError
from parenv.memory.agent_layout import AgentsSpec, agents_layout
from parenv.memory.device_memory import DeviceMemory
from parenv.memory.layout import RolloutSpec, extras_and_carry, infos_from_data, slot_layout
from parenv.memory.maps import SlotMap
from parenv.memory.slots import Slots
from parenv.memory.spaces import alike, leaves, rebuild
from parenv.pool.arena import Arena
from parenv.pool.arrival import ArrivalOf, arrival_of
from parenv.pool.blocks import Block, LayOut, blocks_of
from parenv.pool.pool_plan import Plan
from parenv.protocol.data import pack
from parenv.protocol.messages import Layout, Ready
from parenv.supervision.workers import Workers

SYNC_LEASES = 3


class Room(NamedTuple):
    """Slots for rollouts.

    Args:
        blocks: by worker, what one slot has of it, and of whom else.
        slots: themselves.
        leases: how many of them the user may hold before rollouts are copied out.
        layouts: what each worker is told of them.
    """

    blocks: Sequence[Block]
    slots: Slots
    leases: int
    layouts: list[Layout]


def lay_out(plan: Plan, workers: Workers, arena: Arena, ready: Sequence[Ready]) -> tuple[Spaces, ArrivalOf, Room]:
    """Make room for rollouts.

    Args:
        plan: of the pool.
        workers: its workers.
        arena: its memory.
        ready: what each worker says of its sub-environments.

    Returns:
        The spaces of a sub-environment, what makes an arrival of what lies in a slot, and the slots.

    Raises:
        ConfigurationError: sub-environments have different spaces, or there is not enough memory.
    """
    described = checked_spaces(ready, plan.spaces)
    spec = RolloutSpec(
        plan.job.rollout_length,
        leaves(described[0]),
        leaves(described[1]),
        *extras_and_carry(ready[0].extras, ready[0].carry),
        gradient_bytes=plan.job.gradient_bytes,
        infos=infos_from_data(ready[0].infos),
        on_device=plan.job.options.rollout_device is not None,
    )
    room = make_room(plan, workers, arena, ready, spec)
    return plan.spaces or described, partial(arrival_of, spec), room


def make_room(
    plan: Plan,
    workers: Workers,
    arena: Arena,
    ready: Sequence[Ready],
    spec: RolloutSpec | AgentsSpec,
    policies: Callable[[], Mapping[int, str]] = dict,
) -> Room:
    """Make the slots, and what each worker is told of them; see :func:`lay_out`.

    Args:
        plan: of the pool.
        workers: its workers.
        arena: its memory.
        ready: what each worker says of its sub-environments.
        spec: what a slot holds.
        policies: see :class:`~parenv.memory.maps.SlotMap`.
    """
    num_workers, together = len(ready), plan.mode == "sync"
    layout_of: LayOut = partial(agents_layout, spec) if isinstance(spec, AgentsSpec) else partial(slot_layout, spec)
    blocks = blocks_of(layout_of, [workers.env_ids(worker) for worker in range(num_workers)], together)
    largest = max((block.layout for block in blocks), key=lambda layout: layout.total_bytes)
    leases = SYNC_LEASES if together else num_workers + 2
    num_slots = leases + (1 if together else num_workers * plan.credits)
    slots = arena.add_slots(largest, num_slots, spec, plan.job.options.rollout_device)
    workers.placement.lay_out(
        SlotMap(
            memory=arena.mapping,
            spec=spec,
            offset=arena.slots_offset,
            slot_bytes=largest.total_bytes,
            together=together,
            shares=tuple(workers.shares),
            credits=plan.credits,
            policies=policies,
        )
    )
    layouts = []
    for worker, block in enumerate(blocks):
        mine = block.columns[block.workers.index(worker)]
        layouts.append(
            Layout(
                slots_offset=arena.slots_offset,
                slot_bytes=largest.total_bytes,
                slot_envs=len(block.env_ids),
                slot_workers=len(block.workers),
                first_column=mine.first,
                position=mine.position,
                first_env_id=workers.env_ids(worker).start,
                extras=ready[0].extras,
                carry=ready[0].carry,
                infos=ready[0].infos,
                **_on_device(slots.device, slots.device_stride),
            )
        )
    return Room(blocks, slots, leases, layouts)


def _on_device(memory: DeviceMemory | None, slot_bytes: int) -> dict[str, Any]:
    if memory is None:
        return {}
    return {"device": memory.device, "device_memory": memory.handle, "device_slot_bytes": slot_bytes}


def checked_spaces(ready: Sequence[Ready], given: Spaces | None, what: str = "spaces") -> Spaces:
    """The spaces that workers describe, all the same, and those that are given."""
    mine = rebuild(ready[0].spaces[0]), rebuild(ready[0].spaces[1])
    if given is not None and not all(map(alike, given, mine)):
        raise ConfigurationError(
            f"spaces= has observations {given[0]} and actions {given[1]}, but env_id 0 has observations {mine[0]} and "
            f"actions {mine[1]}: give those, or none"
        )
    first = pack(ready[0].spaces)
    for worker, other in enumerate(ready):
        theirs = rebuild(other.spaces[0]), rebuild(other.spaces[1])
        if pack(other.spaces) != first and not (given is not None and all(map(alike, given, theirs))):
            raise ConfigurationError(
                f"all sub-environments must have the same {what}, but worker {worker} has observations {theirs[0]} and "
                f"actions {theirs[1]}, and worker 0 has observations {mine[0]} and actions {mine[1]}"
            )
    return mine
