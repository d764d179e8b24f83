"""Base of the public classes of pools and populations: it holds a session for one thread, and closes it."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from parenv.errors import ParenvError, PoolBusyError, ProtocolError, without_own_frames
from parenv.experience.episodes import EvaluationResult
from parenv.options import WorkerOptions
from parenv.process.forks import Owner
from parenv.supervision.one_thread import OneThread
from parenv.supervision.supervisor import Supervisor
from parenv.supervision.workers import Workers
from parenv.transport.interrupts import Deferred


class Session:
    """Workers behind a public object, which are closed when that object is garbage.

    Args:
        what: Name of the object in messages, such as ``the pool``.
        options: Options of the workers.

    Attributes:
        owner: Process that may use and close the session.
        closing: Stack that ends the workers, by force after a limit, and closes the rest.
        close_timeout_s: Limit in seconds for workers to end by themselves.
        undelivered: Item that Ctrl-C kept from being yielded. The next stream begins with it.
    """

    closing: contextlib.ExitStack
    undelivered: Any = None
    _supervisor: Supervisor

    def __init__(self, what: str, options: WorkerOptions) -> None:
        self.owner, self.close_timeout_s = Owner(what), options.close_timeout_s

    @property
    def workers(self) -> Workers:
        """Workers of the session."""
        return self._supervisor.workers

    @property
    def is_over(self) -> bool:
        """True if a worker is gone and will not be replaced, so that the session cannot continue."""
        return self._supervisor.over

    @property
    def evaluation(self) -> EvaluationResult | None:
        """Result of the last evaluation that has ended."""
        return None


class StreamKey:
    """Key of a stream that has not ended."""


class OneIterator(OneThread):
    """Admits the thread that iterates over a pool, or one thread at a time while no thread iterates."""

    def __init__(self, holder: object, what: str, session: Session) -> None:
        closing = session.closing
        about = session.owner, session.workers, lambda _: closing.close(), session.close_timeout_s
        super().__init__(holder, what, *about)
        self._streams: weakref.WeakKeyDictionary[StreamKey, threading.Thread] = weakref.WeakKeyDictionary()

    def begin(self, stream: StreamKey | None = None) -> None:
        """Begin a call, until :meth:`end`.

        Args:
            stream: Key of the stream that this thread iterates over from now on. ``None`` for another call.

        Raises:
            PoolBusyError: Another thread iterates, or is in a call.
        """
        me = threading.current_thread()
        for other, thread in list(self._streams.items()):
            if other is not stream and thread is not me and thread.is_alive():
                raise PoolBusyError(
                    f"{me.name} may not use the pool, because {thread.name} iterates over it: one pool, one thread. "
                    "Let that thread do it between two rollouts, or close its stream first"
                )
        super().begin()
        try:
            if stream is not None:
                self._streams[stream] = me
        except BaseException:  # A signal handler may raise here.
            self.end()
            raise


S = TypeVar("S", bound=Session)


class SessionHolder(Generic[S]):
    """Holds a session for one thread at a time, and closes the session when the holder is garbage.

    Args:
        what: Name of the session in messages, such as ``the pool``.
        open_session: Function that opens the session.
    """

    def __init__(self, what: str, open_session: Callable[[], S]) -> None:
        try:
            self._session = open_session()
        except BaseException as error:
            _shorten(error)
            raise
        self._one_thread = OneIterator(self, what, self._session)

    @property
    def closed(self) -> bool:
        """True after the workers have been ended."""
        return self._session.workers.stopped is not None

    def close(self) -> None:
        """End the workers: by themselves within ``close_timeout_s``, by force after it. Idempotent.

        Any thread and any signal handler may call it. A call in progress raises :class:`~parenv.PoolClosedError`. If
        the signal handler has interrupted that call, the workers end when the call does.

        Raises:
            PoolBusyError: The call of another thread has not ended within ``close_timeout_s``. That call closes the
                pool when it ends.
        """
        self._one_thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _using(self, stream: StreamKey | None = None) -> contextlib.AbstractContextManager[S]:
        return _Use(self._session, self._one_thread, stream)

    def _check_open(self) -> None:
        self._one_thread.check_open()


class _Use(Generic[S]):
    """Context in which one thread uses the session, with Ctrl-C deferred and tracebacks shortened.

    It is a class, because a generator of contextlib would take longer and every rollout enters this context.
    """

    def __init__(self, session: S, one_thread: OneIterator, stream: StreamKey | None) -> None:
        self._session, self._one_thread, self._stream = session, one_thread, stream
        self._deferred = Deferred()

    def __enter__(self) -> S:
        # This comes first, because a Ctrl-C after begin() would leave the session to this thread for ever.
        self._deferred.__enter__()
        try:
            self._one_thread.begin(self._stream)
        except BaseException as error:
            self._deferred.__exit__(type(error))
            raise
        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._session.is_over:
                self._one_thread.stop()
        finally:
            try:
                self._one_thread.end()
            finally:
                self._deferred.__exit__(kind)
        if error is not None:
            _shorten(error)


def _shorten(error: BaseException) -> None:
    """Shorten the traceback of an exception, unless it may be a bug of this package.

    Frames of the user stay, such as those of an environment in this process, and so do causes. The context is hidden,
    such as the end of a worker that was killed because of this exception.
    """
    said = isinstance(error, ParenvError) or isinstance(error.__cause__, ParenvError)
    if said and not isinstance(error, ProtocolError):
        error.__suppress_context__ = True
        error.__traceback__ = without_own_frames(error.__traceback__)
