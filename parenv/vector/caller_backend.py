"""Worker processes, and the caller's own, which steps the last rows of the step buffer while they step theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parenv.memory.step_buffer import StepBuffer, StepBufferSpec
from parenv.protocol.messages import Actions
from parenv.supervision.failures import raise_all
from parenv.vector.inline_backend import InlineBackend
from parenv.vector.process_backend import ProcessBackend
from parenv.vector.vector_plan import VectorPlan


class CallerBackend(ProcessBackend):
    """Processes, and an inline backend on the same step buffer. Workers are told first, and the caller steps meanwhile.

    Args:
        plan: checked; the last share is the caller's.
    """

    def __init__(self, plan: VectorPlan) -> None:
        self._caller, self._first_own = len(plan.worker_shares), sum(plan.worker_shares)
        self._own = InlineBackend(plan.job, self._caller)
        try:
            super().__init__(plan)
        except BaseException:
            self._own.close(plan.job.options.close_timeout_s)
            raise
        self.spaces = [*self.spaces, *self._own.spaces]
        self._own.side_data = self.side_data

    @property
    def has_infos(self) -> bool:
        """Whether there is an info among the last answers."""
        return self._own.has_infos or super().has_infos

    @property
    def failing(self) -> bool:
        """Whether there is something in :meth:`errors`."""
        return self._own.failing or super().failing

    def lay_out(self, spec: StepBufferSpec) -> StepBuffer:
        """Make the step buffer in shared memory, where this process has a share too."""
        step_buffer = super().lay_out(spec)
        self._own.use(step_buffer)
        return step_buffer

    def request_all(self) -> None:
        """Have every sub-environment take a step."""
        super().request_all()
        self._own.request_all()

    def request(self, env_ids: Sequence[int], reset: bool = False) -> None:
        """Have some of them take a step, or begin an episode."""
        theirs, own = self._apart(env_ids)
        if len(theirs):
            super().request(theirs, reset)
        if len(own):
            self._own.request(own, reset)

    def give(self, actions: Actions, env_ids: Sequence[int]) -> None:
        """Say something about the actions that come next, to whoever steps these sub-environments."""
        theirs, own = self._apart(env_ids)
        if len(theirs):
            super().give(actions, theirs)
        if len(own):
            self._own.give(actions, own)

    def listen(self, timeout_s: float) -> None:
        """Do what was requested of this process, not bounded by the limit; if that is nothing, wait for the workers."""
        if self._own.pending:
            self._own.listen(timeout_s)
        else:
            super().listen(timeout_s)

    def errors(self) -> list[BaseException]:
        """Exceptions of sub-environments since the last time."""
        return super().errors() + self._own.errors()

    def begin(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> Any:
        """Call a method on workers, and here; this process answers at once."""
        theirs = {worker: values for worker, values in arguments.items() if worker != self._caller}
        question = super().begin(method, theirs)
        own = {worker: values for worker, values in arguments.items() if worker == self._caller}
        return question, self._own.begin(method, own)

    def answered(self, asked: Any) -> bool:
        """Whether all have answered."""
        return super().answered(asked[0])

    def answers(self, asked: Any) -> dict[int, Any]:
        """What they answered, by worker.

        Raises:
            Exception: what was raised instead, a group where that is of several types.
        """
        question, (own, errors) = asked
        try:
            theirs = super().answers(question)
        except Exception as error:
            several = error if isinstance(error, ExceptionGroup) else error.__cause__
            raise_all([*(several.exceptions if isinstance(several, ExceptionGroup) else [error]), *errors])
            raise
        raise_all(errors)
        return {**theirs, **own}

    def forget(self, asked: Any) -> None:
        """Nobody will ask for these answers any more."""
        super().forget(asked[0])

    def close(self, timeout_s: float) -> None:
        """End all. Idempotent."""
        try:
            self._own.close(timeout_s)
        finally:
            super().close(timeout_s)

    def _apart(self, env_ids: Sequence[int]) -> tuple[Any, Any]:
        """Those of the workers, and those of this process, int64."""
        ids = np.asarray(env_ids, np.int64)
        return ids[ids < self._first_own], ids[ids >= self._first_own]
