"""Base of pools and populations: it holds a session for one thread and closes it, and yields the items of streams."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from parenv.crew.crew import Crew
from parenv.crew.one_thread import OneThread
from parenv.crew.warning import Warner
from parenv.crew.workers import Workers
from parenv.errors import PoolBusyError, shorten
from parenv.experience.episodes import EvaluationResult
from parenv.options import Stop, WorkerOptions
from parenv.pool.stream_counts import StreamCounts, StreamLog
from parenv.process.forks import Owner
from parenv.transport.interrupts import Deferred


class HeldSession:
    """Workers behind a public object, which are closed when that object is garbage.

    Args:
        what: Name of the object in messages, such as ``the pool``.
        options: Options of the workers.

    Attributes:
        owner: Process that may use and close the session.
        closing: Stack that ends the workers, by force after a limit, and closes the rest.
        close_timeout_s: Limit in seconds for workers to end by themselves.
        undelivered: Item that Ctrl-C kept from being yielded. The next stream begins with it.
        log: Log of the counts of all streams, if a resumable run keeps one.
    """

    closing: contextlib.ExitStack
    undelivered: Any = None
    log: StreamLog | None = None
    _crew: Crew

    def __init__(self, what: str, options: WorkerOptions) -> None:
        self.owner, self.close_timeout_s = Owner(what), options.close_timeout_s

    @property
    def workers(self) -> Workers:
        """Workers of the session."""
        return self._crew.workers

    @property
    def is_over(self) -> bool:
        """True if a worker is gone and will not be replaced, so that the session cannot continue."""
        return self._crew.over

    @property
    def evaluation(self) -> EvaluationResult | None:
        """Result of the last evaluation that has ended."""
        return None

    def begin_counts(self, stop: Stop) -> StreamCounts:
        """Return the counts of a stream that begins."""
        return StreamCounts() if self.log is None else self.log.begin(stop)


class StreamKey:
    """Key of a stream that has not ended."""


class OneIterator(OneThread):
    """Admits the thread that iterates over a pool, or one thread at a time while no thread iterates."""

    def __init__(self, holder: object, what: str, session: HeldSession) -> None:
        closing = session.closing
        about = session.owner, session.workers, lambda _: closing.close(), session.close_timeout_s
        super().__init__(holder, what, *about)
        self._streams: weakref.WeakKeyDictionary[StreamKey, threading.Thread] = weakref.WeakKeyDictionary()
        self._last: Callable[[], StreamKey | None] = lambda: None
        self._last_thread: threading.Thread | None = None

    def begin(self, stream: StreamKey | None = None) -> None:
        """Begin a call, until :meth:`end`.

        Args:
            stream: Key of the stream that this thread iterates over from now on. ``None`` for another call.

        Raises:
            PoolBusyError: Another thread iterates, or is in a call.
        """
        me = threading.current_thread()
        if stream is not None and stream is self._last() and me is self._last_thread:
            super().begin()
            return
        for other, thread in list(self._streams.items()):
            if other is not stream and thread is not me and thread.is_alive():
                raise PoolBusyError(
                    f"{me.name} cannot use the pool, because {thread.name} iterates over it. Make this call in "
                    f"{thread.name} between two rollouts, or close the stream first."
                )
        super().begin()
        try:
            if stream is not None:
                self._streams[stream] = me
                # Mostly the same stream calls again. While its thread lives, no other thread can begin one.
                self._last, self._last_thread = weakref.ref(stream), me
        except BaseException:  # A signal handler may raise here.
            self.end()
            raise


S = TypeVar("S", bound=HeldSession)


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
            shorten(error)
            raise
        self._one_thread = OneIterator(self, what, self._session)

    @property
    def closed(self) -> bool:
        """True after the workers have been ended."""
        return self._session.workers.stopped is not None

    def close(self) -> None:
        """End the workers: by themselves within ``close_timeout_s``, by force after it. Idempotent.

        Any thread and any signal handler may call it. A call in progress raises
        :class:`~parenv.errors.PoolClosedError`. If the signal handler has interrupted that call, the workers end when
        the call does.

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
            shorten(error)


ITEMS_BEFORE_WARNING = 100
"""Number of items without an evaluation after which a stream that only an evaluation ends warns."""


def stream(
    stop: Stop,
    using: Callable[[StreamKey], contextlib.AbstractContextManager[S]],
    take: Callable[[S, float], Any],
    mean_return: Callable[[deque[float], Any], float],
    wait: Callable[[], bool] | None = None,
) -> Iterator[Any]:
    """Yield items until a criterion is met.

    Args:
        stop: Criteria, counted from the first request on. A resumed run also counts its part before that.
        using: Function that returns the context of a session. No other thread may use the session until this stream
            ends.
        take: Function that returns the next item, or ``None`` at a deadline on the monotonic clock.
        mean_return: Function of the returns in the window and of each item. It returns the mean return so far, for the
            criterion of that name.
        wait: Function that is called before each item. If it returns ``False`` and no item has arrived, the stream
            yields ``None``.
    """
    key, items = StreamKey(), 0
    with using(key) as session:
        found = known = session.evaluation
        counts = session.begin_counts(stop)
    began, returns = time.monotonic() - counts.seconds, deque(counts.returns, stop.window)
    counts.returns, deadline = returns, began + min(stop.seconds, threading.TIMEOUT_MAX)
    while True:
        counts.seconds = time.monotonic() - began
        if counts.meet(stop):
            return
        waits, item = wait is None or wait(), session.undelivered
        try:
            with using(key) as session:
                if item is None:
                    item = take(session, deadline if waits else 0.0)
                session.undelivered, found = None, session.evaluation
        except KeyboardInterrupt:
            session.undelivered = item
            raise
        if found is not None and found is not known:
            counts.evaluation_return = found.mean_return
        if item is None:
            if waits:
                return
            yield None
            continue
        counts.add(item)
        items += 1
        if items == ITEMS_BEFORE_WARNING and found is known and _has_no_other_end(stop):
            Warner()(
                f"Stop(evaluation_return={stop.evaluation_return:g}) is the only end of this stream, and "
                f"there was no evaluation during its first {items} items. Call pool.evaluate(...) or "
                "SaveBest.update(pool) in the loop."
            )
        counts.mean_return = mean_return(returns, item)
        yield item
        del item


def _has_no_other_end(stop: Stop) -> bool:
    others = replace(stop, evaluation_return=math.inf, window=1)
    return stop.evaluation_return < math.inf and others == Stop(window=1)


def mean_of_window(returns: deque[float], item: Any) -> float:
    """Add the returns of an item to the window, and return the mean of the window, NaN while it is not full."""
    returns.extend(item.episodes.finished.returns.tolist())
    return sum(returns) / len(returns) if len(returns) == returns.maxlen else math.nan
