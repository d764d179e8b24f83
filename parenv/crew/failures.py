"""Exceptions that the user sees, made from the failures and ends of workers."""

from __future__ import annotations

from collections.abc import Sequence

from parenv.errors import (
    HostLostError,
    ProtocolError,
    SubEnvironmentError,
    WorkerDiedError,
    WorkerError,
    WorkerMemoryError,
    WorkerTimeoutError,
    during,
    embedded,
    show_each_traceback_once,
    span,
    trace_elsewhere,
)
from parenv.experience.endings import ENVIRONMENT_ERROR, HOST_LOST, RESTARTED, STEP_TIMEOUT, WORKER_DIED
from parenv.experience.failures import Failure as EnvFailure
from parenv.placement.base import Ended
from parenv.protocol.exceptions import find_exception, make_exception, new_exception
from parenv.protocol.messages import Failure

NOT_STARTED = "being started"
"""Operation of a worker that has no process."""


def from_failure(
    failure: Failure, worker: int, pid: int, env_ids: Sequence[int], max_memory_bytes: int | None = None
) -> Exception:
    """Return the exception of a worker in its own type, with its place as the cause.

    The type must be imported in this process already. A type that cannot be made from a text and attributes becomes its
    nearest base that can. ``SystemExit``, ``KeyboardInterrupt`` and types that are not found here become
    :class:`~parenv.errors.WorkerError`. A ``MemoryError`` of a worker with a limit becomes
    :class:`~parenv.errors.WorkerMemoryError`.
    """
    env_id = failure.env_id if failure.env_id >= 0 else None
    cause = where_it_happened(worker, pid, env_id, failure.doing, failure.traceback)
    name = ".".join(failure.kind)
    kind = find_exception(failure.kind, failure.attributes)
    if kind is None:
        error: Exception = WorkerError(
            f"{name}: {failure.message}", worker=worker, env_ids=env_ids, pid=pid, doing=failure.doing
        )
    elif max_memory_bytes is not None and issubclass(kind, MemoryError) and not issubclass(kind, WorkerMemoryError):
        own = f"{failure.kind[1]}: {failure.message}".removesuffix(": ")
        error = at_memory_limit(own, worker, pid, env_ids, failure.doing, max_memory_bytes)
    elif issubclass(kind, SubEnvironmentError):
        where = f"env_id {env_id}: {failure.message}" if env_id is not None else failure.message
        error = kind(where, worker=worker, env_id=env_id, doing=failure.doing)
    else:
        is_base = f"{kind.__module__}.{kind.__qualname__}" != name
        message = f"{name}: {failure.message}" if is_base else failure.message
        error = make_exception(kind, message, failure.attributes)
        error.args = (message,)
        if isinstance(error, WorkerError):
            # A step worker of this worker has failed. Its number is not a number of the main process.
            error.worker, error.env_ids, error.pid, error.doing = worker, tuple(env_ids), pid, failure.doing
    error.__cause__ = cause
    return error


def env_id_of(error: BaseException) -> int | None:
    """Return the sub-environment that raised an exception, or ``None`` if it is unknown."""
    where = error.__cause__
    return where.env_id if isinstance(where, SubEnvironmentError) else None


def at_memory_limit(
    message: str, worker: int, pid: int, env_ids: Sequence[int], doing: str, max_memory_bytes: int
) -> WorkerMemoryError:
    """Return the error for a worker that has probably reached its memory limit, and the text of its own error."""
    return WorkerMemoryError(
        f"worker {worker} (env_ids {span(env_ids)}) has probably reached max_memory_bytes={max_memory_bytes:,} "
        f"{during(doing)}. Raise the limit, or look for a memory leak. {message}",
        worker=worker,
        env_ids=env_ids,
        pid=pid,
        doing=doing,
    )


def raise_all(errors: Sequence[BaseException]) -> None:
    """Raise one exception as it is, the first of several of one type with the group as its cause, or else the group."""
    if not errors:
        return
    if len(errors) == 1:
        raise errors[0]
    show_each_traceback_once(errors)
    group = BaseExceptionGroup(f"{len(errors)} sub-environments or workers failed", errors)
    if len(set(map(type, errors))) > 1:
        raise group
    raise _twin(errors[0]) from group


