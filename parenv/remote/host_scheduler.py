"""Which worker runs on which host: pure decisions."""

from __future__ import annotations

from collections import Counter

from parenv.protocol.frames import Sender


class HostScheduler:
    """Hosts that come and go, and the workers that want a place on one.

    >>> scheduler = HostScheduler()
    >>> scheduler.want(Sender(0, 0)), scheduler.want(Sender(1, 0)), scheduler.place()
    (None, None, [])
    >>> scheduler.join(b"a", capacity=1)
    >>> scheduler.place()
    [(Sender(worker=0, generation=0), b'a')]
    >>> scheduler.join(b"b", capacity=4)
    >>> scheduler.place(), scheduler.leave(b"a")
    ([(Sender(worker=1, generation=0), b'b')], [Sender(worker=0, generation=0)])
    """

    def __init__(self) -> None:
        self._capacity: dict[bytes, int] = {}
        self._host_of: dict[Sender, bytes] = {}
        self._waiting: list[Sender] = []

    def host_of(self, worker: Sender) -> bytes | None:
        """The host of a worker, or ``None`` while it has none."""
        return self._host_of.get(worker)

    def workers_of(self, host: bytes) -> list[Sender]:
        """The workers of a host, by index."""
        return sorted(worker for worker, its_host in self._host_of.items() if its_host == host)

    def join(self, host: bytes, capacity: int) -> None:
        """A host has come."""
        self._capacity[host] = capacity

    def leave(self, host: bytes) -> list[Sender]:
        """A host is gone; the workers that are gone with it."""
        self._capacity.pop(host, None)
        lost = self.workers_of(host)
        for worker in lost:
            del self._host_of[worker]
        return lost

    def could_leave(self, host: bytes) -> bool:
        """Whether other hosts have room for the workers of a host."""
        others = sum(self._capacity.values()) - self._capacity[host]
        return len(self._host_of) + len(self._waiting) <= others

    def want(self, worker: Sender) -> None:
        """A worker is to be started."""
        self._waiting.append(worker)

    def is_waiting(self, worker: Sender) -> bool:
        """Whether a worker waits for a host with room for it."""
        return worker in self._waiting

    def ended(self, worker: Sender) -> None:
        """A worker has ended, or is not wanted any more: there is room for another."""
        self._host_of.pop(worker, None)
        if worker in self._waiting:
            self._waiting.remove(worker)

    def place(self) -> list[tuple[Sender, bytes]]:
        """Give every waiting worker that there is room for to the host with the most room."""
        placed = []
        room = Counter(self._capacity)
        room.subtract(self._host_of.values())
        while self._waiting and (room := +room):
            worker, host = self._waiting.pop(0), max(room, key=lambda host: room[host])
            self._host_of[worker] = host
            room[host] -= 1
            placed.append((worker, host))
        return placed
