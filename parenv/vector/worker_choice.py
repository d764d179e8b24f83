"""Choose between worker processes and this process, for ``num_workers="auto"`` and ``caller_steps``."""

from __future__ import annotations

import contextlib
import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace

from parenv.envs.step_cost import measured_step_s
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
    if plan.inline or not plan.measured:
        return plan, session, None
    try:
        step_s = session.measured_step(plan.job.options.start_timeout_s)
        waking_s = round_trip_s(session.backend, plan.job.options.start_timeout_s)
    except BaseException as error:
        session.close(plan.job.options.close_timeout_s)
        if not isinstance(error, Exception):
            raise
        # Random actions may be illegal. The worker that measured may hang or have ended, so start all workers again.
        warnings.warn(
            f'num_workers="auto" takes one worker per core, because no step could be measured with random actions: '
            f"{type(error).__name__}: {error}",
            stacklevel=2,
        )
        plan = replace(plan, measured=False)
        return plan, VectorSession(plan, copy), None
    if parallel_pays(step_s, plan.job.shares, usable_cores(), waking_s):
        return plan, session, step_s
    session.close(plan.job.options.close_timeout_s)
    plan = shared_out(plan, 0)
    return plan, VectorSession(plan, copy), step_s


def _with_the_caller(plan: VectorPlan, copy: bool) -> tuple[VectorPlan, VectorSession, float | None]:
    """Begin a session in which this process steps a share, or may do so."""
    step_s, native = None, "unknown"
    # Random actions may be illegal. The plan then stays, and the first step shows the error of the environment.
    with contextlib.suppress(Exception):
        step_s, native = measured_step_s(plan.job.factories, 0)
    workers, num_envs = len(plan.worker_shares), plan.num_envs
    waking_s = SPINNING_S if plan.job.spinning else WAKE_UP_S
    if plan.caller_steps == "auto" and (native or usable_cores() <= workers):
        plan = replace(shared_out(plan, plan.workers_alone), caller_steps=False)
        return begin(plan, copy)
    if step_s is not None:
        plan = shared_out(plan, workers, rows_of_caller(num_envs, workers, step_s, waking_s))
        if plan.measured and not parallel_pays(step_s, plan.job.shares, usable_cores(), waking_s):
            plan = shared_out(plan, 0)
    return plan, VectorSession(plan, copy), step_s


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
                raise WorkerTimeoutError(f"not every worker woke up within {timeout_s:g} s")
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
