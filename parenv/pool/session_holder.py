"""What pools and populations have in common as public classes: a session for one thread, closed with its holder."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from parenv.errors import ParenvError, PoolBusyError, ProtocolError, without_own_frames
from parenv.experience.episodes import EvaluationResult
from parenv.process.forks import Owner
from parenv.supervision.one_thread import OneThread
from parenv.supervision.workers import Workers
from parenv.transport.interrupts import Deferred


class StreamKey:
    """Stands for a stream for as long as that is not over."""


class OneIterator(OneThread):
    """Lets the thread that iterates use a pool, or any thread while none iterates, one at a time."""

    def __init__(self, holder: object, what: str, session: _Session) -> None:
        closing = session.closing
        about = session.owner, session.workers, lambda _: closing.close(), session.close_timeout_s
        super().__init__(holder, what, *about)
        self._streams: weakref.WeakKeyDictionary[StreamKey, threading.Thread] = weakref.WeakKeyDictionary()

    def begin(self, stream: StreamKey | None = None) -> None:
        """Begin a call, until :meth:`end`.

        Args:
            stream: for which, whose thread this is from now on; ``None`` for another call.

        Raises:
            PoolBusyError: another thread iterates, or is in a call.
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
        except BaseException:  # Of a signal handler.
            self.end()
            raise


class _Session(Protocol):
    owner: Owner
    closing: contextlib.ExitStack
    undelivered: Any

    @property
    def workers(self) -> Workers: ...

    @property
    def close_timeout_s(self) -> float: ...

    @property
    def is_over(self) -> bool: ...

    @property
    def evaluation(self) -> EvaluationResult | None: ...


S = TypeVar("S", bound=_Session)


class SessionHolder(Generic[S]):
    """Holds what is open, for a thread at a time, and closes it when nobody has the holder any more.

    Args:
        what: it is, in words.
        open_session: opens it.
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
        """Whether it is closed."""
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
    """A session for the length of a call: for one thread, with Ctrl-C put off, and what is raised shortened.

    No generator, as contextlib would make one of it: a stream uses the session for every rollout, however short.
    """

    def __init__(self, session: S, one_thread: OneIterator, stream: StreamKey | None) -> None:
        self._session, self._one_thread, self._stream = session, one_thread, stream
        self._deferred = Deferred()

    def __enter__(self) -> S:
        # First: a Ctrl-C in between would leave the session to this thread for ever.
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
    """Shorten the traceback of what is raised, unless it may be this package's own fault.

    Frames of the user's stay, such as those of an environment in this process; so do causes. What came before on the
    way, such as the end of a worker that was killed for what is raised now, is not shown.
    """
    said = isinstance(error, ParenvError) or isinstance(error.__cause__, ParenvError)
    if said and not isinstance(error, ProtocolError):
        error.__suppress_context__ = True
        error.__traceback__ = without_own_frames(error.__traceback__)
