"""What a child that the user forks must leave alone: whatever its parent has opened."""

from __future__ import annotations

import os


class _Here:
    """Which process this is, without asking the system in every step."""

    pid = os.getpid()


def _after_fork_in_child() -> None:
    _Here.pid = os.getpid()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Owner:
    """The process that something belongs to. A child that it forks has a copy, which it may neither use nor end.

    Args:
        what: belongs to it, in words.

    >>> Owner("the pool").refusal
    ''
    """

    def __init__(self, what: str) -> None:
        self._what, self._pid = what, _Here.pid

    @property
    def is_here(self) -> bool:
        """Whether that is this process."""
        return _Here.pid == self._pid

    @property
    def refusal(self) -> str:
        """Why this process may not use it, as a sentence; nothing in the process that it belongs to."""
        if _Here.pid == self._pid:
            return ""
        return (
            f"{self._what} belongs to process {self._pid}, and this is a child that was forked from it (pid "
            f"{_Here.pid}), which cannot use it: make another one here, or do this in the parent"
        )
