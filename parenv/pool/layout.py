"""Layout of the rollouts of a pool in its shared memory, once its workers have described their sub-environments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from parenv.envs.factories import Spaces
from parenv.errors import ConfigurationError
from parenv.experience.assembly import Columns
from parenv.memory.agent_layout import agents_spec
from parenv.memory.device_memory import DeviceMemory
from parenv.memory.layout import RolloutSpec, SlotSpec, extras_and_carry, infos_from_data, slot_layout
from parenv.memory.maps import SlotMap
from parenv.memory.slots import Slots
from parenv.memory.spaces import alike, leaves, rebuild
from parenv.pool.arena import Arena
from parenv.pool.arrival import Block
from parenv.pool.pool_plan import Plan
from parenv.pool.versions import Versions
from parenv.protocol.data import pack
from parenv.protocol.messages import Layout, Ready
from parenv.supervision.workers import Workers

SYNC_LEASES = 3


class Room(NamedTuple):
    """Slots for rollouts.

    Args:
        spec: Content of a slot.
        blocks: Block that each worker fills.
        slots: The slots.
        leases: Maximum number of slots that the user holds. Further rollouts are copied.
        layouts: Message to each worker about the slots.
    """

    spec: SlotSpec
    blocks: Sequence[Block]
    slots: Slots
    leases: int
    layouts: list[Layout]


def lay_out(
    plan: Plan, workers: Workers, arena: Arena, versions: Versions, ready: Sequence[Ready]
) -> tuple[Spaces, Room]:
    """Reserve memory for rollouts.

    Args:
        plan: Plan of the pool.
        workers: Its workers.
        arena: Its memory.
        versions: Versions of its policies.
        ready: Description of its sub-environments by each worker.

    Returns:
        Spaces of a sub-environment, and the slots.

    Raises:
        ConfigurationError: Sub-environments differ in their spaces or agents, or there is not enough memory.
    """
    described = _checked_spaces(ready, plan)
    spec, together = _spec(plan, described, ready[0]), plan.mode == "sync"
    blocks = _blocks(spec, [workers.env_ids(worker) for worker in range(len(ready))], together)
    largest = max((block.layout for block in blocks), key=lambda layout: layout.total_bytes)
    leases = SYNC_LEASES if together else len(ready) + 2
    num_slots = leases + (1 if together else len(ready) * plan.credits)
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
            policies=versions.owners,
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
    return plan.spaces or described, Room(spec, blocks, slots, leases, layouts)


def _spec(plan: Plan, described: Spaces, ready: Ready) -> SlotSpec:
    job = plan.job
    if plan.is_named:
        observed, acted = cast(tuple[Any, Any], described)
        return agents_spec(job.rollout_length, observed, acted, list(plan.policies), ready.extras, job.gradient_bytes)
    rows = RolloutSpec(
        job.rollout_length,
        leaves(described[0]),
        leaves(described[1]),
        *extras_and_carry(ready.extras, ready.carry),
        gradient_bytes=job.gradient_bytes,
        infos=infos_from_data(ready.infos),
        on_device=job.options.rollout_device is not None,
    )
    return SlotSpec((rows,))


def _on_device(memory: DeviceMemory | None, slot_bytes: int) -> dict[str, Any]:
    if memory is None:
        return {}
    return {"device": memory.device, "device_memory": memory.handle, "device_slot_bytes": slot_bytes}


def _checked_spaces(ready: Sequence[Ready], plan: Plan) -> Spaces:
    """Return the spaces that workers describe, which must be the same for all, and those that the user gave."""
    given, what = plan.spaces, "agents and spaces" if plan.is_named else "spaces"
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


def _blocks(spec: SlotSpec, env_ids_of: Sequence[range], together: bool) -> list[Block]:
    """Return the block that each worker fills, given the sub-environments of each."""
    if together:
        return [_block(spec, range(len(env_ids_of)), env_ids_of, None)] * len(env_ids_of)
    return [_block(spec, range(w, w + 1), [env_ids], w) for w, env_ids in enumerate(env_ids_of)]


def _block(spec: SlotSpec, workers: range, env_ids_of: Sequence[range], worker: int | None) -> Block:
    begins = list(accumulate(map(len, env_ids_of), initial=0))
    return Block(
        layout=slot_layout(spec, begins[-1], len(workers)),
        worker=worker,
        workers=workers,
        columns=tuple(Columns(i, first, stop) for i, (first, stop) in enumerate(pairwise(begins))),
        env_ids_of=tuple(env_ids_of),
        env_ids=np.arange(env_ids_of[0].start, env_ids_of[-1].stop),
    )
