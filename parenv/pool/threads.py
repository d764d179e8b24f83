"""One pool, one thread: whoever comes from another one is turned away, and not whoever was there."""

from __future__ import annotations

import threading
import weakref

from parenv.errors import PoolBusyError


class StreamKey:
    """Stands for a stream for as long as that is not over."""


class OneThread:
    """Lets one thread use a pool: the one that iterates, or else any, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: weakref.WeakKeyDictionary[StreamKey, threading.Thread] = weakref.WeakKeyDictionary()

    def begin(self, stream: StreamKey | None) -> None:
        """Use the pool, until :meth:`end`.

        Args:
            stream: for which, whose thread this is from now on; ``None`` for a call.

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
        if not self._lock.acquire(blocking=False):
            raise PoolBusyError(f"{me.name} may not use the pool, because another thread does: one pool, one thread")
        if stream is not None:
            self._streams[stream] = me

    def end(self) -> None:
        """Use it no longer."""
        self._lock.release()
