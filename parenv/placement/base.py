"""What a pool asks of a placement."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from parenv.memory.maps import BoardMap, SlotMap
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Message


class Received(NamedTuple):
    """A message from a worker; of any kind: whether it may be said now is for the conversation to decide."""

    sender: Sender
    message: Any


class Ended(NamedTuple):
    """A worker is gone.

    Args:
        sender: which.
        pid: its process id, or -1.
        exit_code: its exit code, or ``None``.
        signal: the number of the signal that ended it, or ``None``.
        refused: why it could not be started at all, or nothing.
        lost_host: in words, the machine that is gone with it, or nothing.
    """

    sender: Sender
    pid: int
    exit_code: int | None
    signal: int | None
    refused: str
    lost_host: str = ""


Event = Received | Ended


@dataclass(frozen=True)
class Traffic:
    """What has crossed a network so far.

    Args:
        sent: bytes of messages to hosts, before encryption.
        received: bytes of messages from hosts.
        hosts: that are there now.
        refused: connections that were refused, by reason.
    """

    sent: int = 0
    received: int = 0
    hosts: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)


T = TypeVar("T")
KILL_TIMEOUT_S = 60.0
"""What is given to the kernel for ending a process that was killed: far more than a busy machine takes."""


@dataclass(frozen=True)
class Launch:
    """What every worker of a pool gets when it is started.

    Args:
        memory_fd: descriptor of the pool's shared memory.
        job: the pickled job.
        preload: modules to import before the first worker starts.
        environment: environment variables to set before any import.
        threads: threads per worker.
        descriptors: more of them for every worker, behind those that every worker has; that of its wake-up, if any,
            comes last.
        spawn: whether workers are fresh interpreters and not forked.
        entry: ``module:function`` that a worker process runs; nothing for a worker in this process.
    """

    memory_fd: int
    job: bytes
    preload: tuple[str, ...]
    environment: dict[str, str]
    threads: int
    descriptors: tuple[int, ...] = ()
    spawn: bool = False
    entry: str = ""


class Placement(Protocol):
    """Launches workers and carries messages to and from them. What it says of networks itself is for one without."""

    silence_s: float = 0.0
    """Seconds for which a worker may be silent because of a network."""

    def start(self, launch: Launch, workers: Sequence[Sender]) -> None:
        """Start workers; returns at once."""

    def lay_out(self, slots: SlotMap) -> None:
        """Hear where rollouts lie, before any worker is told; those on this machine write there themselves."""
        return None

    def send(self, to: Sender, message: Message) -> None:
        """Send a message; one to a worker that is gone is dropped, and its end reported by :meth:`wait`."""

    def wait(self, timeout_s: float) -> list[Event]:
        """Everything that has happened; waits up to the limit for the first thing to happen."""

    def signal(self, worker: Sender, signum: int, alone: bool) -> None:
        """Send a signal to a worker, alone or with all that it has started; one that is gone is let be."""

    def stack(self, worker: Sender) -> str:
        """What a worker is doing, as a Python stack; empty if it can give none. Waits for it."""

    def pid(self, worker: Sender) -> int:
        """Process id of a worker, or -1 while it is not known."""

    def alive(self) -> int:
        """How many workers run."""

    def expel(self, worker: Sender, why: str, if_room: bool = False) -> bool:
        """End the host of a worker, with all its workers, because of what the host does.

        Args:
            worker: one of its workers.
            why: what it does, such as ``"it did not kill worker 1"``.
            if_room: whether to do so only if other hosts have room for these workers.

        Returns:
            Whether that was done; the ends of the workers are reported by :meth:`wait`.
        """
        return False

    def traffic(self) -> Traffic:
        """What has crossed a network."""
        return Traffic()

    def problems(self) -> list[str]:
        """What keeps workers from being started, a sentence each, as far as that is known."""
        return []

    def close(self, timeout_s: float) -> None:
        """End every worker: by themselves within the limit, or by force after it. Idempotent."""


class Notifier(Protocol):
    """Wakes a worker, wherever it is.

    Attributes:
        ring: adds a number to what the worker will be woken with, see :mod:`parenv.process.wake_up`.
    """

    notify: Callable[[int], object]

    def close(self) -> None:
        """Give back what it takes. Idempotent."""


class Poller(Protocol):
    """Waits for workers, as ``select.poll`` waits for descriptors."""

    def poll(self, timeout_ms: float, /) -> list[tuple[int, int]]:
        """Wait up to the limit: the descriptor if it is readable, and another number if workers may have ended."""


class SteppingPlacement(Placement, Protocol):
    """Beside all that, has workers step sub-environments: on a step buffer, woken by wake-ups."""

    def wake_up(self, worker: int) -> Notifier:
        """Make the wake-up of the next process of a worker; it is rung for every message too."""

    def lay_out_board(self, step_buffer: BoardMap) -> None:
        """Hear where the rows of a vector env lie, before any worker is told.

        Raises:
            ConfigurationError: they cannot cross a network as they are.
        """
        return None

    def poller(self, descriptor: int) -> Poller:
        """What waits for a descriptor, and for workers that may have ended without a message."""


def drained(queue: deque[T]) -> list[T]:
    """What is in a queue, which has nothing in it afterwards."""
    found = list(queue)
    queue.clear()
    return found
