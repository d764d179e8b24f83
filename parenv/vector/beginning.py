"""Begin the session of a vector env, with the number of workers that was given or that a measurement chooses."""

from __future__ import annotations

import math
from dataclasses import replace

from parenv.envs.step_cost import StepCost
from parenv.process.spinning import WAKE_UP_S
from parenv.vector.choice import Choice, Measured, choose
from parenv.vector.first_worker import FirstWorker
from parenv.vector.vector_plan import VectorPlan, shared_out
from parenv.vector.vector_state import VectorState

CALL_S = 20e-6 + WAKE_UP_S
"""Estimate of the seconds of this process for a call of ``send`` and ``recv``, with the wake-ups."""


def begin(plan: VectorPlan, copy: bool) -> tuple[VectorPlan, VectorState, Choice, float | None]:
    """Begin a session, with the number of workers that was given or that is best for what was measured.

    Returns:
        The final plan, the session, the choice, and the measured seconds per env step, or ``None`` without a
        measurement.

    Raises:
        Exception: The constructor of a sub-environment raised it.
    """
    if not plan.is_chosen:
        workers = len(plan.worker_shares)
        return plan, VectorState(plan, copy), Choice(workers, plan.caller_rows, _given(plan)), None
    first = FirstWorker(plan)
    try:
        measured = first.measured()
        choice = choose(plan.demand, measured)
        if not choice.num_workers:
            try:
                chosen = _planned(plan, choice, measured)
                return chosen, VectorState(chosen, copy), choice, _step_s(measured)
            except Exception:
                # The first sub-environment, which the worker still has, may be the only one that can exist.
                once = replace(plan.demand, isolated_by="a sub-environment that can be made only once")
                choice = choose(once, measured)
        chosen = _planned(plan, choice, measured)
        return chosen, VectorState(chosen, copy, first), choice, _step_s(measured)
    finally:
        first.close()


def _given(plan: VectorPlan) -> str:
    workers = plan.demand.num_workers
    return "there is one worker per core" if workers is None else f"num_workers={workers} was given"


def _planned(plan: VectorPlan, choice: Choice, measured: Measured | None) -> VectorPlan:
    """Return the plan with the chosen shares, and with the chosen number of rows of ``recv``."""
    if measured is not None and measured.native:
        # The second look must not name a setting in which this code could crash this process.
        plan = replace(plan, demand=replace(plan.demand, isolated_by=plan.demand.isolated_by or measured.native))
    plan = replace(shared_out(plan, choice.num_workers, choice.num_caller_envs), is_chosen=False)
    cost = None if measured is None else measured.cost
    if not plan.chooses_batch_size or plan.inline or cost is None:
        return replace(plan, chooses_batch_size=False)
    rows = rows_of_batch(plan.num_envs, len(plan.job.shares), cost, CALL_S)
    return replace(plan, batch_size=rows, chooses_batch_size=False)


def _step_s(measured: Measured | None) -> float | None:
    return None if measured is None or measured.cost is None else measured.cost.step_s + measured.cost.wait_s


def rows_of_batch(num_envs: int, workers: int, cost: StepCost, call_s: float) -> int:
    """Return the number of rows that ``recv`` should return: all, a half, a quarter, and so on.

    With all rows at once, every worker waits for the slowest one. With a part of the rows, few workers wait, but the
    main process is called for every part, and the workers wait if it is not done with the others.

    Args:
        num_envs: Number of sub-environments.
        workers: Number of workers.
        cost: Time of an env step.
        call_s: Seconds of the main process for a call of ``send`` and ``recv``, with the wake-ups.

    >>> steady, random = StepCost(1e-3, 0.0, 0.0, 0.0, 0.0), StepCost(1e-3, 0.0, 1e-3, 0.0, 0.0)
    >>> rows_of_batch(64, 16, steady, call_s=1e-4), rows_of_batch(64, 16, random, call_s=1e-4)
    (64, 4)
    >>> rows_of_batch(64, 16, StepCost(5e-6, 0.0, 5e-6, 0.0, 0.0), call_s=1e-4)
    64
    """
    rows, one_s = num_envs / workers, cost.step_s + cost.wait_s
    # The expected maximum of normally distributed times.
    slowest_s = cost.spread_s * math.sqrt(2.0 * rows * math.log(workers))

    def round_s(parts: int) -> float:
        return max(parts * call_s, rows * one_s + call_s + slowest_s / parts)

    halvings = [1 << exponent for exponent in range(workers.bit_length())]
    return math.ceil(num_envs / min(halvings, key=round_s))
