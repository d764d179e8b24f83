"""Arrays of a rollout slot and their offsets. Main process and worker compute them from the same specification."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parenv.errors import ProtocolError
from parenv.memory.kinds import MAX_DEPTH, is_shape
from parenv.memory.spaces import Leaf, dtype_of_numbers, unflatten

ALIGNMENT = 64
WHOLE_EPISODES = 0
"""Length of a rollout of whole episodes."""
MAX_EPISODE_STEPS = 1_000_000
"""Maximum length of a whole episode; a longer one is an error."""
PART_STEPS = 64
"""Number of rows in time of a slot for parts of whole episodes."""
MAX_BYTES = 1 << 30

COMMIT_DTYPE = np.dtype(
    [
        ("sequence", "<i8"),
        ("policy_version", "<i8"),
        ("generation", "<i4"),
        ("num_ends", "<i4"),
        ("environment_s", "<f8"),
        ("acting_s", "<f8"),
        ("learning_s", "<f8"),
        ("waiting_s", "<f8"),
        ("processor_s", "<f8"),
        ("voluntary_switches", "<i8"),
        ("involuntary_switches", "<i8"),
        ("step_worker_restarts", "<i8"),
        ("began_s", "<f8"),
        ("ended_s", "<f8"),
        ("gradient_norm", "<f8"),
    ]
)
"""Record that each worker of a slot writes last: the credit that it filled, the seconds of each part, begin and end on
the clock of ``time.perf_counter``, step workers replaced since the last record, and the norm of the gradient."""

END_DTYPE = np.dtype(
    [
        ("step", "<i4"),
        ("column", "<i4"),
        ("length", "<i8"),
        ("return", "<f8"),
        ("seconds", "<f8"),
        ("counts", "<i4"),
        ("ended_by", "<i4"),
        ("void", "<i4"),
        ("known", "<i4"),
        ("resets_next", "<i4"),
    ]
)
"""One episode end: row and column in the rollout, statistics of the episode, and flags. ``counts``: it is an episode,
not a mere life. ``ended_by``: index of the reason in :data:`~parenv.experience.endings.ENDINGS`. ``void``: its row is
not a step, since the process that had to step was gone. ``known``: the environment has returned the final observation.
``resets_next``: the next step only resets (``NEXT_STEP``), and the observation of the next row is the final one."""

OPEN_DTYPE = np.dtype([("return", "<f8"), ("length", "<i8"), ("seconds", "<f8"), ("number", "<i8")])
"""One episode in progress at the end of a rollout: return, length and seconds so far. ``number``: its number,
which only workers with named policies count."""


ROW_DTYPE = np.dtype(
    [("version", "<i8"), ("column", "<i4"), ("begins", "<i2"), ("restarted", "<i2"), ("is_after", "<i2"), ("", "V6")]
)
"""One row of a slot with parts of whole episodes: the version that acted, the column of the sub-environment, and flags.
``begins``: the row is the first of an episode. ``restarted``: an episode of the sub-environment was lost before it.
``is_after``: the row is no step, and has the observation after the last step of an episode."""


@dataclass(frozen=True)
class Extra:
    """An array ``[T, B, *shape]`` that the policy, or else ``postprocess``, adds to the rollout."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    postprocessed: bool = False


