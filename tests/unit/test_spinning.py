"""Looking for a ring before sleeping: how long, and what it may cost."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from parenv.process import spinning
from parenv.process.spinning import Spinner, Spinning
from parenv.process.wake_up import WakeUp


class Clock:
    """A clock that goes on by a microsecond whenever somebody looks at it."""

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
def wake_up() -> Iterator[WakeUp]:
    wake_up = WakeUp()
    yield wake_up
    wake_up.close()


def spinner(wake_up: WakeUp, fraction: float = 0.1) -> tuple[Spinner, Any]:
    spun = memoryview(bytearray(8)).cast("q")
    return Spinner(Spinning(100e-6, fraction), wake_up.fileno(), spun), spun


def test_what_has_rung_is_heard_and_still_to_be_taken(clock: Clock, wake_up: WakeUp) -> None:
    spins, _ = spinner(wake_up)
    wake_up.notify(3)
    assert spins.heard()
    assert wake_up.take() == 3


def test_looking_ends_at_the_limit_and_is_counted(clock: Clock, wake_up: WakeUp) -> None:
    spins, spun = spinner(wake_up)
    clock.now += 1.0
    began = clock.now
    assert not spins.heard()
    assert 100e-6 <= clock.now - began < 110e-6
    assert 100_000 <= spun[0] < 110_000


def test_after_a_long_wait_nobody_looks_until_one_was_short(clock: Clock, wake_up: WakeUp) -> None:
    spins, spun = spinner(wake_up)
    clock.now += 1.0
    spins.heard()
    clock.now += 1.0
    spins.woke()
    before = spun[0]
    wake_up.notify(1)
    assert not spins.heard(), "the last wait was long"
    assert spun[0] == before
    spins.woke()
    assert spins.heard(), "the last wait was short"


@pytest.mark.more
@pytest.mark.parametrize(("fraction", "at_most"), [(0.1, 0.1), (0.5, 0.5)])
def test_looking_in_vain_takes_no_more_than_its_fraction(
    clock: Clock, wake_up: WakeUp, fraction: float, at_most: float
) -> None:
    spins, spun = spinner(wake_up, fraction)
    began = clock.now
    waits = 0
    while clock.now < began + 2.0:
        spins.heard()
        clock.now += 50e-6
        spins.woke()
        waits += 1
    elapsed_ns = (clock.now - began) * 1e9
    saved_ns = waits * spinning.WAKE_UP_S * 1e9
    assert spun[0] > 0.5 * at_most * elapsed_ns
    assert spun[0] < at_most * elapsed_ns + saved_ns


def test_short_waits_are_always_looked_through(clock: Clock, wake_up: WakeUp) -> None:
    spins, _ = spinner(wake_up)
    for _ in range(1000):
        wake_up.notify(1)
        assert spins.heard()
        wake_up.take()


LISTENER = """
import sys
from parenv.process.wake_up import WakeUp
from parenv.process.spinning import Spinner, Spinning

wake_up, answers, rounds = WakeUp(int(sys.argv[1])), WakeUp(int(sys.argv[2])), int(sys.argv[3])
spinner = Spinner(Spinning(20e-6, float("inf")), wake_up.fileno(), memoryview(bytearray(8)).cast("q"))
taken = 0
while taken < rounds:
    heard = spinner.heard()
    rung = wake_up.take()
    if not heard:
        spinner.woke()
    taken += rung
    answers.notify(rung)
"""


@pytest.mark.parametrize(
    "rounds", [20_000, pytest.param(3_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(3000)])], ids=str
)
def test_no_ring_is_lost_between_looking_and_sleeping(wake_up: WakeUp, rounds: int) -> None:
    """Rings come at all distances from the end of the look: before it, right at it, and long behind it."""
    answers = WakeUp()
    ends = (wake_up.fileno(), answers.fileno())
    command = [sys.executable, "-c", LISTENER, *map(str, (*ends, rounds))]
    with subprocess.Popen(command, pass_fds=ends) as listener:
        answered = 0
        for i in range(rounds):
            until = time.perf_counter() + i % 50 * 1e-6
            while time.perf_counter() < until:
                pass
            wake_up.notify(1)
            answered += answers.take()
        assert answered == rounds
        assert listener.wait(60) == 0
    answers.close()
