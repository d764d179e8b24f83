"""Types and functions that the modules of all systems share."""

from __future__ import annotations

import os
import tempfile
from typing import NamedTuple, NewType

Handle = NewType("Handle", int)
"""What a process passes to another one at its start: a file descriptor on POSIX. Windows will pass a ``HANDLE``."""


class ProcessorTime(NamedTuple):
    """Times of a thread since its start.

    Args:
        used_s: Seconds on a core.
        queued_s: Seconds for which the thread could run but had no core.
    """

    used_s: float
    queued_s: float


class Usage(NamedTuple):
    """Use of the processor by this process since its start.

    Args:
        processor_s: Processor seconds.
        voluntary: Number of voluntary context switches.
        involuntary: Number of involuntary context switches.
    """

    processor_s: float
    voluntary: int
    involuntary: int


def unnamed_file() -> int:
    """Make a file without a name for shared memory, so no file can be left behind or guessed."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
