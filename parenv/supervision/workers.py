"""Workers as the driver sees them: starting them, hearing them, asking them, ending them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle

from parenv.errors import HostLostError, ProtocolError, WorkerTimeoutError, span
from parenv.memory.maps import SlotMap
from parenv.memory.progress import Progress
from parenv.placement.base import Ended, Event, Launch, Placement, Traffic
from parenv.protocol.conversation import DRIVER, WORKER, Conversation
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Call, Close, Commit, Credit, Failure, Message, Ready, Reply, SideData
from parenv.supervision.failures import from_end, from_failure, raise_all, say_where, where_it_happened
from parenv.supervision.warning import Warner

_log = logging.getLogger("parenv")
FOREVER_S = 3600.0
NO_WEIGHTS = (-1, -1)


class Heard(NamedTuple):
    """A commit, and the worker that it is from."""

    worker: int
    commit: Commit


class Workers:
    """All workers of a pool or a vector env.

    Args:
        placement: where they run.
        progress: their status slots in shared memory.
        shares: how many sub-environments each has, as far as it is known.

    Attributes:
        first_env_id: of the first worker's first sub-environment.
        side_data: what workers of a vector env had to say beside the board, until somebody takes it.
        step_errors: exceptions of single environments in steps on the board, likewise.
        heard: by worker, messages of its present process.
        broken: whether a worker is gone or has given up.
        generations_before: by worker, the highest generation there was in the run that this one resumes.
    """

    def __init__(self, placement: Placement, progress: Sequence[Progress], shares: Sequence[int]) -> None:
        self._placement, self._progress = placement, progress
        self._senders = [Sender(worker, 0) for worker in range(len(shares))]
        self._conversations = [Conversation() for _ in shares]
        self.shares = list(shares)
        self.first_env_id = 0
        self._events: deque[Event] = deque()
        self._ready: dict[int, Ready] = {}
        self._commits: deque[Heard] = deque()
        self._replies: dict[int, Any] = {}
        self._call_errors: dict[int, list[Exception]] = {}
        self._pending: set[int] = set()
        self._credits: list[deque[int]] = [deque() for _ in shares]
        self._open_calls: list[set[int]] = [set() for _ in shares]
        self._calls = 0
        self.side_data: deque[SideData] = deque()
        self.step_errors: list[Exception] = []
        self._warn = Warner()
        self.messages = 0
        self.heard = [0 for _ in shares]
        self.refused_messages = 0
        self.closed = False
        self.broken = False
        self.generations_before = [0 for _ in shares]

    @property
    def alive(self) -> int:
        """How many workers run."""
        return self._placement.alive()

    def pid(self, worker: int) -> int:
        """Process id of a worker, or -1 while it is not known."""
        return self._placement.pid(self._senders[worker])

    def doing(self, worker: int) -> str:
        """What a worker is doing, in words."""
        return self._progress[worker].describe()

    def liveness_token(self, worker: int) -> tuple[Any, ...]:
        """What changes with whatever a worker begins, and with whatever is asked of it and answered."""
        return (*self._progress[worker].liveness_token, len(self._credits[worker]), len(self._open_calls[worker]))

    def busy_with(self, worker: int) -> str:
        """One of :data:`~parenv.memory.progress.DOING`; empty while nothing is asked of it."""
        return self._progress[worker].doing if self._credits[worker] or self._open_calls[worker] else ""

    def env_ids(self, worker: int) -> range:
        """The sub-environments of a worker."""
        first = self.first_env_id + sum(self.shares[:worker])
        return range(first, first + self.shares[worker])

    def start(self, launch: Launch, timeout_s: float) -> list[Ready]:
        """Start all and wait until they are ready.

        Raises:
            WorkerTimeoutError: some are not, in time.
            ProtocolError: they have neither as many sub-environments as planned nor all equally many.
        """
        deadline = time.monotonic() + timeout_s
        self._placement.start(launch, self._senders)
        while len(self._ready) < len(self._senders):
            left = deadline - time.monotonic()
            if left <= 0:
                raise self.late(timeout_s)
            try:
                self.listen(left)
            except HostLostError as lost:
                _log.warning("%s It is started elsewhere.", str(lost))
                self.restart(launch, lost.worker)
        ready = [self._ready[worker] for worker in range(len(self._senders))]
        shares = [one.num_envs for one in ready]
        if shares != self.shares and len(set(shares)) > 1:
            raise ProtocolError(f"workers have {shares} sub-environments, and were to have {self.shares}")
        self.shares = shares
        return ready

    def restart(self, launch: Launch, worker: int) -> int:
        """Start another process in the place of one that is gone; what the old one still says is refused.

        Returns:
            The generation of the new process.
        """
        generation = max(self._senders[worker].generation, self.generations_before[worker]) + 1
        sender = self._senders[worker] = Sender(worker, generation)
        self._conversations[worker] = Conversation()
        self._ready.pop(worker, None)
        self.heard[worker] = 0
        self._credits[worker].clear()
        self._open_calls[worker].clear()
        self.broken = False
        self._placement.start(launch, [sender])
        return sender.generation

    def is_ready(self, worker: int) -> bool:
        """Whether the present process of a worker has said that it is ready."""
        return worker in self._ready

    def ready(self, worker: int) -> Ready:
        """What the present process of a worker has said of itself."""
        return self._ready[worker]

    def generation(self, worker: int) -> int:
        """How often the process of a worker has been restarted."""
        return self._senders[worker].generation

    def say(self, worker: int, message: Message) -> None:
        """Send a message to a worker."""
        self._conversations[worker].say(DRIVER, message)
        self._placement.send(self._senders[worker], message)
        self.messages += 1
        if isinstance(message, Credit):
            self._credits[worker].append(message.sequence)
        elif isinstance(message, Call):
            self._open_calls[worker].add(message.sequence)

    def signal(self, worker: int, signum: int, alone: bool) -> None:
        """Send a signal to a worker, alone or with all that it has started."""
        self._placement.signal(self._senders[worker], signum, alone)

    def stack(self, worker: int) -> str:
        """What a worker is doing, as a Python stack; empty if it can give none. Waits for it."""
        return self._placement.stack(self._senders[worker])

    def lay_out(self, slots: SlotMap) -> None:
        """Say where rollouts lie, before any worker is told."""
        self._placement.lay_out(slots)

    def traffic(self) -> Traffic:
        """What has crossed a network."""
        return self._placement.traffic()

    def take_commits(self) -> list[Heard]:
        """The commits that have come since the last time."""
        heard = list(self._commits)
        self._commits.clear()
        return heard

    def begin(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], weights: tuple[int, int] = NO_WEIGHTS
    ) -> dict[int, int]:
        """Call a method on several workers at once; the number of each call, by worker.

        Args:
            method: as in :class:`~parenv.protocol.messages.Call`.
            arguments: by worker.
            weights: the version that the method uses, and where its weights lie.
        """
        asked = {}
        pickled = {
            id(values): bytes(cloudpickle.dumps(values)) for values in {id(v): v for v in arguments.values()}.values()
        }
        for worker, values in arguments.items():
            self._calls += 1
            asked[worker] = self._calls
            self._pending.add(self._calls)
            named = len(values[0]) if values and isinstance(values[0], Sequence) else 0
            self.say(worker, Call(self._calls, method, pickled[id(values)], *weights, named))
        return asked

    def answered(self, asked: Mapping[int, int]) -> bool:
        """Whether all these calls have been answered."""
        return all(call in self._replies for call in asked.values())

    def answered_by(self, asked: Mapping[int, int], worker: int) -> bool:
        """Whether a worker has answered, or was not asked."""
        return worker not in asked or asked[worker] in self._replies

    def answers(self, asked: Mapping[int, int]) -> dict[int, Any]:
        """The answers to calls, by worker.

        Raises:
            Exception: what they raised instead.
        """
        answers = {worker: self._replies.pop(call, None) for worker, call in asked.items()}
        raise_all([error for call in asked.values() for error in self._call_errors.pop(call, [])])
        return answers

    def fail(self, call: int, error: Exception) -> None:
        """Answer a call by an error, because whoever was asked is gone."""
        self._call_errors[call] = [error]
        self._reply(call, None)

    def forget(self, asked: Mapping[int, int]) -> None:
        """Nobody will ask for the answers to these calls any more."""
        for call in asked.values():
            self._pending.discard(call)
            self._call_errors.pop(call, None)
            self._replies.pop(call, None)

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

    def listen(self, timeout_s: float) -> None:
        """Hear what has been said; waits up to the limit if there is nothing.

        Raises:
            WorkerDiedError: a worker is gone. What else has happened is heard the next time.
        """
        try:
            self._events.extend(self._placement.wait(0.0 if self._events else timeout_s))
        except Exception as error:
            self.broken = self.alive < len(self._senders)
            if error.__cause__ is None:
                first, pid = self._progress[0], self._placement.pid(self._senders[0])
                say_where(error, where_it_happened(0, pid, first.env_id if first.env_id >= 0 else None, first.doing))
            raise
        while self._events:
            event = self._events.popleft()
            worker = event.sender.worker
            if event.sender != self._senders[worker]:
                self.refused_messages += 1
                continue
            if isinstance(event, Ended):
                self.broken = True
                raise from_end(event, self.env_ids(worker), self._progress[worker].describe())
            self.messages += 1
            self.heard[worker] += 1
            try:
                self._conversations[worker].say(WORKER, event.message)
                if isinstance(event.message, Commit):
                    self._hear_commit(worker, event.message)
            except ProtocolError as error:
                raise error from where_it_happened(worker, self.pid(worker), None, self.doing(worker))
            self._hear(worker, event.message)

    def _hear(self, worker: int, message: Message) -> None:
        if isinstance(message, Reply):
            self._open_calls[worker].discard(message.sequence)
            self._reply(message.sequence, message.value)
        elif isinstance(message, Ready):
            self._ready[worker] = message
        elif isinstance(message, SideData):
            self.side_data.append(message)
        elif isinstance(message, Failure):
            self._hear_failure(worker, message)

    def _hear_commit(self, worker: int, message: Commit) -> None:
        """Note a rollout; they come in the order of their credits, and one that is left out is not made up for.

        Raises:
            ProtocolError: one before it is missing.
        """
        credits = self._credits[worker]
        if message.sequence not in credits:
            self.refused_messages += 1
            return
        if message.sequence != credits[0]:
            raise ProtocolError(f"the worker commits credit {message.sequence}, but not credit {credits[0]} before it")
        credits.popleft()
        self._commits.append(Heard(worker, message))

    def _hear_failure(self, worker: int, message: Failure) -> None:
        error = from_failure(message, worker, self.pid(worker), self.env_ids(worker))
        if isinstance(error, Warning):
            self._warn(str(error))
            return
        if message.call < 0:
            self.broken = True
            raise error
        if message.call == 0:
            self.step_errors.append(error)
            return
        if message.call in self._pending:
            self._call_errors.setdefault(message.call, []).append(error)
        if not message.more:
            self._open_calls[worker].discard(message.call)
            self._reply(message.call, None)

    def _reply(self, call: int, value: Any) -> None:
        """Note an answer, unless it was there before or nobody waits for it any more."""
        if call in self._pending:
            self._pending.remove(call)
            self._replies[call] = value
        else:
            self.refused_messages += 1

    def late(self, timeout_s: float) -> WorkerTimeoutError:
        """The error for workers that are not ready in time."""
        late = [worker for worker in range(len(self._senders)) if worker not in self._ready]
        doing = {worker: self._progress[worker].describe() for worker in late}
        first = late[0]
        return WorkerTimeoutError(
            f"{len(late)} of {len(self._senders)} workers are not ready after {timeout_s:g} s: "
            + "; ".join(f"worker {w} (env_ids {span(self.env_ids(w))}) is at: {what}" for w, what in doing.items())
            + "".join(f". {problem}" for problem in self._placement.problems())
            + ". Raise WorkerOptions.start_timeout_s if they only need longer",
            worker=first,
            env_ids=self.env_ids(first),
            pid=self._placement.pid(self._senders[first]),
            doing=doing[first],
        )
