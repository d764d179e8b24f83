"""Shared memory of a pool: status slots of the workers, weights, and rollout slots, in this order."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from parenv.memory.device_memory import DeviceMemory, allocated
from parenv.memory.layout import SlotLayout, SlotSpec, aligned
from parenv.memory.maps import WeightsMap
from parenv.memory.shared import SharedMemory
from parenv.memory.slots import Slots
from parenv.memory.status_slot import StatusSlot, header_bytes
from parenv.policy.snapshots import WeightsWriter, flat_layout, float32_parts
from parenv.pool.synchronization import Synchronization
from parenv.process.free_memory import check_fits, in_words

MAX_WEIGHTS_BYTES = 1 << 30
MIN_WEIGHTS_PLACES = 4


def weights_places(modules: Iterable[Any], versions: int) -> int:
    """Return the number of versions of each policy to reserve memory for.

    Args:
        modules: Modules of the policies.
        versions: Maximum number of versions in use at once. If they would take too much memory, there are fewer places,
            and publishes wait.
    """
    nbytes = sum(flat_layout(module)[1] for module in modules)
    return max(MIN_WEIGHTS_PLACES, min(versions, MAX_WEIGHTS_BYTES // nbytes if nbytes else versions))


class Arena:
    """Shared memory in three parts.

    Args:
        num_workers: Number of workers.
        modules: Modules whose weights are published, by name of each policy with a module.
        places: Number of versions of each policy that fit.

    Attributes:
        writers: Writers of the weights, by name of each policy with a module.
        maps: Places of the weights, by the same names.
        device_memory: Memory of a device with a part of every rollout, or ``None``.
        synchronization: Synchronization of the workers of this machine, or ``None``.
    """

    device_memory: DeviceMemory | None = None
    synchronization: Synchronization | None = None

    def __init__(self, num_workers: int, modules: Mapping[str, Any], places: int) -> None:
        sizes = [flat_layout(module)[1] for module in modules.values()]
        *offsets, end = accumulate((places * nbytes for nbytes in sizes), initial=header_bytes(num_workers))
        self.slots_offset = aligned(end, 4096)
        self.memory = SharedMemory(self.slots_offset)
        head = self.memory.map()
        self.progress = [StatusSlot(head, worker) for worker in range(num_workers)]
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
            f"{count} rollouts of {in_words(layout.reserved_bytes)} that may be under way or in use at once, for "
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
        for part in (self.memory, self.device_memory, self.synchronization):
            if part is not None:
                part.close()
