"""Check that rows of a worker are copied between two step buffers unchanged, and only to their own place."""

from __future__ import annotations

import contextlib
import select
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings

from parenv.errors import ProtocolError
from parenv.memory.kinds import kind_numbers
from parenv.memory.maps import StepBufferMap
from parenv.memory.shared import SharedMemory
from parenv.memory.spaces import leaves
from parenv.memory.status_slot import STATUS_SLOT_BYTES
from parenv.memory.step_buffer import KINDS, STEP, OwnRequests, StepBuffer, StepBufferSpec
from parenv.placement.local import LocalPlacement
from parenv.process.wake_up import Answers
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.remote.host_messages import Answers as AnsweredRows
from parenv.remote.step_buffers import HostRows, WorkerRows, row_plan

OFFSET, SHARES, INFO_BYTES = 8192, (2, 3, 1), 64
OBSERVED = spaces.Dict(
    f=spaces.Box(0, 1, (2,), np.bool_), a=spaces.Box(0, 1, (2, 3), np.float32), t=spaces.Text(3), d=spaces.Discrete(4)
)
ACTED = spaces.Tuple([spaces.Box(0, 1, (2,), np.float32), spaces.Text(2), spaces.Discrete(3)])
SETTINGS = settings(max_examples=60, derandomize=True)


class Side:
    """Step buffer, and the rows of one worker in it."""

    def __init__(self, worker: int, fill: int) -> None:
        spec = StepBufferSpec(sum(SHARES), leaves(OBSERVED), leaves(ACTED), INFO_BYTES)
        self.memory = np.zeros(OFFSET + spec.fields()[1], np.uint8)
        self.step_buffer = StepBuffer(spec, self.memory, OFFSET)
        where = StepBufferMap(self.memory, spec, OFFSET, SHARES)
        plan = row_plan(where, worker)
        assert plan.memory_bytes == len(self.memory)
        self.rows = WorkerRows(self.memory, plan)
        self.first = sum(SHARES[:worker])
        self.mine = slice(self.first, self.first + SHARES[worker])
        for array in (*self.requested(), *self.answered()):
            array.view(np.uint8).reshape(-1)[:] = fill

    def requested(self) -> list[Any]:
        step_buffer = self.step_buffer
        return [
            step_buffer.requested,
            *(actions for actions in step_buffer.actions if actions is not None),
        ]

    def answered(self) -> list[Any]:
        step_buffer = self.step_buffer
        fixed = [
            step_buffer.rewards,
            step_buffer.terminated,
            step_buffer.truncated,
            step_buffer.info_kinds,
            step_buffer.finished,
        ]
        return [*fixed, *(rows for rows in step_buffer.observations if rows is not None), step_buffer.infos]


@pytest.mark.parametrize("worker", range(len(SHARES)))
def test_only_the_requests_of_a_worker_are_copied(worker: int) -> None:
    driver, host = Side(worker, 1), Side(worker, 0)
    before = host.memory.copy()
    host.rows.write_requests(driver.rows.requests())
    for there, here in zip(host.requested(), driver.requested(), strict=True):
        assert np.array_equal(there[host.mine], here[driver.mine])
        there[host.mine] = 0
    assert np.array_equal(host.memory, before)


@given(worker=st.integers(0, len(SHARES) - 1), data=st.data())
@SETTINGS
def test_only_answered_rows_are_copied_once_with_their_infos(worker: int, data: Any) -> None:
    driver, host = Side(worker, 0), Side(worker, 0)
    number = kind_numbers(worker, len(SHARES))[3]
    host.rows.forget()
    driver.step_buffer.requested[driver.mine] = 9
    every = range(SHARES[worker])
    chosen = sorted(data.draw(st.sets(st.sampled_from(every), min_size=1)))
    with_infos = data.draw(st.sets(st.sampled_from(chosen)))
    for row in chosen:
        for array in host.answered():
            array[host.first + row] = 1
        host.step_buffer.info_kinds[host.first + row] = (
            number if row in with_infos else data.draw(st.sampled_from([0, -1]))
        )
        host.step_buffer.finished[host.first + row] = 9
    chunks = host.rows.answers(data.draw(st.sampled_from([1, 300, 1 << 20])))
    assert [row for rows, _ in chunks for row in rows] == chosen
    for rows, block in chunks:
        driver.rows.write_answers(rows, block)
    for row in range(sum(SHARES)):
        for there, here in zip(host.answered()[:-1], driver.answered()[:-1], strict=True):
            crossed = row - host.first in chosen
            assert np.array_equal(here[row], there[row]) if crossed else not here[row].any()
        assert (
            driver.step_buffer.infos[row].all()
            if row - host.first in with_infos
            else not driver.step_buffer.infos[row].any()
        )
    assert host.rows.answers(1 << 20) == []


