"""Choose the number of workers of a vector env and the share of this process, purely from what was measured.

The predictions are coarse. Their constants were measured on two cores, see ``benchmarks/choice.py``. A choice is only
between settings that differ by a factor, so a constant that is wrong by a half changes few choices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from parenv.envs.step_cost import StepCost
from parenv.process.spinning import WAKE_UP_S

CallerSteps = bool | Literal["auto"] | None

SPUN_STEP_S, SPUN_WORKER_S = 8e-6, 2e-6
"""Seconds that a parallel step takes longer if all processes poll, and for each worker."""
WOKEN_STEP_S, WOKEN_WORKER_S = 20e-6 + WAKE_UP_S, 3e-6
"""The same if they sleep until they are woken."""
QUEUED_STEP_S, QUEUED_SHARE, QUEUED_MOST_S = 35e-6, 0.5, 1.5e-3
"""The same on a machine without free cores: seconds, the share of the stepping for each other thread per core, and the
maximum of this share. A process that is woken waits for a core first, and the others wait for it."""
BUSY_QUEUE, BUSY_THREADS = 0.25, 0.75
"""Seconds in the queue per second of processor time, and missing free cores, from which on the machine is busy."""
LEAST_GAIN = 0.9
"""A setting with more processes is chosen if a step then takes at most this share of the time."""
LONG_TO_MAKE_S = 0.5
"""Seconds from which on an environment takes so long to make that it is not made a second time."""
MOST_WAITING_WORKERS = 64
"""Maximum number of workers beyond the number of cores, for environments that wait."""
WORKER_BYTES = 32 << 20
"""Estimate of the memory of a worker beside its environments."""


@dataclass(frozen=True)
class Measured:
    """What the first worker has found out while it made its first sub-environment.

    Args:
        make_s: Seconds of making the sub-environment, without the time in the queue for a core.
        native: Package with native code that the sub-environment uses and that could crash this process, or empty.
        env_bytes: Bytes by which the worker has grown.
        cost: Time of a step, or ``None`` if it could not be measured.
    """

    make_s: float
    native: str
    env_bytes: int
    cost: StepCost | None


@dataclass(frozen=True)
class Demand:
    """What the user asks for, and what the machine has.

    Args:
        num_envs: Number of sub-environments.
        num_workers: Number of workers that the user has given, or ``None``.
        most_workers: Maximum number of workers: ``max_concurrency`` or the number of sub-environments.
        caller_steps: Whether this process steps a share: as the user has given it, ``"auto"``: if that is safe and
            faster, ``None``: the same, but only if the number of workers is chosen too.
        isolated_by: Argument that needs all sub-environments in processes of their own, or empty.
        cores: Number of usable cores.
        free_bytes: Bytes of free memory.
        spins: Whether processes may poll before they sleep.
    """

    num_envs: int
    num_workers: int | None
    most_workers: int
    caller_steps: CallerSteps
    isolated_by: str
    cores: int
    free_bytes: float
    spins: bool = True


@dataclass(frozen=True)
class Choice:
    """The number of workers of a vector env, and the share of this process.

    Args:
        num_workers: Number of worker processes; 0 if this process steps all sub-environments.
        num_caller_envs: Number of sub-environments that this process steps; all of them without workers.
        reason: Reason for the choice, as the end of a sentence.

    >>> print(Choice(1, 32, "a step computes for 5 µs"))
    1 worker and 32 sub-environments in this process, because a step computes for 5 µs
    """

    num_workers: int
    num_caller_envs: int
    reason: str

    def __str__(self) -> str:
        workers = f"{self.num_workers} worker{'s' * (self.num_workers != 1)}"
        here = f"{self.num_caller_envs} sub-environment{'s' * (self.num_caller_envs != 1)} in this process"
        if not self.num_workers:
            workers = "no workers"
        elif self.num_caller_envs:
            workers = f"{workers} and {here}"
        return f"{workers}, because {self.reason}"


def choose(demand: Demand, measured: Measured | None) -> Choice:
    """Choose the number of workers and the share of this process.

    Args:
        demand: What the user asks for, and what the machine has.
        measured: What was measured; ``None`` if the first sub-environment was not made in time.
    """
    cost = None if measured is None else measured.cost
    layouts = _allowed(demand, measured)
    if cost is None:
        workers, beside = _of_computing(demand, layouts)
        share = demand.num_envs // (workers + 1)
        return Choice(workers, share if beside else 0, _reason(demand, measured, workers, beside))
    best, best_s = layouts[0], step_s(demand, cost, *layouts[0])
    for layout in layouts[1:]:
        if (taken_s := step_s(demand, cost, *layout)) < LEAST_GAIN * best_s:
            best, best_s = layout, taken_s
    workers, beside = best
    waking_s = SPUN_STEP_S if _polls(demand, cost, workers) else WAKE_UP_S
    share = rows_of_caller(demand.num_envs, workers, cost.step_s + cost.wait_s, waking_s)
    return Choice(workers, share if beside else 0, _reason(demand, measured, workers, beside))


def _allowed(demand: Demand, measured: Measured | None) -> list[tuple[int, bool]]:
    """Return the numbers of workers, and whether this process steps a share, the fewest processes first."""
    given, wanted = demand.num_workers, demand.caller_steps
    native = "unknown" if measured is None else measured.native
    safe = wanted is True or not (demand.isolated_by or native)
    beside = [True] if wanted is True else [False, True] if safe and wanted is not False else [False]
    if given is not None:
        counts = [given]
        beside = [False] if wanted is None else beside
    else:
        counts = _counts(demand, measured)
        if not safe or measured is None or measured.make_s > LONG_TO_MAKE_S:
            # The first worker has made a sub-environment already, which is not made again in this process.
            counts = counts[1:]
    # While a step waits in this process, it does not serve the workers.
    waits = measured is not None and measured.cost is not None and measured.cost.wait_s > measured.cost.step_s
    layouts = [
        (workers, with_caller)
        for workers in counts
        for with_caller in ([True] if not workers else beside)
        if not (with_caller and workers and workers >= demand.num_envs)
        # A caller beside as many workers as cores would take a core from one of them.
        and not (with_caller and workers and wanted is not True and (waits or workers >= demand.cores))
    ]
    return layouts or [(counts[0], False)]


def _counts(demand: Demand, measured: Measured | None) -> list[int]:
    """Return the numbers of workers from which to choose: up to one per core, and more if a step waits."""
    env_bytes = WORKER_BYTES if measured is None else WORKER_BYTES + measured.env_bytes
    most = max(1, int(min(demand.most_workers, demand.free_bytes / 2 / env_bytes)))
    counts = {*range(min(demand.cores, most) + 1)}
    if measured is not None and measured.cost is not None and measured.cost.wait_s > 0.0:
        beyond = min(most, max(demand.cores, MOST_WAITING_WORKERS))
        counts |= {beyond, *(1 << power for power in range(1, beyond.bit_length()))}
    return sorted(counts)


def _of_computing(demand: Demand, layouts: list[tuple[int, bool]]) -> tuple[int, bool]:
    """Return the layout that occupies the cores, as is right for steps that compute for long."""
    cores = min(demand.cores, demand.num_envs)
    return min(layouts, key=lambda layout: (abs(layout[0] + layout[1] - cores), layout[0]))


def is_busy(demand: Demand, cost: StepCost) -> bool:
    """Tell whether the machine had fewer than two free cores while a step was measured."""
    return cost.queued > BUSY_QUEUE or cost.others > max(0, demand.cores - 2) + BUSY_THREADS


def _polls(demand: Demand, cost: StepCost, workers: int) -> bool:
    """Tell whether all processes have a core, so that they poll before they sleep."""
    return demand.spins and workers < demand.cores and not is_busy(demand, cost)


def step_s(demand: Demand, cost: StepCost, workers: int, beside: bool) -> float:
    """Predict the seconds of a step of all sub-environments."""
    num_envs, one_s = demand.num_envs, cost.step_s + cost.wait_s
    if not workers:
        return num_envs * one_s
    processes = workers + beside
    rows = math.ceil(num_envs / processes)
    # Processes beyond the number of cores share them. A step that waits leaves the core to others.
    stepping_s = max(rows * one_s, num_envs * cost.step_s / min(processes, demand.cores))
    if cost.wait_s:
        # The step ends with the slowest process. This is the expected maximum of normally distributed times.
        stepping_s += cost.spread_s * math.sqrt(2.0 * rows * math.log(processes))
    if _polls(demand, cost, workers):
        return stepping_s + SPUN_STEP_S + workers * SPUN_WORKER_S
    if is_busy(demand, cost):
        queued_s = min(QUEUED_SHARE * cost.others / demand.cores * stepping_s, QUEUED_MOST_S)
        return stepping_s + QUEUED_STEP_S + workers * SPUN_WORKER_S + queued_s
    return stepping_s + WOKEN_STEP_S + workers * WOKEN_WORKER_S


def rows_of_caller(num_envs: int, workers: int, step_s: float, waking_s: float) -> int:
    """Return the number of sub-environments for the caller, so that it finishes a step when the workers do.

    Args:
        num_envs: Number of all sub-environments.
        workers: Number of worker processes.
        step_s: Seconds per env step.
        waking_s: Seconds until the workers are awake.

    >>> rows_of_caller(64, 1, step_s=5e-6, waking_s=5e-6), rows_of_caller(64, 3, step_s=5e-6, waking_s=50e-6)
    (32, 23)
    """
    if not workers:
        return num_envs
    rows = (num_envs + workers * waking_s / max(step_s, 1e-9)) / (workers + 1)
    return max(1, min(int(rows), num_envs - workers))


def _reason(demand: Demand, measured: Measured | None, workers: int, beside: bool) -> str:
    if demand.num_workers is not None:
        return f"num_workers={demand.num_workers} was given"
    about = _about(demand, measured)
    if workers and not beside:
        if demand.isolated_by:
            return f"{about}, and {demand.isolated_by} needs processes"
        if measured is not None and measured.native:
            return f"{about}, and native code of {measured.native} could crash this process"
    return about


def _about(demand: Demand, measured: Measured | None) -> str:
    if measured is None:
        return "the first sub-environment takes long to make"
    if (cost := measured.cost) is None:
        return "the time of a step could not be measured"
    about = f"a step computes for {_in_words(cost.step_s)}"
    if cost.wait_s > cost.step_s:
        about = f"a step waits for {_in_words(cost.wait_s)}"
    return f"{about} and other processes use the cores" if is_busy(demand, cost) else about


def _in_words(seconds: float) -> str:
    """Return a time with its unit.

    >>> _in_words(5.2e-6), _in_words(0.0021), _in_words(2.0)
    ('5.2 µs', '2.1 ms', '2 s')
    """
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if (value := seconds * factor) < 999.5:
            return f"{value:.2g} {unit}" if value < 9.5 else f"{value:.0f} {unit}"
    return f"{seconds:.3g} s"
