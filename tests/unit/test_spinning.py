"""Check how long a process spins before it sleeps, and how much CPU time this takes."""

from __future__ import annotations

from typing import Any

import pytest

from parenv.process import spinning
from parenv.process.spinning import Spinner, Spinning


class Clock:
    """Clock that advances by a microsecond whenever it is read."""

    def __init__(self) -> None:
        self.now = 1.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(spinning, "time", clock)
    return clock


@pytest.fixture
def number() -> memoryview:
    return memoryview(bytearray(4)).cast("I")


def spinner(number: memoryview, fraction: float = 0.1) -> tuple[Spinner, Any]:
    spun = memoryview(bytearray(8)).cast("q")
    return Spinner(Spinning(100e-6, fraction), number, spun), spun


def test_a_change_before_the_first_check_is_noticed(clock: Clock, number: memoryview) -> None:
    spins, _ = spinner(number)
    number[0] = 3
    assert spins.heard(seen=0)


def test_spinning_ends_at_the_limit_and_its_time_is_counted(clock: Clock, number: memoryview) -> None:
    spins, spun = spinner(number)
    clock.now += 1.0
    began = clock.now
    assert not spins.heard(0)
    assert 100e-6 <= clock.now - began < 110e-6
    assert 100_000 <= spun[0] < 110_000


def test_after_a_long_wait_a_process_does_not_spin_until_a_wait_was_short(clock: Clock, number: memoryview) -> None:
    spins, spun = spinner(number)
    clock.now += 1.0
    spins.heard(0)
    clock.now += 1.0
    spins.woke()
    before = spun[0]
    number[0] += 1
    assert not spins.heard(0), "the last wait was long"
    assert spun[0] == before
    spins.woke()
    assert spins.heard(0), "the last wait was short"


@pytest.mark.more
@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_spinning_in_vain_takes_at_most_its_fraction_of_the_time(
    clock: Clock, number: memoryview, fraction: float
) -> None:
    spins, spun = spinner(number, fraction)
    began = clock.now
    waits = 0
    while clock.now < began + 2.0:
        spins.heard(0)
        clock.now += 50e-6
        spins.woke()
        waits += 1
    elapsed_ns = (clock.now - began) * 1e9
    saved_ns = waits * spinning.WAKE_UP_S * 1e9
    assert spun[0] > 0.5 * fraction * elapsed_ns
    assert spun[0] < fraction * elapsed_ns + saved_ns


def test_a_process_always_spins_through_short_waits(clock: Clock, number: memoryview) -> None:
    spins, _ = spinner(number)
    for _ in range(1000):
        number[0] += 1
        assert spins.heard(number[0] - 1)
