"""Steps sub-environments in the caller's process, with the step buffer and the code of the workers."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from parenv.envs.board_rows import EnvError
from parenv.memory.status_slot import StatusSlot, header_bytes
from parenv.memory.step_buffer import StepBuffer, StepBufferSpec
from parenv.placement.base import drained
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Actions, Message, SideData
from parenv.supervision.failures import raise_all, say_where, where_it_happened
from parenv.supervision.warning import Warner
from parenv.worker.failures import FailedCallError
from parenv.worker.job import StepJob
from parenv.worker.step_task import StepTask


class InlineBackend:
    """One worker without a process. What is requested is done when somebody listens.

    Args:
        job: what to make.
        worker: which share of it.

    Attributes:
        pending: what was requested and is still to be done.
        side_data: what did not go on the step buffer, until somebody takes it.
    """

    beginning: Sequence[int] = ()
    restarts = 0
    spun_s = (0.0, 0.0)

    def __init__(self, job: StepJob, worker: int = 0) -> None:
        self._worker, self._env_ids = worker, job.env_ids(worker)
        self._progress = StatusSlot(np.zeros(header_bytes(1), np.uint8), 0)
        self._cleanup = contextlib.ExitStack()
        try:
            job.set_up(worker, self._progress, self._cleanup)
            self._task: Any = StepTask(job, Sender(worker, 0), self._progress, self)
        except BaseException:
            self._cleanup.close()
            raise
        self._cleanup.callback(self._task.close)
        self.envs = self._task.envs
        self.spaces, self.first = [self._task.spaces()], self.envs[0]
        self.pending: list[Callable[[], None]] = []
        self._ordered = 0
        self.side_data: deque[SideData] = deque()
        self._errors: deque[BaseException] = deque()
        self.warn = Warner()
        self.closed = False

    @property
    def has_infos(self) -> bool:
        """Whether there is an info among the last answers."""
        return bool(self._progress.has_infos[0])

    @property
    def failing(self) -> bool:
        """Whether there is something in :meth:`errors`."""
        return bool(self._errors)

    def lay_out(self, spec: StepBufferSpec) -> StepBuffer:
        """Make the step buffer."""
        step_buffer = StepBuffer(spec, np.zeros(spec.fields()[1], np.uint8))
        self.use(step_buffer)
        return step_buffer

    def use(self, step_buffer: StepBuffer) -> None:
        """Be told where the step buffer is, which others may have made."""
        self._ring = step_buffer.orders[self._env_ids.start : self._env_ids.stop]
        self._task.use(step_buffer)

    def request_all(self) -> None:
        """Have every sub-environment take a step."""
        self.pending.append(self._task.step_all)

    def request(self, env_ids: Sequence[int], reset: bool = False) -> None:
        """Have some of them take a step, or begin an episode."""
        ring, n = self._ring, len(env_ids)
        columns = np.asarray(env_ids, np.int64) - self._env_ids.start
        ring[(self._ordered + np.arange(n)) % len(ring)] = ~columns if reset else columns
        self._ordered += n
        self.pending.append(lambda: self._serve(n))

    def give(self, actions: Actions, env_ids: Sequence[int]) -> None:
        """Say something about the actions that come next."""
        self._task.take(actions)

    def listen(self, timeout_s: float) -> None:
        """Do everything that was requested; not bounded by the limit."""
        pending, self.pending = self.pending, []
        for do in pending:
            do()

    def catch_up(self) -> bool:
        """What is said here is heard at once."""
        return False

    def errors(self) -> list[BaseException]:
        """Exceptions of sub-environments since the last time."""
        return drained(self._errors)

    def restarted(self) -> list[list[int]]:
        """Always empty: this process is not started again."""
        return []

    def begin(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> Any:
        """Call a method."""
        try:
            return {worker: self._task.answer(method, *values) for worker, values in arguments.items()}, []
        except FailedCallError as failed:
            return {}, [self._with_place(*error) for error in failed.errors]

    def answered(self, asked: Any) -> bool:
        """Always, since calls are answered as they begin."""
        return True

    def answers(self, asked: Any) -> dict[int, Any]:
        """What came of a call."""
        answers, errors = asked
        raise_all(errors)
        return answers  # type: ignore[no-any-return]

    def forget(self, asked: Any) -> None:
        """Nothing to forget: the answers are in what was begun."""

    def close(self, timeout_s: float) -> None:
        """Close the environments. Idempotent."""
        if not self.closed:
            self.closed = True
            self._cleanup.close()
            # It refers to this one: without it the step buffer's memory goes as soon as nobody has it any more.
            self.pending, self._task = [], None

    def say(self, message: Message) -> None:
        """Hear what does not go on the step buffer."""
        assert isinstance(message, SideData)
        self.side_data.append(message)

    def report_error(self, errors: Sequence[EnvError]) -> None:
        """Hear what sub-environments raised."""
        self._errors += [self._with_place(*error) for error in errors]

    def _serve(self, orders: int) -> None:
        while orders:
            orders -= self._task.serve(orders)

    def _with_place(self, env_id: int, doing: str, error: BaseException) -> BaseException:
        if error.__cause__ is None:
            say_where(error, where_it_happened(self._worker, os.getpid(), env_id, doing))
        return error
