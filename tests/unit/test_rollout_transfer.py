"""Check that a rollout sent by a host is stored in its slot as a local worker would have written it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parenv.errors import ProtocolError
from parenv.memory.layout import Extra, RolloutSpec, SlotSpec, slot_layout
from parenv.memory.maps import SlotMap, VersionMap, WeightsMap
from parenv.memory.spaces import Leaf
from parenv.options import RemotePlacement
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Commit, Credit
from parenv.remote.exchange import Exchange
from parenv.remote.host_messages import Chunks, Weights
from parenv.remote.transfer import RolloutTransfer, transfer_bytes

T = 4


def spec_of(gradient_bytes: int = 0) -> SlotSpec:
    spec = RolloutSpec(
        T,
        (Leaf((), (3,), "<f4"), Leaf((), (), None), Leaf((), (2,), "|b1")),
        (Leaf((), (), "<i8"),),
        (Extra("value", (2,), "<f8"),),
        (Leaf((), (5,), "<f4"),),
        gradient_bytes,
    )
    return SlotSpec((spec,))


def slot_map(shares: tuple[int, ...], together: bool, spec: SlotSpec) -> SlotMap:
    layout = slot_layout(spec, sum(shares), len(shares)) if together else slot_layout(spec, max(shares), 1)
    memory = bytearray(128 + 3 * layout.total_bytes)
    return SlotMap(memory, spec, 128, layout.total_bytes, together, shares, 2)


def written(transfer: RolloutTransfer, sequence: int, ends: int, seed: int) -> Any:
    """Return a slot as a worker leaves it on its host."""
    memory = np.random.default_rng(seed).integers(0, 255, transfer.layout.total_bytes, dtype=np.uint8)
    (arrays,) = transfer.layout.arrays(memory)
    for array in arrays.values():
        if array.dtype == bool:
            array[:] = array.view(np.uint8) & 1
    record = arrays["commits", 0]
    record["sequence"], record["num_ends"] = sequence, ends
    table = arrays["ends", 0][:ends]
    table["step"], table["column"], table["ended_by"] = 1, 0, 3
    return memory


def chunks(transfer: RolloutTransfer, memory: Any, ends: int, size: int) -> list[tuple[int, memoryview]]:
    ((_, per_end),) = transfer.ends
    ranges = [(0, transfer.layout.reserved_bytes), *((offset, ends * each) for offset, each in per_end)]
    return [
        (at, memoryview(memory)[at : min(at + size, offset + nbytes)])
        for offset, nbytes in ranges
        for at in range(offset, offset + nbytes, size)
    ]


def deliver(
    transfer: RolloutTransfer, slot: int, sequence: int, parts: Any, share: int, ends: int, has_gradient: bool = False
) -> None:
    """Send the rollout of a credit, with its values without a fixed size, which are not in the slot."""
    transfer.expect(Credit(sequence, slot, 0, 0, b""))
    transfer.write(Chunks(sequence, parts))
    objects = {("observations", 1): [[0] * share] * (T + 1), ("finals", 1): [0] * ends}
    transfer.finish(Commit(sequence, objects, 1 if has_gradient else None))


@given(
    shares=st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
    together=st.booleans(),
    ends=st.integers(0, T),
    gradient_bytes=st.sampled_from([0, 40]),
    size=st.sampled_from([64, 100, 1 << 20]),
)
def test_a_transferred_rollout_is_complete_and_nothing_else_is_written(
    shares: tuple[int, ...], together: bool, ends: int, gradient_bytes: int, size: int
) -> None:
    spec = spec_of(gradient_bytes)
    slots = slot_map(shares, together, spec)
    sources = []
    for worker in range(len(shares)):
        transfer = RolloutTransfer(slots, worker)
        memory = written(transfer, 9, ends, worker)
        parts = chunks(transfer, memory, ends, size)
        received = sum(data.nbytes for _, data in parts)
        assert received == transfer_bytes(transfer.layout.reserved_bytes, transfer.ends, [ends])
        deliver(transfer, 1 if together else worker, 9, parts, shares[worker], ends, gradient_bytes > 0)
        sources += transfer.layout.arrays(memory)
    for worker, mine in enumerate(sources):
        layout = slot_layout(spec, sum(shares), len(shares)) if together else slot_layout(spec, shares[worker], 1)
        begin = slots.offset + (1 if together else worker) * slots.slot_bytes
        (whole,) = layout.arrays(memoryview(slots.memory)[begin:])
        first, position = (sum(shares[:worker]), worker) if together else (0, 0)
        columns = slice(first, first + shares[worker])
        for name, values in mine.items():
            if name[0] in ("commits", "gradients"):
                got, wanted = whole[name][position], values[0]
            elif name[0] in ("ends", "finals"):
                got, wanted = whole[name][T * first : T * first + ends].copy(), values[:ends].copy()
                if name[0] == "ends":
                    wanted["column"] += first
            elif name[0] in ("restarted", "resetting", "open", "carry"):
                got, wanted = whole[name][columns], values
            else:
                got, wanted = whole[name][:, columns], values
            assert got.tobytes() == wanted.tobytes(), name
    untouched = slice(slots.offset, slots.offset + slots.slot_bytes) if together else slice(0, slots.offset)
    assert not any(slots.memory[untouched])


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(-1, 8), (1 << 40, 8), (0, 1 << 20)], ids=["before", "behind", "larger than a slot"]
)
def test_a_piece_that_does_not_fit_is_refused(offset: int, nbytes: int) -> None:
    transfer = RolloutTransfer(slot_map((2, 2), True, spec_of()), 0)
    transfer.expect(Credit(0, 0, 0, 0, b""))
    with pytest.raises(ProtocolError, match="must be within its slot"):
        transfer.write(Chunks(0, [[offset, memoryview(bytes(nbytes))]]))


@pytest.mark.parametrize("wrong", ["too many ends", "negative ends", "bytes missing"])
@pytest.mark.parametrize("shares", [(2,), (2, 1)])
def test_an_incomplete_rollout_is_refused(wrong: str, shares: tuple[int, ...]) -> None:
    slots = slot_map(shares, len(shares) > 1, spec_of())
    transfer = RolloutTransfer(slots, 0)
    memory = written(transfer, 5, 2, 0)
    (arrays,) = transfer.layout.arrays(memory)
    if wrong != "bytes missing":
        arrays["commits", 0]["num_ends"] = 2 * T + 1 if wrong == "too many ends" else -1
    parts = chunks(transfer, memory, 2, 1 << 20)
    if wrong == "bytes missing":
        parts[-1] = (parts[-1][0], parts[-1][1][:-1])
    with pytest.raises(ProtocolError, match="episode ends must have"):
        deliver(transfer, 0, 5, parts, shares[0], 2)


def test_a_rollout_without_a_credit_is_refused() -> None:
    transfer = RolloutTransfer(slot_map((2,), False, spec_of()), 0)
    with pytest.raises(ProtocolError, match="worker 0 has no credit 6"):
        transfer.write(Chunks(6, []))
    with pytest.raises(ProtocolError, match="worker 0 has no credit 6"):
        transfer.finish(Commit(6))


def test_a_host_that_joins_again_gets_the_weights_and_the_settings_again() -> None:
    weights = WeightsMap(bytearray(64), 0, 64, ())
    row = SimpleNamespace(of="", place=0, number=5)
    exchange = Exchange(
        RemotePlacement("tcp://127.0.0.1:1", key="driver.key", hosts="hosts.pub"),
        VersionMap((), {"": weights}, lambda version: {"": row}),
    )
    exchange.lay_out(slot_map((1,), False, spec_of()))
    worker = Sender(0, 0)

    def kinds(sequence: int) -> list[Any]:
        sent = [message for message, _ in exchange.outgoing(b"host", worker, Credit(sequence, 0, 5, 0, b"settings"))]
        return [message.snapshot if isinstance(message, Credit) else type(message) for message in sent]

    assert kinds(0) == [Weights, b"settings"]
    assert kinds(1) == [b""]
    exchange.forget_host(b"host")
    assert kinds(2) == [Weights, b"settings"]
    exchange.forget_host(b"other")
    assert kinds(3) == [b""]
