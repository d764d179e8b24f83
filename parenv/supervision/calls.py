"""Calls on workers by number, and what has been answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parenv.supervision.failures import raise_all


class Calls:
    """Every call that somebody waits for."""

    def __init__(self) -> None:
        self._count = 0
        self._pending: set[int] = set()
        self._answers: dict[int, Any] = {}
        self._errors: dict[int, list[Exception]] = {}

    def number(self) -> int:
        """The number of one more call."""
        self._count += 1
        self._pending.add(self._count)
        return self._count

    def answer(self, call: int, value: Any) -> bool:
        """Note an answer; whether it was awaited, and not there before."""
        if call not in self._pending:
            return False
        self._pending.remove(call)
        self._answers[call] = value
        return True

    def fail(self, call: int, error: Exception) -> None:
        """Note what was raised, one of several perhaps. That is not yet the answer."""
        if call in self._pending:
            self._errors.setdefault(call, []).append(error)

    def is_answered(self, call: int) -> bool:
        """Whether the answer is there."""
        return call in self._answers

    def answers(self, calls: Mapping[int, int]) -> dict[int, Any]:
        """The answers to calls by worker, which nobody asks for again.

        Raises:
            Exception: what was raised instead.
        """
        answers = {worker: self._answers.pop(call, None) for worker, call in calls.items()}
        raise_all([error for call in calls.values() for error in self._errors.pop(call, [])])
        return answers

    def forget(self, *calls: int) -> None:
        """Nobody will ask for the answers to these any more."""
        for call in calls:
            self._pending.discard(call)
            self._errors.pop(call, None)
            self._answers.pop(call, None)
