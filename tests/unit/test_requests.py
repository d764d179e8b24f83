"""Check that each request to a row of a vector env is served once, in any order of writes, wake-ups and restarts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from parenv import ParallelVectorEnv
from parenv.memory.status_slot import header_bytes
from parenv.memory.step_buffer import KINDS, RESET, STEP, StepBuffer, StepBufferSpec
from parenv.platform.futex import AVAILABLE
from parenv.process.wake_up import WakeUps
from parenv.testing import LedgerEnv
from parenv.vector.requests import Requests

N = 4


@contextlib.contextmanager
def a_worker() -> Iterator[Any]:
    """Make a worker without a process, with four sub-environments and their step buffer."""
    with contextlib.closing(ParallelVectorEnv([lambda i=i: LedgerEnv(i) for i in range(N)], num_workers=0)) as envs:  # type: ignore[misc]
        envs.reset(seed=0)
        yield envs._session.backend._caller._task  # type: ignore[union-attr]


def serve(worker: Any) -> list[tuple[int, list[int]]]:
    """Serve what is due, and return it."""
    due = [(number, list(columns)) for number, columns in worker.due()]
    for number, columns in due:
        worker.serve(number, columns)
        assert (worker.step_buffer.finished[columns] == number).all()
    return due


def test_a_number_without_a_kind_is_not_served() -> None:
    with a_worker() as worker:
        requested = worker.step_buffer.requested
        requested[:] = number = 100 * KINDS
        assert worker.due() == []
        requested[[1, 3]] += STEP
        assert serve(worker) == [(number + STEP, [1, 3])]
        assert worker.due() == []


def test_rows_whose_numbers_are_seen_late_are_served_too() -> None:
    with a_worker() as worker:
        number = 100 * KINDS + STEP
        for rows in ([0, 1], [3], [2]):
            worker.step_buffer.requested[rows] = number
            assert serve(worker) == [(number, rows)]
        assert worker.due() == []


def test_requests_are_served_one_by_one_and_the_oldest_first() -> None:
    with a_worker() as worker:
        requested = worker.step_buffer.requested
        newer, older, reset = 102 * KINDS + STEP, 100 * KINDS + STEP, 101 * KINDS + RESET
        requested[:] = [newer, older, reset, newer]
        assert serve(worker) == [(older, [1]), (reset, [2]), (newer, [0, 3])]


@pytest.mark.parametrize("finished", [[0, 0, 0, 0], [0, 8, 0, 4]])
def test_a_step_of_all_is_one_request_whatever_was_finished_before(finished: list[int]) -> None:
    with a_worker() as worker:
        worker.step_buffer.finished[:] = finished
        worker.step_buffer.requested[:] = number = 100 * KINDS + STEP
        assert serve(worker) == [(number, [0, 1, 2, 3])]


def test_a_request_that_is_replaced_while_it_is_served_stays_due() -> None:
    with a_worker() as worker:
        step_buffer = worker.step_buffer
        step_buffer.requested[:] = late = 100 * KINDS + STEP
        ((number, columns),) = worker.due()
        # The wait for the step has timed out, and the user resets by a call.
        step_buffer.requested[:] = 101 * KINDS
        worker.serve(number, columns)
        assert (step_buffer.finished == late).all()
        assert not step_buffer.rendezvous.has(1)
        assert worker.due() == []
        worker.answer("reset", [0, 1, 2, 3], [1, 2, 3, 4], {})
        assert step_buffer.rendezvous.has(N)


class Model:
    """Requests to workers of two rows each, and the requests that are open."""

    SHARES = (2, 2, 2)

    def __init__(self) -> None:
        rows = sum(self.SHARES)
        spec = StepBufferSpec(rows, (), (), 0)
        self.step_buffer = StepBuffer(spec, bytearray(spec.fields()[1]))
        wake_ups = WakeUps(bytearray(header_bytes(len(self.SHARES))), futexes=AVAILABLE)
        self.requests = Requests(self.SHARES, [wake_ups.of(worker) for worker in range(len(self.SHARES))], wake_ups)
        self.requests.use(self.step_buffer)
        self.open: dict[int, int] = {}
        """Kind of the open request of each row that has one."""
        self.away: set[int] = set()

    def rows_of(self, worker: int) -> range:
        return range(2 * worker, 2 * worker + 2)

    def ask(self, rows: list[int], kind: int) -> None:
        self.requests.number(rows)
        self.requests.of(rows, kind)
        self.open.update(dict.fromkeys(rows, kind))

    def ask_all(self) -> None:
        self.requests.of_all()
        self.open.update(dict.fromkeys(range(len(self.step_buffer.requested)), STEP))

    def serve(self, worker: int, most: int) -> None:
        """Let a worker that may have been woken for nothing serve some of its rows."""
        due = [row for row in self.due() if row in self.rows_of(worker)][:most]
        for row in due:
            assert self.open.pop(row) == self.step_buffer.requested[row] % KINDS
            self.step_buffer.rendezvous.finish(row, self.step_buffer.requested[row])

    def due(self) -> list[int]:
        """Return the rows that their workers would serve now."""
        requested, finished = self.step_buffer.requested, self.step_buffer.finished
        return ((requested != finished) & (requested % KINDS != 0)).nonzero()[0].tolist()  # type: ignore[no-any-return]

    def lose(self, worker: int) -> None:
        self.requests.leave_out(worker)
        self.away.add(worker)

    def return_of(self, worker: int) -> None:
        """Take a new process in, as a vector env does."""
        self.requests.take_in(worker)
        self.away.discard(worker)
        rows = self.rows_of(worker)
        assert not set(self.due()) & set(rows)
        for kind in (STEP, RESET):
            self.requests.of([row for row in rows if self.open.get(row) == kind], kind)
        idle = [row for row in rows if row not in self.open]
        self.step_buffer.finished[idle] = self.step_buffer.requested[idle]

    def check(self) -> None:
        gone = {row for worker in self.away for row in self.rows_of(worker)}
        assert set(self.due()) == set(self.open) - gone
        unfinished = (self.step_buffer.requested != self.step_buffer.finished).nonzero()[0].tolist()
        assert set(unfinished) == set(self.open)


@given(data=st.data())
@settings(max_examples=200, derandomize=True, deadline=None)
def test_each_request_is_served_once_by_a_process_that_is_there(data: Any) -> None:
    model = Model()
    for _ in range(data.draw(st.integers(1, 25))):
        worker = data.draw(st.integers(0, 2))
        free = [row for row in range(6) if row not in model.open]
        match data.draw(st.sampled_from(["ask", "all", "serve", "serve", "lose", "return"])):
            case "ask" if free:
                rows = data.draw(st.lists(st.sampled_from(free), min_size=1, unique=True))
                model.ask(rows, data.draw(st.sampled_from([STEP, RESET])))
            case "all" if len(free) == 6:
                model.ask_all()
            case "serve" if worker not in model.away:
                model.serve(worker, data.draw(st.integers(1, 2)))
            case "lose":
                model.lose(worker)
            case "return" if worker in model.away:
                model.return_of(worker)
        model.check()
    for worker in range(3):
        if worker in model.away:
            model.return_of(worker)
        model.serve(worker, 2)
    assert model.step_buffer.rendezvous.has(6)


def test_the_numbers_are_written_after_the_fence_that_follows_the_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = Model(), list[Any]()
    monkeypatch.setattr("parenv.vector.requests.fence", lambda: seen.append(model.due()))
    model.ask([1, 4], STEP)
    assert seen == [[]]
    assert model.due() == [1, 4]
    model.serve(0, 2)
    model.serve(2, 2)
    model.ask_all()
    assert seen == [[], []]
    assert model.due() == list(range(6))


def test_a_finished_row_of_a_lost_worker_stays_finished_until_its_successor_is_there() -> None:
    model = Model()
    model.ask_all()
    model.serve(1, 2)
    model.lose(1)
    assert model.step_buffer.rendezvous.has(2)
    assert np.flatnonzero(model.step_buffer.finished == model.step_buffer.requested).tolist() == [2, 3]
    model.requests.take_in(1)
    assert not model.step_buffer.rendezvous.has(1)
