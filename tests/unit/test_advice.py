"""Advice on cases whose answer is known, and the arithmetic behind it. No processes."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from parenv.advice.advising import advise
from parenv.advice.costs import Costs, Setting, fixed_seconds, steps_per_second
from parenv.advice.device_choice import step_workers
from parenv.advice.recommendations import Advice, Recommendation
from parenv.cli.advise import AdviceReport, Verified
from parenv.cli.machine import machine

SETTING = Setting(mode="sync", parallelism="experience", num_workers=2, num_envs=32, rollout_length=128)


def costs(setting: Setting = SETTING, **changes: Any) -> Costs:
    """A run that costs nothing but what is said."""
    nothing = Costs(
        setting,
        cores=8,
        env_steps_per_second=1000.0,
        environment_s=0.0,
        acting_s=0.0,
        commit_s=0.0,
        worker_learning_s=0.0,
        waiting_s=0.0,
        learner_s=0.0,
        learner_processor_s=changes.get("learner_s", 0.0),
        handling_s=0.0,
        publishing_s=0.0,
        waiting_for_workers_s=0.0,
        unevenness=0.0,
        sleeping=0.0,
        can_share_learning=setting.parallelism == "gradient",
    )
    return replace(nothing, **changes)


def test_a_cheap_environment_and_a_heavy_learner_need_no_workers() -> None:
    advice = advise(costs(environment_s=5e-6, learner_s=100e-6))
    assert not advice.parallel_helps
    assert advice.recommended.num_workers == 0
    assert advice.costs.ratio == pytest.approx(0.05)
    assert advice.why == (
        "parallel workers cannot help: learning is 95% of the cost (an env step costs 5 µs, learning from it 100 µs), "
        "and even collecting for nothing would be 1.05 times as fast"
    )


def test_a_cheap_environment_and_a_heavy_loss_that_workers_can_compute_need_gradients() -> None:
    setting = replace(SETTING, parallelism="gradient", num_workers=1)
    advice = advise(costs(setting, environment_s=5e-6, worker_learning_s=100e-6))
    assert advice.parallel_helps
    assert (advice.recommended.parallelism, advice.recommended.num_workers) == ("gradient", 8)
    assert advice["parallelism"].because.endswith("A2C, A3C, PG")
    assert advice.predicted_steps_per_second == pytest.approx(8 * 1000.0, rel=0.01)


def test_workers_do_not_pay_where_handing_over_costs_more_than_stepping() -> None:
    inline = Setting(mode="sync", parallelism="experience", num_workers=0, num_envs=2, rollout_length=8)
    alone = costs(inline, environment_s=20e-6)
    with_workers = replace(inline, num_workers=2)
    assert alone.at(inline).handling_s == 0.0
    assert alone.at(with_workers).handling_s == pytest.approx(300e-6 / 8)
    assert not advise(alone).parallel_helps or advise(alone).recommended.rollout_length > 8
    assert steps_per_second(alone, with_workers) < steps_per_second(alone, inline)
    longer = replace(with_workers, rollout_length=1024)
    assert steps_per_second(alone, longer) > 1.5 * steps_per_second(alone, inline)


def test_experience_is_enough_where_the_learner_has_little_to_do() -> None:
    setting = replace(SETTING, parallelism="gradient", num_workers=1)
    advice = advise(costs(setting, environment_s=1e-3, worker_learning_s=5e-6))
    assert advice.recommended.parallelism == "experience"


def test_a_slow_environment_and_a_light_learner_need_a_worker_for_each_core() -> None:
    advice = advise(costs(environment_s=1e-3, learner_s=1e-6))
    assert advice.parallel_helps
    assert (advice.recommended.mode, advice.recommended.num_workers) == ("sync", 8)
    assert advice.predicted_steps_per_second == pytest.approx(4 * 1000.0, rel=0.02)


def test_an_environment_that_sleeps_needs_more_workers_than_cores() -> None:
    advice = advise(costs(environment_s=1e-3, learner_s=1e-6, sleeping=0.95))
    assert advice.recommended.num_workers == advice.recommended.num_envs >= 96
    assert "a worker sleeps 95% of its time" in advice["num_workers"].because


def test_uneven_workers_are_for_async() -> None:
    even, uneven = (costs(environment_s=1e-3, learner_s=1e-6, unevenness=spread) for spread in (0.0, 0.5))
    assert advise(even).recommended.mode == "sync"
    advice = advise(uneven)
    assert advice.recommended.mode == "async"
    assert advice["mode"].because.endswith("rollouts take 50% more or less than the mean")


def test_a_learner_as_expensive_as_collecting_works_at_the_same_time() -> None:
    run = costs(environment_s=80e-6, learner_s=20e-6, update_s=0.0, cores=16)
    advice = advise(run)
    assert advice.recommended.mode == "async"
    assert steps_per_second(run, advice.recommended) == pytest.approx(1 / 20e-6, rel=0.05)


SLEEPY = replace(SETTING, num_envs=16, rollout_length=16)
"""Updates from 256 env steps."""


def sleepy(**changes: Any) -> Costs:
    """5 ms an env step, asleep, and 20 ms an update."""
    return costs(SLEEPY, environment_s=5e-3, sleeping=0.99, cores=2, learner_s=20e-3 / 256, **changes)


def test_an_update_of_fixed_cost_is_as_dear_from_a_small_rollout() -> None:
    run = sleepy(update_s=20e-3)
    small = replace(SLEEPY, mode="async", num_workers=48, num_envs=48)
    assert steps_per_second(run, small) == pytest.approx(16 / 20e-3)
    assert steps_per_second(run, replace(small, rollout_length=256)) == pytest.approx(48 / 5e-3)
    advice = advise(run)
    assert advice.recommended.mode == "sync"
    assert advice.recommended.num_workers > 30


def test_an_update_that_costs_by_the_sample_is_as_cheap_from_a_small_rollout() -> None:
    small = replace(SLEEPY, mode="async", num_workers=48, num_envs=48)
    assert steps_per_second(sleepy(update_s=0.0), small) == pytest.approx(48 / 5e-3)
    half = sleepy(update_s=10e-3)
    assert steps_per_second(half, small) == pytest.approx(1 / (10e-3 / 16 + 10e-3 / 256))


def test_where_one_size_was_measured_a_smaller_update_is_not_taken_to_be_cheaper() -> None:
    run, small = sleepy(), replace(SLEEPY, mode="async", num_workers=48, num_envs=48)
    assert steps_per_second(run, small) == pytest.approx(16 / 20e-3)
    larger = replace(SLEEPY, num_envs=64, num_workers=64)
    assert run.at(larger).learner_s == pytest.approx(20e-3 / 256)
    assert "as much as the one that was measured" in advise(run)["mode"].because


def test_acting_on_more_than_was_measured_costs_as_much_per_observation() -> None:
    run = costs(acting_at={"cpu": {1: 1e-3, 64: 2e-3}})
    assert [run.acting_once_s(batch, "cpu") for batch in (1, 64, 256)] == pytest.approx([1e-3, 2e-3, 8e-3])


def test_a_worker_that_acts_on_fewer_observations_sleeps_a_smaller_share_of_its_time() -> None:
    curve = {1: 100e-6, 8: 100e-6}
    run = costs(SLEEPY, environment_s=1e-3, sleeping=0.9, acting_s=100e-6 / 8, acting_at={"cpu": curve}, cores=2)
    there = replace(SLEEPY, num_workers=48, num_envs=48)
    processor_s = (1 - run.sleeping) * run.collecting_s + 100e-6 * 7 / 8
    assert (1 - run.at(there).sleeping) * run.at(there).collecting_s == pytest.approx(processor_s)
    assert steps_per_second(run, there) <= 2 / processor_s


def verified(advice: Advice, before: float, measured: float) -> list[str]:
    found = Verified.of(advice, before, measured)
    return str(AdviceReport("Some-v0", machine(), advice, found)).splitlines()[-2:]


def test_after_the_test_of_an_advice_it_is_said_which_setting_to_take() -> None:
    advice = advise(costs(environment_s=1e-3, learner_s=1e-6))
    assert verified(advice, before=1000.0, measured=2000.0) == [
        "verified: 1,000 env steps/s before; 3,980 predicted, 2,000 measured (0.50 times)",
        "take the recommended setting: 2.00 times as fast as before",
    ]
    assert verified(advice, before=1000.0, measured=110.0)[1] == (
        "the advice does not hold: the recommended setting is 0.11 times as fast as before; keep num_workers=2, "
        "num_envs=32, mode='sync', parallelism='experience', rollout_length=128"
    )
    best = replace(SETTING, num_workers=8, num_envs=128)
    assert verified(advise(costs(best, environment_s=1e-3, learner_s=1e-6)), before=1.0, measured=1.1)[1] == (
        "take what there is: the recommended setting is the one that was measured"
    )


def test_two_sizes_tell_what_an_update_costs_at_any_size() -> None:
    assert fixed_seconds({256: 30e-3, 64: 15e-3}) == pytest.approx(10e-3)
    assert fixed_seconds({256: 30e-3, 64: 7.5e-3}) == pytest.approx(0.0)
    assert fixed_seconds({256: 20e-3, 64: 20.1e-3}) == pytest.approx(20e-3, rel=0.01)
    assert fixed_seconds({256: 30e-3, 64: 5e-3}) == 0.0


def test_another_batch_is_said_with_the_rollout_length_that_would_keep_it() -> None:
    advice = advise(sleepy(update_s=0.0))
    batch, setting = advice["batch"], advice.recommended
    assert (batch.value, batch.now) == (setting.env_steps_of_a_rollout, 256)
    assert batch.value != batch.now
    assert "an update learns from " in str(advice).splitlines()[-1]
    uneven = costs(environment_s=1e-3, learner_s=1e-6, unevenness=0.5, update_s=0.0)
    advice = advise(uneven)
    assert (advice["mode"].value, advice["batch"].value, advice["batch"].now) == ("async", 512, 4096)
    assert advice["batch"].because == "env steps in an update: what is learned changes; rollout_length=1024 keeps them"
    assert str(advice).endswith(
        ": an update learns from 512 env steps then, instead of 4,096, so try whether it learns as well"
    )


def test_a_batch_of_whole_episodes_is_counted_in_episodes() -> None:
    whole = replace(SETTING, rollout_length="episode")
    advice = advise(costs(whole, environment_s=1e-3, learner_s=1e-6, sleeping=0.95))
    assert (advice["batch"].now, advice["batch"].value) == (32, advice.recommended.num_envs)
    assert f" learns from {advice['batch'].value} episodes then, instead of 32, " in str(advice).splitlines()[-1]


def test_the_same_batch_needs_no_words() -> None:
    advice = advise(costs(environment_s=1e-3, learner_s=1e-6))
    assert (advice["batch"].value, advice["batch"].now) == (4096, 4096)
    assert advice["batch"].because == "env steps in an update, as it was"
    assert str(advice).endswith(" env steps/s")


def test_what_larger_batches_gain_is_not_called_the_workers_gain() -> None:
    curve = {batch: 100e-6 + 0.1e-6 * batch for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
    setting = replace(SETTING, num_envs=4, num_workers=2)
    run = costs(setting, environment_s=5e-6, acting_s=curve[2] / 2, acting_at={"cpu": curve}, cores=2)
    advice = advise(run)
    found = re.match(r"parallel workers help: ([\d.]+) times one process with the same batches", advice.why)
    assert found is not None
    assert 1.1 < float(found[1]) <= 2.0, "two cores"
    assert re.search(r"; these batches are ([\d.]+) times as fast as those of now, also in one process", advice.why)


def test_larger_batches_are_for_one_process_too_where_workers_do_not_help() -> None:
    curve = {batch: 100e-6 + 0.1e-6 * batch for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
    setting = replace(SETTING, num_envs=4, num_workers=2)
    run = costs(setting, environment_s=5e-6, acting_s=curve[2] / 2, acting_at={"cpu": curve}, cores=1)
    advice = advise(run)
    assert not advice.parallel_helps
    assert (advice.recommended.num_workers, advice.recommended.num_envs >= 64) == (0, True)


def test_one_core_has_no_room_for_workers() -> None:
    advice = advise(costs(environment_s=1e-3, learner_s=1e-6, cores=1))
    assert not advice.parallel_helps
    assert advice.why == "parallel workers cannot help: a worker keeps the only core busy 100% of its time"


def test_a_small_network_wants_larger_batches_and_a_big_one_does_not_care() -> None:
    small = {batch: 100e-6 + 0.1e-6 * batch for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
    big = {batch: 1e-3 * batch for batch in small}
    setting = replace(SETTING, num_envs=8, num_workers=2)
    at = {
        name: advise(costs(setting, environment_s=5e-6, acting_s=curve[4] / 4, acting_at={"cpu": curve})).recommended
        for name, curve in {"small": small, "big": big}.items()
    }
    assert at["small"].batch >= 64
    assert (at["big"].num_workers, at["big"].num_envs) == (8, 8)


def test_expensive_publishing_wants_longer_rollouts() -> None:
    assert advise(costs(environment_s=10e-6, publishing_s=5e-6)).recommended.rollout_length == 2048
    assert advise(costs(environment_s=10e-6, publishing_s=0.1e-6)).recommended.rollout_length == 128
    whole = replace(SETTING, rollout_length="episode")
    assert advise(costs(whole, environment_s=10e-6, publishing_s=5e-6)).recommended.rollout_length == "episode"


def test_the_mini_batch_is_the_smallest_that_is_nearly_the_cheapest() -> None:
    curves = {"cpu": {32: 10e-6, 128: 4e-6, 512: 3.9e-6}, "cuda": {32: 9e-6, 128: 3e-6, 512: 1e-6}}
    on_cpu = advise(costs(environment_s=1e-3, learner_s=1e-6, learning_at={"cpu": curves["cpu"]}))
    assert on_cpu["mini_batch"].value == 128
    both = advise(costs(environment_s=1e-3, learner_s=1e-6, learning_at=curves))
    assert (both["mini_batch"].value, both["learner_device"].value) == (512, "cuda")


def acting_on(accelerator: str, cpu_s: float, other_s: float, environment_s: float) -> Advice:
    """Advice where acting once takes so long at any batch."""
    curves = {device: dict.fromkeys((1, 64), seconds) for device, seconds in (("cpu", cpu_s), (accelerator, other_s))}
    setting = replace(SETTING, num_envs=8, num_workers=2)
    return advise(
        costs(setting, environment_s=environment_s, acting_s=cpu_s / 4, acting_at=curves, accelerator=accelerator)
    )


def test_workers_act_on_the_gpu_where_a_big_network_makes_their_env_steps_cheaper() -> None:
    big = acting_on("cuda", cpu_s=50e-3, other_s=1e-3, environment_s=5e-6)["worker_device"]
    assert (big.value, big.now) == ("cuda", "cpu")
    assert big.because.endswith("; on 64 observations it takes 50 ms on cpu, 1 ms on cuda, which 8 workers share")
    tiny = acting_on("cuda", cpu_s=60e-6, other_s=50e-6, environment_s=5e-6)["worker_device"]
    assert tiny.value == "cpu"


def test_acting_that_is_a_small_part_of_an_env_step_stays_on_the_cpu() -> None:
    assert acting_on("mps", cpu_s=1e-3, other_s=1e-6, environment_s=1e-4)["worker_device"].value == "mps"
    assert acting_on("mps", cpu_s=1e-3, other_s=1e-6, environment_s=1e-2)["worker_device"].value == "cpu"


def test_one_worker_acts_for_all_where_all_would_take_turns_on_the_gpu() -> None:
    setting = replace(SETTING, num_envs=64, num_workers=8)
    flat = {device: dict.fromkeys((1, 64), 1e-3) for device in ("cpu", "cuda")}
    run = costs(setting, environment_s=5e-6, acting_s=1e-4, acting_at=flat, accelerator="cuda")
    central = step_workers(run, setting, "cuda")
    assert central.value == 8
    assert central.because == (
        "a forward takes 1 ms for a worker's own 8 rows on cuda, 8 of them in turn; for all at once two of 1 ms; to "
        "step a worker's rows takes 40 µs"
    )
    # While the others have their turns, a worker steps: who waits for nobody gains nothing.
    assert step_workers(replace(run, environment_s=1e-3), setting, "cuda").value == "none"
    assert step_workers(run, setting, "cpu").value == "none"
    rising = {"cuda": {1: 1e-3, 64: 64e-3}}
    assert step_workers(replace(run, acting_at=rising), setting, "cuda").value == "none"
    assert advise(run)["step_workers"].name == "step_workers"
    assert "step_workers" not in str(advise(costs(environment_s=1e-3, learner_s=1e-6)))


def test_the_learner_moves_to_the_gpu_where_a_mini_batch_takes_less_there() -> None:
    def advised(**curves: Any) -> Recommendation:
        run = costs(environment_s=1e-5, learner_s=1e-5, learning_at=curves, accelerator="cuda")
        return advise(run)["learner_device"]

    tiny = {"cpu": {32: 3e-6, 128: 1e-6, 512: 1e-6}, "cuda": {32: 30e-6, 128: 7e-6, 512: 2e-6}}
    assert advised(**tiny).value == "cpu"
    assert advised(**tiny).because == (
        "forward and backward of 128 samples take 128 µs on cpu, 896 µs on cuda; learning is 50% of the cost"
    )
    big = {"cpu": {32: 3e-3, 128: 3e-3}, "cuda": {32: 30e-6, 128: 7e-6}}
    assert (advised(**big).value, advised(**big).now) == ("cuda", "cpu")
    nearly = {"cpu": {32: 1.05e-3}, "cuda": {32: 1e-3}}
    assert advised(**nearly).value == "cpu"


def test_without_a_gpu_devices_stay_as_they_are_since_none_was_found() -> None:
    advice = advise(costs(environment_s=1e-5, learner_s=1e-5))
    for name in ("learner_device", "worker_device"):
        assert (advice[name].value, advice[name].now) == ("cpu", "cpu")
        assert advice[name].because.endswith("; no GPU was found for a torch module of the policy")


def test_a_gpu_that_was_not_measured_is_named_with_the_command_that_does() -> None:
    run = costs(environment_s=1e-5, acting_s=1e-5, learner_s=3e-5, accelerator="cuda", learner_device="cuda")
    hint = "cpu and cuda were not compared: parenv advise does, for a policy with a module"
    assert advise(run)["learner_device"] == Recommendation(
        "learner_device", "cuda", "cuda", f"learning, on cuda, is 60% of the cost; {hint}"
    )
    assert advise(run)["worker_device"] == Recommendation(
        "worker_device", "cpu", "cpu", f"acting, on cpu, is 50% of a worker's time; {hint}"
    )


def test_shares_add_up_and_the_text_names_every_recommendation() -> None:
    advice = advise(costs(environment_s=2e-6, acting_s=1e-6, commit_s=1e-6, waiting_s=4e-6, learner_s=3e-6))
    assert advice.worker_shares == {
        "environment": 0.25, "acting": 0.125, "learning": 0.0, "commit": 0.125, "waiting for the learner": 0.5,
    }  # fmt: skip
    assert math.fsum(advice.driver_shares.values()) == pytest.approx(1.0)
    names = [
        "mode",
        "parallelism",
        "num_workers",
        "num_envs",
        "rollout_length",
        "batch",
        "mini_batch",
        "learner_device",
        "worker_device",
    ]
    assert [one.name for one in advice.recommendations] == names
    assert all(f"\n  {name} " in str(advice) for name in names)


def test_of_equal_settings_none_is_predicted_to_be_faster() -> None:
    setting = replace(SETTING, num_workers=8, num_envs=128)
    advice = advise(costs(setting, environment_s=1e-3, learner_s=1e-6))
    assert advice.recommended == setting
    assert advice.predicted_steps_per_second == pytest.approx(1000.0)


def test_a_recommendation_that_there_is_not_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="batch_size"):
        advise(costs(environment_s=1e-3, learner_s=1e-6))["batch_size"]
