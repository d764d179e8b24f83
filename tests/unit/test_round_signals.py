"""Check which worker of a round notifies the main process, and when messages are due."""

from __future__ import annotations

import itertools

import pytest

from parenv.memory.round_signals import RoundSignals
from parenv.memory.status_slot import header_bytes


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
