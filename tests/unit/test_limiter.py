"""Check the limiter against Reverb's rule, and that a loop whose sizes pass ``check_sizes`` never deadlocks."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from parenv.errors import ConfigurationError
from parenv.learning.limiter import RateLimiter

SETTINGS = settings(max_examples=150)
STEPS = st.integers(1, 40)
RATIOS = st.decimals("0.01", 40, places=2).map(float)


def least_buffer(samples_per_insert: float, insert_size: int, sample_size: int) -> Fraction:
    ratio = Fraction(str(samples_per_insert))
    deadlock_free = max((insert_size * ratio + sample_size) / 2, (insert_size - 1) * ratio)
    return max(Fraction(1), ratio, deadlock_free)


def step(limiter: RateLimiter, inserting: bool, n: int) -> None:
    if inserting and limiter.may_insert(n):
        limiter.inserted(n)
    elif not inserting and limiter.may_sample(n):
        limiter.sampled(n)


@SETTINGS
@given(RATIOS, st.integers(1, 100), STEPS, STEPS, st.data())
def test_with_sizes_that_pass_the_check_an_insert_or_a_sample_is_always_allowed(
    ratio: float, min_size: int, insert_size: int, sample_size: int, data: Any
) -> None:
    limiter = RateLimiter(ratio, min_size, float(least_buffer(ratio, insert_size, sample_size)))
    limiter.check_sizes(insert_size, sample_size)
    for inserting in data.draw(st.lists(st.booleans(), max_size=60)):
        step(limiter, inserting, data.draw(st.integers(1, insert_size if inserting else sample_size)))
        assert limiter.may_insert(insert_size) or limiter.may_sample(sample_size)


@SETTINGS
@given(st.integers(1, 20), STEPS, st.data())
def test_a_balanced_loop_with_a_smaller_buffer_deadlocks(ratio: int, insert_size: int, data: Any) -> None:
    sample_size = insert_size * ratio
    limiter = RateLimiter(ratio, insert_size, max(ratio, data.draw(st.floats(0, 1)) * sample_size))
    limiter.inserted(insert_size)
    if limiter._error_buffer < sample_size:
        assert not limiter.may_insert(insert_size)
        assert not limiter.may_sample(sample_size)
        with pytest.raises(ConfigurationError, match=f"error_buffer must be at least {sample_size} for inserts"):
            limiter.check_sizes(insert_size, sample_size)
    else:
        limiter.check_sizes(insert_size, sample_size)


@SETTINGS
@given(RATIOS, st.integers(3, 40), st.integers(1, 30))
def test_a_buffer_too_small_for_the_insert_that_permits_sampling_deadlocks(
    ratio: float, insert_size: int, min_size: int
) -> None:
    least = (insert_size - 1) * Fraction(str(ratio))
    buffer = max(1.0, ratio, float(least) - 0.001)
    limiter = RateLimiter(ratio, min_size, buffer)
    limiter.inserted(min_size - 1)
    stands_still = not limiter.may_insert(insert_size) and not limiter.may_sample(1)
    assert stands_still == (Fraction(str(buffer)) < least)
    if stands_still:
        with pytest.raises(ConfigurationError, match="refuse both forever"):
            limiter.check_sizes(insert_size, 1)


@SETTINGS
@given(RATIOS, st.integers(1, 50), st.floats(40, 90), st.lists(st.tuples(st.booleans(), STEPS), max_size=80))
def test_once_sampling_may_begin_the_balance_stays_within_the_buffer(
    ratio: float, min_size: int, buffer: float, steps: list[tuple[bool, int]]
) -> None:
    limiter = RateLimiter(ratio, min_size, buffer)
    for inserting, n in steps:
        step(limiter, inserting, n)
        if limiter.inserts < min_size:
            assert limiter.samples == 0
        else:
            above = (limiter.inserts - min_size) * Fraction(str(ratio)) - limiter.samples
            assert abs(above) <= Fraction(str(buffer))


@pytest.mark.parametrize(("insert_size", "sample_size"), [(1, 1), (7, 64), (64, 7)])
def test_a_long_run_has_the_requested_ratio(insert_size: int, sample_size: int) -> None:
    limiter = RateLimiter(2.5, 100, float(least_buffer(2.5, insert_size, sample_size)))
    while limiter.inserts < 20_000:
        step(limiter, True, insert_size)
        step(limiter, False, sample_size)
    assert limiter.ratio == pytest.approx(2.5, rel=0.03)


def test_inserts_are_free_up_to_the_first_sample() -> None:
    limiter = RateLimiter(samples_per_insert=1, min_size_to_sample=1000, error_buffer=1)
    assert limiter.may_insert(1000)
    assert limiter.may_insert(1001)
    assert not limiter.may_insert(1002)
    limiter.inserted(999)
    assert not limiter.may_sample()
    limiter.inserted(1)
    assert limiter.may_sample()
    assert not limiter.may_sample(2)


def test_decimal_ratios_are_not_rounded() -> None:
    limiter = RateLimiter(samples_per_insert=0.1, min_size_to_sample=1, error_buffer=1)
    limiter.inserted(1)
    limiter.check_sizes(insert_size=10, sample_size=1)
    for _ in range(100_000):
        assert limiter.may_insert(10)
        limiter.inserted(10)
        assert limiter.may_sample(1)
        limiter.sampled(1)


def test_the_ratio_is_undefined_before_the_first_insert() -> None:
    assert math.isnan(RateLimiter(1, 1, 1).ratio)


def test_a_loaded_state_has_the_saved_counts() -> None:
    before, after = RateLimiter(2, 3, 4), RateLimiter(2, 3, 4)
    before.inserted(3)
    before.sampled(2)
    after.load_state_dict(before.state_dict())
    assert before.state_dict() == after.state_dict() == {"inserts": 3, "samples": 2}
    assert (after.inserts, after.samples, after.ratio) == (3, 2, 2 / 3)


@pytest.mark.parametrize("state", [{"inserts": 3}, {"inserts": 3, "samples": -1}, {"inserts": 0.5, "samples": 0}])
def test_an_invalid_state_is_refused_and_changes_nothing(state: dict[str, int]) -> None:
    limiter = RateLimiter(2, 3, 4)
    limiter.inserted(1)
    with pytest.raises(ConfigurationError, match=r"inserts|samples"):
        limiter.load_state_dict(state)
    assert limiter.state_dict() == {"inserts": 1, "samples": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1), "samples_per_insert must be a finite number above 0, got 0"),
        ((math.nan, 1, 1), "samples_per_insert must be a finite number above 0, got nan"),
        ((1, 0, 1), "min_size_to_sample must be an integer of at least 1, got 0"),
        ((1, 1.5, 1), "min_size_to_sample must be an integer of at least 1, got 1.5"),
        ((1, 1, math.inf), "error_buffer must be a finite number above 0, got inf"),
        ((0.5, 1, 0.9), "error_buffer must be at least max(1, samples_per_insert) = 1, got 0.9"),
        ((8, 1, 7), "error_buffer must be at least max(1, samples_per_insert) = 8, got 7"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        RateLimiter(*arguments)


@pytest.mark.parametrize("n", [-1, 0.5])
def test_a_count_must_be_an_integer(n: Any) -> None:
    limiter = RateLimiter(1, 1, 1)
    for count in (limiter.inserted, limiter.sampled):
        with pytest.raises(ConfigurationError, match="n must be an integer of at least 0"):
            count(n)
