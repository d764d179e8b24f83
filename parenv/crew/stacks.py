"""What a worker that does not answer is doing: its stack, even while it holds the GIL."""

from __future__ import annotations

import os
import select

from parenv.crew.crew import Crew
from parenv.errors import WorkerTimeoutError, span
from parenv.worker.process import STACK_SIGNAL

STACK_TIMEOUT_S, STACK_PAUSE_S = 1.0, 0.03


class Stacks:
    """A pipe to which every worker can be made to write its stack."""

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()
        os.set_blocking(self._read, False)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)

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
        os.close(self._read)
        os.close(self.descriptor)

    def shown(self, crew: Crew, worker: int) -> str:
        """The stack of a worker, which it writes when it is asked for it, as a sentence for an error message."""
        crew.signal(worker, STACK_SIGNAL, alone=True)
        text, patience_s = b"", STACK_TIMEOUT_S
        while self._poll.poll(patience_s * 1000.0):
            text += os.read(self._read, 1 << 16)
            patience_s = STACK_PAUSE_S
        if not text:
            return "It gave no stack: the process was stopped, or stuck in the kernel."
        return f"Its stack:\n{text.decode(errors='replace')}"
