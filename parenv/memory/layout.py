"""What a rollout slot holds and at which offset. Driver and worker compute it from the same specification."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parenv.errors import ProtocolError
from parenv.memory.kinds import MAX_DEPTH, is_shape
from parenv.memory.spaces import Leaf, dtype_of_numbers, unflatten

ALIGNMENT = 64
WHOLE_EPISODES = 0
"""As the length of a rollout: whole episodes, which do not lie in a slot."""
MAX_EPISODE_STEPS = 1_000_000
"""Whole episodes that are longer are an error."""
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
        ("began_s", "<f8"),
        ("ended_s", "<f8"),
        ("gradient_norm", "<f8"),
    ]
)
"""Written last by each worker of a slot: which credit it holds, how long its parts took, when it began and ended on the
clock of ``time.perf_counter``, the gradient's norm."""

END_DTYPE = np.dtype(
    [
        ("step", "<i4"),
        ("column", "<i4"),
        ("length", "<i8"),
        ("return", "<f8"),
        ("seconds", "<f8"),
        ("counts", "<i4"),
        ("void", "<i4"),
        ("known", "<i4"),
        ("resets_next", "<i4"),
    ]
)
"""One episode end: row and column in the rollout, the statistics of the episode, whether it counts as one, whether its
row is no step but says that whoever was to step is gone, whether the observation that it ended with is known, and
whether the step after it only resets (``NEXT_STEP``): then it is the observation of the next row."""


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
        name: its key.
        shape: of one value.
        dtype: likewise.
        acted_on: whether the policy takes it, so that it belongs to the observation that it came with.
        default: what is written where it is not there, if the user gave that.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    acted_on: bool = False
    default: Any = dataclasses.field(default=None, compare=False)

    @property
    def absent(self) -> Any:
        """What is written where it is not there."""
        return 0 if self.default is None else self.default

    @property
    def names(self) -> tuple[str, str]:
        """Of the array, and of the one that says where it was there, as Gymnasium names them."""
        return self.name, f"_{self.name}"


@dataclass(frozen=True)
class RolloutSpec:
    """What every rollout of a pool consists of.

    Args:
        rollout_length: ``T``, or :data:`WHOLE_EPISODES`.
        observations: leaves of the observation space.
        actions: leaves of the action space.
        extras: what policy and ``postprocess`` add.
        carry: leaves of the policy's carry, each ``[B, *shape]``.
        gradient_bytes: the flat gradient that each worker adds; 0 for experience.
        infos: what the user named.
        on_device: whether :data:`ON_DEVICE` lies in memory of a device.
        of_agents: whether it is one group of rows of a slot of several agents.
        num_policies: how many there are that each have a version in every rollout; 0 where they have no names.
    """

    rollout_length: int
    observations: tuple[Leaf, ...]
    actions: tuple[Leaf, ...]
    extras: tuple[Extra, ...] = ()
    carry: tuple[Leaf, ...] = ()
    gradient_bytes: int = 0
    infos: tuple[Info, ...] = ()
    on_device: bool = False
    of_agents: bool = False
    num_policies: int = 0


class Axes(Enum):
    """What the first axes of an array in a slot count."""

    WORKERS = "[W]"
    COLUMNS = "[B]"
    STEPS = "[T, B]"
    OBSERVATIONS = "[T + 1, B]"
    ENDS = "[T * B]"
    """Room for an episode end at every step, the columns of one worker after those of the one before."""


Values = Iterable[tuple[Any, tuple[int, ...], Any]]
"""Key, shape of one value and dtype of each array that a field consists of."""


class RolloutField(NamedTuple):
    """What the arrays of a field have a value for, and its dtype, or what it consists of in rollouts of a kind."""

    axes: Axes
    of: Any


def sized_leaves(of: Sequence[Leaf]) -> Values:
    """Those leaves that have a fixed size, by their place."""
    return [(i, leaf.shape, leaf.dtype) for i, leaf in enumerate(of) if leaf.dtype is not None]


def info_values(of: Iterable[Info]) -> Values:
    """The two arrays of each info."""
    return [value for info in of for value in zip(info.names, (info.shape, ()), (info.dtype, "?"), strict=True)]


def _gradients(spec: RolloutSpec) -> Values:
    return [(0, (aligned(spec.gradient_bytes),), "|u1")] if spec.gradient_bytes else []


def _where_agents_are(dtype: str) -> Callable[[RolloutSpec], Values]:
    return lambda spec: [(0, (), dtype)] if spec.of_agents else []


def _versions(spec: RolloutSpec) -> Values:
    return [(0, (spec.num_policies,), "<i8")] if spec.num_policies else []


