"""Interface between a worker and its task: context, output, requests to load a version, and calls to environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from parenv.envs.elsewhere import EnvElsewhere
from parenv.envs.state import layers_of
from parenv.envs.step_buffer_rows import EnvError
from parenv.memory.pool_signals import WITHDRAWN, LoadRequests
from parenv.memory.status_slot import StatusSlot
from parenv.process.wake_up import WakeUp
from parenv.protocol.frames import Sender
from parenv.protocol.messages import FirstMade, Message, Ready, Shares, StepReady


class Loads:
    """The requests to one worker.

    Args:
        buffer: Shared memory.
        num_workers: Number of workers of the pool.
        worker: Index of the worker.
        load: Function ``(version, place, snapshot)`` that loads a version.
    """

    def __init__(self, buffer: Any, num_workers: int, worker: int, load: Callable[[int, int, bytes], object]) -> None:
        self._requests, self._worker, self._load = LoadRequests(buffer, num_workers), worker, load

    @property
    def is_asked(self) -> bool:
        """True if a version is requested."""
        return self._requests.asked(self._worker) is not None

    @property
    def turn(self) -> int:
        """Index of the wake-up that the driver notifies next."""
        return (self._requests.answered(self._worker) + 1) % 2

    def load(self) -> bool:
        """Load the requested version, if any; return whether the driver must be notified that all workers have it."""
        number = self._requests.asked(self._worker)
        if number is None:
            return False
        version, place = self._requests.wanted()
        if version != WITHDRAWN:
            self._load(version, place, b"")
        return self._requests.answer(self._worker, number)


def _call(env: Any, position: int, name: str, args: Any, kwargs: Any) -> Any:
    attribute = env.get_wrapper_attr(name)
    return attribute(*args, **kwargs) if callable(attribute) else attribute


def _is_wrapped(env: Any, position: int, module: str, name: str) -> bool:
    """Return whether a wrapper is of this class or a subclass. By name, so that the worker need not import it."""
    kinds = {kind for layer in layers_of(env)[:-1] for kind in type(layer).__mro__}
    if any((kind.__module__, kind.__qualname__) == (module, name) for kind in kinds):
        return True
    there = env.unwrapped
    return isinstance(there, EnvElsewhere) and there.is_wrapped(module, name)


ENV_METHODS: dict[str, Callable[..., Any]] = {
    "call": _call,
    "get_attr": lambda env, position, name: env.get_wrapper_attr(name),
    "set_attr": lambda env, position, values, name: env.set_wrapper_attr(name, values[position]),
    "is_wrapped": _is_wrapped,
}
"""Functions ``(env, position in the call, *arguments) -> answer`` by name."""


J = TypeVar("J")


class Pending:
    """Value that a task returns instead of an answer if :meth:`Task.play_for` returns the answer later."""


PendingAnswers = list[tuple[Pending, Any]]
"""Values that a task has returned instead of answers, each with its answer."""


class TaskOutput(Protocol):
    """Output for the messages of a task, of a worker or of a vector env in whose process the task runs."""

    def say(self, message: Message) -> None:
        """Send a message to the driver."""

    def warn(self, text: str) -> None:
        """Warn the user."""

    def flush_records(self) -> None:
        """Send the log records, before the driver sees in shared memory that a request is finished."""

    def report_error(self, errors: Sequence[EnvError]) -> None:
        """Report the exceptions of sub-environments in a step on the step buffer."""


@dataclass(frozen=True)
class Context(Generic[J]):
    """The job of a task, and its connections to the worker.

    Args:
        job: Job of the worker.
        load_job: Function that makes another copy of the job. Copies share no policy.
        sender: Worker and generation.
        status: Status slot of the worker.
        output: Output for messages.
    """

    job: J
    load_job: Callable[[], J]
    sender: Sender
    status: StatusSlot
    output: TaskOutput


class Task(Protocol):
    """The work of a worker after the layout."""

    loads: Loads | None = None
    """Requests in shared memory to load a version, or ``None``."""
    completed: WakeUp | None = None
    """Wake-up that is notified when a pending answer is complete, if threads compute it. ``None``: :meth:`play_for`
    does."""

    def take(self, message: Any) -> None:
        """Handle a message other than a call."""

    def answer(self, method: str, *arguments: Any) -> Any:
        """Answer a call, or return a new :class:`Pending`, whose answer :meth:`play_for` returns."""

    def play_for(self, seconds: float) -> PendingAnswers:
        """Continue with pending answers for about this many seconds; return those that are complete."""


class Prepared(Protocol):
    """Sub-environments that exist and wait for the layout."""

    def ready(self) -> Ready | StepReady | FirstMade:
        """Return what the driver needs for the layout, or to choose the number of workers."""

    def take_shares(self, shares: Shares) -> StepReady:
        """Make the rest of the sub-environments of a vector env whose number of workers is chosen now."""
        raise NotImplementedError

    def lay_out(self, layout: Any, mapping: Any) -> Any:
        """Build the task from the layout and the shared memory."""

    def close(self) -> None:
        """Close all sub-environments."""
