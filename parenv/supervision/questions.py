"""Questions to several workers at once, through deaths: whoever is being replaced is asked when it is back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parenv.process.user_code import dumps
from parenv.protocol.messages import Call
from parenv.supervision.workers import Workers

NO_WEIGHTS = (-1, -1)
_REPEATABLE = {"load", "evaluate", "reset"}
"""Calls that mean no environment that is gone with its worker, and so are asked again."""


@dataclass
class Question:
    """A call on several workers at once.

    Args:
        method: as in :class:`~parenv.protocol.messages.Call`.
        arguments: by worker.
        weights: the version that the method uses, and where its weights lie.

    Attributes:
        numbers: of the call, by worker, as far as they could be asked.
    """

    method: str
    arguments: Mapping[int, tuple[Any, ...]]
    weights: tuple[int, int] = NO_WEIGHTS
    numbers: dict[int, int] = field(default_factory=dict)


class Questions:
    """All that workers were asked and somebody waits for.

    Args:
        workers: the workers.
        away: those that are being replaced at the time.
    """

    def __init__(self, workers: Workers, away: Collection[int]) -> None:
        self._workers, self._away = workers, away
        self._open: list[Question] = []

    def begin(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], weights: tuple[int, int] = NO_WEIGHTS
    ) -> Question:
        """Ask; see :class:`Question`."""
        question = Question(method, arguments, weights)
        self._put(question, [worker for worker in arguments if worker not in self._away])
        self._open.append(question)
        return question

    def answered(self, question: Question) -> bool:
        """Whether all have answered, or are gone with the environments that were to answer."""
        return all(self._answered_by(question, worker) for worker in question.arguments)

    def answers(self, question: Question) -> dict[int, Any]:
        """What they answered, by worker.

        Raises:
            Exception: what they raised instead; an ``ExceptionGroup`` of several types.
            WorkerError: a worker died or hung that was to answer for environments that are gone with it.
        """
        self._open.remove(question)
        return self._workers.calls.answers(question.numbers)

    def forget(self, question: Question) -> None:
        """Nobody will ask for these answers any more."""
        self._open.remove(question)
        self._workers.calls.forget(*question.numbers.values())

    def lost(self, worker: int, error: Exception) -> None:
        """A worker is gone: its successor is asked what it has not answered, or nobody can answer that any more."""
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
        """Another process is in its place."""
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
