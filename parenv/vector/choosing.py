"""What ``num_workers="auto"`` chooses: workers, or none where they would cost more than they save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parenv.process.cores import usable_cores
from parenv.vector.configuration import VectorPlan
from parenv.vector.session import Session

STEP_OVERHEAD_S, WORKER_OVERHEAD_S = 30e-6, 12e-6
"""What a parallel step costs beside the sub-environments, and for each worker more: estimates. With two workers, 50 to
80 microseconds in all were measured where waking another core takes 30."""


def begin(plan: VectorPlan, copy: bool) -> tuple[VectorPlan, Session, float | None]:
    """Begin a session, without workers where a measurement is to decide and they do not pay.

    Returns:
        The plan as it is carried out, the session, and the measured seconds per env step.

    Raises:
        Exception: of a sub-environment, when it is made or measured.
    """
    session = Session(plan, copy)
    if not plan.measured:
        return plan, session, None
    try:
        step_s = session.measured_step(plan.options.start_timeout_s)
    except BaseException:
        session.close(plan.options.close_timeout_s)
        raise
    if parallel_pays(step_s, plan.shares, usable_cores()):
        return plan, session, step_s
    session.close(plan.options.close_timeout_s)
    plan = replace(plan, shares=(plan.num_envs,), inline=True)
    return plan, Session(plan, copy), step_s


def parallel_pays(step_s: float, shares: Sequence[int], cores: int) -> bool:
    """Whether workers are expected to be faster than stepping in the caller's process.

    Args:
        step_s: seconds per env step.
        shares: sub-environments of each worker.
        cores: that may be used.

    >>> parallel_pays(5e-6, (32, 32), cores=2), parallel_pays(5e-6, (4, 4), cores=2)
    (True, False)
    """
    crowding = max(1.0, len(shares) / cores)
    parallel = max(shares) * step_s * crowding + STEP_OVERHEAD_S + WORKER_OVERHEAD_S * len(shares)
    return parallel < sum(shares) * step_s
