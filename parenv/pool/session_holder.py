"""What pools and populations have in common as public classes: a session for one thread, closed with its holder."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, Self, TypeVar

from parenv.errors import PoolClosedError
from parenv.pool.threads import OneThread, StreamKey
from parenv.process.forks import Owner
from parenv.supervision.shortening import Shortened
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
        with Shortened(contextlib.nullcontext()):
            self._session = open_session()
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
        return Shortened(self._used(stream))

    @contextlib.contextmanager
    def _used(self, stream: StreamKey | None) -> Iterator[S]:
        self._check_open()
        with self._one_thread.using(stream), Deferred():
            try:
                yield self._session
            finally:
                if self._session.is_over:
                    self.close()

    def _check_open(self) -> None:
        if refusal := self._session.owner.refusal or (self.closed and f"{self._what} is closed"):
            raise PoolClosedError(refusal)
