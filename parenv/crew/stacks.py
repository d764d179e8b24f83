"""Stacks of workers that do not answer, which they write even while they hold the GIL."""

from __future__ import annotations

import re
from pathlib import Path

from parenv.crew.workers import Workers
from parenv.errors import WorkerTimeoutError, during, span

_STACK = "Its stack:\n"
_OURS = re.compile(rf'  File "({re.escape(str(Path(__file__).parent.parent))}/|<string>)')


def timeout_error(workers: Workers, worker: int, limit: str) -> WorkerTimeoutError:
    """Return the error for a worker that has not answered within a limit of the user."""
    about = workers.about(worker)
    return WorkerTimeoutError(
        f"worker {worker} (pid {about['pid']}, env_ids {span(about['env_ids'])}) did not answer within {limit} s "
        f"{during(about['doing'])}, and was killed. {shown_stack(workers, worker)}",
        **about,
    )


def shown_stack(workers: Workers, worker: int) -> str:
    """Request the stack of a worker, and return it as a sentence for an error message."""
    text = workers.stack(worker)
    if not text:
        return "Its stack is not available, because the process was stopped or blocked in the kernel."
    return f"{_STACK}{_of_the_user(text)}"


def without_stack(message: str) -> str:
    """Return the message of an error up to the stack in it."""
    return message.partition(f" {_STACK}")[0]


def _of_the_user(stack: str) -> str:
    """Return a stack, most recent call first, without the frames of this package below the user's frames."""
    lines = stack.splitlines()
    while lines and _OURS.match(lines[-1] or '  File "<string>"'):
        lines.pop()
    return "\n".join(lines) if lines and lines[-1].startswith("  File") else stack