def _twin(error: BaseException) -> BaseException:
    """Return a copy of an exception, so that the one in the group keeps its own cause."""
    kind = type(error)
    try:
        twin = new_exception(kind, *error.args)
        vars(twin).update(vars(error))
        return twin.with_traceback(error.__traceback__) if str(twin) == str(error) else error
    except Exception:
        return error


def where_it_happened(
    worker: int, pid: int, env_id: int | None, doing: str, remote_traceback: str = ""
) -> SubEnvironmentError:
    """Return the cause of an exception, which has its place."""
    place = f"worker {worker} (pid {pid})" + (f", env_id {env_id}" if env_id is not None else "")
    return SubEnvironmentError(
        f"in {place}, {during(doing)}",
        worker=worker,
        env_id=env_id,
        doing=doing,
        remote_traceback=remote_traceback,
    )


def say_where(error: BaseException, cause: SubEnvironmentError) -> None:
    """Give an exception of this process the cause, and perhaps the env_id, that one of a worker process has.

    An exception that has a cause keeps it, unless that is only the traceback in another interpreter.
    """
    trace = trace_elsewhere(error)
    if error.__cause__ is not None and not trace:
        return
    error.__cause__, cause.remote_traceback = cause, trace
    if isinstance(error, SubEnvironmentError) and error.env_id is None and cause.env_id is not None:
        error.worker, error.env_id, error.doing = cause.worker, cause.env_id, cause.doing
        error.args = (f"env_id {cause.env_id}: {error.args[0]}",)


def failing_worker(error: BaseException) -> tuple[int, str]:
    """Return the worker and the operation of an error from :meth:`~parenv.crew.workers.Workers.listen`.

    They are -1 and empty if the error is about no worker.
    """
    about = error if isinstance(error, WorkerError) else error.__cause__
    return (about.worker, about.doing) if isinstance(about, WorkerError | SubEnvironmentError) else (-1, "")


def ended_by(reason: Exception) -> str:
    """Return the reason for which episodes ended that were lost with a worker, from the reason for its loss."""
    match reason:
        case HostLostError():
            return HOST_LOST
        case WorkerTimeoutError():
            return STEP_TIMEOUT
        case WorkerDiedError() | WorkerMemoryError():
            return WORKER_DIED
        case ProtocolError():
            return RESTARTED
    # An exception from the code of the user ends a worker only with on_env_error="restart_worker".
    return ENVIRONMENT_ERROR


def failure_of_worker(worker: int, reason: Exception) -> EnvFailure:
    """Return the record of the loss of a worker. A sub-environment failed if it was at work."""
    about = reason if isinstance(reason, WorkerError) else reason.__cause__
    error, traceback, env_id, doing = str(reason), "", None, ""
    if isinstance(about, SubEnvironmentError):
        error, traceback = f"{type(reason).__qualname__}: {reason}", about.remote_traceback
        env_id, doing = about.env_id, about.doing
    elif isinstance(about, WorkerError):
        doing, of, number = about.doing.partition(" of env_id ")
        env_id = int(number) if of else None
    if isinstance(reason, WorkerTimeoutError):
        error, _, traceback = error.partition("\n")
    return EnvFailure(worker, env_id, ended_by(reason), doing, error, traceback)


def not_started(worker: int, env_ids: Sequence[int], why: str) -> WorkerError:
    """Return the error for a worker without a process, and the reason."""
    message = f"worker {worker} (env_ids {span(env_ids)}) could not be started: {embedded(why)}."
    return WorkerError(message, worker=worker, env_ids=env_ids, doing=NOT_STARTED)


def from_end(end: Ended, env_ids: Sequence[int], doing: str) -> Exception:
    """Return the error for a process that ended by itself."""
    worker = end.sender.worker
    if end.refused:
        error = not_started(worker, env_ids, end.refused.strip().rpartition("\n")[2])
        error.__cause__ = SubEnvironmentError(f"in the fork server, which imports for all workers\n\n{end.refused}")
        return error
    if end.lost_host:
        return HostLostError(end.lost_host, worker=worker, env_ids=env_ids, pid=end.pid, doing=doing)
    return WorkerDiedError(
        worker=worker, env_ids=env_ids, pid=end.pid, doing=doing, exit_code=end.exit_code, signal=end.signal
    )