ROLLOUT_FIELDS: dict[str, RolloutField] = {
    "commits": RolloutField(Axes.WORKERS, COMMIT_DTYPE),
    "observations": RolloutField(Axes.OBSERVATIONS, lambda spec: sized_leaves(spec.observations)),
    "actions": RolloutField(Axes.STEPS, lambda spec: sized_leaves(spec.actions)),
    "rewards": RolloutField(Axes.STEPS, "<f4"),
    "terminated": RolloutField(Axes.STEPS, "?"),
    "truncated": RolloutField(Axes.STEPS, "?"),
    "restarted": RolloutField(Axes.COLUMNS, "?"),
    "resetting": RolloutField(Axes.COLUMNS, "?"),
    "extras": RolloutField(Axes.STEPS, lambda spec: [(one.name, one.shape, one.dtype) for one in spec.extras]),
    "infos": RolloutField(Axes.STEPS, lambda spec: info_values(spec.infos)),
    "seen": RolloutField(Axes.OBSERVATIONS, lambda spec: info_values(info for info in spec.infos if info.acted_on)),
    "carry": RolloutField(Axes.COLUMNS, lambda spec: sized_leaves(spec.carry)),
    "gradients": RolloutField(Axes.WORKERS, _gradients),
    "ends": RolloutField(Axes.ENDS, END_DTYPE),
    "finals": RolloutField(Axes.ENDS, lambda spec: sized_leaves(spec.observations)),
    "policies": RolloutField(Axes.STEPS, _where_agents_are("<i4")),
    "assigned": RolloutField(Axes.COLUMNS, _where_agents_are("<i4")),
    "first_versions": RolloutField(Axes.COLUMNS, _where_agents_are("<i8")),
    "numbers": RolloutField(Axes.ENDS, _where_agents_are("<i8")),
    "versions": RolloutField(Axes.WORKERS, _versions),
}
"""Everything in a slot: ``infos`` as each step returned them, ``seen`` what of them came with each observation,
``finals`` the observations that episodes ended with. Of several agents also by index the policy that acted in each row,
or :data:`~parenv.memory.agent_layout.NOBODY`; the one that was ``assigned`` to it last, also where its agent is not
there; the version that acted first, where it is not that of the rollout, else -1; the number of the episode that ended;
and the version of each policy."""

ON_DEVICE = ("observations", "actions", "extras")
"""What of it may lie in memory of a device: what a policy on that device takes and returns."""

PLAIN = {
    name: field.axes
    for name, field in ROLLOUT_FIELDS.items()
    if isinstance(field.of, str) and field.axes in (Axes.COLUMNS, Axes.STEPS)
}
"""What a rollout has under the same name just as it lies in the slot."""


@dataclass(frozen=True)
class Field:
    """One array of a slot."""

    name: tuple[str, Any]
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of what it has for one index of its first axis."""
        return np.dtype(self.dtype).itemsize * int(np.prod(self.shape[1:], dtype=np.int64))


@dataclass(frozen=True)
class SlotLayout:
    """All arrays of one slot.

    Args:
        fields: in the order of their offsets.
        reserved_bytes: the part that every rollout uses; behind it lie the final observations, of which only as
            many pages are ever touched as there were episode ends at once.
        total_bytes: the whole slot.
        device_fields: those that lie in memory of a device.
        device_bytes: what they take there.
    """

    fields: tuple[Field, ...]
    reserved_bytes: int
    total_bytes: int
    device_fields: tuple[Field, ...] = ()
    device_bytes: int = 0

    def arrays(self, buffer: Any) -> dict[tuple[str, Any], npt.NDArray[Any]]:
        """Every field as an array over ``buffer``, which holds one slot."""
        return {
            field.name: np.ndarray(field.shape, field.dtype, buffer, field.offset)  # type: ignore[call-overload,unused-ignore]
            for field in self.fields
        }

    def tensors(self, block: Any) -> dict[tuple[str, Any], Any]:
        """Every field of a device as a tensor over ``block``, a tensor of the bytes that one slot has there."""
        return {field.name: _tensor(block, field) for field in self.device_fields}


def _tensor(block: Any, field: Field) -> Any:
    nbytes = math.prod(field.shape) * np.dtype(field.dtype).itemsize
    return block[field.offset : field.offset + nbytes].view(torch_dtype(field.dtype)).view(field.shape)


@lru_cache(maxsize=64)
def torch_dtype(dtype: Any) -> Any:
    """What torch calls a dtype of numpy's."""
    import torch

    return torch.from_numpy(np.empty(0, dtype)).dtype


