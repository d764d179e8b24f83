"""Questions to several workers at once. A worker that is being replaced is asked when it is back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parenv.process.user_code import dumps
from parenv.protocol.messages import Call
from parenv.supervision.workers import Workers

NO_WEIGHTS = (-1, -1)
_REPEATABLE = {"load", "evaluate", "reset"}
"""Calls that are asked again after a restart, because they do not concern the lost environments."""


@dataclass
class Question:
    """Call on several workers at once.

    Args:
        method: Method as in :class:`~parenv.protocol.messages.Call`.
        arguments: Arguments by worker.
        weights: Version that the method uses, and the place of its weights.

    Attributes:
        numbers: Number of the call by worker, for each worker that was asked.
    """

    method: str
    arguments: Mapping[int, tuple[Any, ...]]
    weights: tuple[int, int] = NO_WEIGHTS
    numbers: dict[int, int] = field(default_factory=dict)


class Questions:
    """All questions whose answers are awaited.

    Args:
        workers: Workers.
        away: Workers that are being replaced.
    """

    def __init__(self, workers: Workers, away: Collection[int]) -> None:
        self._workers, self._away = workers, away
        self._open: list[Question] = []

    def begin(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], weights: tuple[int, int] = NO_WEIGHTS
    ) -> Question:
        """Ask a question, see :class:`Question`."""
        question = Question(method, arguments, weights)
        self._put(question, [worker for worker in arguments if worker not in self._away])
        self._open.append(question)
        return question

    def answered(self, question: Question) -> bool:
        """Return whether all workers have answered, or are lost with the environments that were to answer."""
        return all(self._answered_by(question, worker) for worker in question.arguments)

    def answers(self, question: Question) -> dict[int, Any]:
        """Return the answers by worker.

        Raises:
            Exception: Exception of a worker, or an ``ExceptionGroup`` if their types differ.
            WorkerError: A worker was lost with the environments that were to answer.
        """
        self._open.remove(question)
        return self._workers.calls.answers(question.numbers)

    def forget(self, question: Question) -> None:
        """Forget a question, whose answers are not awaited any more."""
        self._open.remove(question)
        self._workers.calls.forget(*question.numbers.values())

    def lost(self, worker: int, error: Exception) -> None:
        """Note the end of a worker. Its successor is asked again, unless the lost environments were to answer."""
        calls = self._workers.calls
        for question in self._open:
            if worker not in question.numbers or self._answered_by(question, worker):
                continue
            number = question.numbers[worker]
            if question.method in _REPEATABLE:
                del question.numbers[worker]
                calls.forget(number)
            else:
                calls.fail(number, error)
                calls.answer(number, None)

    def back(self, worker: int) -> None:
        """Ask the new process of a worker."""
        for question in self._open:
            if worker in question.arguments and worker not in question.numbers:
                self._put(question, [worker])

    def _answered_by(self, question: Question, worker: int) -> bool:
        return worker in question.numbers and self._workers.calls.is_answered(question.numbers[worker])

    def _put(self, question: Question, workers: Iterable[int]) -> None:
        pickled: dict[int, bytes] = {}
        for worker in workers:
            values = question.arguments[worker]
            if id(values) not in pickled:
                pickled[id(values)] = dumps(values)
            number = question.numbers[worker] = self._workers.calls.number()
            named = len(values[0]) if values and isinstance(values[0], Sequence) else 0
            self._workers.say(worker, Call(number, question.method, pickled[id(values)], *question.weights, named))
