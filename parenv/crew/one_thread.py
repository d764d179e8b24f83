"""One thread at a time uses a pool, a population or a vector env; any thread or signal handler may close it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Protocol

from parenv.errors import PoolBusyError, PoolClosedError, shorten
from parenv.process.forks import Owner
from parenv.transport.interrupts import MAX_WAIT_S, Deferred, HandlersDeferred, Heard

EXIT_PATIENCE_S = 1.5 * MAX_WAIT_S
"""How long the end of the interpreter waits for a daemon thread to leave its call: a little longer than one wait."""


class Waits(Protocol):
    """An object whose methods wait for workers.

    Attributes:
        stopped: Function that returns the exception for every further wait. ``None`` while waiting is allowed.
    """

    stopped: Callable[[], BaseException] | None


class OneThread:
    """Admits one thread at a time to a pool, and lets every thread close it.

    A close in another thread ends the call in progress, and then ends the workers. A signal handler or a destructor may
    interrupt a call of its own thread. Its close returns at once, and the call ends the workers when it returns.

    Args:
        holder: Object of the user. The pool closes when the holder is garbage, and when the interpreter ends.
        what: Name of the pool in messages, such as ``the pool``.
        owner: Process that may use and close the pool.
        waits: Object that waits for the workers.
        close: Function that ends the workers within a limit in seconds, and kills them after it. Idempotent.
        close_timeout_s: That limit in seconds, and the limit for the call in progress.
        closed_error: Type of the exception that calls raise after the close.
        refusal: Message of that exception. Default: ``<what> is closed``.

    Attributes:
        busy: Whether a call is in progress.
    """

    def __init__(
        self,
        holder: object,
        what: str,
        owner: Owner,
        waits: Waits,
        close: Callable[[float], object],
        close_timeout_s: float,
        closed_error: type[Exception] = PoolClosedError,
        refusal: str = "",
    ) -> None:
        self._what, self._owner, self._waits, self._close = what, owner, waits, close
        self._within_s = self._patience_s = close_timeout_s
        self._closed_error, self._refusal = closed_error, refusal or f"{what} is closed"
        # An RLock stores its thread in the same step that takes it. A signal handler cannot come between the two.
        self._lock = threading.RLock()
        self.busy = self._closing = False
        self._finalizer = weakref.finalize(holder, self.end_of_use)

    def check_open(self) -> None:
        """Raise if the pool is closed, or belongs to another process."""
        if refusal := self._owner.refusal:
            raise self._closed_error(refusal)
        if self._waits.stopped is not None:
            raise self._waits.stopped()

    def begin(self) -> None:
        """Begin a call, until :meth:`end`.

        Raises:
            PoolBusyError: Another thread is in a call, or a signal handler has interrupted a call of this thread.
        """
        if not self._lock.acquire(False):
            self.check_open()
            raise PoolBusyError(
                f"{_me()} cannot use {self._what} while another thread uses it. Use it in one thread, or with a lock."
            )
        if self.busy:
            self._lock.release()
            raise PoolBusyError(
                f"{_me()} cannot use {self._what} in the middle of another call. Only close() is possible."
            )
        self.busy = True
        if self._waits.stopped is not None or not self._owner.is_here:
            self.end()
            self.check_open()

    def end(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """End a call, and close the pool if a close was requested during the call.

        Args:
            kind: Type of the exception of the call, or ``None``.
            error: Exception of the call, whose traceback is shortened.
            trace: Traceback of the exception.
        """
        # This comes first, because a signal handler that finds a call in progress leaves the closing to the next lines.
        self.busy = False
        try:
            if self._waits.stopped is not None:
                self._close_now()
        finally:
            self._lock.release()
        if error is not None:
            shorten(error)

    __enter__, __exit__ = begin, end

    def stop(self) -> None:
        """Have the call in progress close the pool when it ends."""
        if self._waits.stopped is None:
            self._waits.stopped = partial(self._closed_error, self._refusal)

    def close(self, within_s: float | None = None) -> None:
        """Close, once the call in progress has ended.

        Args:
            within_s: Seconds that workers may take to end by themselves. Default: ``close_timeout_s``.

        Raises:
            PoolBusyError: The call of another thread does not end in time. That call closes the pool when it ends.
        """
        if not self._owner.is_here:
            return
        self._within_s = self._within_s if within_s is None else within_s
        self.stop()
        with Deferred():
            with Heard():
                self._wait_for_the_call()
            try:
                self._close_now()
            finally:
                self._lock.release()

    def end_of_use(self) -> None:
        """Close because the holder is garbage, or because the interpreter ends.

        A daemon thread may be in a call when the interpreter ends. The thread ends silently. If it does not leave its
        call in time, it keeps its sockets, and the fork server ends the workers.
        """
        self._waits.stopped = SystemExit
        if self._owner.is_here and self._lock.acquire(timeout=EXIT_PATIENCE_S):
            # An exception of a signal handler has cut a call of this thread off if it still counts as in progress.
            self.busy = False
            try:
                self._close_now()
            finally:
                self._lock.release()

    def _wait_for_the_call(self) -> None:
        while not self._lock.acquire(timeout=self._patience_s):
            # A call that already closes the pool has a limit of its own.
            if not self._closing:
                raise PoolBusyError(
                    f"{self._what} cannot be closed yet, because a call in another thread did not end within "
                    f"close_timeout_s={self._patience_s:g} s. The call closes {self._what} when it ends."
                )

    def _close_now(self) -> None:
        """Close with the lock held, unless a call of this thread is in progress, which closes later."""
        if self.busy or not self._owner.is_here:
            return
        self.busy = self._closing = True
        try:
            with Deferred(), HandlersDeferred():
                try:
                    self._close(self._within_s)
                finally:
                    # The finalizer keeps the workers, whose past errors keep the holder, which would never be garbage.
                    # It is detached in here, because a handler that raises before this block leaves the pool open.
                    self._finalizer.detach()
        finally:
            self.busy = self._closing = False


def _me() -> str:
    return threading.current_thread().name
