"""Wake-ups: numbers add up until they are taken."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import pytest

from parenv.process.wake_up import ALL, ECHO, MESSAGE, WakeUp, counts_of


@pytest.fixture
def wake_up() -> Iterator[WakeUp]:
    made = WakeUp()
    yield made
    made.close()


def readable(wake_up: WakeUp) -> bool:
    return bool(select.select([wake_up], [], [], 0)[0])


def test_what_is_rung_adds_up_and_is_taken_once(wake_up: WakeUp) -> None:
    assert not readable(wake_up)
    for value in (3, ALL, 2, MESSAGE, ECHO, MESSAGE):
        wake_up.notify(value)
    assert readable(wake_up)
    assert counts_of(wake_up.take()) == (1, 2, 1, 5)
    assert not readable(wake_up)


def test_whoever_takes_waits_for_the_next_ring(wake_up: WakeUp) -> None:
    taken: list[int] = []
    thread = threading.Thread(target=lambda: taken.append(wake_up.take()))
    thread.start()
    wake_up.notify(7)
    thread.join(60)
    assert taken == [7]


def test_a_bell_made_of_the_same_descriptor_rings_the_same_bell(wake_up: WakeUp) -> None:
    other = WakeUp(os.dup(wake_up.fileno()))
    other.notify(5)
    assert wake_up.take() == 5
    other.close()


def test_many_rings_are_all_taken(wake_up: WakeUp) -> None:
    for _ in range(700):
        wake_up.notify(1)
    total = 0
    while readable(wake_up):
        total += wake_up.take()
    assert total == 700


def test_closing_twice_closes_once(wake_up: WakeUp) -> None:
    wake_up.close()
    wake_up.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(wake_up.fileno())
