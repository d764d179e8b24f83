"""The share of the sub-environments that the calling process steps itself, with the code of the workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from parenv.crew.events import Event, StepFailed
from parenv.crew.failures import say_where, where_it_happened
from parenv.crew.warning import Warner
from parenv.envs.step_buffer_rows import EnvError
from parenv.memory.status_slot import StatusSlot
from parenv.memory.step_buffer import StepBuffer
from parenv.memory.trees import own_copy
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Actions, Message, SideData
from parenv.worker.failures import FailedCallError
from parenv.worker.job import StepJob
from parenv.worker.step_task import StepTask


class CallerWorker:
    """A worker without a process. It serves its requests when the vector env waits.

    Args:
        job: Job of all workers.
        worker: Index of this worker.
        status: Status slot of this worker.
        hear: Function that receives its side data and the exceptions of its steps.
        warn: Function that shows a warning once.

    Attributes:
        pending: Whether it was notified since the last :meth:`serve`.
        envs: The sub-environments.
        spaces: Their different spaces by name, and which of them each has.
    """

    def __init__(
        self, job: StepJob, worker: int, status: StatusSlot, hear: Callable[[Event], object], warn: Warner
    ) -> None:
        self._worker, self._hear, self.warn = worker, hear, warn
        self._cleanup = contextlib.ExitStack()
        try:
            job.set_up(worker, status, self._cleanup)
            self._task: Any = StepTask(job, Sender(worker, 0), status, self)
        except BaseException:
            self._cleanup.close()
            raise
        self._cleanup.callback(self._task.close)
        self.envs, self.spaces = self._task.envs, self._task.spaces()
        self.pending = False

    def use(self, step_buffer: StepBuffer) -> None:
        """Step on this step buffer."""
        self._task.use(step_buffer)

    def take(self, actions: Actions) -> None:
        """Take actions that do not fit into the step buffer, or their dtypes."""
        self._task.take(actions)

    def notify(self) -> None:
        """Note that there are requests."""
        self.pending = True

    def serve(self) -> None:
        """Serve all requests."""
        self.pending = False
        for request in self._task.due():
            self._task.serve(*request)

    def step_all(self) -> None:
        """Step every sub-environment, whose requests have one number."""
        self._task.step_all()

    def answer(self, method: str, *arguments: Any) -> tuple[Any, list[BaseException]]:
        """Answer a call; also the exceptions of sub-environments."""
        try:
            return self._task.answer(method, *arguments), []
        except FailedCallError as failed:
            return None, [self._with_place(*error) for error in failed.errors]

    def close(self) -> None:
        """Close the environments. Idempotent."""
        cleanup, self._cleanup = self._cleanup, contextlib.ExitStack()
        cleanup.close()
        # The task refers to the step buffer, whose memory is freed when the user drops the last array over it.
        self._task = None

    def say(self, message: Message) -> None:
        """Pass on data that does not fit into the step buffer."""
        assert isinstance(message, SideData)
        if message.infos:
            # The environments are in this process, and may change their infos in the next step.
            message = replace(message, infos=own_copy(message.infos))
        self._hear(message)

    def flush_records(self) -> None:
        """Do nothing, because the handlers of this process have the records already."""

    def report_error(self, errors: Sequence[EnvError]) -> None:
        """Pass on the exceptions of sub-environments."""
        for error in errors:
            self._hear(StepFailed(self._with_place(*error)))

    def _with_place(self, env_id: int, doing: str, error: BaseException) -> BaseException:
        say_where(error, where_it_happened(self._worker, os.getpid(), env_id, doing))
        return error
