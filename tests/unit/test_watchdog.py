"""Who counts as hung, over looks at any time: decided without a process or a clock."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parenv import WorkerOptions
from parenv.supervision.watch import KILLED, STARTING, Watch
from parenv.supervision.watchdog import LOOKS_PER_LIMIT, MIN_INTERVAL_S, Watchdog

limits = st.floats(0.05, 1000.0)
gaps = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=60)


@given(limits, gaps)
def test_one_whose_sign_changes_never_hangs_however_seldom_it_is_looked_at(limit_s: float, gaps: list[float]) -> None:
    watchdog, now_s = Watchdog(1, limit_s), 0.0
    for number, gap_s in enumerate(gaps):
        now_s += gap_s
        assert not watchdog.look(0, now_s, ("step", number), limit_s)


@given(limits, gaps)
def test_one_of_which_nothing_is_asked_never_hangs(limit_s: float, gaps: list[float]) -> None:
    watchdog, now_s = Watchdog(1, limit_s), 0.0
    for gap_s in gaps:
        now_s += gap_s
        assert not watchdog.look(0, now_s, "waiting", math.inf)


@given(limits, st.floats(1.0, 50.0), st.lists(st.floats(0.01, 1.0), min_size=1, max_size=20), st.integers(0, 5))
def test_one_that_stands_still_is_found_within_its_limit_and_two_looks(
    shortest_s: float, factor: float, rhythm: list[float], looks_before: int
) -> None:
    """Whoever looks may be late by up to an interval, and what it does may have a longer limit than the shortest."""
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
def test_time_in_which_nobody_looked_counts_as_two_intervals_at_most(limit_s: float, gaps: list[float]) -> None:
    watchdog, now_s, most_s = Watchdog(1, limit_s), 0.0, 0.0
    watchdog.look(0, now_s, "step", limit_s)
    for gap_s in gaps:
        now_s += gap_s
        most_s += min(gap_s, 2.0 * watchdog.interval_s)
        assert watchdog.look(0, now_s, "step", limit_s) <= (most_s >= limit_s * (1.0 - 1e-6))


@given(limits, st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=80))
def test_what_one_shows_says_nothing_about_another(limit_s: float, looks: list[tuple[int, int]]) -> None:
    together, alone = Watchdog(3, limit_s), [Watchdog(1, limit_s) for _ in range(3)]
    for number, (worker, sign) in enumerate(looks):
        now_s = number * together.interval_s
        assert together.look(worker, now_s, sign, limit_s) == alone[worker].look(0, now_s, sign, limit_s)


@given(st.floats(1.01 * LOOKS_PER_LIMIT * MIN_INTERVAL_S, 1000.0))
def test_a_pause_of_what_is_asked_begins_its_limit_anew(limit_s: float) -> None:
    watchdog, now_s = Watchdog(1, limit_s), 0.0
    for asked in (LOOKS_PER_LIMIT - 1, 1, LOOKS_PER_LIMIT - 1):
        for _ in range(asked):
            now_s += watchdog.interval_s
            assert not watchdog.look(0, now_s, "waiting", math.inf if asked == 1 else limit_s)


def test_nobody_is_looked_at_without_rest() -> None:
    assert Watchdog(1, 1e-6).interval_s == MIN_INTERVAL_S
    assert Watchdog(1, math.inf).interval_s == math.inf


@pytest.mark.parametrize("changing", [STARTING, KILLED])
def test_a_process_that_begins_or_ends_is_not_late_by_time_in_which_nobody_looked(changing: str) -> None:
    """As while the learner learns, or the machine is suspended and all its processes with it."""
    workers: Any = SimpleNamespace(
        shares=[1], generation=lambda worker: 0, placement=SimpleNamespace(silence_s=0.0), busy_with=lambda *_: ""
    )
    watch = Watch(workers, WorkerOptions(start_timeout_s=60.0), lambda _: None, lambda _: changing, processes=True)
    assert watch.hung(0.0) == watch.hung(1000.0) == []
    times_s = [1000.0 + look * watch._watchdog.interval_s for look in range(1, LOOKS_PER_LIMIT - 4)]
    assert not any(watch.hung(now_s) for now_s in times_s)
    assert watch.hung(1100.0) == [] != watch.hung(1200.0)
