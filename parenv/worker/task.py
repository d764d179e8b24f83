"""Protocols between a worker and its task: what a task gets, what it does, and where its messages go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from parenv.envs.step_buffer_rows import EnvError
from parenv.memory.status_slot import StatusSlot
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Message, Ready, StepReady
from parenv.worker.loads import Loads

J = TypeVar("J")
PENDING = object()
"""Value that a task returns instead of an answer if the answer will follow."""


class TaskOutput(Protocol):
    """Output for the messages of a task: that of a worker, or a vector env in whose process the task runs."""

    def say(self, message: Message) -> None:
        """Send a message to the driver."""

    def warn(self, text: str) -> None:
        """Warn the user."""

    def report_error(self, errors: Sequence[EnvError]) -> None:
        """Report the exceptions of sub-environments in a step on the step buffer."""


@dataclass(frozen=True)
class Context(Generic[J]):
    """The job of a task, and its connections to the worker.

    Args:
        job: Job of the worker.
        load_job: Function that makes another copy of the job. Copies share no policy.
        sender: Worker and generation.
        progress: Status slot of the worker.
        output: Output for messages.
    """

    job: J
    load_job: Callable[[], J]
    sender: Sender
    progress: StatusSlot
    output: TaskOutput


class Task(Protocol):
    """The work of a worker after the layout."""

    loads: Loads | None
    """Requests in shared memory to load a version, or ``None``."""

    def take(self, message: Any) -> None:
        """Handle a message other than a call."""

    def answer(self, method: str, *arguments: Any) -> Any:
        """Answer a call. :data:`PENDING`: :meth:`play_for` returns the answer."""

    def play_for(self, seconds: float) -> Any:
        """Continue with a pending answer for about this many seconds; return it, or :data:`PENDING`."""


class Prepared(Protocol):
    """Sub-environments that exist and wait for the layout."""

    def ready(self) -> Ready | StepReady:
        """Return what the driver needs for the layout."""

    def lay_out(self, layout: Any, mapping: Any) -> Any:
        """Build the task from the layout and the shared memory."""

    def close(self) -> None:
        """Close all sub-environments."""
