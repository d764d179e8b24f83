"""What a pool asks of a placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from parenv.process.doorbell import Doorbell
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Message


class Received(NamedTuple):
    """A message from a worker."""

    sender: Sender
    message: Message


class Ended(NamedTuple):
    """A worker is gone."""

    sender: Sender
    pid: int
    exit_code: int | None
    signal: int | None
    refused: str


Event = Received | Ended


@dataclass(frozen=True)
class Launch:
    """What every worker of a pool gets when it is started.

    Args:
        memory_fd: descriptor of the pool's shared memory.
        job: the pickled job.
        preload: modules to import before the first worker starts.
        environment: environment variables to set before any import.
        threads: threads per worker.
        descriptors: more of them for every worker, behind memory and job.
        doorbells: by worker, the bell at which its process listens, behind those; it is rung for every message.
    """

    memory_fd: int
    job: bytes
    preload: tuple[str, ...]
    environment: dict[str, str]
    threads: int
    descriptors: tuple[int, ...] = ()
    doorbells: Sequence[Doorbell] = ()


class Placement(Protocol):
    """Launches workers and carries messages to and from them."""

    def start(self, launch: Launch, workers: Sequence[Sender]) -> None:
        """Start workers; returns at once."""

    def send(self, to: Sender, message: Message) -> None:
        """Send a message; one to a worker that is gone is dropped, and its end reported by :meth:`wait`."""

    def wait(self, timeout_s: float) -> list[Event]:
        """Everything that has happened; waits up to the limit for the first thing to happen."""

    def fileno(self) -> int:
        """Readable when a worker may have ended, without a message; -1 where none can end."""

    def signal(self, worker: Sender, signum: int, alone: bool) -> None:
        """Send a signal to a worker, alone or with all that it has started; one that is gone is let be."""

    def pid(self, worker: Sender) -> int:
        """Process id of a worker, or -1 while it is not known."""

    def alive(self) -> int:
        """How many workers run."""

    def close(self, timeout_s: float) -> None:
        """End every worker: by themselves within the limit, or by force after it. Idempotent."""
