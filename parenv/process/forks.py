"""Ownership of pools and vector envs: a forked child may not use what its parent has opened."""

from __future__ import annotations

import os

from parenv.platform import system


class _Here:
    """The process id, without a system call in every step."""

    pid = os.getpid()


def _after_fork_in_child() -> None:
    _Here.pid = os.getpid()


system.after_fork_in_child(_after_fork_in_child)


class Owner:
    """The process that an object belongs to. A forked child has a copy, which it may neither use nor close.

    Args:
        what: Name of the object in messages.

    >>> Owner("the pool").refusal
    ''
    """

    def __init__(self, what: str) -> None:
        self._what, self._pid = what, _Here.pid

    @property
    def is_here(self) -> bool:
        """Return whether this process is the owner."""
        return _Here.pid == self._pid

    @property
    def refusal(self) -> str:
        """The error message if this process is not the owner, else an empty text."""
        if _Here.pid == self._pid:
            return ""
        return (
            f"{self._what} belongs to process {self._pid} and cannot be used in its forked child (pid {_Here.pid}). "
            "Make another one in the child, or use it in the parent."
        )
