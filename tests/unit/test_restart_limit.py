"""Check when a dead worker is restarted and how long the restart is delayed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parenv.errors import ConfigurationError
from parenv.options import RestartPolicy
from parenv.process.restart_limit import RestartLimit

gaps = st.lists(st.tuples(st.integers(0, 2), st.floats(0, 40)), max_size=60)


@given(gaps, st.integers(1, 4))
def test_no_worker_is_restarted_more_often_than_allowed_in_any_window(deaths: Any, most: int) -> None:
    policy = RestartPolicy(max_restarts=most, window_s=60.0, backoff_s=1.0, max_backoff_s=8.0)
    crew, now, restarts = RestartLimit(policy, 3), 0.0, []
    for worker, gap in deaths:
        now += gap
        wait_s = crew.died(worker, now)
        recent = [at for who, at in restarts if who == worker and now - at < 60.0]
        if wait_s is None:
            assert len(recent) == most, "given up too early"
        else:
            assert len(recent) < most
            assert wait_s == (0.0 if not recent else min(8.0, 2.0 ** (len(recent) - 1)))
            restarts.append((worker, now))


def test_the_backoff_is_bounded() -> None:
    limit = RestartLimit(RestartPolicy(max_restarts=10_000, max_backoff_s=8.0), 1)
    assert [limit.died(0, 0.0) for _ in range(2000)][-1] == 8.0


def test_without_a_policy_no_worker_is_restarted() -> None:
    assert RestartLimit(None, 1).died(0, 0.0) is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"max_restarts": 0}, r"max_restarts must be an integer of at least 1, got 0\. .*restart=None"),
        ({"window_s": 0.0}, "window_s must be positive seconds, got 0.0"),
        ({"backoff_s": -1.0}, "backoff_s must be positive seconds, got -1.0"),
        ({"max_backoff_s": float("nan")}, "max_backoff_s must be positive seconds, got nan"),
    ],
)
def test_an_invalid_policy_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        RestartPolicy(**arguments)
