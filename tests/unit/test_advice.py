"""Check the facts derived from statistics, and their texts."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace
from typing import Any

import pytest

from parenv import ConfigurationError
from parenv.adapters.sb3.run_advice import RunAdvice, RunCosts
from parenv.advice import Advice, Fact, Setting, facts_of, in_lines
from parenv.pool.statistics import PoolStatistics

SETTING = Setting(2, 32, "sync", "experience", 128)


def advice(setting: Setting = SETTING, max_policy_lag: int | None = None, **statistics: Any) -> Advice:
    """Return facts about 10 rollouts of 4096 env steps each. Statistics that are not given are 0."""
    nothing: dict[str, Any] = {field.name: 0 for field in fields(PoolStatistics)}
    nothing |= {"policy_lag": {}, "driver_seconds": {}, "rollouts": 10, "env_steps": 40_960}
    nothing |= {"rollout_seconds": math.nan, "rollout_seconds_spread": math.nan}
    return facts_of(PoolStatistics(**nothing | statistics), setting, max_policy_lag)


def pointers(found: Advice) -> dict[str, str]:
    """Return the setting that each fact points at, by the name of the fact."""
    facts = (*found.workers, *found.driver, *found.limits)
    return {fact.name: fact.setting for fact in facts if fact.setting is not None}


def test_parts_of_the_workers_time_are_seconds_per_env_step_and_shares() -> None:
    found = advice(environment_seconds=2.0, acting_seconds=1.0, committing_seconds=1.0, waiting_seconds=4.0)
    assert found.worker_shares == {
        "environment": 0.25, "acting": 0.125, "learning": 0.0, "commit": 0.125, "waiting for the learner": 0.5,
    }  # fmt: skip
    assert found.workers[0] == Fact("environment", 2.0 / 40_960, "s per env step", 0.25)


def test_parts_of_the_main_processs_time_are_seconds_per_rollout_and_shares() -> None:
    seconds = {"learning": 3.0, "publishing": 0.5, "waiting": 6.0, "calling": 0.5}
    found = advice(driver_seconds=seconds)
    assert found.driver_shares == {
        "learning": 0.3, "transfer of weights": 0.05, "waiting for workers": 0.6, "calling workers": 0.05,
    }  # fmt: skip
    assert [fact.value for fact in found.driver] == pytest.approx([0.3, 0.05, 0.6, 0.05])
    assert {fact.unit for fact in found.driver} == {"s per rollout"}
    assert found.largest_gain == pytest.approx(2.5)
    assert "the loop would be at most 2.5 times as fast" in str(found)


def test_a_loop_that_only_learns_gains_nothing_and_one_that_only_waits_has_no_bound() -> None:
    assert advice(driver_seconds={"learning": 1.0}).largest_gain == 1.0
    assert advice(driver_seconds={"waiting": 1.0}).largest_gain == math.inf
    assert advice().largest_gain == 1.0


@pytest.mark.parametrize(
    ("statistics", "expected"),
    [
        ({"acting_seconds": 6.0, "environment_seconds": 4.0}, {"acting": "num_envs"}),
        ({"acting_seconds": 4.0, "environment_seconds": 6.0}, {}),
        ({"environment_seconds": 8.0, "committing_seconds": 2.0}, {"commit": "rollout_length"}),
        ({"environment_seconds": 8.0, "waiting_seconds": 2.0}, {"waiting for the learner": "mode"}),
        ({"driver_seconds": {"learning": 1.0, "waiting": 9.0}}, {"waiting for workers": "num_workers"}),
        ({"driver_seconds": {"learning": 9.0, "waiting": 1.0}}, {}),
        ({"driver_seconds": {"learning": 9.0, "publishing": 1.0}}, {"transfer of weights": "rollout_length"}),
        (
            {"environment_seconds": 10.0, "contended_seconds": 2.0},
            {"workers waiting for a core": "num_workers"},
        ),
        ({"environment_seconds": 10.0, "contended_seconds": 0.5, "sleeping_seconds": 0.5}, {}),
        (
            {"environment_seconds": 10.0, "sleeping_seconds": 9.0},
            {"workers sleeping, as for a simulator": "num_workers"},
        ),
        (
            {"rollout_seconds": 1.0, "rollout_seconds_spread": 0.5},
            {"deviation of the time for a rollout": "mode"},
        ),
        ({"rollout_seconds": 1.0, "rollout_seconds_spread": 0.05}, {}),
        ({"dropped_rollouts": 3}, {"dropped, too old": "max_policy_lag"}),
        ({"copied_rollouts": 3}, {}),
    ],
)
def test_a_large_fact_points_at_a_setting(statistics: Any, expected: dict[str, str]) -> None:
    assert pointers(advice(**statistics)) == expected


def test_an_async_pool_is_not_pointed_at_its_mode_and_reports_a_lag_at_its_bound() -> None:
    slow: Any = {"waiting_seconds": 9.0, "environment_seconds": 1.0, "rollout_seconds": 1.0}
    slow |= {"rollout_seconds_spread": 0.5, "policy_lag": {0: 4, 2: 5, 3: 1}}
    assert pointers(advice(replace(SETTING, mode="async"), **slow)) == {}
    bounded = advice(replace(SETTING, mode="async"), max_policy_lag=2, **slow)
    assert bounded.limits == (Fact("policy lag at its bound", 5, "rollouts", setting="max_policy_lag"),)
    alone = replace(SETTING, num_workers=0, num_envs=2)
    assert "deviation" not in str(advice(alone, rollout_seconds=1.0, rollout_seconds_spread=0.5))


def test_limits_are_given_with_their_counts_and_shares() -> None:
    found = advice(environment_seconds=10.0, sleeping_seconds=9.0, copied_rollouts=3)
    sleeping, copied = found.limits
    assert (sleeping.value, sleeping.share) == (pytest.approx(9.0 / 40_960), 0.9)
    assert copied.words == "3 rollouts"
    assert advice(environment_seconds=1.0).limits == ()


def test_there_are_no_facts_before_the_first_rollout() -> None:
    with pytest.raises(ConfigurationError, match=r"^advice\(\) needs at least one rollout. Run the loop"):
        advice(rollouts=0)


def test_the_text_has_the_setting_and_a_line_for_each_fact_that_is_not_zero() -> None:
    found = advice(
        environment_seconds=0.4096, waiting_seconds=1.2288, env_steps_per_second=20_000.0,
        driver_seconds={"learning": 1.0, "waiting": 1.0},
    )  # fmt: skip
    assert str(found).splitlines() == [
        "num_workers=2, num_envs=32, mode='sync', parallelism='experience', rollout_length=128: 20,000 env steps/s",
        "time of the workers",
        "  environment              10 µs per env step  25%",
        "  waiting for the learner  30 µs per env step  75%  try mode='async'",
        "time of the main process",
        "  learning             100 ms per rollout  50%",
        "  waiting for workers  100 ms per rollout  50%  try more workers (num_workers) if cores are free",
        "without any waiting for workers, the loop would be at most 2 times as fast",
    ]
    assert in_lines("nothing", [Fact("restarts", 0, "workers")]) == []


def test_a_setting_can_be_pasted() -> None:
    options = replace(SETTING, num_workers=1, step_workers=4, worker_device="cuda")
    assert str(options).endswith("rollout_length=128, workers=WorkerOptions(step_workers=4, device='cuda')")


def hints(found: Advice) -> dict[str, str]:
    """Return the change that each fact advises, by the name of the fact."""
    return {fact.name: fact.hint for fact in (*found.workers, *found.driver, *found.limits) if fact.hint}


def test_advice_on_the_number_of_workers_is_never_both_more_and_fewer() -> None:
    core, sleep, wait = "workers waiting for a core", "workers sleeping, as for a simulator", "waiting for workers"
    more, fewer = "more workers (num_workers) if cores are free", "fewer workers (num_workers)"
    busy: Any = {"environment_seconds": 10.0, "driver_seconds": {"learning": 1.0, "waiting": 9.0}}
    assert hints(advice(**busy)) == {wait: more}
    assert hints(advice(**busy, contended_seconds=4.0)) == {core: fewer}
    assert hints(advice(**busy, sleeping_seconds=4.0)) == {wait: more, sleep: more}
    assert hints(advice(**busy, sleeping_seconds=4.0, contended_seconds=2.0)) == {wait: more, sleep: more}
    crowded = advice(**busy, sleeping_seconds=2.0, contended_seconds=4.0)
    assert hints(crowded) == {core: fewer}
    assert [fact.name for fact in crowded.limits] == [core, sleep], "the fact itself is still reported"


def test_only_one_worker_is_not_advised_to_become_fewer() -> None:
    alone = advice(replace(SETTING, num_workers=1), environment_seconds=10.0, contended_seconds=4.0)
    assert hints(alone) == {}


def test_each_setting_has_a_change_in_words() -> None:
    found = advice(
        acting_seconds=8.0, committing_seconds=2.0, waiting_seconds=4.0, dropped_rollouts=1,
        driver_seconds={"publishing": 1.0, "learning": 1.0},
    )  # fmt: skip
    assert hints(found) == {
        "acting": "more environments (num_envs)",
        "commit": "a longer rollout_length",
        "waiting for the learner": "mode='async'",
        "transfer of weights": "a longer rollout_length",
        "dropped, too old": "a larger max_policy_lag",
    }
    assert (
        hints(advice(replace(SETTING, rollout_length="episode"), environment_seconds=8.0, committing_seconds=2.0)) == {}
    )


@pytest.mark.parametrize(
    ("waiting", "sentence"),
    [
        (0.0, "the loop hardly waits for workers: faster workers would make it at most 1.00 times as fast"),
        (0.04, "the loop hardly waits for workers: faster workers would make it at most 1.04 times as fast"),
        (0.5, "without any waiting for workers, the loop would be at most 2 times as fast"),
        (0.91, "the loop does little else than wait for workers: it is as fast as they are"),
        (0.996, "the loop does little else than wait for workers: it is as fast as they are"),
        (1.0, "the loop does little else than wait for workers: it is as fast as they are"),
    ],
)
def test_a_bound_on_the_gain_is_a_number_only_if_the_loop_does_something_else(waiting: float, sentence: str) -> None:
    found = advice(driver_seconds={"learning": 1 - waiting, "waiting": waiting})
    assert str(found).splitlines()[-1] == sentence
    costs = RunCosts(16, 2, "sync", False, 1000, 1000 * waiting, 1000 * waiting, 1000 * (1 - waiting) + 1e-9)
    of_run = sentence.replace("the loop", "the run").replace("workers", "environments")
    assert str(RunAdvice(costs)).splitlines()[-1] == of_run


def test_the_advice_for_an_sb3_run_has_the_share_of_each_part_of_the_time() -> None:
    costs = RunCosts(16, 2, "sync", False, 1000, 3.0, 4.0, 4.0)
    waiting, storing, learning = RunAdvice(costs).facts
    assert (waiting.share, storing.share, learning.share) == (0.375, 0.125, 0.5)
    assert (waiting.setting, waiting.value) == (None, 3e-3)
    assert RunAdvice(costs).largest_gain == pytest.approx(1.6)
    assert RunAdvice(replace(costs, off_policy=True)).facts[0].setting == "mode"
    slow = replace(costs, waiting_s=30.0, collecting_s=31.0)
    assert RunAdvice(slow).facts[0].setting == "num_workers"
    assert RunAdvice(replace(slow, num_workers=16)).facts[0].setting is None, "there is a worker for each environment"
    assert re.search(r"waiting for environments +30 ms per step of all environments +86%", str(RunAdvice(slow)))
    with pytest.raises(ConfigurationError, match="has learned"):
        RunAdvice(replace(costs, learning_s=0.0))
