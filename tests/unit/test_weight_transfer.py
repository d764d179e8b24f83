"""Check that weights are sent in parts, exactly or rounded to bfloat16 with a bounded error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from parenv.memory.maps import WeightsMap
from parenv.policy.snapshots import flat_layout, float32_parts
from parenv.remote.host_messages import Weights
from parenv.remote.transfer import chunks_of, from_bfloat16, to_bfloat16, write_chunk


@given(arrays(np.float32, 50, elements=st.floats(width=32)))
def test_rounding_is_the_same_as_in_torch_and_within_its_bound(values: np.ndarray) -> None:  # type: ignore[type-arg]
    rounded = from_bfloat16(to_bfloat16(values))
    wanted = torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(rounded, wanted, equal_nan=True)
    normal = np.isfinite(rounded) & (np.abs(values) >= np.finfo(np.float32).tiny)
    assert (np.abs(rounded[normal].astype(np.float64) - values[normal]) <= np.abs(values[normal]) * 2.0**-8).all()


@pytest.mark.parametrize(
    ("bits", "half"),
    [
        (0x3F80_8000, 0x3F80),  # halfway between two numbers, of which the first is even
        (0x3F81_8000, 0x3F82),  # halfway, and the second is even
        (0x3F80_8001, 0x3F81),
        (0x3F81_7FFF, 0x3F81),
        (0xBF81_8000, 0xBF82),
        (0x7F7F_8000, 0x7F80),  # beyond the largest number
    ],
)
def test_a_number_halfway_between_two_is_rounded_to_the_even_one(bits: int, half: int) -> None:
    values = np.array([bits], "<u4").view("<f4")
    assert to_bfloat16(values).tolist() == [half]
    assert torch.from_numpy(values).bfloat16().view(torch.uint16).tolist() == [half]


@pytest.mark.parametrize("encoding", ["exact", "bfloat16"])
@pytest.mark.parametrize("chunk_bytes", [64, 1 << 18])
def test_a_version_is_received_at_the_same_place(encoding: str, chunk_bytes: int) -> None:
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(30, 20), "norm": torch.nn.BatchNorm1d(3)})
    layout, nbytes = flat_layout(module)
    memory = np.random.default_rng(0).integers(0, 100, 64 + 3 * nbytes, dtype=np.uint8)
    weights = WeightsMap(memory, 64, nbytes, float32_parts(module))
    there = np.zeros_like(memory)
    chunks = list(chunks_of(weights, 1, encoding, chunk_bytes))  # type: ignore[arg-type]
    for chunk in chunks:
        assert chunk.data.nbytes <= chunk_bytes
        write_chunk(there, chunk)
    begin = 64 + nbytes
    assert not there[:begin].any()
    assert not there[begin + nbytes :].any()
    for tensor in layout:
        part = slice(begin + tensor.offset, begin + tensor.offset + tensor.nbytes)
        if encoding == "exact" or tensor.dtype != torch.float32:
            assert (there[part] == memory[part]).all()
        else:
            assert np.array_equal(from_bfloat16(to_bfloat16(memory[part].view("<f4"))), there[part].view("<f4"))
    sent = sum(chunk.data.nbytes for chunk in chunks)
    assert sent == nbytes if encoding == "exact" else nbytes / 2 <= sent < nbytes


def test_a_part_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer is smaller than requested size"):
        write_chunk(bytearray(64), Weights(32, "exact", memoryview(bytes(64))))