def extras_and_carry(extras: Sequence[Any], carry: Sequence[Any]) -> tuple[tuple[Extra, ...], tuple[Leaf, ...]]:
    """From the plain data of a message, whoever has sent it.

    Raises:
        ProtocolError: these are not different arrays of numbers.
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
            raise ValueError("names of extras are different texts")
        if leaves:
            unflatten(leaves, leaves)
    except (AttributeError, TypeError, ValueError) as error:
        raise ProtocolError(f"these are no extras and carry: {error}") from error
    return found, leaves


def _check_path(path: tuple[Any, ...]) -> None:
    if len(path) > MAX_DEPTH:
        raise ValueError(f"a carry is nested at most {MAX_DEPTH} deep")
    if not all(type(key) in (str, int) for key in path):
        raise ValueError("keys of a carry are texts, and places in tuples whole numbers")


def infos_as_data(infos: Sequence[Info]) -> list[Any]:
    """As plain data for a message."""
    return [[info.name, list(info.shape), info.dtype, info.acted_on] for info in infos]


def infos_from_data(data: Sequence[Any], defaults: Mapping[str, Any] = NO_DEFAULTS) -> tuple[Info, ...]:
    """The inverse of :func:`infos_as_data`, whoever has sent it, with the user's defaults by name.

    Raises:
        ProtocolError: these are not different arrays of numbers.
    """
    arrays, _ = extras_and_carry(data, ())
    return tuple(Info(a.name, a.shape, a.dtype, a.postprocessed, defaults.get(a.name)) for a in arrays)


def _shape(shape: Any, dtype: Any) -> tuple[int, ...]:
    itemsize = dtype_of_numbers(dtype, "biufc").itemsize
    sizes: tuple[int, ...] = tuple(shape)
    if not is_shape(sizes):
        raise ValueError("a shape is whole numbers")
    if math.prod(max(size, 1) for size in (itemsize, *sizes)) > MAX_BYTES:
        raise ValueError(f"an array of a sub-environment has at most {MAX_BYTES} bytes a step")
    return sizes


def leaves_as_data(leaves: Sequence[Leaf]) -> list[Any]:
    """As plain data for a message."""
    return [[list(leaf.path), list(leaf.shape), leaf.dtype] for leaf in leaves]


def leaves_from_data(data: Sequence[Any]) -> tuple[Leaf, ...]:
    """From the plain data of a message: the inverse of :func:`leaves_as_data`."""
    return tuple(Leaf(tuple(path), tuple(shape), dtype) for path, shape, dtype in data)


def slot_layout(spec: RolloutSpec, num_envs: int, num_workers: int) -> SlotLayout:
    """Lay out a slot of ``num_envs`` columns that ``num_workers`` workers fill.

    Every array begins on a cache line. Final observations and episode ends have room for an end at every step,
    the columns of one worker after those of the one before.
    """
    T, B = spec.rollout_length, num_envs
    sizes = {
        Axes.WORKERS: (num_workers,),
        Axes.COLUMNS: (B,),
        Axes.STEPS: (T, B),
        Axes.OBSERVATIONS: (T + 1, B),
        Axes.ENDS: (T * B,),
    }
    always: list[tuple[tuple[str, Any], tuple[int, ...], Any]] = []
    sparse: list[tuple[tuple[str, Any], tuple[int, ...], Any]] = []
    elsewhere: list[tuple[tuple[str, Any], tuple[int, ...], Any]] = []
    for name, field in ROLLOUT_FIELDS.items():
        here = sparse if field.axes is Axes.ENDS else always
        (elsewhere if spec.on_device and name in ON_DEVICE else here).extend(
            ((name, key), (*sizes[field.axes], *shape), dtype)
            for key, shape, dtype in (field.of(spec) if callable(field.of) else [(0, (), field.of)])
        )
    placed, reserved = place(always, 0)
    more, total = place(sparse, reserved)
    on_device, device_bytes = place(elsewhere, 0)
    return SlotLayout((*placed, *more), reserved, aligned(total, 4096), tuple(on_device), device_bytes)


@lru_cache(maxsize=1024)
def part_of_slot(rollout_length: int, position: int, first: int, stop: int) -> Mapping[str, Any]:
    """By field, the part of its arrays that belongs to one worker, or to several whose columns are adjacent.

    Args:
        rollout_length: ``T``.
        position: of the worker among those of the slot, or of the first.
        first: its first column.
        stop: the column behind its last.
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


def place(wanted: Sequence[tuple[tuple[str, Any], tuple[int, ...], Any]], offset: int) -> tuple[list[Field], int]:
    """Put arrays one behind the other, each on a cache line; also where the last one ends."""
    placed = []
    for name, shape, dtype in wanted:
        placed.append(Field(name, shape, dtype, offset))
        offset = aligned(offset + np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64)))
    return placed, offset
