"""The first worker of a vector env whose number of workers is chosen by what this worker measures."""

from __future__ import annotations

import time
from dataclasses import replace

from parenv.crew.workers import Workers
from parenv.envs.step_cost import StepCost
from parenv.platform import system
from parenv.protocol.messages import FirstMade, Shares
from parenv.vector.choice import LONG_TO_MAKE_S, MOST_WAITING_WORKERS, Measured
from parenv.vector.connections import Connections
from parenv.vector.vector_plan import VectorPlan

LONGEST_WAIT_S = 0.05
"""Seconds for which the making of the first sub-environment may wait, for a server or a clock, before the others start.

A sub-environment that is imported and computed meanwhile has until :data:`~parenv.vector.choice.LONG_TO_MAKE_S`."""
_LOOK_S = 0.01


class FirstWorker:
    """Worker 0, which makes the first sub-environment, measures it, and waits for the number of its sub-environments.

    No sub-environment is made only for the measurement.

    Args:
        plan: Checked plan, in which the number of workers is not chosen.

    Attributes:
        connections: Memory, placement and wake-ups, also for the workers that start later.
        workers: Worker 0 alone.
        wake_up: Wake-up of worker 0.
    """

    def __init__(self, plan: VectorPlan) -> None:
        demand = plan.demand
        most = min(demand.num_envs, max(demand.num_workers or demand.cores, MOST_WAITING_WORKERS)) + 1
        self._options = plan.job.options
        self.connections = Connections(plan, replace(plan.job, begins_with_one=True), most)
        status, limit = [self.connections.status(0)], self._options.max_memory_bytes
        self.workers = Workers(self.connections.placement, status, [demand.num_envs], max_memory_bytes=limit)
        self.wake_up = self.connections.wake_up(0)
        self._is_taken = False
        try:
            self.workers.placement.start(self.connections.launch(), [self.workers.sender(0)])
        except BaseException:
            self.close()
            raise

    def measured(self) -> Measured | None:
        """Wait for the measurement, but not for a sub-environment that takes long to make.

        Raises:
            WorkerTimeoutError: The worker has not begun to make it in time.
            Exception: The constructor of the sub-environment raised it.
        """
        deadline, making = time.monotonic() + self._options.start_timeout_s, _Making()
        while (made := self.workers.first_made(0)) is None:
            if time.monotonic() >= deadline:
                raise self.workers.late(self._options.start_timeout_s)
            doing = self.workers.doing_in_brief(0)
            if doing == "making the environment" and making.takes_long(self.workers.pid(0)):
                return None
            self.workers.listen(_LOOK_S)
        return _as_measured(made)

    def take(self, plan: VectorPlan) -> Workers:
        """Tell the worker its share in a plan, and return all workers of the plan, of which it is the first."""
        self._is_taken = True
        status = [self.connections.status(worker) for worker in range(len(plan.worker_shares))]
        limit = self._options.max_memory_bytes
        workers = Workers(
            self.connections.placement, status, plan.worker_shares, max_memory_bytes=limit, begun=self.workers
        )
        job = plan.job
        spinning = None if job.spinning is None else [job.spinning.limit_s, job.spinning.fraction]
        workers.say(0, Shares(list(job.shares), None if job.cores is None else list(job.cores[0]), spinning))
        return workers

    def close(self) -> None:
        """End the worker, unless other workers have been added to it. Idempotent."""
        if self._is_taken:
            return
        self._is_taken = True
        try:
            self.workers.close(self._options.close_timeout_s)
        finally:
            self.wake_up.close()
            self.connections.close()


class _Making:
    """The time that a worker takes to make a sub-environment, without the time in the queue for a core or a disk."""

    def __init__(self) -> None:
        self._last = self._computed_before_s = self._asleep_s = 0.0

    def takes_long(self, pid: int) -> bool:
        """Tell whether the worker has been making a sub-environment for long."""
        now, times = time.monotonic(), system.processor_time(pid)
        computed_s = now if times is None else times.used_s
        if not self._last:
            self._computed_before_s = computed_s
        elif system.is_asleep(pid):
            self._asleep_s += now - self._last
        self._last = now
        return computed_s - self._computed_before_s > LONG_TO_MAKE_S or self._asleep_s > LONGEST_WAIT_S


def _as_measured(made: FirstMade) -> Measured:
    cost = None if made.cost is None else StepCost(*made.cost)
    return Measured(made.make_s, made.native, made.env_bytes, cost)
