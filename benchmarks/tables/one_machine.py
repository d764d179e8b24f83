"""Limits of one main process on one machine, as an estimate: a part of ``scaling.md`` from measured constants.

The estimate uses only the processor time of the main process and the time of an env step. Policies, slow workers among
many, and memory bandwidth are left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sections import measured

CORES = (16, 64, 256)
STEP_US = (5.0, 50.0, 500.0, 5000.0)
PER_WORKER, ROLLOUT_LENGTH = 8, 128
TEXT = """
## Workers on one machine

### A rollout takes {sync:.0f} µs of the main process in sync mode, and {async_:.0f} µs in async mode

*{measured}*

A step of all sub-environments takes the main process {base:.0f} µs, and further {worker:.2g} µs for each worker and
{row:.2g} µs for each sub-environment (CartPole). These constants are from `python benchmarks/many_workers.py`.

### On {most} cores, stepping reaches half of the upper bound if an env step takes {half:.0f} µs

These rates are estimates from the constants. One core runs the main process, and each other core runs a worker with
{per_worker} sub-environments. A rollout has {length} steps. Policies, slow workers among many, and memory bandwidth are
left out. The table has env steps per second, and in brackets the share of independent processes on all cores:

{table}

* **Stepping:** workers wait while the main process reads the results, so the share depends on the time of an env step.
* **Async rollouts:** the main process is full at about {full} rollouts per second, {full_steps} env steps of this kind.
  Longer rollouts and more sub-environments per worker raise the limit.
* **Sync rollouts:** workers also wait for the main process between two rounds, and for the slowest worker.

### On {threads} cores, one main process in async mode reaches {least:.2f} of the upper bound with Atari and MuJoCo

Published rates are from {source}, on {threads} threads ({machine}), without a policy. The estimate for parenv is for
one main process in async mode, if an env step takes each of {threads} cores as long as it took Sample Factory. Its
share of the upper bound is in brackets. EnvPool steps its own environments in C++, so its env steps are faster.

{published}

