"""Check which processes the watchdog reports as hung when it checks them at any times."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parenv import WorkerOptions
from parenv.crew.watch import KILLED, STARTING, Watch
from parenv.crew.watchdog import LOOKS_PER_LIMIT, MIN_INTERVAL_S, Watchdog

limits = st.floats(0.05, 1000.0)
gaps = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=60)


@given(limits, gaps)
def test_a_process_whose_status_changes_is_never_hung(limit_s: float, gaps: list[float]) -> None:
    watchdog, now_s = Watchdog(1, limit_s), 0.0
    for number, gap_s in enumerate(gaps):
        now_s += gap_s
        assert not watchdog.look(0, now_s, ("step", number), limit_s)


@given(limits, gaps)
def test_an_idle_process_is_never_hung(limit_s: float, gaps: list[float]) -> None:
    watchdog, now_s = Watchdog(1, limit_s), 0.0
    for gap_s in gaps:
        now_s += gap_s
        assert not watchdog.look(0, now_s, "waiting", math.inf)


@given(limits, st.floats(1.0, 50.0), st.lists(st.floats(0.01, 1.0), min_size=1, max_size=20), st.integers(0, 5))
def test_a_hung_process_is_found_within_its_limit_and_two_intervals(
    shortest_s: float, factor: float, rhythm: list[float], looks_before: int
) -> None:
    """A check may be late by up to an interval, and the limit of an operation may be longer than the shortest limit."""
    limit_s, watchdog, now_s = shortest_s * factor, Watchdog(1, shortest_s), 0.0
    for number in range(looks_before):
        now_s += watchdog.interval_s
        watchdog.look(0, now_s, number, limit_s)
    still_since_s, number = now_s, 0
    while not watchdog.look(0, now_s, "step of env_id 3", limit_s):
        now_s += watchdog.interval_s * (1.0 + rhythm[number % len(rhythm)])
        number += 1
        assert now_s - still_since_s <= limit_s + 2.0 * watchdog.interval_s + 1e-6 * limit_s
    assert now_s - still_since_s >= limit_s * (1.0 - 1e-6)


@given(limits, gaps)
def test_time_without_checks_counts_as_two_intervals_at_most(limit_s: float, gaps: list[float]) -> None:
    watchdog, now_s, most_s = Watchdog(1, limit_s), 0.0, 0.0
    watchdog.look(0, now_s, "step", limit_s)
    for gap_s in gaps:
        now_s += gap_s
        most_s += min(gap_s, 2.0 * watchdog.interval_s)
        assert watchdog.look(0, now_s, "step", limit_s) <= (most_s >= limit_s * (1.0 - 1e-6))


@given(limits, st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=80))
def test_processes_are_watched_independently(limit_s: float, looks: list[tuple[int, int]]) -> None:
    together, alone = Watchdog(3, limit_s), [Watchdog(1, limit_s) for _ in range(3)]
    for number, (worker, sign) in enumerate(looks):
        now_s = number * together.interval_s
        assert together.look(worker, now_s, sign, limit_s) == alone[worker].look(0, now_s, sign, limit_s)


@given(st.floats(1.01 * LOOKS_PER_LIMIT * MIN_INTERVAL_S, 1000.0))
def test_an_idle_pause_restarts_the_limit(limit_s: float) -> None:
    watchdog, now_s = Watchdog(1, limit_s), 0.0
    for asked in (LOOKS_PER_LIMIT - 1, 1, LOOKS_PER_LIMIT - 1):
        for _ in range(asked):
            now_s += watchdog.interval_s
            assert not watchdog.look(0, now_s, "waiting", math.inf if asked == 1 else limit_s)


def test_checks_have_a_minimum_interval() -> None:
    assert Watchdog(1, 1e-6).interval_s == MIN_INTERVAL_S
    assert Watchdog(1, math.inf).interval_s == math.inf


@pytest.mark.parametrize("changing", [STARTING, KILLED])
def test_time_without_checks_does_not_make_a_starting_or_ending_process_late(changing: str) -> None:
    """No check runs while the learner computes, or while the machine and all its processes are suspended."""
    workers: Any = SimpleNamespace(
        shares=[1], generation=lambda worker: 0, placement=SimpleNamespace(silence_s=0.0), busy_with=lambda *_: ""
    )
    watch = Watch(workers, WorkerOptions(start_timeout_s=60.0), processes=True)

    def hung(now_s: float) -> list[tuple[int, str]]:
        return watch.hung(now_s, lambda _: None, lambda _: changing)

    assert hung(0.0) == hung(1000.0) == []
    times_s = [1000.0 + look * watch._watchdog.interval_s for look in range(1, LOOKS_PER_LIMIT - 4)]
    assert not any(hung(now_s) for now_s in times_s)
    assert hung(1100.0) == [] != hung(1200.0)