NO_DEFAULTS: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Info:
    """An info that the user named, an array ``[T, B, *shape]`` of the rollout.

    Args:
        name: Key of the info.
        shape: Shape of one value.
        dtype: Dtype of one value.
        acted_on: Whether the policy takes it as an argument, so that it belongs to the observation that it came with.
        default: Value for steps without this info, if the user gave one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    acted_on: bool = False
    default: Any = dataclasses.field(default=None, compare=False)

    @property
    def absent(self) -> Any:
        """Value for steps without this info."""
        return 0 if self.default is None else self.default

    @property
    def names(self) -> tuple[str, str]:
        """Names of the array and of its presence mask, as in Gymnasium."""
        return self.name, f"_{self.name}"


@dataclass(frozen=True)
class RolloutSpec:
    """Content of a group of rows in a rollout: the rows of sub-environments, or of agents with the same spaces.

    Args:
        rollout_length: Number of rows in time, ``T``, or :data:`WHOLE_EPISODES`.
        observations: Leaves of the observation space.
        actions: Leaves of the action space.
        extras: Arrays that policy and ``postprocess`` add.
        carry: Leaves of the policy's carry, each ``[B, *shape]``.
        gradient_bytes: Bytes of the flat gradient that each worker adds; 0 for experience.
        infos: Infos that the user named.
        on_device: Whether :data:`ON_DEVICE` is stored in memory of a device.
        agents: Agents with a row in every sub-environment; for the sub-environments themselves, one without a name.
        in_parts: Whether the ``T * B`` rows are parts of whole episodes, one after another. Each row is of any
            sub-environment of the worker, see :data:`ROW_DTYPE`.
    """

    rollout_length: int
    observations: tuple[Leaf, ...]
    actions: tuple[Leaf, ...]
    extras: tuple[Extra, ...] = ()
    carry: tuple[Leaf, ...] = ()
    gradient_bytes: int = 0
    infos: tuple[Info, ...] = ()
    on_device: bool = False
    agents: tuple[str, ...] = ("",)
    in_parts: bool = False


class PolicyFound(NamedTuple):
    """Arrays that a policy adds to the rows of its agents.

    Args:
        group: Index of the group of these rows.
        extras: Extras that it returns.
        carry: Leaves of its carry.
    """

    group: int
    extras: tuple[Extra, ...]
    carry: tuple[Leaf, ...]


@dataclass(frozen=True)
class SlotSpec:
    """Content of a rollout slot.

    Args:
        groups: For one policy without a name, the only group of rows, in which every row is always alive. For named
            policies, the sub-environments themselves, then the agents by their spaces.
        policies: Names of the policies, in the order of their indices.
        found: Arrays that each named policy adds.
        turns: Whether agents act one after the other.
    """

    groups: tuple[RolloutSpec, ...]
    policies: tuple[str, ...] = ("",)
    found: Mapping[str, PolicyFound] = dataclasses.field(default_factory=dict)
    turns: bool = False

    @property
    def is_named(self) -> bool:
        """True if policies have names."""
        return self.policies != ("",)

    @property
    def rollout_length(self) -> int:
        """Number of rows in time, ``T``."""
        return self.groups[-1].rollout_length

    @property
    def observations(self) -> tuple[Leaf, ...]:
        """Leaves of the observations of a sub-environment, agent by agent."""
        groups = self.groups[self.is_named :]
        return tuple(leaf for group in groups for _ in group.agents for leaf in group.observations)

    @cached_property
    def agent_rows(self) -> dict[str, tuple[int, int]]:
        """Group of each agent, and its place among the agents of the group."""
        return {
            agent: (index, place)
            for index, group in enumerate(self.groups)
            for place, agent in enumerate(group.agents)
            if index
        }

    def stored(self, policy: str) -> dict[str, str]:
        """Return the name in the slot of each extra of a policy, by its own name for it."""
        mine = self.found[policy]
        there = {extra.name: extra for extra in self.groups[mine.group].extras}
        return {
            extra.name: extra.name if there.get(extra.name) == extra else f"{policy}/{extra.name}"
            for extra in mine.extras
        }


class Axes(Enum):
    """Meaning of the first axes of an array in a slot."""

    WORKERS = "[W]"
    COLUMNS = "[B]"
    STEPS = "[T, B]"
    OBSERVATIONS = "[T + 1, B]"
    ENDS = "[T * B]"
    """Room for an episode end at every step, worker by worker."""


Values = Iterable[tuple[Any, tuple[int, ...], Any]]
"""Key, shape of one value and dtype of each array that a field consists of."""
Array = tuple[tuple[str, Any], tuple[int, ...], Any]
"""Name, shape and dtype of an array."""


class RolloutField(NamedTuple):
    """First axes of the arrays of a field, and their dtype, or a function of a group and its slot that lists them."""

    axes: Axes
    of: str | np.dtype[Any] | Callable[[RolloutSpec, SlotSpec], Values]


def sized_leaves(of: Sequence[Leaf]) -> Values:
    """Return the leaves with a fixed size, by their index."""
    return [(i, leaf.shape, leaf.dtype) for i, leaf in enumerate(of) if leaf.dtype is not None]


def info_values(of: Iterable[Info]) -> Values:
    """Return the two arrays of each info."""
    return [value for info in of for value in zip(info.names, (info.shape, ()), (info.dtype, "?"), strict=True)]


def _gradients(spec: RolloutSpec, _: SlotSpec) -> Values:
    return [(0, (aligned(spec.gradient_bytes),), "|u1")] if spec.gradient_bytes else []


def _extras(spec: RolloutSpec, _: SlotSpec) -> Values:
    return [(one.name, one.shape, one.dtype) for one in spec.extras]


def _if_named(dtype: str) -> Callable[[RolloutSpec, SlotSpec], Values]:
    return lambda _, slot: [(0, (), dtype)] if slot.is_named else []


def _open_episodes(spec: RolloutSpec, slot: SlotSpec) -> Values:
    return [(0, (), OPEN_DTYPE)] if spec is slot.groups[0] else []


def _versions(spec: RolloutSpec, slot: SlotSpec) -> Values:
    return [(0, (len(slot.policies),), "<i8")] if slot.is_named and spec is slot.groups[0] else []


def _rows(spec: RolloutSpec, _: SlotSpec) -> Values:
    return [(0, (), ROW_DTYPE)] if spec.in_parts else []


ROLLOUT_FIELDS: dict[str, RolloutField] = {
    "commits": RolloutField(Axes.WORKERS, COMMIT_DTYPE),
    "observations": RolloutField(Axes.OBSERVATIONS, lambda spec, _: sized_leaves(spec.observations)),
    "actions": RolloutField(Axes.STEPS, lambda spec, _: sized_leaves(spec.actions)),
    "rewards": RolloutField(Axes.STEPS, "<f4"),
    "terminated": RolloutField(Axes.STEPS, "?"),
    "truncated": RolloutField(Axes.STEPS, "?"),
    "restarted": RolloutField(Axes.COLUMNS, "?"),
    "resetting": RolloutField(Axes.COLUMNS, "?"),
    "open": RolloutField(Axes.COLUMNS, _open_episodes),
    "extras": RolloutField(Axes.STEPS, _extras),
    "infos": RolloutField(Axes.STEPS, lambda spec, _: info_values(spec.infos)),
    "seen": RolloutField(Axes.OBSERVATIONS, lambda spec, _: info_values(info for info in spec.infos if info.acted_on)),
    "carry": RolloutField(Axes.COLUMNS, lambda spec, _: sized_leaves(spec.carry)),
    "gradients": RolloutField(Axes.WORKERS, _gradients),
    "ends": RolloutField(Axes.ENDS, END_DTYPE),
    "finals": RolloutField(Axes.ENDS, lambda spec, _: sized_leaves(spec.observations)),
    "policies": RolloutField(Axes.STEPS, _if_named("<i4")),
    "assigned": RolloutField(Axes.COLUMNS, _if_named("<i4")),
    "first_versions": RolloutField(Axes.COLUMNS, _if_named("<i8")),
    "numbers": RolloutField(Axes.ENDS, _if_named("<i8")),
    "versions": RolloutField(Axes.WORKERS, _versions),
    "rows": RolloutField(Axes.STEPS, _rows),
}
"""Fields of a slot. ``infos`` are those that each step returned, ``seen`` those that came with each observation, and
``finals`` the final observations of episodes. ``open`` are the episodes in progress at the end of the rollout. Only
slots with parts of whole episodes have ``rows``.

