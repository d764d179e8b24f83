"""Check which worker of a round or a load notifies the main process, and when messages are due."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from parenv.memory.pool_signals import LoadRequests, RoundSignals
from parenv.memory.status_slot import header_bytes
from parenv.worker.task import Loads


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_only_the_last_worker_of_a_round_notifies(order: tuple[int, ...]) -> None:
    head = bytearray(header_bytes(3))
    driver, workers = RoundSignals(head), [RoundSignals(head) for _ in range(3)]
    driver.open(3)
    for sequence in range(3):
        driver.begin(sequence)
        assert not driver.are_due()
        assert [workers[worker].must_notify(worker, sequence) for worker in order] == [False, False, True]
        assert driver.are_due()


def test_a_message_that_commits_nothing_notifies_at_once_and_is_due_once() -> None:
    head = bytearray(header_bytes(2))
    driver, worker = RoundSignals(head), RoundSignals(head)
    driver.open(2)
    driver.begin(0)
    assert worker.must_notify(1, None)
    assert driver.are_due()
    assert not driver.are_due()


def test_a_worker_whose_process_was_replaced_after_its_commit_commits_again() -> None:
    head = bytearray(header_bytes(2))
    driver, worker = RoundSignals(head), RoundSignals(head)
    driver.open(2)
    driver.begin(4)
    assert not worker.must_notify(0, 4)
    assert not RoundSignals(head).must_notify(0, 4)
    assert worker.must_notify(1, 4)


def test_without_rounds_nothing_is_notified() -> None:
    head = bytearray(header_bytes(1))
    assert not RoundSignals(head).must_notify(0, 0)
    assert not RoundSignals(head).must_notify(0, None)


def test_only_the_last_answer_reports_that_all_workers_have_answered() -> None:
    memory = np.zeros(4096, np.uint8)
    requests = LoadRequests(memory, 3)
    assert requests.all_have()
    number = requests.ask(5, 2)
    assert [requests.asked(worker) for worker in range(3)] == [number] * 3
    assert requests.wanted() == (5, 2)
    assert [requests.answer(worker, number) for worker in (1, 0, 2)] == [False, False, True]
    assert requests.asked(1) is None


def test_a_withdrawn_request_is_not_loaded() -> None:
    memory, loaded = np.zeros(4096, np.uint8), []
    loads = Loads(memory, 1, 0, lambda version, place, pickled: loaded.append((version, place, pickled)))
    requests = LoadRequests(memory, 1)
    requests.ask(5, 2)
    assert loads.load()
    requests.ask(6, 3)
    requests.withdraw()
    assert loads.load()
    assert requests.all_have()
    assert loaded == [(5, 2, b"")]
