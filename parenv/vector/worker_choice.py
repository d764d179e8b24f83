"""Choose the number of workers, the share of this process and the rows of ``recv`` by measurements."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace

from parenv.envs.step_cost import StepCost, measured_step
from parenv.errors import WorkerTimeoutError
from parenv.process.cores import usable_cores
from parenv.process.spinning import WAKE_UP_S
from parenv.vector.backend import Backend
from parenv.vector.vector_plan import VectorPlan, shared_out
from parenv.vector.vector_session import VectorSession

ROUND_TRIPS = 20
SPINNING_S = 5e-6
"""Estimate of the seconds until a worker that polls notices a wake-up."""
STEP_OVERHEAD_S = 20e-6
"""Estimate of the further overhead of a parallel step over a step in this process, in seconds."""


def begin(plan: VectorPlan, copy: bool) -> tuple[VectorPlan, VectorSession, float | None]:
    """Begin a session. If a measurement is to decide and shows no gain, use no workers.

    Returns:
        The final plan, the session, and the measured seconds per env step, or ``None`` without a measurement.

    Raises:
        Exception: The constructor of a sub-environment raised it.
    """
    if plan.caller_steps and not plan.inline:
        return _with_the_caller(plan, copy)
    session = VectorSession(plan, copy)
    # If the caller steps the only sub-environment, the workers have none, so there is no choice.
    if plan.inline or not (plan.measured or plan.chooses_batch_size):
        return plan, session, None
    try:
        cost = session.measured_step(plan.job.options.start_timeout_s)
        waking_s = round_trip_s(session.backend, plan.job.options.start_timeout_s)
    except BaseException as error:
        session.close(plan.job.options.close_timeout_s)
        if not isinstance(error, Exception):
            raise
        # Random actions may be illegal. The worker that measured may hang or have ended, so start all workers again.
        chosen = (
            'num_workers="auto" starts one worker per core' if plan.measured else 'batch_size="auto" chooses all rows'
        )
        warnings.warn(
            f"{chosen}, because the time of a step with random actions could not be measured: "
            f"{type(error).__name__}: {error}",
            stacklevel=2,
        )
        plan = replace(plan, measured=False, chooses_batch_size=False)
        return plan, VectorSession(plan, copy), None
    if not plan.measured or parallel_pays(cost.step_s, plan.job.shares, usable_cores(), waking_s):
        return _with_batch_size(plan, session, cost, waking_s)
    session.close(plan.job.options.close_timeout_s)
    plan = shared_out(plan, 0)
    return plan, VectorSession(plan, copy), cost.step_s


def _with_the_caller(plan: VectorPlan, copy: bool) -> tuple[VectorPlan, VectorSession, float | None]:
    """Begin a session in which this process steps a share, or may do so."""
    cost, native = None, "unknown"
    # Random actions may be illegal. The plan then stays, and the first step shows the error of the environment.
    with contextlib.suppress(Exception):
        cost, native = measured_step(plan.job.factories, 0)
    workers, num_envs = len(plan.worker_shares), plan.num_envs
    waking_s = SPINNING_S if plan.job.spinning else WAKE_UP_S
    if plan.caller_steps == "auto" and (native or usable_cores() <= workers):
        plan = replace(shared_out(plan, plan.workers_alone), caller_steps=False)
        return begin(plan, copy)
    if cost is not None:
        plan = shared_out(plan, workers, rows_of_caller(num_envs, workers, cost.step_s, waking_s))
        if plan.measured and not parallel_pays(cost.step_s, plan.job.shares, usable_cores(), waking_s):
            plan = shared_out(plan, 0)
    session = VectorSession(plan, copy)
    return (plan, session, None) if cost is None else _with_batch_size(plan, session, cost, waking_s)


def _with_batch_size(
    plan: VectorPlan, session: VectorSession, cost: StepCost, waking_s: float
) -> tuple[VectorPlan, VectorSession, float]:
    """Choose the number of rows of ``recv``, if a measurement decides it."""
    if plan.chooses_batch_size and not plan.inline:
        rows = rows_of_batch(plan.num_envs, len(plan.job.shares), cost, waking_s + STEP_OVERHEAD_S)
        plan = replace(plan, batch_size=rows)
        session.choose_batch_size(rows)
    return plan, session, cost.step_s


def rows_of_batch(num_envs: int, workers: int, cost: StepCost, call_s: float) -> int:
    """Return the number of rows that ``recv`` should return: all, a half, a quarter, and so on.

    With all rows at once, every worker waits for the slowest one. With a part of the rows, few workers wait, but the
    main process is called for every part, and the workers wait if it is not done with the others.

    Args:
        num_envs: Number of sub-environments.
        workers: Number of workers.
        cost: Time of an env step.
        call_s: Seconds of the main process for a call of ``send`` and ``recv``, with the wake-ups.

    >>> steady, random = StepCost(step_s=1e-3, spread_s=0.0), StepCost(step_s=1e-3, spread_s=1e-3)
    >>> rows_of_batch(64, 16, steady, call_s=1e-4), rows_of_batch(64, 16, random, call_s=1e-4)
    (64, 4)
    >>> rows_of_batch(64, 16, StepCost(step_s=5e-6, spread_s=5e-6), call_s=1e-4)
    64
    """
    rows = num_envs / workers
    # The expected maximum of normally distributed times.
    slowest_s = cost.spread_s * math.sqrt(2.0 * rows * math.log(workers))

    def round_s(parts: int) -> float:
        return max(parts * call_s, rows * cost.step_s + call_s + slowest_s / parts)

    halvings = [1 << exponent for exponent in range(workers.bit_length())]
    return math.ceil(num_envs / min(halvings, key=round_s))


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
    rows = (num_envs + workers * waking_s / max(step_s, 1e-9)) / (workers + 1)
    return max(1, min(int(rows), num_envs - workers))


def round_trip_s(backend: Backend, timeout_s: float) -> float:
    """Return the median seconds from the wake-up of all workers to their answers.

    Raises:
        WorkerTimeoutError: A worker does not answer in time.
    """
    taken, deadline = [], time.monotonic() + timeout_s
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        echoed = backend.echo()
        while backend.expect(0) or not echoed():
            if (left := deadline - time.monotonic()) <= 0:
                raise WorkerTimeoutError(
                    f"not every worker woke up within start_timeout_s={timeout_s:g} s. Raise "
                    "WorkerOptions.start_timeout_s if they only need longer."
                )
            backend.listen(left)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def parallel_pays(step_s: float, shares: Sequence[int], cores: int, waking_s: float) -> bool:
    """Predict whether workers are faster than the caller's process.

    Args:
        step_s: Seconds per env step.
        shares: Number of sub-environments of each worker.
        cores: Number of usable cores.
        waking_s: Seconds from the wake-up of all workers to their answers.

    >>> parallel_pays(5e-6, (32, 32), 2, waking_s=5e-5), parallel_pays(5e-6, (4, 4), 2, waking_s=5e-5)
    (True, False)
    """
    crowding = max(1.0, len(shares) / cores)
    return max(shares) * step_s * crowding + waking_s + STEP_OVERHEAD_S < sum(shares) * step_s
