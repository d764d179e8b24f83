"""Questions to several workers at once. A worker that is being replaced is asked when it is back.

A new process gets the values again that calls have set in the lost environments.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parenv.protocol.messages import Call
from parenv.supervision.failures import env_id_of, raise_all
from parenv.supervision.pickling import pickled
from parenv.supervision.set_values import SetValues
from parenv.supervision.workers import Workers

_log = logging.getLogger("parenv")
NO_WEIGHTS = (-1, -1)
_REPEATABLE = {"load", "evaluate", "reset"}
"""Calls that are asked again after a restart, because they do not concern the lost environments."""


@dataclass(eq=False)
class Question:
    """Call on several workers at once.

    Args:
        method: Method as in :class:`~parenv.protocol.messages.Call`.
        arguments: Arguments by worker.
        weights: Version that the method uses, and the place of its weights.

    Attributes:
        numbers: Number of the call by worker, for each worker that was asked.
        answers: Answers by worker.
        errors: Exceptions by worker. They come before the answer, which is then ``None``.
    """

    method: str
    arguments: Mapping[int, tuple[Any, ...]]
    weights: tuple[int, int] = NO_WEIGHTS
    numbers: dict[int, int] = field(default_factory=dict)
    answers: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, list[BaseException]] = field(default_factory=dict)


class Questions:
    """All questions whose answers are awaited.

    Args:
        workers: Workers.
        away: Workers that are being replaced.
        keeps_values: Whether workers are restarted, so that values of attributes must be kept.
    """

    def __init__(self, workers: Workers, away: Collection[int], keeps_values: bool) -> None:
        self._workers, self._away = workers, away
        self._values = [SetValues() for _ in workers.shares] if keeps_values else []
        self._restoring: dict[int, list[tuple[str, Question]]] = {}
        self._open: list[Question] = []
        self._count = 0

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
        return len(question.answers) == len(question.arguments)

    def answers(self, question: Question) -> dict[int, Any]:
        """Return the answers by worker.

        Raises:
            Exception: Exception of a worker, or an ``ExceptionGroup`` if their types differ.
            WorkerError: A worker was lost with the environments that were to answer.
        """
        self._open.remove(question)
        for worker, values in enumerate(self._values):
            if worker in question.arguments:
                first, errors = self._workers.env_ids(worker).start, question.errors.get(worker, ())
                failed = [env_id - first for error in errors if (env_id := env_id_of(error)) is not None]
                if len(failed) == len(errors):
                    values.note(question.method, question.arguments[worker], failed)
        raise_all([error for worker in question.numbers for error in question.errors.get(worker, ())])
        return {worker: question.answers[worker] for worker in question.numbers}

    def forget(self, question: Question) -> None:
        """Forget a question, whose answers are not awaited any more."""
        # An answer that comes later has an unknown number, and is dropped.
        self._open.remove(question)
        for number in question.numbers.values():
            self._workers.calls.pop(number, None)

    def is_restoring(self, worker: int) -> bool:
        """Return whether :meth:`restored` was called for the present process of a worker that is being replaced."""
        return worker in self._restoring

    def restored(self, worker: int) -> dict[int, list[str]] | None:
        """Set the values of the lost environments in the new process of a worker.

        Returns:
            Names of the attributes that could not be set, by env_id. ``None`` while the new process sets them.
        """
        if worker not in self._restoring:
            self._restoring[worker] = []
            for name, method, arguments in self._values[worker].calls():
                question = Question(method, {worker: arguments})
                self._put(question, [worker])
                self._open.append(question)
                self._restoring[worker].append((name, question))
        if not all(self.answered(question) for _, question in self._restoring[worker]):
            return None
        unset: dict[int, list[str]] = {}
        for name, question in self._restoring.pop(worker):
            self._open.remove(question)
            for error in question.errors.get(worker, ()):
                env_id = env_id_of(error)
                _log.warning(
                    "env_id %s has lost the value of %r, because worker %s was restarted: %r",
                    env_id,
                    name,
                    worker,
                    error,
                )
                if env_id is not None:
                    unset.setdefault(env_id, []).append(name)
        return unset

    def lost(self, worker: int, error: Exception) -> None:
        """Note the end of a worker. Its successor is asked again, unless the lost environments were to answer.

        The answer to a reset describes environments that are gone too, so the successor resets its environments again.
        """
        for _, question in self._restoring.pop(worker, ()):
            self.forget(question)
        for question in self._open:
            is_valid = worker in question.answers and question.method != "reset"
            if worker not in question.numbers or is_valid:
                continue
            self._workers.calls.pop(question.numbers[worker], None)
            if question.method in _REPEATABLE:
                # The new process answers from the beginning, so the answer and the errors of the old one do not count.
                del question.numbers[worker]
                question.answers.pop(worker, None)
                question.errors.pop(worker, None)
            else:
                question.errors.setdefault(worker, []).append(error)
                question.answers[worker] = None

    def back(self, worker: int) -> None:
        """Ask the new process of a worker."""
        for question in self._open:
            if worker in question.arguments and worker not in question.numbers:
                self._put(question, [worker])

    def _put(self, question: Question, workers: Iterable[int]) -> None:
        encoded: dict[int, bytes] = {}
        for worker in workers:
            values = question.arguments[worker]
            if id(values) not in encoded:
                encoded[id(values)] = pickled({f"the arguments of {question.method}()": values}, values)
            self._count += 1
            question.numbers[worker], self._workers.calls[self._count] = self._count, question
            named = len(values[0]) if values and isinstance(values[0], Sequence) else 0
            self._workers.say(worker, Call(self._count, question.method, encoded[id(values)], *question.weights, named))
