"""Shared memory of a pool, and the layout of its rollouts, once its workers have described their sub-environments."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from parenv.crew.workers import Workers
from parenv.envs.factories import Spaces
from parenv.errors import ConfigurationError
from parenv.experience.assembly import Columns
from parenv.memory.agent_layout import agents_spec
from parenv.memory.device_memory import DeviceMemory, allocated
from parenv.memory.layout import (
    PART_STEPS,
    RolloutSpec,
    SlotLayout,
    SlotSpec,
    aligned,
    extras_and_carry,
    infos_from_data,
    slot_layout,
)
from parenv.memory.maps import SlotMap, WeightsMap
from parenv.memory.shared import SharedMemory
from parenv.memory.slots import Slots
from parenv.memory.spaces import alike, leaves, rebuild
from parenv.memory.status_slot import StatusSlot, header_bytes
from parenv.policy.snapshots import WeightsWriter, flat_layout, float32_parts
from parenv.pool.arrival import Block
from parenv.pool.pool_plan import Plan
from parenv.pool.versions import Versions
from parenv.process.free_memory import check_fits, in_words
from parenv.protocol.data import pack
from parenv.protocol.messages import Layout, Ready


class Arena:
    """Shared memory in three parts: status slots of the workers, weights, and rollout slots, in this order.

    Args:
        num_workers: Number of workers.
        modules: Modules whose weights are published, by name of each policy with a module.
        places: Number of versions of each policy that fit.

    Attributes:
        writers: Writers of the weights, by name of each policy with a module.
        maps: Places of the weights, by the same names.
        device_memory: Memory of a device with a part of every rollout, or ``None``.
    """

    device_memory: DeviceMemory | None = None

    def __init__(self, num_workers: int, modules: Mapping[str, Any], places: int) -> None:
        sizes = [flat_layout(module)[1] for module in modules.values()]
        *offsets, end = accumulate((places * nbytes for nbytes in sizes), initial=header_bytes(num_workers))
        self.slots_offset = aligned(end, 4096)
        self.memory = SharedMemory(self.slots_offset)
        head = self.memory.map()
        self.status = [StatusSlot(head, worker) for worker in range(num_workers)]
        self.writers: dict[str, WeightsWriter] = {}
        self.maps: dict[str, WeightsMap] = {}
        for (name, module), offset, nbytes in zip(modules.items(), offsets, sizes, strict=True):
            self.writers[name] = WeightsWriter(module, head, offset, places)
            self.maps[name] = WeightsMap(head, offset, nbytes, float32_parts(module))

    def add_slots(self, layout: SlotLayout, count: int, spec: SlotSpec, device: str | None) -> Slots:
        """Reserve memory for rollout slots, and on a device for the parts that are stored there.

        Raises:
            ConfigurationError: There is not enough memory beside the weights.
        """
        observation = in_words(sum(leaf.nbytes for leaf in spec.observations if leaf.dtype is not None))
        check_fits(
            "the pool",
            self.slots_offset + count * layout.reserved_bytes,
            f"{count} rollouts of {in_words(layout.reserved_bytes)} that may be in progress or in use at once, for "
            f"rollout_length={spec.rollout_length} and observations of {observation} each, and "
            f"{in_words(self.slots_offset)} for versions of the policy",
            "a shorter rollout_length, fewer sub-environments, a smaller prefetch, or smaller observations, such as "
            "uint8 where they are float32",
        )
        self.memory.grow(self.slots_offset + count * layout.total_bytes)
        for slot in range(count):
            self.memory.reserve(self.slots_offset + slot * layout.total_bytes, layout.reserved_bytes)
        self.mapping: mmap.mmap = self.memory.map()
        about = self.mapping, self.slots_offset, layout.total_bytes, count
        if device is None or not layout.device_bytes:
            return Slots(*about)
        self.device_memory = allocated(device, count * layout.device_bytes)
        return Slots(*about, self.device_memory, layout.device_bytes)

    def close(self) -> None:
        """Close the descriptors. The memory is freed with the last array over it. Idempotent."""
        for part in (self.memory, self.device_memory):
            if part is not None:
                part.close()


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

    Returns:
        Spaces of a sub-environment, and the slots.

    Raises:
        ConfigurationError: Sub-environments differ in their spaces or agents, or there is not enough memory.
    """
    described = _checked_spaces(ready, plan)
    spec, together = _spec(plan, described, ready[0]), plan.given.mode == "sync"
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
    if job.is_named:
        observed, acted = cast(tuple[Any, Any], described)
        return agents_spec(job.rollout_length, observed, acted, list(job.policies), ready.extras, job.gradient_bytes)
    rows = RolloutSpec(
        PART_STEPS if job.in_parts else job.rollout_length,
        leaves(described[0]),
        leaves(described[1]),
        *extras_and_carry(ready.extras, ready.carry),
        gradient_bytes=job.gradient_bytes,
        infos=infos_from_data(ready.infos),
        on_device=job.options.rollout_device is not None,
        in_parts=job.in_parts,
    )
    return SlotSpec((rows,))


def _on_device(memory: DeviceMemory | None, slot_bytes: int) -> dict[str, Any]:
    if memory is None:
        return {}
    return {"device": memory.device, "device_memory": memory.handle, "device_slot_bytes": slot_bytes}


def _checked_spaces(ready: Sequence[Ready], plan: Plan) -> Spaces:
    """Return the spaces that workers describe, which must be the same for all, and those that the user gave."""
    given, what = plan.spaces, "agents and spaces" if plan.job.is_named else "spaces"
    mine = rebuild(ready[0].spaces[0]), rebuild(ready[0].spaces[1])
    if given is not None and not all(map(alike, given, mine)):
        raise ConfigurationError(
            f"spaces must be the spaces of the sub-environments, observations {mine[0]} and actions {mine[1]}, got "
            f"observations {given[0]} and actions {given[1]}. Leave spaces out."
        )
    first = pack(ready[0].spaces)
    for worker, other in enumerate(ready):
        theirs = rebuild(other.spaces[0]), rebuild(other.spaces[1])
        if pack(other.spaces) != first and not (given is not None and all(map(alike, given, theirs))):
            raise ConfigurationError(
                f"all sub-environments must have the same {what}, but worker {worker} has observations {theirs[0]} and "
                f"actions {theirs[1]}, and worker 0 has observations {mine[0]} and actions {mine[1]}. Pad the spaces "
                "in the environment."
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
