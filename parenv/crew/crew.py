"""The workers of a pool as the driver sees them: starting them, hearing them, asking them, ending them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle

from parenv.crew.failures import from_end, from_failure, where_it_happened
from parenv.errors import WorkerTimeoutError, span
from parenv.memory.progress import Progress
from parenv.placement.base import Ended, Launch, Placement
from parenv.protocol.conversation import DRIVER, WORKER, Conversation
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Call, Close, Commit, Failure, Message, Ready, Reply

FOREVER_S = 3600.0


class Heard(NamedTuple):
    """A commit, and the worker that it is from."""

    worker: int
    commit: Commit


class Crew:
    """All workers of a pool.

    Args:
        placement: where they run.
        progress: their lines in shared memory.
        shares: how many sub-environments each has, as far as it is known.
    """

    def __init__(self, placement: Placement, progress: Sequence[Progress], shares: Sequence[int]) -> None:
        self._placement, self._progress = placement, progress
        self._senders = [Sender(worker, 0) for worker in range(len(shares))]
        self._conversations = [Conversation() for _ in shares]
        self.shares = list(shares)
        self._ready: dict[int, Ready] = {}
        self._commits: deque[Heard] = deque()
        self._replies: dict[int, Any] = {}
        self._call_errors: dict[int, Exception] = {}
        self._calls = 0
        self.messages = 0
        self.closed = False
        self.broken = False

    @property
    def alive(self) -> int:
        """How many workers run."""
        return self._placement.alive()

    def env_ids(self, worker: int) -> range:
        """The sub-environments of a worker."""
        first = sum(self.shares[:worker])
        return range(first, first + self.shares[worker])

    def start(self, launch: Launch, timeout_s: float) -> list[Ready]:
        """Start all and wait until they are ready.

        Raises:
            WorkerTimeoutError: some are not, in time.
        """
        deadline = time.monotonic() + timeout_s
        self._placement.start(launch, self._senders)
        while len(self._ready) < len(self._senders):
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._late(timeout_s)
            self._pump(left)
        ready = [self._ready[worker] for worker in range(len(self._senders))]
        self.shares = [one.num_envs for one in ready]
        return ready

    def say(self, worker: int, message: Message) -> None:
        """Send a message to a worker."""
        self._conversations[worker].say(DRIVER, message)
        self._placement.send(self._senders[worker], message)
        self.messages += 1

    def commits(self, timeout_s: float) -> list[Heard]:
        """The commits that have come; waits up to the limit if there are none."""
        if not self._commits:
            self._pump(timeout_s)
        heard = list(self._commits)
        self._commits.clear()
        return heard

    def ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call a method on several workers at once and wait for every answer.

        Args:
            method: as in :class:`~parenv.protocol.messages.Call`.
            arguments: by worker.

        Raises:
            Exception: what a worker raised, after all have answered.
        """
        asked = {}
        pickled = {
            id(values): bytes(cloudpickle.dumps(values)) for values in {id(v): v for v in arguments.values()}.values()
        }
        for worker, values in arguments.items():
            self._calls += 1
            asked[worker] = self._calls
            self.say(worker, Call(self._calls, method, pickled[id(values)]))
        while any(call not in self._replies and call not in self._call_errors for call in asked.values()):
            self._pump(FOREVER_S)
        errors = [self._call_errors.pop(call) for call in asked.values() if call in self._call_errors]
        answers = {worker: self._replies.pop(call, None) for worker, call in asked.items()}
        if errors:
            raise errors[0]
        return answers

    def close(self, timeout_s: float) -> None:
        """End all, by themselves within the limit or by force after it. Idempotent."""
        if self.closed:
            return
        self.closed = True
        try:
            self._progress[0].closing[0] = True
            for worker, conversation in enumerate(self._conversations):
                conversation.say(DRIVER, Close())
                self._placement.send(self._senders[worker], Close())
        finally:
            self._placement.close(timeout_s)

    def _pump(self, timeout_s: float) -> None:
        try:
            events = self._placement.wait(timeout_s)
        except Exception as error:
            self.broken = self.alive < len(self._senders)
            if error.__cause__ is None:
                line, pid = self._progress[0], self._placement.pid(self._senders[0])
                error.__cause__ = where_it_happened(0, pid, line.env_id if line.env_id >= 0 else None, line.doing)
            raise
        for event in events:
            worker = event.sender.worker
            if isinstance(event, Ended):
                self.broken = True
                raise from_end(event, self.env_ids(worker), self._progress[worker].describe())
            self.messages += 1
            self._conversations[worker].say(WORKER, event.message)
            self._hear(worker, event.message)

    def _hear(self, worker: int, message: Message) -> None:
        if isinstance(message, Commit):
            self._commits.append(Heard(worker, message))
        elif isinstance(message, Reply):
            self._replies[message.sequence] = message.value
        elif isinstance(message, Ready):
            self._ready[worker] = message
        elif isinstance(message, Failure):
            error = from_failure(message, worker, self._placement.pid(self._senders[worker]), self.env_ids(worker))
            if message.call < 0:
                self.broken = True
                raise error
            self._call_errors[message.call] = error

    def _late(self, timeout_s: float) -> WorkerTimeoutError:
        late = [worker for worker in range(len(self._senders)) if worker not in self._ready]
        doing = {worker: self._progress[worker].describe() for worker in late}
        first = late[0]
        return WorkerTimeoutError(
            f"{len(late)} of {len(self._senders)} workers are not ready after {timeout_s:g} s: "
            + "; ".join(f"worker {w} (env_ids {span(self.env_ids(w))}) is at: {what}" for w, what in doing.items())
            + ". Raise WorkerOptions.start_timeout_s if they only need longer",
            worker=first,
            env_ids=self.env_ids(first),
            pid=self._placement.pid(self._senders[first]),
            doing=doing[first],
        )
