"""The interface of placements."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from parenv.memory.maps import SlotMap, StepBufferMap
from parenv.platform.base import Handle
from parenv.process.wake_up import Poller, WakeUp, WakeUps
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Message


class Received(NamedTuple):
    """A message from a worker, of any kind. The conversation decides whether it is allowed now."""

    sender: Sender
    message: Any


class Ended(NamedTuple):
    """The end of a worker process.

    Args:
        sender: The worker.
        pid: Process id, or -1 if it is not known.
        exit_code: Exit code, or ``None``.
        signal: Number of the signal that ended it, or ``None``.
        refused: Error that prevented the start. Default: empty.
        lost_host: Name of the host that is lost with the worker. Default: empty.
    """

    sender: Sender
    pid: int
    exit_code: int | None
    signal: int | None
    refused: str
    lost_host: str = ""


Arrived = Received | Ended


@dataclass(frozen=True)
class Traffic:
    """Network traffic of a pool so far.

    Args:
        sent: Bytes of messages to hosts, before encryption.
        received: Bytes of messages from hosts.
        hosts: Number of hosts that are connected now.
        refused: Number of refused connections by reason.
    """

    sent: int = 0
    received: int = 0
    hosts: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)


T = TypeVar("T")
KILL_TIMEOUT_S = 60.0
"""Seconds until a killed process must have ended, far more than the kernel of a busy machine takes."""


@dataclass(frozen=True)
class Launch:
    """Data for the start of every worker of a pool.

    Args:
        memory: Handle of the pool's shared memory.
        job: The pickled job.
        preload: Modules to import before the first worker starts.
        environment: Environment variables to set before any import.
        threads: Number of threads per worker.
        handles: Further handles for every worker, passed after the usual ones. The worker's own wake-up, if it
            has one, comes last.
        spawn: Whether workers are fresh interpreters instead of forks. Default: forks.
        entry: ``module:function`` that a worker process runs. Default: empty, for a worker in this process.
    """

    memory: Handle
    job: bytes
    preload: tuple[str, ...]
    environment: dict[str, str]
    threads: int
    handles: tuple[Handle, ...] = ()
    spawn: bool = False
    entry: str = ""


class Placement(Protocol):
    """Starts workers and carries messages to and from them. Default methods are for placements without a network."""

    are_missing: Callable[[Sequence[Arrived]], bool] | None = None
    """Function of the events in :meth:`close` that returns whether messages of workers that have ended are missing."""
    silence_s: float = 0.0
    """Seconds for which a worker may be silent because of its network."""

    def start(self, launch: Launch, workers: Sequence[Sender]) -> None:
        """Start workers, and return at once."""

    def lay_out(self, slots: SlotMap) -> None:
        """Take the layout of rollout slots, before any worker gets it. Local workers write into slots directly."""
        return None

    def send(self, to: Sender, message: Message) -> None:
        """Send a message. One to a dead worker is dropped, because :meth:`wait` reports its end."""

    def wait(self, timeout_s: float) -> list[Arrived]:
        """Return all events, and wait up to the limit for the first one."""

    def notified_by(self, wake_up: WakeUp) -> None:
        """Have :meth:`wait` return also when this wake-up is notified. Placements in this process do not wait."""
        return None

    def signal(self, worker: Sender, signum: int, alone: bool) -> None:
        """Send a signal to a worker that is still running, alone or with its process group."""

    def stack(self, worker: Sender) -> str:
        """Request the Python stack of a worker and wait for it; empty if the worker cannot write one."""

    def pid(self, worker: Sender) -> int:
        """Return the process id of a worker, or -1 until it is known."""

    def alive(self) -> int:
        """Return the number of running workers."""

    def expel(self, worker: Sender, why: str, if_room: bool = False) -> bool:
        """End the connection to a host that misbehaves, and all its workers.

        Args:
            worker: One of its workers.
            why: The misbehaviour, such as ``"it did not kill worker 1"``.
            if_room: Whether to do so only if other hosts have room for its workers. Default: always.

        Returns:
            Whether the host was expelled. :meth:`wait` reports the ends of its workers.
        """
        return False

    def traffic(self) -> Traffic:
        """Return the network traffic so far."""
        return Traffic()

    def problems(self) -> list[str]:
        """Return the known problems that prevent the start of workers, a sentence each."""
        return []

    def close(self, timeout_s: float) -> list[Arrived]:
        """End every worker, and kill those that have not ended by the limit in seconds. Idempotent.

        Returns:
            The events of workers on this machine until then, such as their last messages.
        """
        return []


class Notifier(Protocol):
    """Wakes a worker on this machine or on a host."""

    def notify(self) -> object:
        """Wake the worker, which then looks for messages and requests, see :mod:`parenv.process.wake_up`."""

    def close(self) -> None:
        """Close its descriptor. Idempotent."""


class SteppingPlacement(Placement, Protocol):
    """A placement for vector envs, with a step buffer and wake-ups."""

    def wake_up(self, worker: int, wake_ups: WakeUps) -> Notifier:
        """Make the wake-up of the next process of a worker. It is notified of every message too.

        Args:
            worker: Index of the worker.
            wake_ups: Wake-ups of the workers on this machine.
        """

    def lay_out_step_buffer(self, step_buffer: StepBufferMap) -> None:
        """Take the layout of the step buffer, before it is sent to any worker.

        Raises:
            ConfigurationError: The placement cannot transfer these spaces over its network.
        """
        return None

    def poller(self, descriptor: int) -> Poller:
        """Return a poller for a descriptor, and for workers that may have ended without a message."""


def drained(queue: deque[T]) -> list[T]:
    """Remove all items of a queue, and return them. Another thread may add items at any time."""
    # An item that is added after the length was read stays in the queue.
    return [queue.popleft() for _ in range(len(queue))]
