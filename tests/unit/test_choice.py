"""Check which number of workers and which share of this process are chosen for what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from parenv.envs.step_cost import StepCost
from parenv.vector.choice import LONG_TO_MAKE_S, Demand, Measured, choose, step_s
from parenv.vector.second_look import Seen, other_setting

QUIET = StepCost(step_s=5e-6, wait_s=0.0, spread_s=0.0, queued=0.0, others=0.0)
BUSY, VERY_BUSY = {"queued": 1.0, "others": 2.0}, {"queued": 5.0, "others": 10.0}
CARTPOLE, CHEETAH, PONG = QUIET, QUIET._replace(step_s=50e-6), QUIET._replace(step_s=500e-6)
SLEEPY = QUIET._replace(step_s=40e-6, wait_s=2e-3)
GIB = 1 << 30


def demand(num_envs: int, **more: Any) -> Demand:
    about = {"num_workers": None, "most_workers": num_envs, "caller_steps": None, "isolated_by": "", "cores": 2}
    return Demand(num_envs, **{**about, "free_bytes": 8.0 * GIB, **more})


def measured(cost: StepCost | None, **more: Any) -> Measured:
    return Measured(**{"make_s": 0.1, "native": "", "env_bytes": 0, "cost": cost, **more})


def chosen(asked: Demand, found: Measured | None) -> tuple[int, int]:
    choice = choose(asked, found)
    return choice.num_workers, choice.num_caller_envs


@pytest.mark.parametrize(
    ("num_envs", "cost", "quiet", "busy", "very_busy"),
    [
        (1, CARTPOLE, (0, 1), (0, 1), (0, 1)),
        (2, CARTPOLE, (0, 2), (0, 2), (0, 2)),
        (8, CARTPOLE, (1, 4), (0, 8), (0, 8)),
        (64, CARTPOLE, (1, 32), (1, 37), (0, 64)),
        (16, CHEETAH, (1, 8), (1, 8), (0, 16)),
        (8, PONG, (1, 4), (1, 4), (1, 4)),
        (16, SLEEPY, (16, 0), (16, 0), (16, 0)),
        (64, SLEEPY, (64, 0), (64, 0), (64, 0)),
        (64, SLEEPY._replace(step_s=150e-6, spread_s=2e-3), (64, 0), (64, 0), (64, 0)),
    ],
)
def test_two_cores_get_the_fastest_setting(
    num_envs: int, cost: StepCost, quiet: tuple[int, int], busy: tuple[int, int], very_busy: tuple[int, int]
) -> None:
    assert chosen(demand(num_envs), measured(cost)) == quiet
    assert chosen(demand(num_envs), measured(cost._replace(**BUSY))) == busy
    assert chosen(demand(num_envs), measured(cost._replace(**VERY_BUSY))) == very_busy


@pytest.mark.parametrize(
    ("num_envs", "cost", "cores", "workers"),
    [(64, CARTPOLE, 16, 7), (64, PONG, 16, 15), (64, CARTPOLE, 1, 0), (16, SLEEPY, 1, 16), (1000, SLEEPY, 128, 125)],
)
def test_other_numbers_of_cores(num_envs: int, cost: StepCost, cores: int, workers: int) -> None:
    assert choose(demand(num_envs, cores=cores), measured(cost)).num_workers == workers


@pytest.mark.parametrize("cost", [CARTPOLE, PONG, SLEEPY, None])
@pytest.mark.parametrize(
    ("asked", "found"),
    [({"isolated_by": "step_timeout_s"}, {}), ({}, {"native": "Box2D"}), ({"caller_steps": False}, {"make_s": 9.0})],
)
def test_isolation_native_code_and_slow_constructors_need_a_worker_and_no_share_of_the_caller(
    cost: StepCost | None, asked: dict[str, Any], found: dict[str, Any]
) -> None:
    workers, share = chosen(demand(16, **asked), measured(cost, **found))
    assert workers >= 1
    assert share == 0


def test_a_sub_environment_that_takes_long_to_make_stays_in_its_worker() -> None:
    assert chosen(demand(2), measured(CARTPOLE, make_s=LONG_TO_MAKE_S * 2)) == (1, 1)
    assert chosen(demand(16), measured(PONG, make_s=LONG_TO_MAKE_S * 2)) == (1, 8)
    assert chosen(demand(16), None) == (2, 0)


@pytest.mark.parametrize(("caller_steps", "expected"), [(None, (2, 0)), (False, (2, 0)), (True, (2, 5))])
def test_a_given_number_of_workers_is_obeyed(caller_steps: Any, expected: tuple[int, int]) -> None:
    for cost in (CARTPOLE, SLEEPY, PONG):
        assert choose(demand(16, num_workers=2, caller_steps=caller_steps), measured(cost)).num_workers == 2
    assert chosen(demand(16, num_workers=2, caller_steps=caller_steps), measured(PONG)) == expected


def test_the_caller_takes_a_share_beside_a_given_number_of_workers_if_that_is_safe_and_faster() -> None:
    asked = demand(16, num_workers=1, caller_steps="auto")
    assert chosen(asked, measured(PONG)) == (1, 8)
    assert chosen(asked, measured(PONG, native="Box2D")) == (1, 0)
    assert chosen(replace(asked, num_workers=2), measured(PONG)) == (2, 0)
    assert chosen(replace(asked, caller_steps=True), measured(PONG, native="Box2D")) == (1, 8)


def test_workers_fit_into_half_of_the_free_memory() -> None:
    assert choose(demand(16, free_bytes=0.5 * GIB), measured(SLEEPY, env_bytes=32 << 20)).num_workers == 4
    assert choose(demand(16, free_bytes=0.0), measured(SLEEPY)).num_workers <= 1


def test_without_a_measured_step_the_cores_are_occupied() -> None:
    assert chosen(demand(8), measured(None)) == (1, 4)
    assert chosen(demand(8, cores=16), measured(None)) == (7, 1)
    assert chosen(demand(1), measured(None)) == (0, 1)


@pytest.mark.parametrize(
    ("asked", "found", "text"),
    [
        (demand(64), measured(CARTPOLE), "1 worker and 32 sub-environments in this process, because a step computes"),
        (demand(16), measured(SLEEPY), "16 workers, because a step waits for 2 ms"),
        (demand(8, isolated_by="step_timeout_s"), measured(PONG), "and step_timeout_s needs processes"),
        (demand(8), measured(PONG, native="Box2D"), "and native code of Box2D could crash this process"),
        (demand(8), measured(CARTPOLE._replace(**BUSY)), "no workers, because a step computes for 5 µs and other pro"),
        (demand(8), None, "2 workers, because the first sub-environment takes long to make"),
        (demand(8, num_workers=2), measured(PONG), "2 workers, because num_workers=2 was given"),
    ],
)
def test_the_choice_names_its_reason_in_one_line(asked: Demand, found: Measured | None, text: str) -> None:
    assert text in (line := str(choose(asked, found)))
    assert "\n" not in line


TIMES = st.floats(0.0, 1.0)


@given(
    st.integers(1, 300),
    st.integers(1, 64),
    st.builds(StepCost, TIMES, TIMES, TIMES, st.floats(0.0, 9.0), st.floats(0.0, 99.0)) | st.none(),
    st.sampled_from([None, True, False, "auto"]),
    st.floats(0.0, 1e11),
)
def test_each_choice_can_be_carried_out(
    num_envs: int, cores: int, cost: StepCost | None, caller_steps: Any, free_bytes: float
) -> None:
    asked = demand(num_envs, cores=cores, caller_steps=caller_steps, free_bytes=free_bytes)
    workers, share = chosen(asked, measured(cost))
    assert 0 <= workers <= num_envs - share
    assert (share == num_envs) if not workers else (share < num_envs)
    if cost is not None and workers > 1:
        assert step_s(asked, cost, workers, share > 0) <= step_s(asked, cost, 1, False)


@pytest.mark.parametrize(
    ("layout", "seen", "expected"),
    [
        ((2, 0), Seen(wall_s=20e-3, step_s=20e-3, computed_s=1e-3, queued_s=0.0), 16),
        ((2, 0), Seen(wall_s=90e-3, step_s=20e-3, computed_s=1e-3, queued_s=0.0), None),
        ((1, 8), Seen(wall_s=20e-3, step_s=20e-3, computed_s=1e-3, queued_s=38e-3), 0),
        ((1, 8), Seen(wall_s=1e-3, step_s=1e-3, computed_s=1.8e-3, queued_s=0.0), None),
        ((0, 16), Seen(wall_s=20e-3, step_s=20e-3, computed_s=20e-3, queued_s=0.0), 2),
        ((0, 16), Seen(wall_s=20e-3, step_s=20e-3, computed_s=10e-3, queued_s=10e-3), None),
        ((0, 16), Seen(wall_s=1e-4, step_s=1e-4, computed_s=1e-4, queued_s=0.0), None),
        ((0, 16), Seen(wall_s=32e-3, step_s=32e-3, computed_s=1e-3, queued_s=0.0), 16),
        ((16, 0), Seen(wall_s=2e-3, step_s=2e-3, computed_s=1e-3, queued_s=0.0), None),
    ],
)
def test_another_setting_is_named_only_if_it_is_much_faster(
    layout: tuple[int, int], seen: Seen, expected: int | None
) -> None:
    found = other_setting(demand(16), *layout, seen)
    assert (None if found is None else found[0]) == expected
    if found is not None:
        assert found[1] >= 1.5
