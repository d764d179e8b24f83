"""Numbered calls on workers, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parenv.supervision.failures import raise_all


class Calls:
    """All calls whose answers are awaited."""

    def __init__(self) -> None:
        self._count = 0
        self._pending: set[int] = set()
        self._answers: dict[int, Any] = {}
        self._errors: dict[int, list[Exception]] = {}

    def number(self) -> int:
        """Return the number of a further call."""
        self._count += 1
        self._pending.add(self._count)
        return self._count

    def answer(self, call: int, value: Any) -> bool:
        """Note an answer. Return ``False`` if it was not awaited."""
        if call not in self._pending:
            return False
        self._pending.remove(call)
        self._answers[call] = value
        return True

    def fail(self, call: int, error: Exception) -> None:
        """Note an exception of a call, which may have several. The answer comes after them."""
        if call in self._pending:
            self._errors.setdefault(call, []).append(error)

    def is_answered(self, call: int) -> bool:
        """Return whether the answer has arrived."""
        return call in self._answers

    def answers(self, calls: Mapping[int, int]) -> dict[int, Any]:
        """Return the answers to calls by worker, and forget the calls.

        Raises:
            Exception: Exception of a call.
        """
        answers = {worker: self._answers.pop(call, None) for worker, call in calls.items()}
        raise_all([error for call in calls.values() for error in self._errors.pop(call, [])])
        return answers

    def forget(self, *calls: int) -> None:
        """Forget calls, whose answers are not awaited any more."""
        for call in calls:
            self._pending.discard(call)
            self._errors.pop(call, None)
            self._answers.pop(call, None)
