"""Check that a slot becomes free when the last array over it is deleted, and not earlier."""

from __future__ import annotations

import mmap
import sys
import threading
import types
from types import FrameType
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from parenv.memory.device_memory import CudaMemory
from parenv.memory.slots import Slots

OFFSET, STRIDE = 128, 64


def make_slots(count: int) -> Slots:
    return Slots(mmap.mmap(-1, OFFSET + count * STRIDE), OFFSET, STRIDE, count)


def array_over(root: Any) -> Any:
    return np.ndarray((STRIDE // 4,), "<f4", root)


HOLDERS = {
    "the memory itself": lambda root: root,
    "an array": array_over,
    "a view of an array": lambda root: array_over(root)[2:8].reshape(2, 3).T,
    "a memoryview": memoryview,
    "a memoryview of an array": lambda root: memoryview(array_over(root)),
    "a tensor": lambda root: torch.from_numpy(array_over(root)),
    "a view of a tensor": lambda root: torch.from_numpy(array_over(root))[3:].view(-1),
    "an array of a tensor": lambda root: torch.as_tensor(array_over(root)).numpy(),
    "a tensor from the buffer": lambda root: torch.frombuffer(root, dtype=torch.float32),
    "an array of an array": lambda root: np.asarray(array_over(root).view(np.int32)),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_leased_slot_is_held_by_each_kind_of_object(kind: str) -> None:
    slots = make_slots(1)
    held = HOLDERS[kind](slots.lease(slots.claim()))
    assert (slots.leased, slots.free) == (1, 0)
    del held
    assert (slots.leased, slots.free) == (0, 1)


def test_a_slot_is_free_only_when_the_last_of_several_arrays_is_deleted() -> None:
    slots = make_slots(1)
    root = slots.lease(slots.claim())
    held = [array_over(root), torch.from_numpy(array_over(root)), array_over(root)[1:]]
    del root
    while held:
        assert slots.free == 0
        held.pop()
    assert slots.free == 1


def test_the_slot_used_last_is_used_next() -> None:
    slots = make_slots(3)
    first, second = slots.claim(), slots.claim()
    slots.release(second)
    slots.release(first)
    assert [slots.claim(), slots.claim()] == [first, second]
    lease = slots.lease(first)
    del lease
    assert slots.claim() == first


def test_peeking_does_not_lease_a_slot() -> None:
    slots = make_slots(1)
    slot = slots.claim()
    peeked = array_over(slots.peek(slot))
    slots.release(slot)
    assert (slots.leased, slots.free) == (0, 1)
    assert peeked.shape == (16,)


def test_each_slot_is_a_separate_part_of_the_mapping() -> None:
    mapping = mmap.mmap(-1, OFFSET + 3 * STRIDE)
    slots = Slots(mapping, OFFSET, STRIDE, 3)
    for slot in range(3):
        array_over(slots.peek(slot))[:] = slot + 1
    assert mapping[:OFFSET] == bytes(OFFSET)
    np.testing.assert_array_equal(np.frombuffer(mapping, "<f4", offset=OFFSET).reshape(3, -1)[:, 0], [1, 2, 3])


def test_an_array_may_be_deleted_in_another_thread() -> None:
    slots = make_slots(1)
    held = [slots.lease(slots.claim())]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert (slots.leased, slots.free) == (0, 1)


def test_no_signal_handler_can_run_while_a_slot_is_freed() -> None:
    slots, lines = make_slots(1), list[int]()
    root = slots.lease(slots.claim())

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        lines.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        # Python runs signal handlers between two lines of Python code, and discards their exceptions while it frees an
        # object. Freeing a slot must therefore not run any line.
        del root
    finally:
        sys.settrace(before)
    assert lines == []
    assert slots.free == 1


def test_arrays_outlive_the_slots() -> None:
    slots = make_slots(1)
    array = array_over(slots.lease(slots.claim()))
    array[:] = 5
    del slots
    assert array.sum() == 80


class SlotsMachine(RuleBasedStateMachine):
    """State machine of claims, releases, leases and deletions, in which no leased slot may be overwritten."""

    COUNT = 4

    def __init__(self) -> None:
        super().__init__()
        self.slots = make_slots(self.COUNT)
        self.claimed: list[int] = []
        self.leased: list[tuple[int, list[Any]]] = []
        self.stamp = 0

    @precondition(lambda self: self.slots.free)
    @rule()
    def claim(self) -> None:
        slot = self.slots.claim()
        assert slot not in self.claimed
        assert slot not in [held for held, _ in self.leased]
        self.claimed.append(slot)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        slot = self.claimed.pop(data.draw(st.integers(0, len(self.claimed) - 1)))
        self.slots.release(slot)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), kinds=st.lists(st.sampled_from(["array", "view", "tensor"]), min_size=1, max_size=3))
    def lease(self, data: Any, kinds: list[str]) -> None:
        slot = self.claimed.pop(data.draw(st.integers(0, len(self.claimed) - 1)))
        root = self.slots.lease(slot)
        self.stamp += 1
        array_over(root)[:] = self.stamp
        arrays = {"array": array_over(root), "view": array_over(root)[4:], "tensor": torch.from_numpy(array_over(root))}
        self.leased.append((slot, [(self.stamp, arrays[kind]) for kind in kinds]))

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def delete_one_array(self, data: Any) -> None:
        i = data.draw(st.integers(0, len(self.leased) - 1))
        self.leased[i][1].pop()
        if not self.leased[i][1]:
            del self.leased[i]

    @invariant()
    def no_slot_was_overwritten_and_counts_are_right(self) -> None:
        assert all((array == stamp).all() for _, arrays in self.leased for stamp, array in arrays)
        assert self.slots.leased == len(self.leased)
        assert self.slots.free == self.COUNT - len(self.leased) - len(self.claimed)


def test_a_slot_is_never_claimed_twice_in_any_order_of_events() -> None:
    run_state_machine_as_test(SlotsMachine, settings=settings(max_examples=30, stateful_step_count=30))


class Stream:
    """Stream of a device that does nothing by itself, and notes the events that are recorded on it and awaited."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls, self._count = name, calls, 0

    def record_event(self) -> Any:
        self._count += 1
        event = f"{self._name} {self._count}"
        self._calls.append(f"record {event}")
        return types.SimpleNamespace(synchronize=lambda: self._calls.append(f"wait {event}"))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the calls of a device without a GPU."""
    calls: list[str] = []
    default = Stream("default", calls)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: default)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: default)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: calls.append("synchronize"))
    return calls