def test_the_next_process_does_not_serve_a_request_to_the_one_before() -> None:
    host = Side(1, 0)
    requests = OwnRequests(host.step_buffer, host.mine)
    host.step_buffer.requested[host.mine] = 9 * KINDS + STEP
    assert [number for number, _ in requests.due()] == [9 * KINDS + STEP]
    host.rows.forget()
    assert requests.due() == []


def test_the_same_number_is_an_answer_again_after_the_process_was_replaced() -> None:
    host = Side(1, 0)
    host.rows.forget()
    host.step_buffer.finished[host.mine] = 4
    assert [rows for rows, _ in host.rows.answers(1 << 20)] == [[0, 1, 2]]
    host.step_buffer.info_kinds[host.mine] = 2
    host.rows.forget()
    assert host.step_buffer.info_kinds[host.mine].tolist() == [0, 0, 0]
    host.step_buffer.finished[3] = 4
    assert [rows for rows, _ in host.rows.answers(1 << 20)] == [[1]]


def test_a_host_is_woken_by_every_answer_of_its_workers() -> None:
    spec = StepBufferSpec(2, leaves(OBSERVED), leaves(ACTED), INFO_BYTES)
    memory, sender = SharedMemory(OFFSET), Sender(0, 0)
    host = HostRows(memory, LocalPlacement())
    host.start(sender)
    host.obey(sender, row_plan(StepBufferMap(np.zeros(OFFSET + spec.fields()[1], np.uint8), spec, OFFSET, (2,)), 0))
    rows, answers = StepBuffer(spec, memory.map(), OFFSET).rendezvous, Answers(memory.map(), host.wake_up)
    poll = select.poll()
    poll.register(host.wake_up.fileno(), select.POLLIN)
    for number in (5, 9, 13):
        assert not poll.poll(0)
        rows.finish(slice(0, 2), number)
        answers.notify_if_enough(rows)
        assert poll.poll(0)
        assert [answered.rows for _, answered in host.answers()] == [[0, 1]]
    host.close()
    memory.close()


ROWS = st.none() | st.integers() | st.lists(st.integers(-2, 4) | st.booleans() | st.text(max_size=1), max_size=4)


@given(rows=ROWS, cut=st.integers(-20, 20), flip=st.integers(0, 1 << 30), bit=st.integers(0, 7))
@SETTINGS
def test_any_data_is_written_to_the_rows_of_its_worker_or_refused(rows: Any, cut: int, flip: int, bit: int) -> None:
    driver, host = Side(1, 0), Side(1, 0)
    host.rows.forget()
    host.step_buffer.finished[host.mine] = 9
    ((good, block),) = host.rows.answers(1 << 20)
    data = bytearray(block)
    data[flip % len(data)] ^= 1 << bit
    data = data[:cut] if cut < 0 else data + bytes(cut)
    before = driver.memory.copy()
    with contextlib.suppress(ProtocolError, ValueError):
        answers = AnsweredRows(rows if rows is not None else good, bytes(STATUS_SLOT_BYTES), memoryview(data))
        _, answers = from_frames(to_frames(Sender(1, 0), answers), of_host=True)
        driver.rows.write_answers(answers.rows, answers.data)
    for array in driver.answered():
        array[driver.mine] = 0
    assert np.array_equal(driver.memory, before)


@pytest.mark.parametrize("rows", [[-1, 0, 1], [0, 1, 3], [0, 1]], ids=str)
def test_answers_beyond_the_rows_of_the_worker_are_refused(rows: list[int]) -> None:
    driver, host = Side(1, 0), Side(1, 0)
    host.step_buffer.finished[host.mine] = 9
    ((_, data),) = host.rows.answers(1 << 20)
    before = driver.memory.copy()
    with pytest.raises((ProtocolError, ValueError)):
        driver.rows.write_answers(rows, data)
    assert np.array_equal(driver.memory, before)
