"""Assignment of workers to hosts."""

from __future__ import annotations

from collections import Counter

from parenv.protocol.frames import Sender


class HostScheduler:
    """The hosts that are connected, and the workers on them or waiting for one.

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
        """Return the host of a worker, or ``None``."""
        return self._host_of.get(worker)

    def workers_of(self, host: bytes) -> list[Sender]:
        """Return the workers of a host, by index."""
        return sorted(worker for worker, its_host in self._host_of.items() if its_host == host)

    def join(self, host: bytes, capacity: int) -> None:
        """Add a host."""
        self._capacity[host] = capacity

    def leave(self, host: bytes) -> list[Sender]:
        """Remove a host. Returns the workers that were on it."""
        self._capacity.pop(host, None)
        lost = self.workers_of(host)
        for worker in lost:
            del self._host_of[worker]
        return lost

    def could_leave(self, host: bytes) -> bool:
        """Return whether other hosts have room for the workers of a host."""
        others = sum(self._capacity.values()) - self._capacity[host]
        return len(self._host_of) + len(self._waiting) <= others

    def want(self, worker: Sender) -> None:
        """Add a worker that waits for a host."""
        self._waiting.append(worker)

    def is_waiting(self, worker: Sender) -> bool:
        """Return whether a worker waits for a host."""
        return worker in self._waiting

    def ended(self, worker: Sender) -> None:
        """Remove a worker. Its host has room for another one."""
        self._host_of.pop(worker, None)
        if worker in self._waiting:
            self._waiting.remove(worker)

    def place(self) -> list[tuple[Sender, bytes]]:
        """Assign waiting workers, each to the host with the most room. Returns the new assignments."""
        placed = []
        room = Counter(self._capacity)
        room.subtract(self._host_of.values())
        while self._waiting and (room := +room):
            worker, host = self._waiting.pop(0), max(room, key=lambda host: room[host])
            self._host_of[worker] = host
            room[host] -= 1
            placed.append((worker, host))
        return placed
