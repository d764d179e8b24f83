"""From what a worker says or how it ends to the exception that the user sees."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from parenv.errors import HostLostError, SubEnvironmentError, WorkerDiedError, WorkerError, during, span
from parenv.placement.base import Ended
from parenv.protocol.messages import Failure

NOT_STARTED = "being started"
"""What a worker is doing that has no process."""


def from_failure(failure: Failure, worker: int, pid: int, env_ids: Sequence[int]) -> Exception:
    """The worker's exception in its own type, with where it happened as its cause.

    The type is looked up among what this process has imported already, never imported. One that cannot be made of a
    text and attributes becomes its nearest base that can. ``SystemExit`` and its like, and types that are not found
    here, become :class:`~parenv.errors.WorkerError`.
    """
    env_id = failure.env_id if failure.env_id >= 0 else None
    cause = where_it_happened(worker, pid, env_id, failure.doing, failure.traceback)
    name = ".".join(failure.kind)
    kind = _find_exception(failure)
    if kind is None:
        error: Exception = WorkerError(
            f"{name}: {failure.message}", worker=worker, env_ids=env_ids, pid=pid, doing=failure.doing
        )
    elif issubclass(kind, SubEnvironmentError):
        where = f"env_id {env_id}: {failure.message}" if env_id is not None else failure.message
        error = kind(where, worker=worker, env_id=env_id, doing=failure.doing)
    else:
        is_base = f"{kind.__module__}.{kind.__qualname__}" != name
        message = f"{name}: {failure.message}" if is_base else failure.message
        error = _made(kind, message, failure.attributes)
        error.args = (message,)
    error.__cause__ = cause
    return error


def raise_all(errors: Sequence[BaseException]) -> None:
    """Raise one exception as it is; of several of one type the first, because of the group; of other ones the group."""
    if not errors:
        return
    if len(errors) == 1:
        raise errors[0]
    group = BaseExceptionGroup(f"{len(errors)} sub-environments or workers failed", errors)
    if len(set(map(type, errors))) > 1:
        raise group
    raise _twin(errors[0]) from group


def _twin(error: BaseException) -> BaseException:
    """The same exception once more, so that the one in the group keeps a cause of its own."""
    kind = type(error)
    try:
        twin = kind.__new__(kind, *error.args)
        vars(twin).update(vars(error))
        return twin.with_traceback(error.__traceback__) if str(twin) == str(error) else error
    except Exception:
        return error


def where_it_happened(
    worker: int, pid: int, env_id: int | None, doing: str, remote_traceback: str = ""
) -> SubEnvironmentError:
    """The cause that says where an exception comes from."""
    place = f"worker {worker} (pid {pid})" + (f", env_id {env_id}" if env_id is not None else "")
    return SubEnvironmentError(
        f"in {place}, {during(doing)}",
        worker=worker,
        env_id=env_id,
        doing=doing,
        remote_traceback=remote_traceback,
    )


def say_where(error: BaseException, cause: SubEnvironmentError) -> None:
    """Give an exception of this process its cause, and one of ours the env_id too, as if it had travelled."""
    error.__cause__ = cause
    if isinstance(error, SubEnvironmentError) and error.env_id is None and cause.env_id is not None:
        error.worker, error.env_id, error.doing = cause.worker, cause.env_id, cause.doing
        error.args = (f"env_id {cause.env_id}: {error.args[0]}",)


def failing_worker(error: BaseException) -> tuple[int, str]:
    """The worker that an error from :meth:`~parenv.supervision.workers.Workers.listen` is about, and its operation.

    -1 and nothing where it is about none.
    """
    about = error if isinstance(error, WorkerError) else error.__cause__
    return (about.worker, about.doing) if isinstance(about, WorkerError | SubEnvironmentError) else (-1, "")


def not_started(worker: int, env_ids: Sequence[int], why: str) -> WorkerError:
    """The error for a worker of which there is no process, and why there is none."""
    message = f"worker {worker} (env_ids {span(env_ids)}) could not be started: {why.rstrip('.')}."
    return WorkerError(message, worker=worker, env_ids=env_ids, doing=NOT_STARTED)


def from_end(end: Ended, env_ids: Sequence[int], doing: str) -> Exception:
    """The error for a process that ended without being asked to."""
    worker = end.sender.worker
    if end.refused:
        error = not_started(worker, env_ids, end.refused.strip().rpartition("\n")[2])
        error.__cause__ = SubEnvironmentError(f"in the process that imports for all workers\n\n{end.refused}")
        return error
    if end.lost_host:
        return HostLostError(end.lost_host, worker=worker, env_ids=env_ids, pid=end.pid, doing=doing)
    return WorkerDiedError(
        worker=worker, env_ids=env_ids, pid=end.pid, doing=doing, exit_code=end.exit_code, signal=end.signal
    )


def _find_exception(failure: Failure) -> type[Exception] | None:
    module, name = failure.kind
    found: Any = sys.modules.get(str(module))
    for part in str(name).split("."):
        # Not getattr: a module may import for it, and whatever is found runs the code that it has for it.
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    bases = [kind for kind in found.__mro__ if issubclass(kind, Exception) and (kind is not Exception or kind is found)]
    return next((kind for kind in bases if _can_be_made(kind, failure.attributes)), None)


def _can_be_made(kind: type[Exception], attributes: Mapping[str, Any]) -> bool:
    try:
        str(_made(kind, "", attributes))
    except Exception:
        return issubclass(kind, SubEnvironmentError)
    return True


def _made(kind: type[Exception], message: str, attributes: Mapping[str, Any]) -> Exception:
    error = kind.__new__(kind, message)
    vars(error).update(attributes)
    return error
