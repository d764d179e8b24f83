"""Refuse debuggers in a worker, which has no terminal, with an error that names the remedy."""

from __future__ import annotations

import bdb
import sys
from typing import Any

from parenv.errors import ConfigurationError

_set_trace = bdb.Bdb.set_trace


def refuse_debuggers() -> None:
    """Make ``breakpoint()`` and ``pdb.set_trace()`` raise an error in this process.

    The standard input of a worker is empty, so pdb would quit at its first prompt: with ``BdbQuit``, or, from Python
    3.14 on, with ``SystemExit``. Debuggers with a connection of their own, such as debugpy and remote-pdb, still work.
    """
    bdb.Bdb.set_trace = _refuse  # type: ignore[method-assign,assignment]


def _refuse(debugger: Any, frame: Any = None) -> None:
    if getattr(debugger, "stdin", debugger) is sys.__stdin__:
        raise ConfigurationError(
            "breakpoint() and pdb.set_trace() cannot be used in a worker, which has no terminal. Use num_workers=0, so "
            "that everything runs in your process."
        )
    _set_trace(debugger, frame or sys._getframe(1))
