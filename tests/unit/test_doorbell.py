"""Doorbells: what is rung adds up until it is taken."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import pytest

from parenv.process.doorbell import ALL, ECHO, MESSAGE, Doorbell, rung


@pytest.fixture
def bell() -> Iterator[Doorbell]:
    made = Doorbell()
    yield made
    made.close()


def readable(bell: Doorbell) -> bool:
    return bool(select.select([bell], [], [], 0)[0])


def test_what_is_rung_adds_up_and_is_taken_once(bell: Doorbell) -> None:
    assert not readable(bell)
    for value in (3, ALL, 2, MESSAGE, ECHO, MESSAGE):
        bell.ring(value)
    assert readable(bell)
    assert rung(bell.take()) == (1, 2, 1, 5)
    assert not readable(bell)


def test_whoever_takes_waits_for_the_next_ring(bell: Doorbell) -> None:
    taken: list[int] = []
    thread = threading.Thread(target=lambda: taken.append(bell.take()))
    thread.start()
    bell.ring(7)
    thread.join(60)
    assert taken == [7]


def test_a_bell_made_of_the_same_descriptor_rings_the_same_bell(bell: Doorbell) -> None:
    other = Doorbell(os.dup(bell.fileno()))
    other.ring(5)
    assert bell.take() == 5
    other.close()


def test_many_rings_are_all_taken(bell: Doorbell) -> None:
    for _ in range(700):
        bell.ring(1)
    total = 0
    while readable(bell):
        total += bell.take()
    assert total == 700


def test_closing_twice_closes_once(bell: Doorbell) -> None:
    bell.close()
    bell.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(bell.fileno())