Only named policies have the following fields. ``policies`` is the index of the policy that acted in each row, or
:data:`~parenv.memory.agent_layout.NOBODY`. ``assigned`` is the policy that was assigned to the row last, even if its
agent is absent. ``first_versions`` is the version that acted first if it is not the version of the rollout, else -1.
``numbers`` are the numbers of the episodes that ended, and ``versions`` has the version of each policy."""

ON_DEVICE = ("observations", "actions", "extras")
"""Fields that may be stored in memory of a device: arguments and results of a policy on this device."""

PLAIN = {
    name: field.axes
    for name, field in ROLLOUT_FIELDS.items()
    if isinstance(field.of, str) and field.axes in (Axes.COLUMNS, Axes.STEPS)
}
"""Fields of a rollout that are arrays of the slot under the same name."""


@dataclass(frozen=True)
class Field:
    """One array of a slot."""

    name: tuple[str, Any]
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one index of the first axis."""
        return np.dtype(self.dtype).itemsize * int(np.prod(self.shape[1:], dtype=np.int64))


class SlotArrays(Mapping[tuple[str, Any], Any]):
    """Arrays of a group of rows over the memory of a slot. Each is made when it is read for the first time.

    Args:
        fields: Shape, dtype and offset of each array, by its name.
        buffer: Memory of the slot.
    """

    def __init__(self, fields: Mapping[tuple[str, Any], tuple[Any, ...]], buffer: Any) -> None:
        self._fields, self._buffer = fields, buffer
        self._made: dict[tuple[str, Any], npt.NDArray[Any]] = {}

    def __getitem__(self, name: tuple[str, Any]) -> npt.NDArray[Any]:
        if name not in self._made:
            shape, dtype, offset = self._fields[name]
            self._made[name] = np.ndarray(shape, dtype, self._buffer, offset)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def get(self, name: tuple[str, Any], default: Any = None) -> Any:
        """Return an array, or the default. The base class raises and catches an exception for it."""
        return self[name] if name in self._fields else default

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


