"""Sentences with figures in the page on when parallelism helps, from the file that ``vector_env.py`` writes."""

from __future__ import annotations

from typing import Any

from on_paper import about

PAYS = """Use workers if a step of all
sub-environments takes `SyncVectorEnv` more than about {crossing} µs on {cores} cores. This is {of_64} µs per env step
with 64 sub-environments, or {of_8} µs with 8. The threshold is interpolated between two measurements. With 8 CartPoles
({us_8} µs), two workers are {times_8:.2f} times as fast as `SyncVectorEnv`. With 64 CartPoles ({us_64} µs), they are
{times_64:.2f} times as fast."""
SHARED = """The machine was shared: repeats
of the upper bound differed by {least:.0f} to {most:.0f} %. A wake-up of a process on the other core and back took
{wake_up:.0f} µs."""


def when_it_pays(found: Any) -> str:
    """Return the step time above which workers are faster.

    Args:
        found: Content of ``results/vector_env.json``.
    """
    (sync_8, workers_8), (sync_64, workers_64) = (step_us(found["results"][f"cartpole-{n}"], n) for n in (8, 64))
    crossing = crossing_us((sync_8, workers_8), (sync_64, workers_64))
    return PAYS.format(
        crossing=about(crossing),
        cores=found["machine"]["cores"],
        of_8=about(crossing / 8),
        us_8=about(sync_8),
        times_8=sync_8 / workers_8,
        of_64=about(crossing / 64),
        us_64=about(sync_64),
        times_64=sync_64 / workers_64,
    )


def step_us(case: Any, num_envs: int) -> tuple[float, float]:
    """Return the microseconds of a batched step with ``SyncVectorEnv`` and with two workers."""
    sync, parallel = (1e6 * num_envs / case[name]["median"] for name in ("sync", "parenv"))
    return sync, parallel


def crossing_us(few: tuple[float, float], many: tuple[float, float]) -> float:
    """Return the step time of ``SyncVectorEnv`` at which both are as fast, by linear interpolation.

    Args:
        few: Microseconds of a batched step with few sub-environments, with ``SyncVectorEnv`` and with two workers.
        many: The same with many sub-environments.
    """
    losses = few[1] - few[0], many[1] - many[0]
    return few[0] + (many[0] - few[0]) * losses[0] / (losses[0] - losses[1])


def shared_machine(found: Any) -> str:
    """Return the spread of the upper bound's repeats in the best and the worst case, and the time of a wake-up.

    Args:
        found: Content of ``results/vector_env.json``.
    """
    results = found["results"]
    limits = [case["limit"] for case in results.values() if "sync" in case]
    ranges = [100 * (limit["max"] - limit["min"]) / limit["median"] for limit in limits]
    return SHARED.format(least=min(ranges), most=max(ranges), wake_up=results["wake-up round trip, us"]["other core"])
