"""Memory, placement and wake-ups of the workers of a vector env, which exist before the number of workers is chosen."""

from __future__ import annotations

from dataclasses import replace

from parenv.crew.launch import local_launch, worker_placement
from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import StatusSlot, header_bytes
from parenv.memory.step_signals import StepSignals
from parenv.placement.base import Launch, Notifier, SteppingPlacement
from parenv.placement.inline import NoWorkers
from parenv.platform.futex import AVAILABLE
from parenv.process.wake_up import WakeUp, WakeUps
from parenv.vector.vector_plan import VectorPlan
from parenv.worker.job import StepJob


class Connections:
    """Memory, placement and wake-ups of the workers of a vector env.

    Args:
        plan: Checked plan.
        job: Job of the workers that start next.
        most_workers: Maximum number of workers, including the share of this process.

    Attributes:
        placement: Placement of the workers.
        memory: Shared memory. At first it has the head only.
        head: Mapping of the head.
        signals: Numbers with which this process and its workers notify each other.
        wake_ups: Wake-ups of all workers on this machine.
        answers: Wake-up of this process.
    """

    def __init__(self, plan: VectorPlan, job: StepJob, most_workers: int) -> None:
        self._inline = plan.inline
        self.use(job)
        self.placement: SteppingPlacement = (
            NoWorkers() if plan.inline else worker_placement(plan.placement, None, plan.job.options)
        )
        self.memory = SharedMemory(header_bytes(most_workers))
        self.head = self.memory.map()
        self.signals = StepSignals(self.head)
        # A request to some of many workers changes the number on which others are about to sleep. Each has a wake-up of
        # its own then.
        all_at_once = plan.batch_size == plan.num_envs and not plan.chooses_batch_size
        steps_all = all_at_once or plan.job.spinning is not None
        self.wake_ups = WakeUps(self.head, futexes=AVAILABLE and steps_all)
        self.answers = WakeUp()

    def status(self, worker: int) -> StatusSlot:
        """Return the status slot of a worker."""
        return StatusSlot(self.head, worker)

    def wake_up(self, worker: int) -> Notifier:
        """Make the wake-up of the next process of a worker."""
        return self.placement.wake_up(worker, self.wake_ups)

    def use(self, job: StepJob) -> None:
        """Pickle the job of the workers that start next."""
        self._with_launch = local_launch(job, {"env_fns": job.factories}, inline=self._inline)

    def launch(self) -> Launch:
        """Return the launch of a worker."""
        return replace(self._with_launch(self.memory.handle), handles=(self.answers.notifying,))

    def close(self) -> None:
        """Free memory and wake-up, after the workers have ended. Idempotent."""
        self.memory.close()
        self.answers.close()
