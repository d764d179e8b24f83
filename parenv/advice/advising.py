"""From what a run has been measured to cost to advice on how to set it: pure decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from parenv.advice.costs import Costs, RolloutLength, Setting, steps_per_second
from parenv.advice.device_choice import learner_device, mini_batch, nearly_cheapest, step_workers, worker_device
from parenv.advice.recommendations import NEARLY, WORTH, Advice, Recommendation, in_seconds, in_steps
from parenv.errors import ConfigurationError
from parenv.options import Mode, Parallelism
from parenv.policy.devices import accelerator, device_of
from parenv.pool.statistics import PoolStatistics
from parenv.process.cores import usable_cores

MODES: tuple[Mode, Mode] = ("sync", "async")
PARALLELISMS: tuple[Parallelism, Parallelism] = ("experience", "gradient")
WORKERS = (*range(1, 17), 20, 24, 28, 32, 40, 48, 64, 96, 128)
SMALL_SHARE = 0.05
"""Fixed costs of a rollout below this share are not worth a longer one."""
LONGEST_ROLLOUT = 2048
UNEVEN = 0.1
"""From this share on it is worth saying."""
MOSTLY = 0.5


def costs_of(statistics: PoolStatistics, setting: Setting, policy: Any, worker_device: str) -> Costs:
    """What a pool has cost so far; waiting for a core is left out.

    Args:
        statistics: its figures.
        setting: its own.
        policy: the user's, as it is now.
        worker_device: on which workers act.

    Raises:
        ConfigurationError: it has not yielded a rollout yet.
    """
    if not statistics.rollouts:
        raise ConfigurationError("there is no advice before the first rollout: run the loop for a while")
    steps, driver, processor = statistics.env_steps, statistics.driver_seconds, statistics.driver_processor_seconds
    busy_s = statistics.environment_seconds + statistics.acting_seconds
    busy_s += statistics.committing_seconds + statistics.learning_seconds
    alone = 1 - statistics.contended_seconds / busy_s
    share, at_the_same_time = alone / steps, alone if setting.mode == "async" and setting.num_workers else 1.0
    return Costs(
        setting,
        usable_cores(),
        statistics.env_steps_per_second,
        environment_s=statistics.environment_seconds * share,
        acting_s=statistics.acting_seconds * share,
        commit_s=statistics.committing_seconds * share,
        worker_learning_s=statistics.learning_seconds * share,
        waiting_s=statistics.waiting_seconds / steps,
        learner_s=driver.get("learning", 0.0) / steps * at_the_same_time,
        learner_processor_s=processor.get("learning", 0.0) / steps,
        handling_s=processor.get("waiting", 0.0) / steps if setting.num_workers else 0.0,
        publishing_s=driver.get("publishing", 0.0) / steps,
        waiting_for_workers_s=driver.get("waiting", 0.0) / steps,
        unevenness=statistics.rollout_seconds_spread / statistics.rollout_seconds,
        sleeping=statistics.sleeping_seconds / (busy_s * alone),
        can_share_learning=setting.parallelism == "gradient",
        learner_device=device_of(policy),
        worker_device=worker_device,
        accelerator=accelerator(policy),
    )


def advise(costs: Costs) -> Advice:
    """The setting that is predicted to be fastest, preferring what is simpler where it is nearly as fast.

    Args:
        costs: of a run.
    """
    with_workers = _best(costs)
    alone = _worthwhile(costs, _inline(costs.setting), _alone(with_workers))
    best = _worthwhile(costs, alone, with_workers)
    helps = best is with_workers
    # What the run fell short of is expected to be missing again; more than the model allows is luck.
    shortfall = min(1.0, costs.env_steps_per_second / steps_per_second(costs, costs.setting))
    return Advice(
        costs=costs,
        recommended=best,
        worker_shares=_worker_shares(costs),
        driver_shares=_driver_shares(costs),
        predicted_steps_per_second=steps_per_second(costs, best) * shortfall,
        parallel_helps=helps,
        why=_why(costs, with_workers, helps),
        recommendations=tuple(_recommendations(costs, best)),
    )


def _inline(setting: Setting) -> Setting:
    return replace(setting, mode="sync", parallelism="experience", num_workers=0)


def _alone(setting: Setting) -> Setting:
    """One process with the same batches: of acting, nearly, and of learning."""
    return replace(_inline(setting), num_envs=setting.env_steps_of_a_rollout // setting.length)


def _best(costs: Costs) -> Setting:
    """The fastest setting; of two, the simpler one unless the other is worth it."""
    base = replace(costs.setting, rollout_length=_rollout_length(costs))
    if not costs.can_share_learning:
        return _best_mode(costs, base)
    experience, gradient = (_best_mode(costs, replace(base, parallelism=one)) for one in PARALLELISMS)
    return _worthwhile(costs, experience, gradient)


def _best_mode(costs: Costs, setting: Setting) -> Setting:
    sync, at_any_time = (_fewest_workers(costs, replace(setting, mode=mode)) for mode in MODES)
    return _worthwhile(costs, sync, at_any_time)


def _worthwhile(costs: Costs, simple: Setting, other: Setting) -> Setting:
    return other if steps_per_second(costs, other) >= WORTH * steps_per_second(costs, simple) else simple


def _fewest_workers(costs: Costs, setting: Setting) -> Setting:
    """The fewest workers that are nearly as fast as any number."""
    most = costs.cores / max(1 - costs.sleeping, costs.cores / WORKERS[-1])  # More would wait for a core.
    candidates = [_with_workers(costs, setting, workers) for workers in WORKERS if workers < most + 1]
    rates = {candidate: steps_per_second(costs, candidate) for candidate in candidates}
    return next(candidate for candidate, rate in rates.items() if rate >= NEARLY * max(rates.values()))


def _with_workers(costs: Costs, setting: Setting, workers: int) -> Setting:
    """The same with so many workers, and at least as many sub-environments as make acting cheap."""
    each = _batch(costs) if costs.acting_at else 1
    return replace(setting, num_workers=workers, num_envs=max(-(-setting.num_envs // workers), each) * workers)


def _batch(costs: Costs) -> int:
    """Sub-environments of a worker from which on larger batches make an env step hardly cheaper."""
    curve = costs.acting_at["cpu"]
    return nearly_cheapest({batch: costs.beside_acting_s + seconds / batch for batch, seconds in curve.items()})


def _rollout_length(costs: Costs) -> RolloutLength:
    """As it is, or so long that what a rollout costs at any length is a small share."""
    length = costs.setting.rollout_length
    if length == "episode":
        return length
    while _fixed_share(costs, length) > SMALL_SHARE and length < LONGEST_ROLLOUT:
        length *= 2
    return length


def _fixed_share(costs: Costs, length: RolloutLength) -> float:
    """Handling and publishing, over all that a rollout costs."""
    there = costs.at(replace(costs.setting, rollout_length=length))
    fixed_s = there.handling_s + there.publishing_s
    return fixed_s / (fixed_s + there.collecting_s + there.learning_s)


def _worker_shares(costs: Costs) -> Mapping[str, float]:
    return _shares(
        {
            "environment": costs.environment_s,
            "acting": costs.acting_s,
            "learning": costs.worker_learning_s,
            "commit": costs.commit_s,
            "waiting for the learner": costs.waiting_s,
        }
    )


def _driver_shares(costs: Costs) -> Mapping[str, float]:
    return _shares(
        {
            "learning": costs.learner_s,
            "transfer of weights": costs.publishing_s,
            "waiting for workers": costs.waiting_for_workers_s,
        }
    )


def _shares(seconds: Mapping[str, float]) -> Mapping[str, float]:
    total = sum(seconds.values())
    return {part: value / total if total else 0.0 for part, value in seconds.items()}


def _why(costs: Costs, best: Setting, helps: bool) -> str:
    """Whether parallel workers help, with the figures that decide it."""
    both = f"an env step costs {in_seconds(costs.collecting_s)}, learning from it {in_seconds(costs.learning_s)}"
    gain = steps_per_second(costs, best) / steps_per_second(costs, _alone(best))
    if helps:
        return (
            f"parallel workers help: {gain:.2f} times one process with the same batches; {both}{_batching(costs, best)}"
        )
    if costs.cores == 1 and costs.sleeping < MOSTLY:
        return f"parallel workers cannot help: a worker keeps the only core busy {1 - costs.sleeping:.0%} of its time"
    if costs.ratio < WORTH - 1:
        return (
            f"parallel workers cannot help: learning is {1 / (1 + costs.ratio):.0%} of the cost ({both}), and even "
            f"collecting for nothing would be {1 + costs.ratio:.2f} times as fast"
        )
    return f"parallel workers hardly help: {gain:.2f} times one process on {costs.cores} cores; {both}"


def _batching(costs: Costs, best: Setting) -> str:
    """What comes of other batches and not of workers."""
    gain = steps_per_second(costs, _alone(best)) / steps_per_second(costs, _inline(costs.setting))
    if 1 / WORTH < gain < WORTH:
        return ""
    return f"; these batches are {gain:.2f} times as fast as those of now, also in one process"


def _recommendations(costs: Costs, best: Setting) -> Iterator[Recommendation]:
    now, fixed = costs.setting, _fixed_share(costs, best.rollout_length)
    yield Recommendation("mode", best.mode, now.mode, _because_mode(costs, best))
    yield Recommendation("parallelism", best.parallelism, now.parallelism, _because_parallelism(costs, best))
    yield Recommendation("num_workers", best.num_workers, now.num_workers, _because_workers(costs, best))
    yield Recommendation("num_envs", best.num_envs, now.num_envs, _because_envs(costs, best))
    because = f"handling it and publishing are then {fixed:.1%} of the cost of a rollout"
    yield Recommendation("rollout_length", best.rollout_length, now.rollout_length, because)
    batch, batch_now = best.env_steps_of_a_rollout, now.env_steps_of_a_rollout
    yield Recommendation("batch", batch, batch_now, _because_batch(best, batch_now))
    learner = learner_device(costs)
    yield mini_batch(costs, learner.value)
    yield learner
    worker = worker_device(costs, best, _worker_shares(costs)["acting"])
    yield worker
    if worker.value in costs.acting_at:
        yield step_workers(costs, best, worker.value)


def _because_mode(costs: Costs, best: Setting) -> str:
    if not best.num_workers:
        return "without workers nothing runs at the same time"
    uneven = f"; rollouts take {costs.unevenness:.0%} more or less than the mean" if costs.unevenness >= UNEVEN else ""
    modes: dict[str, Setting] = {mode: replace(best, mode=mode) for mode in MODES}
    smaller = modes["async"].env_steps_of_a_rollout < costs.setting.env_steps_of_a_rollout
    guessed = costs.update_s is None and costs.learner_s > 0 and smaller
    taken = "; a smaller update is taken to cost as much as the one that was measured" if guessed else ""
    return _rates(costs, modes) + taken + uneven


def _because_parallelism(costs: Costs, best: Setting) -> str:
    if costs.learning_s <= 0:
        return "nothing was learned in this run"
    with_workers = best if best.num_workers else _with_workers(costs, best, costs.cores)
    rates = _rates(costs, {one: replace(with_workers, parallelism=one) for one in PARALLELISMS})
    if best.parallelism == "gradient" or not costs.can_share_learning:
        return f"{rates}; gradient is for losses that need nothing but a worker's own rollout: A2C, A3C, PG"
    return rates


def _because_workers(costs: Costs, best: Setting) -> str:
    numbers = sorted({1, max(1, best.num_workers), 2 * best.num_workers or 2, max(1, costs.setting.num_workers)})
    settings = {"0": _alone(best), **{str(n): _with_workers(costs, best, n) for n in numbers}}
    idle = f"; a worker sleeps {costs.sleeping:.0%} of its time" if costs.sleeping >= UNEVEN else ""
    return _rates(costs, settings) + idle


def _because_batch(best: Setting, now: int) -> str:
    what = "episodes" if best.rollout_length == "episode" else "env steps"
    if best.env_steps_of_a_rollout == now:
        return f"{what} in an update, as it was"
    length, rest = divmod(now * best.length, best.env_steps_of_a_rollout)
    keep = "" if rest or best.rollout_length == "episode" else f"; rollout_length={length} keeps them"
    return f"{what} in an update: what is learned changes{keep}"


def _because_envs(costs: Costs, best: Setting) -> str:
    if not costs.acting_at:
        return f"acting takes {in_seconds(costs.acting_s)} per env step at batch {costs.setting.batch}"
    curve = costs.acting_at["cpu"]
    points = sorted({min(curve), costs.setting.batch, best.batch, max(curve)} & set(curve))
    words = ", ".join(f"{in_seconds(curve[batch] / batch)} at batch {batch}" for batch in points)
    return f"acting takes {words} per env step"


def _rates(costs: Costs, settings: Mapping[str, Setting]) -> str:
    """``"41,000 env steps/s with sync, 52,000 with async"``."""
    words = [f"{in_steps(steps_per_second(costs, setting))} with {name}" for name, setting in settings.items()]
    return "env steps/s: " + ", ".join(words)