**Beyond one main process:** start one learner per NUMA node with `torchrun --nproc-per-node {nodes}`. Each learner has
its own main process and workers on the cores of one node. Gradients are averaged, see
[Train with several learners](../docs/guides/gpus-and-learners.md). The limits above then count for each learner.
"""


class Costs(NamedTuple):
    """Processor time of the main process in microseconds.

    Args:
        base: For each step of all sub-environments.
        worker: For each step and worker.
        row: For each step and sub-environment.
        rollout: For each rollout of a worker, by mode.
    """

    base: float
    worker: float
    row: float
    rollout: dict[str, float]


def costs_of(many: Any, collecting: Any) -> Costs:
    """Return the costs, fitted to the measured steps.

    Args:
        many: Results of ``many_workers.json``.
        collecting: Results of ``collecting.json``.
    """
    points = [
        (int(words[1]), 120.0, found["us per step"])
        for name, found in many.items()
        if (words := name.replace(",", "").split())[0] == "step" and words[1] != "of"
    ]
    row = _per_row(many)
    workers, rows, times = np.array(points).T
    worker, base = np.polyfit(workers, times - row * rows, 1)
    name = "us per rollout of a worker, all threads"
    return Costs(
        base=float(base),
        worker=float(worker),
        row=row,
        rollout={mode: collecting[f"{mode}, busy"][name]["median"] for mode in ("sync", "async")},
    )


def _per_row(many: Any) -> float:
    """Return the microseconds for each further sub-environment of 2 workers."""
    few = many["step, 2 workers"]["us per step"]
    (count, most) = max((int(name.split()[2].rstrip(",")), name) for name in many if name.startswith("step of"))
    return float((many[most]["us per step"] - few) / (count - 120))


def stepping(costs: Costs, cores: int, step_us: float) -> float:
    """Return the env steps per second of a vector env."""
    workers = cores - 1
    rows = workers * PER_WORKER
    return 1e6 * rows / (costs.base + costs.worker * workers + costs.row * rows + PER_WORKER * step_us)


def collecting(costs: Costs, cores: int, step_us: float, mode: str) -> float:
    """Return the env steps per second of a pool."""
    workers, steps = cores - 1, PER_WORKER * ROLLOUT_LENGTH
    if mode == "async":
        return 1e6 * steps / max(costs.rollout[mode], steps * step_us / workers)
    return 1e6 * steps * workers / (costs.rollout[mode] * workers + steps * step_us)


def step_of_half(costs: Costs, cores: int) -> float:
    """Return the microseconds of an env step at which stepping reaches half of the upper bound."""
    steps_us = np.geomspace(0.1, 1e5, 2000)
    shares = [stepping(costs, cores, step_us) * step_us / cores / 1e6 for step_us in steps_us]
    return float(steps_us[np.searchsorted(shares, 0.5)])


def in_words(rate: float, bound: float) -> str:
    """Return a rate and its share of the upper bound.

    >>> in_words(1.234e6, 2e6)
    '1.2M (0.62)'
    """
    shown = f"{rate / 1e6:.2g}M" if rate >= 1e6 else f"{rate / 1e3:.3g}k"
    return f"{shown} ({rate / bound:.2f})"


def table(costs: Costs) -> str:
    """Return the rates by cores and time of an env step."""
    lines = ["| cores | env step | stepping | sync rollouts | async rollouts |", "|---|---|---|---|---|"]
    for cores in CORES:
        for step_us in STEP_US:
            bound = 1e6 * cores / step_us
            rates = [stepping(costs, cores, step_us)]
            rates += [collecting(costs, cores, step_us, mode) for mode in ("sync", "async")]
            shown = f"{step_us:.0f} µs" if step_us < 1000 else f"{step_us / 1000:.0f} ms"
            lines.append(f"| {cores} | {shown} | {' | '.join(in_words(rate, bound) for rate in rates)} |")
    return "\n".join(lines)


def comparison(costs: Costs, published: Any) -> tuple[str, float]:
    """Return a table of published rates and the estimate for parenv, and the lowest share of the upper bound."""
    kinds = published["frames per second"]
    systems = [name for name in next(iter(kinds.values())) if name != "frames per env step"]
    lines = [f"| env steps per second | {' | '.join(systems)} | parenv, estimate |", "|---" * (len(systems) + 2) + "|"]
    threads, shares = published["threads"], []
    for kind, found in kinds.items():
        rates = [found[name] / found["frames per env step"] for name in systems]
        step_us = 1e6 * threads / rates[systems.index("Sample Factory")]
        rate, bound = collecting(costs, threads, step_us, "async"), 1e6 * threads / step_us
        shares.append(rate / bound)
        mine = in_words(rate, bound)
        lines.append(f"| {kind} | {' | '.join(f'{rate:,.0f}' for rate in rates)} | {mine} |")
    return "\n".join(lines), min(shares)


def one_machine(many: Any, collected: Any, published: Any) -> str:
    """Return the part about workers on one machine.

    Args:
        many: Content of ``results/many_workers.json``.
        collected: Content of ``results/collecting.json``.
        published: Content of ``tables/published.json``.
    """
    costs = costs_of(many["results"], collected["results"])
    rates, least = comparison(costs, published)
    full = 1e6 / costs.rollout["async"]
    return TEXT.format(
        measured=measured("collecting"),
        least=least,
        per_worker=PER_WORKER,
        length=ROLLOUT_LENGTH,
        base=costs.base,
        worker=costs.worker,
        row=costs.row,
        sync=costs.rollout["sync"],
        async_=costs.rollout["async"],
        table=table(costs),
        half=step_of_half(costs, CORES[-1]),
        most=CORES[-1],
        full=f"{full:,.0f}",
        full_steps=f"{full * PER_WORKER * ROLLOUT_LENGTH / 1e6:.2g} million",
        published=rates,
        **{name: published[name] for name in ("source", "machine", "threads", "nodes")},
    )
