"""Transfer of weights to hosts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from parenv.memory.maps import WeightsMap
from parenv.options import WeightsEncoding
from parenv.remote.host_messages import Weights


def chunks_of(weights: WeightsMap, weights_slot: int, encoding: WeightsEncoding, chunk_bytes: int) -> Iterator[Weights]:
    """Yield the version in a weight slot in messages of up to ``chunk_bytes``. Exact chunks are views of the memory."""
    base = weights.offset + weights_slot * weights.nbytes
    for begin, stop, is_float32 in _parts(weights):
        rounds = is_float32 and encoding == "bfloat16"
        step = chunk_bytes * 2 if rounds else chunk_bytes
        for at in range(begin, stop, step):
            size = min(step, stop - at)
            data = memoryview(weights.memory)[base + at : base + at + size]
            if rounds:
                data = memoryview(to_bfloat16(np.frombuffer(data, "<f4"))).cast("B")
            yield Weights(base + at, "bfloat16" if rounds else "exact", data)


def _parts(weights: WeightsMap) -> Iterator[tuple[int, int, bool]]:
    """Yield the begin and end of each part of a version, and whether it holds float32 numbers. Parts may be empty."""
    done = 0
    for begin, stop in (*weights.float32, (weights.nbytes, weights.nbytes)):
        yield done, begin, False
        yield begin, stop, True
        done = stop


def write_chunk(memory: Any, chunk: Weights) -> None:
    """Write a chunk of weights to the memory of a host.

    Raises:
        ValueError: The chunk does not fit into the memory.
    """
    if chunk.encoding == "bfloat16":
        numbers = from_bfloat16(np.frombuffer(chunk.data, "<u2"))
        np.frombuffer(memory, "<f4", numbers.size, chunk.offset)[:] = numbers
    else:
        np.frombuffer(memory, np.uint8, chunk.data.nbytes, chunk.offset)[:] = np.frombuffer(chunk.data, np.uint8)


def to_bfloat16(values: Any) -> Any:
    """Round float32 numbers to the nearest bfloat16, ties to even. Returns their upper halves, uint16.

    The relative error of normal numbers is at most 2**-8 (0.4 %). Infinities and NaN are kept.

    >>> from_bfloat16(to_bfloat16(np.array([1.0, 3.14159274, -5.0], "<f4"))).tolist()
    [1.0, 3.140625, -5.0]
    """
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def from_bfloat16(halves: Any) -> Any:
    """Return float32 numbers from their upper halves."""
    return (np.asarray(halves, "<u4") << np.uint32(16)).view("<f4")