@dataclass(frozen=True)
class SlotLayout:
    """All arrays of one slot.

    Args:
        groups: Fields of each group of rows.
        reserved_bytes: Part that every rollout uses. The final observations follow it: their pages are touched only as
            far as there have been episode ends in one rollout.
        total_bytes: Bytes of the whole slot.
        device_fields: Fields of the first group that are stored in memory of a device.
        device_bytes: Bytes of the slot in that memory.
    """

    groups: tuple[tuple[Field, ...], ...]
    reserved_bytes: int
    total_bytes: int
    device_fields: tuple[Field, ...] = ()
    device_bytes: int = 0

    def arrays(self, buffer: Any) -> list[dict[tuple[str, Any], npt.NDArray[Any]]]:
        """Return the fields of each group as arrays over ``buffer``, the memory of one slot."""
        return [
            {
                field.name: np.ndarray(field.shape, field.dtype, buffer, field.offset)  # type: ignore[call-overload,unused-ignore]
                for field in group
            }
            for group in self.groups
        ]

    def arrays_when_read(self, buffer: Any) -> list[SlotArrays]:
        """Return the fields of each group as :meth:`arrays` does. Each array is made when it is read."""
        return [SlotArrays(fields, buffer) for fields in self._places]

    @cached_property
    def _places(self) -> list[dict[tuple[str, Any], tuple[Any, ...]]]:
        return [{one.name: (one.shape, np.dtype(one.dtype), one.offset) for one in group} for group in self.groups]

    def tensors(self, block: Any) -> dict[tuple[str, Any], Any]:
        """Return the fields on a device as tensors over ``block``, a tensor of the bytes of one slot there."""
        return {field.name: _tensor(block, field) for field in self.device_fields}


def _tensor(block: Any, field: Field) -> Any:
    nbytes = math.prod(field.shape) * np.dtype(field.dtype).itemsize
    return block[field.offset : field.offset + nbytes].view(torch_dtype(field.dtype)).view(field.shape)


@lru_cache(maxsize=64)
def torch_dtype(dtype: Any) -> Any:
    """Return the torch dtype of a numpy dtype."""
    import torch

    return torch.from_numpy(np.empty(0, dtype)).dtype


def extras_and_carry(extras: Sequence[Any], carry: Sequence[Any]) -> tuple[tuple[Extra, ...], tuple[Leaf, ...]]:
    """Read extras and carry from the plain data of a message, which another machine may have sent.

    Raises:
        ProtocolError: The data does not describe different arrays of numbers.
    """
    try:
        found = tuple(
            Extra(name, _shape(shape, dtype), dtype, bool(postprocessed))
            for name, shape, dtype, postprocessed in extras
        )
        leaves = leaves_from_data(carry)
        for leaf in leaves:
            _shape(leaf.shape, leaf.dtype)
            _check_path(leaf.path)
        names = [extra.name for extra in found]
        if len(set(names)) < len(names) or not all(type(name) is str for name in names):
            raise ValueError(f"names of extras must be different strings, got {names}")
        if leaves:
            unflatten(leaves, leaves)
    except (AttributeError, TypeError, ValueError) as error:
        raise ProtocolError(f"malformed description of extras or carry: {error}") from error
    return found, leaves


def _check_path(path: tuple[Any, ...]) -> None:
    if len(path) > MAX_DEPTH:
        raise ValueError(f"a carry must be nested at most {MAX_DEPTH} deep, got {len(path)}")
    if not all(type(key) in (str, int) for key in path):
        raise ValueError(f"a carry must have strings as keys of dicts and integers as indices of tuples, got {path}")


def infos_as_data(infos: Sequence[Info]) -> list[Any]:
    """Return infos as plain data for a message."""
    return [[info.name, list(info.shape), info.dtype, info.acted_on] for info in infos]


def infos_from_data(data: Sequence[Any], defaults: Mapping[str, Any] = NO_DEFAULTS) -> tuple[Info, ...]:
    """Read infos from the plain data of a message, which another machine may have sent.

    Args:
        data: Data of :func:`infos_as_data`.
        defaults: Defaults that the user gave, by name.

    Raises:
        ProtocolError: The data does not describe different arrays of numbers.
    """
    arrays, _ = extras_and_carry(data, ())
    return tuple(Info(a.name, a.shape, a.dtype, a.postprocessed, defaults.get(a.name)) for a in arrays)


