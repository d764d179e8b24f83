"""Calls to several workers at once. A worker that is being replaced is called when it is back.

A new process gets the values again that calls have set in the lost environments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from parenv.crew.failures import env_id_of, raise_all
from parenv.crew.open_call import NO_WEIGHTS, OpenCall
from parenv.crew.pickling import pickled
from parenv.crew.set_values import SetValues
from parenv.crew.workers import Workers
from parenv.protocol.messages import Call

_log = logging.getLogger("parenv")
_REPEATABLE = {"load", "evaluate", "reset"}
"""Calls that are made again after a restart, because they do not concern the lost environments."""


class Calls:
    """All calls whose answers are awaited.

    Args:
        workers: Workers.
        away: Workers that are being replaced.
        keeps_values: Whether workers are restarted, so that values of attributes must be kept.
    """

    def __init__(self, workers: Workers, away: Collection[int], keeps_values: bool) -> None:
        self._workers, self._away = workers, away
        self._values = [SetValues() for _ in workers.shares] if keeps_values else []
        self._restoring: dict[int, list[tuple[str, OpenCall]]] = {}
        self._open: dict[OpenCall, None] = {}
        self._count = 0

    def begin(
        self,
        method: str,
        arguments: Mapping[int, tuple[Any, ...]],
        weights: tuple[int, int] = NO_WEIGHTS,
        heard: Callable[[], object] = lambda: None,
    ) -> OpenCall:
        """Call workers, see :class:`OpenCall`."""
        call = OpenCall(method, arguments, weights, heard)
        self._put(call, [worker for worker in arguments if worker not in self._away])
        self._open[call] = None
        return call

    def take(self, call: OpenCall) -> dict[int, Any]:
        """Return the answers to a call by worker, and forget the call.

        Raises:
            Exception: Exception of a worker, or an ``ExceptionGroup`` if their types differ.
            WorkerError: A worker was lost with the environments that were to answer.
        """
        del self._open[call]
        for worker in call.arguments:
            if worker >= len(self._values):  # The share of the caller, whose environments are not replaced.
                continue
            first, errors = self._workers.env_ids(worker).start, call.errors.get(worker, ())
            failed = [env_id - first for error in errors if (env_id := env_id_of(error)) is not None]
            if len(failed) == len(errors):
                self._values[worker].note(call.method, call.arguments[worker], failed)
        raise_all([error for worker in call.numbers for error in call.errors.get(worker, ())])
        return {worker: call.answers[worker] for worker in call.numbers}

    def forget(self, call: OpenCall) -> None:
        """Forget a call whose answers are not awaited any more."""
        # An answer that comes later has an unknown number, and is dropped.
        del self._open[call]
        for number in call.numbers.values():
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
                call = OpenCall(method, {worker: arguments})
                self._put(call, [worker])
                self._open[call] = None
                self._restoring[worker].append((name, call))
        if not all(call.is_answered for _, call in self._restoring[worker]):
            return None
        unset: dict[int, list[str]] = {}
        for name, call in self._restoring.pop(worker):
            del self._open[call]
            for error in call.errors.get(worker, ()):
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
        """Note the end of a worker. Its successor is called again, unless the lost environments were to answer.

        The answer to a reset describes environments that are gone too, so the successor resets its environments again.
        """
        for _, call in self._restoring.pop(worker, ()):
            self.forget(call)
        for call in self._open:
            is_valid = worker in call.answers and call.method != "reset"
            if worker not in call.numbers or is_valid:
                continue
            self._workers.calls.pop(call.numbers[worker], None)
            if call.method in _REPEATABLE:
                # The new process answers from the beginning, so the answer and the errors of the old one do not count.
                del call.numbers[worker]
                call.answers.pop(worker, None)
                call.errors.pop(worker, None)
            else:
                call.errors.setdefault(worker, []).append(error)
                call.answers[worker] = None

    def back(self, worker: int) -> None:
        """Call the new process of a worker."""
        for call in self._open:
            if worker in call.arguments and worker not in call.numbers:
                self._put(call, [worker])

    def _put(self, call: OpenCall, workers: Iterable[int]) -> None:
        encoded: dict[int, bytes] = {}
        for worker in workers:
            values = call.arguments[worker]
            if id(values) not in encoded:
                encoded[id(values)] = pickled({f"the arguments of {call.method}()": values}, values)
            self._count += 1
            call.numbers[worker], self._workers.calls[self._count] = self._count, call
            named = len(values[0]) if values and isinstance(values[0], Sequence) else 0
            self._workers.say(worker, Call(self._count, call.method, encoded[id(values)], *call.weights, named))
