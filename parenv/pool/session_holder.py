"""What pools and populations have in common as public classes: a session for one thread, closed with its holder."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from parenv.errors import PoolBusyError, PoolClosedError
from parenv.pool.threads import OneThread, StreamKey
from parenv.process.forks import Owner
from parenv.supervision.shortening import shorten
from parenv.transport.interrupts import Deferred


class _Session(Protocol):
    owner: Owner

    @property
    def is_over(self) -> bool: ...

    def close(self, timeout_s: float) -> None: ...


S = TypeVar("S", bound=_Session)


class SessionHolder(Generic[S]):
    """Holds what is open, for a thread at a time, and closes it when nobody has the holder any more.

    Args:
        what: it is, in words.
        open_session: opens it.
        close_timeout_s: seconds that it may take to end by itself.
    """

    def __init__(self, what: str, open_session: Callable[[], S], close_timeout_s: float) -> None:
        self._what, self._one_thread = what, OneThread()
        try:
            self._session = open_session()
        except BaseException as error:
            shorten(error)
            raise
        self._close = weakref.finalize(self, self._session.close, close_timeout_s)

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return not self._close.alive

    def close(self) -> None:
        """End the workers: by themselves within ``close_timeout_s``, by force after it. Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _using(self, stream: StreamKey | None = None) -> contextlib.AbstractContextManager[S]:
        self._check_open()
        return _Use(self._session, self._one_thread, stream, self.close)

    def _check_open(self) -> None:
        if refusal := self._session.owner.refusal or (self.closed and f"{self._what} is closed"):
            raise PoolClosedError(refusal)


class _Use(Generic[S]):
    """A session for the length of a call: for one thread, with Ctrl-C put off, and what is raised shortened.

    No generator, as contextlib would make one of it: a stream uses the session for every rollout, however short.
    """

    def __init__(self, session: S, one_thread: OneThread, stream: StreamKey | None, close: Callable[[], None]) -> None:
        self._session, self._one_thread, self._stream, self._close = session, one_thread, stream, close
        self._deferred = Deferred()

    def __enter__(self) -> S:
        # First: a Ctrl-C in between would leave the session to this thread for ever.
        self._deferred.__enter__()
        try:
            self._one_thread.begin(self._stream)
        except PoolBusyError:
            self._deferred.__exit__(PoolBusyError)
            raise
        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._session.is_over:
                self._close()
        finally:
            self._one_thread.end()
            self._deferred.__exit__(kind)
        if error is not None:
            shorten(error)
