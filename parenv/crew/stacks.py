"""What a worker that does not answer is doing: its stack, even while it holds the GIL."""

from __future__ import annotations

import re
from pathlib import Path

from parenv.crew.crew import Crew
from parenv.errors import WorkerTimeoutError, span
from parenv.placement.base import STACK_SIGNAL
from parenv.process.stack_pipe import STACK_TIMEOUT_S, StackPipe

_OURS = re.compile(rf'  File "({re.escape(str(Path(__file__).parent.parent))}/|<string>)')


class Stacks:
    """A pipe to which every worker can be made to write its stack.

    Attributes:
        descriptor: the end that workers write to.
    """

    def __init__(self) -> None:
        self._pipe = StackPipe()
        self.descriptor = self._pipe.descriptor

    def timeout_error(self, crew: Crew, worker: int, limit: str) -> WorkerTimeoutError:
        """The error for a worker that has not answered within a limit, given as the user set it."""
        doing, pid, env_ids = crew.doing(worker), crew.pid(worker), crew.env_ids(worker)
        return WorkerTimeoutError(
            f"worker {worker} (pid {pid}, env_ids {span(env_ids)}) did not answer within {limit} s while {doing}, and "
            f"was killed. {self.shown(crew, worker)}",
            worker=worker,
            env_ids=env_ids,
            pid=pid,
            doing=doing,
        )

    def close(self) -> None:
        """Close the pipe."""
        self._pipe.close()

    def shown(self, crew: Crew, worker: int) -> str:
        """The stack of a worker, which it writes when it is asked for it, as a sentence for an error message."""
        self._pipe.read(0.0)  # What another worker has written too late.
        crew.signal(worker, STACK_SIGNAL, alone=True)
        text = self._pipe.read(0.0 if _is_stopped(crew.pid(worker)) else STACK_TIMEOUT_S)
        return (
            f"Its stack:\n{_of_the_user(text)}"
            if text
            else "It gave no stack: the process was stopped, or stuck in the kernel."
        )


def _of_the_user(stack: str) -> str:
    """A stack, most recent call first, without the frames of this package that led to the user's code."""
    lines = stack.splitlines()
    while lines and _OURS.match(lines[-1] or '  File "<string>"'):
        lines.pop()
    return "\n".join(lines) if lines and lines[-1].startswith("  File") else stack


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped, so that nobody need wait for what it says; not known without ``/proc``."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in ("T", "t")