def _shape(shape: Any, dtype: Any) -> tuple[int, ...]:
    itemsize = dtype_of_numbers(dtype, "biufc").itemsize
    sizes: tuple[int, ...] = tuple(shape)
    if not is_shape(sizes):
        raise ValueError(f"a shape must be a few integers of at least 0, got {sizes}")
    if math.prod(max(size, 1) for size in (itemsize, *sizes)) > MAX_BYTES:
        raise ValueError(f"an array of a sub-environment must have at most {MAX_BYTES} bytes a step, got shape {sizes}")
    return sizes


def leaves_as_data(leaves: Sequence[Leaf]) -> list[Any]:
    """Return leaves as plain data for a message."""
    return [[list(leaf.path), list(leaf.shape), leaf.dtype] for leaf in leaves]


def leaves_from_data(data: Sequence[Any]) -> tuple[Leaf, ...]:
    """Read leaves from the plain data of a message, see :func:`leaves_as_data`."""
    return tuple(Leaf(tuple(path), tuple(shape), dtype) for path, shape, dtype in data)


def slot_layout(spec: SlotSpec, num_envs: int, num_workers: int) -> SlotLayout:
    """Lay out a slot of ``num_envs`` sub-environments that ``num_workers`` workers fill.

    Every array begins on a cache line. Final observations and episode ends have room for an end at every step, the rows
    of one worker behind those of another.
    """

    def arrays_of(group: RolloutSpec, names: Iterable[str]) -> list[Array]:
        T, rows = group.rollout_length, num_envs * len(group.agents)
        sizes = {
            Axes.WORKERS: (num_workers,),
            Axes.COLUMNS: (rows,),
            Axes.STEPS: (T, rows),
            Axes.OBSERVATIONS: (T + 1, rows),
            Axes.ENDS: (T * rows,),
        }
        return [
            ((name, key), (*sizes[field.axes], *shape), dtype)
            for name, field in ((name, ROLLOUT_FIELDS[name]) for name in names)
            for key, shape, dtype in (field.of(group, spec) if callable(field.of) else [(0, (), field.of)])
        ]

    on_device = ON_DEVICE if spec.groups[0].on_device else ()
    groups: list[list[Field]] = [[] for _ in spec.groups]
    offset = reserved = 0
    for is_sparse in (False, True):
        names = [name for name, field in ROLLOUT_FIELDS.items() if (field.axes is Axes.ENDS) == is_sparse]
        for group, fields in zip(spec.groups, groups, strict=True):
            placed, offset = place(arrays_of(group, [name for name in names if name not in on_device]), offset)
            fields += placed
        reserved = reserved or offset
    device_fields, device_bytes = place(arrays_of(spec.groups[0], on_device), 0)
    return SlotLayout(tuple(map(tuple, groups)), reserved, aligned(offset, 4096), tuple(device_fields), device_bytes)


@lru_cache(maxsize=1024)
def part_of_slot(rollout_length: int, position: int, first: int, stop: int) -> Mapping[str, Any]:
    """Return the part of each field's arrays that belongs to one worker, or to several with adjacent columns.

    Args:
        rollout_length: Number of rows in time, ``T``.
        position: Position of the first of these workers among those of the slot.
        first: First column.
        stop: Column behind the last one.
    """
    columns = slice(first, stop)
    of_axes: dict[Axes, Any] = {
        Axes.WORKERS: slice(position, position + 1),
        Axes.COLUMNS: columns,
        Axes.STEPS: (slice(None), columns),
        Axes.OBSERVATIONS: (slice(None), columns),
        Axes.ENDS: slice(rollout_length * first, rollout_length * stop),
    }
    return {name: of_axes[field.axes] for name, field in ROLLOUT_FIELDS.items()}


def aligned(size: int, to: int = ALIGNMENT) -> int:
    """Round up.

    >>> aligned(65), aligned(64), aligned(0)
    (128, 64, 0)
    """
    return -(-size // to) * to


def aligned_zeros(shape: tuple[int, ...], dtype: str) -> Any:
    """Return zeros at an aligned address, because results of torch can differ in the last bit with other addresses."""
    zeros = np.zeros(math.prod(shape) * np.dtype(dtype).itemsize + ALIGNMENT, np.uint8)
    begin = -zeros.ctypes.data % ALIGNMENT
    return zeros[begin : begin + zeros.size - ALIGNMENT].view(dtype).reshape(shape)


def place(wanted: Sequence[Array], offset: int) -> tuple[list[Field], int]:
    """Place arrays one behind the other, each on a cache line. Return them and the end of the last one."""
    placed = []
    for name, shape, dtype in wanted:
        placed.append(Field(name, shape, dtype, offset))
        offset = aligned(offset + np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64)))
    return placed, offset
