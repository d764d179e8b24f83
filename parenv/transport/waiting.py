"""One wait for messages, descriptors and connections."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Container, Sequence
from typing import Protocol

import zmq

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.transport.interrupts import MAX_WAIT_S, Heard

Polled = zmq.Socket[bytes] | int


class Source(Protocol):
    """A group of sockets and descriptors."""

    def polled(self) -> Sequence[tuple[Polled, int]]:
        """Return the sockets and descriptors to poll, each with ``POLLIN``, ``POLLOUT`` or both."""
        ...

    def notice(self, ready: Container[object]) -> None:
        """Handle its own events, such as the end of a connection, given the set of ready objects."""
        ...


class Waiting:
    """Waits for any of several sources.

    Args:
        *sockets: Sockets to wait for.

    >>> Waiting().wait(0.0)
    set()
    """

    def __init__(self, *sockets: zmq.Socket[bytes]) -> None:
        self._poller = zmq.Poller()
        for socket in sockets:
            self._poller.register(socket, zmq.POLLIN)
        self._descriptors: set[int] = set()
        self._only_descriptors = select.poll()
        self._sources: dict[Source, set[Polled]] = {}

    def watch(self, source: int | Source) -> None:
        """Have :meth:`wait` return also when this descriptor or source is ready."""
        if isinstance(source, int):
            self._poller.register(source, zmq.POLLIN)
            self._only_descriptors.register(source, select.POLLIN)
            self._descriptors.add(source)
        else:
            self._sources[source] = set()

    def unwatch(self, source: int | Source) -> None:
        """Stop watching a descriptor or source. Call this before it is closed."""
        if isinstance(source, int):
            self._poller.unregister(source)
            self._only_descriptors.unregister(source)
            self._descriptors.remove(source)
            return
        for polled in self._sources.pop(source):
            self._poller.unregister(polled)

    def wait(self, timeout_s: float, only_descriptors: bool = False) -> set[int]:
        """Wait until something is ready, or until the limit, or :data:`~parenv.transport.interrupts.MAX_WAIT_S`.

        Args:
            timeout_s: Limit in seconds.
            only_descriptors: Whether to wait for watched descriptors only, and not for sources and sockets.

        Returns:
            The watched descriptors that are readable.
        """
        timeout_ms = round(max(0.0, min(timeout_s, MAX_WAIT_S)) * 1000)
        if only_descriptors:
            with Heard():
                return {descriptor for descriptor, _ in self._only_descriptors.poll(timeout_ms)}
        for source, registered in self._sources.items():
            for polled, events in source.polled():
                self._poller.register(polled, events)
                registered.add(polled)
        with Heard():
            ready = {polled for polled, _ in self._poller.poll(timeout_ms)}
        for source in self._sources:
            source.notice(ready)
        return self._descriptors & ready


def remaining(deadline: float) -> float:
    """Return the seconds until a deadline on the monotonic clock, at least 0."""
    return max(0.0, deadline - time.monotonic())
