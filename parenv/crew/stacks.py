"""What a worker that does not answer is doing: its stack, even while it holds the GIL."""

from __future__ import annotations

from parenv.crew.crew import Crew
from parenv.errors import WorkerTimeoutError, span


def timeout_error(crew: Crew, worker: int, limit: str) -> WorkerTimeoutError:
    """The error for a worker that has not answered within a limit, given as the user set it."""
    doing, pid, env_ids = crew.doing(worker), crew.pid(worker), crew.env_ids(worker)
    return WorkerTimeoutError(
        f"worker {worker} (pid {pid}, env_ids {span(env_ids)}) did not answer within {limit} s while {doing}, and "
        f"was killed. {shown_stack(crew, worker)}",
        worker=worker,
        env_ids=env_ids,
        pid=pid,
        doing=doing,
    )


def shown_stack(crew: Crew, worker: int) -> str:
    """The stack of a worker, which it writes when it is asked for it, as a sentence for an error message."""
    text = crew.stack(worker)
    return f"Its stack:\n{text}" if text else "It gave no stack: the process was stopped, or stuck in the kernel."
