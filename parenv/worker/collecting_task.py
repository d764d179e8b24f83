"""What the tasks of a pool's workers have in common, whether or not policies have names."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from parenv.memory.status_slot import StatusSlot
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Commit, Credit
from parenv.worker.calling import ENV_METHODS
from parenv.worker.collecting import StopCollectingError
from parenv.worker.evaluation import BESIDE, IN_PLACE, EnvsEvaluation, Evaluation
from parenv.worker.failing import PENDING, TaskOutput
from parenv.worker.loads import Loads

SomeJob = TypeVar("SomeJob")


class CollectingTask(ABC, Generic[SomeJob]):
    """Collects a rollout for each credit, and answers what it is asked between two of them.

    Args:
        job: what to make.
        sender: which share of it.
        load_job: makes another copy of the job.
        progress: where to say what is going on.
        output: where to say what comes of it.
    """

    loads: Loads | None = None
    """What the driver asks for by wake-up, once it is laid out; where there is none, a version comes as a message."""
    _evaluation: Evaluation | None = None
    _asked: Any
    """What applies a function to sub-environments, by ``each``."""

    def __init__(
        self, job: SomeJob, sender: Sender, load_job: Callable[[], SomeJob], progress: StatusSlot, output: TaskOutput
    ) -> None:
        self._job, self._sender, self._load_job = job, sender, load_job
        self._progress, self._output = progress, output
        self._start()

    def take(self, credit: Credit) -> None:
        """Produce the rollout of a credit, unless the driver wants this worker to end."""
        with contextlib.suppress(StopCollectingError):
            self._output.say(self._collect(credit))

    def answer(self, method: str, *arguments: Any) -> Any:
        """Answer a call, or begin what :meth:`go_on` goes on with, for :data:`~parenv.worker.failing.PENDING`."""
        if method in ENV_METHODS:
            return self._ask_envs(method, *arguments)
        return self._answers()[method](*arguments)

    def go_on(self, seconds: float) -> Any:
        """See :meth:`~parenv.worker.evaluation.Evaluation.go_on`."""
        assert self._evaluation is not None
        return self._evaluation.go_on(seconds)

    def close(self) -> None:
        """Close the sub-environments."""
        try:
            self._close_envs()
        finally:
            if self._evaluation is not None:
                self._evaluation.close()

    def _answers(self) -> dict[str, Callable[..., Any]]:
        """What answers the pool's own calls."""
        return {
            "evaluate": self._evaluate,
            "get_state": self._get_state,
            "set_state": self._set_state,
            "load": self._load,
        }

    def _ask_envs(self, name: str, columns: Sequence[int], *arguments: Any) -> Any:
        """Answer a user's call."""
        method, positions = ENV_METHODS[name], iter(range(len(columns)))
        return self._asked.each(name, lambda env: method(env, next(positions), *arguments), columns)

    def _evaluate(
        self, episodes: int, deterministic: bool, number: int, where: str, version: int, place: int, snapshot: bytes
    ) -> Any:
        assert self._evaluation is not None
        if where == BESIDE:
            self._evaluation.begin(episodes, deterministic, number, place, snapshot)
            return PENDING
        self._load(version, place, snapshot)
        if where == IN_PLACE:
            assert isinstance(self._evaluation, EnvsEvaluation)
            return self._evaluation.run_in_place(episodes, deterministic, number)
        return self._evaluation.run(episodes, deterministic, number)

    @abstractmethod
    def _start(self) -> None:
        """Make and reset the sub-environments."""

    @abstractmethod
    def _collect(self, credit: Credit) -> Commit:
        """Produce the rollout of a credit and stamp its slot."""

    @abstractmethod
    def _load(self, version: int, place: int, snapshot: bytes) -> int:
        """Act by a version from now on; which that is."""

    @abstractmethod
    def _get_state(self) -> dict[str, Any]:
        """Everything that lasts from one rollout to the next, as plain data."""

    @abstractmethod
    def _set_state(self, state: dict[str, Any], generation: int, broken: bool) -> list[int]:
        """Go on where another worker was; the columns that begin anew."""

    @abstractmethod
    def _close_envs(self) -> None:
        """Close the sub-environments of the training."""