def slots_on_device(count: int) -> Slots:
    memory = object.__new__(CudaMemory)  # The constructor would allocate memory of a GPU.
    memory.device = "cuda:0"
    slots = make_slots(count)
    slots.device = memory
    return slots


def test_a_claim_waits_for_the_last_work_on_its_slot_of_device_memory_only(calls: list[str]) -> None:
    slots = slots_on_device(3)
    first, second = slots.claim(), slots.claim()
    held, other = slots.lease(first), slots.lease(second)
    assert calls == []
    del held
    assert slots.free == 2
    assert calls == ["record default 1"]
    del other
    assert slots.free == 3
    assert calls[1:] == ["record default 2"]
    third = slots.claim()  # It was never used.
    assert third not in (first, second)
    assert calls[2:] == []
    assert slots.claim() == first
    assert calls[2:] == ["wait default 1"]
    assert slots.claim() == second
    assert calls[3:] == ["wait default 2"]


def test_a_claim_waits_for_a_copy_of_a_slot_that_was_not_leased(calls: list[str]) -> None:
    slots = slots_on_device(1)
    slots.release(slots.claim())
    slots.claim()
    assert calls == ["record default 1", "wait default 1"]


def test_a_claim_waits_for_the_stream_on_which_the_slot_was_used(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = slots_on_device(1)
    root = slots.lease(slots.claim())
    side = Stream("side", calls)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: side)
    del root
    slots.claim()
    assert sorted(calls[:2]) == ["record default 1", "record side 1"]
    assert sorted(calls[2:]) == ["wait default 1", "wait side 1"]


def test_a_slot_of_device_memory_stays_free_if_a_wait_for_it_raises(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = slots_on_device(1)
    monkeypatch.setattr(Stream, "record_event", lambda stream: types.SimpleNamespace(synchronize=interrupt))
    slots.release(slots.claim())
    with pytest.raises(KeyboardInterrupt):
        slots.claim()
    assert slots.free == 1


def interrupt() -> None:
    raise KeyboardInterrupt
