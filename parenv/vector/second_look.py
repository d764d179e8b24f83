"""Look again, after some seconds of real steps, whether the chosen number of workers was right."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

from parenv.platform import system
from parenv.vector.backend import Backend
from parenv.vector.choice import MOST_WAITING_WORKERS, WOKEN_STEP_S, Demand
from parenv.vector.vector_plan import VectorPlan

FIRST_LOOK_S, LOOK_S = 3.0, 1.0
"""Seconds until the look begins, and its length in seconds."""
LEAST_STEPS = 8
"""Minimum number of steps of a look."""
LEAST_GAIN = 1.5
"""Another setting is named if it would be so many times as fast."""


@dataclass(frozen=True)
class Seen:
    """What was seen in some steps of all sub-environments.

    Args:
        wall_s: Mean seconds from one step to the next.
        step_s: Mean seconds of a step.
        computed_s: Mean processor seconds of all processes in a step, without polling.
        queued_s: Mean seconds of all processes in the queue for a core in a step.
    """

    wall_s: float
    step_s: float
    computed_s: float
    queued_s: float


def other_setting(demand: Demand, num_workers: int, num_caller_envs: int, seen: Seen) -> tuple[int, float] | None:
    """Return a much faster number of workers and how many times as fast it would be, or ``None``.

    Args:
        demand: What the user asks for, and what the machine has.
        num_workers: Present number of workers.
        num_caller_envs: Number of sub-environments that the caller steps.
        seen: What was seen.
    """
    processes = num_workers + (num_caller_envs > 0)
    side_by_side = max(1, min(processes, demand.cores))
    waited_s = seen.step_s - seen.computed_s / side_by_side - seen.queued_s / processes - WOKEN_STEP_S * (processes > 1)
    most = min(demand.most_workers, max(demand.cores, MOST_WAITING_WORKERS))
    if waited_s > 0.5 * seen.step_s:
        workers, step_s = most, seen.step_s - waited_s + waited_s * processes / most
    elif not demand.isolated_by and num_workers:
        workers, step_s = 0, seen.computed_s
    elif not num_workers and seen.queued_s < 0.1 * seen.computed_s and (cores := min(demand.cores, most)) > 1:
        workers, step_s = cores, seen.computed_s / cores + 2 * WOKEN_STEP_S
    else:
        return None
    gain = seen.wall_s / max(seen.wall_s - seen.step_s + step_s, 1e-9)
    return (workers, gain) if gain >= LEAST_GAIN else None


class SecondLook:
    """Counts the time of steps for a moment, and warns at most once.

    Args:
        plan: Plan with the chosen number of workers.
        backend: Workers.
    """

    def __init__(self, plan: VectorPlan, backend: Backend) -> None:
        self._demand, self._backend = plan.demand, backend
        self._layout = len(plan.worker_shares), plan.caller_rows
        self._begin_s = time.perf_counter() + FIRST_LOOK_S
        self._steps = 0
        self._stepping_s = self._before = 0.0
        self._own_before_s = self._own_s = 0.0

    def begin_step(self) -> None:
        """Note the beginning of a step."""
        self._before = time.perf_counter()
        if self._steps:
            self._own_before_s = time.thread_time()

    def end_step(self) -> bool:
        """Note the end of a step. Return whether the look is over."""
        now = time.perf_counter()
        if not self._steps:
            if now >= self._begin_s:
                self._begin_s, self._steps, self._times = now, 1, self._workers_times()
            return False
        self._own_s += time.thread_time() - self._own_before_s
        self._stepping_s += now - self._before
        self._steps += 1
        steps = self._steps - 1
        if now - self._begin_s < LOOK_S or steps < LEAST_STEPS:
            return False
        self._judge(now, steps)
        return True

    def _judge(self, now: float, steps: int) -> None:
        if self._times is None or (times := self._workers_times()) is None:
            return
        used_s, queued_s = (after - before for after, before in zip(times, self._times, strict=True))
        computed_s = max(0.0, used_s) + self._own_s
        seen = Seen(
            (now - self._begin_s) / steps, self._stepping_s / steps, computed_s / steps, max(0.0, queued_s) / steps
        )
        found = other_setting(self._demand, *self._layout, seen)
        if found is not None:
            warnings.warn(
                f"the vector env would be about {found[1]:.1f} times as fast with num_workers={found[0]}, as the steps "
                f"of the last seconds show. Pass this argument, or num_workers={self._layout[0]} to keep the setting.",
                stacklevel=4,
            )

    def _workers_times(self) -> tuple[float, float] | None:
        """Return the processor time of all workers without polling, and the time of all processes in the queue."""
        workers, figures = self._backend.workers, self._backend.statistics()
        pids = [workers.pid(worker) for worker in range(self._layout[0])]
        own, *found = (system.processor_time(), *map(system.processor_time, pids))
        times = [one for one in found if one is not None]
        if own is None or len(times) < len(found):
            return None
        polled_s = figures.spinning_seconds + figures.workers_spinning_seconds
        # This process steps too, or waits for the workers. In the queue it waits for neither of them.
        queued_s = own.queued_s + sum(one.queued_s for one in times)
        return sum(one.used_s for one in times) - polled_s, queued_s


def second_look(plan: VectorPlan, backend: Backend) -> SecondLook | None:
    """Return a second look at a number of workers that was chosen, or ``None`` if the user has given it."""
    return SecondLook(plan, backend) if plan.demand.num_workers is None and plan.num_envs > 1 else None
