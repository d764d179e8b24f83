"""Workers as the main process sees them: their start, messages in both directions, signals and end."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from parenv.crew.events import Committed, Event, StepFailed
from parenv.crew.failures import from_end, from_failure, say_where, where_it_happened
from parenv.crew.open_call import OpenCall
from parenv.crew.warning import Warner
from parenv.crew.watchdog import Watchdog
from parenv.crew.worker_logs import handle_records
from parenv.errors import HostLostError, ProtocolError, WorkerTimeoutError, span
from parenv.memory.status_slot import WAITING_FOR_A_HOST, StatusSlot
from parenv.placement.base import Ended, Launch, Placement, Received
from parenv.protocol.conversation import DRIVER, WORKER, Conversation
from parenv.protocol.data import pack
from parenv.protocol.frames import Sender
from parenv.protocol.messages import (
    Call,
    Close,
    Commit,
    Credit,
    Failure,
    FirstMade,
    Logged,
    Message,
    Ready,
    Reply,
    SideData,
    StepReady,
)

_log = logging.getLogger("parenv")
FOREVER_S = 3600.0


class _Process:
    """Present process of a worker.

    Attributes:
        stands_for: Generation, counted on from the run that this one resumes.
        is_done: Whether the process has ended, or only waits for its end.
    """

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.stands_for = sender.generation
        self.conversation = Conversation()
        self.first_made: FirstMade | None = None
        self.ready: Ready | StepReady | None = None
        self.credits: deque[int] = deque()
        self.open_calls: set[int] = set()
        self.is_done = False


class Workers:
    """Present processes of all workers of a pool, a vector env or a population.

    Args:
        placement: Placement of the workers.
        status: Status slots of the workers in shared memory.
        shares: Number of sub-environments that each worker must have.
        first_env_id: First sub-environment of the first worker.
        first_worker: Number of workers of other learners before these. If a factory makes whole vector envs, each of
            those workers has as many sub-environments as each of these.
        max_memory_bytes: Memory limit of each worker process, or ``None``.
        begun: The first workers, if they have started already. Default: none.

    Attributes:
        placement: Placement of the workers.
        calls: Open call of each number.
        warn: Function that shows warnings of workers.
        received: Number of messages of the present process of each worker.
        stopped: Function that returns the exception of every further :meth:`listen`, or ``None``. Another thread or a
            signal handler sets it to close the workers.
    """

    stopped: Callable[[], BaseException] | None = None

    def __init__(
        self,
        placement: Placement,
        status: Sequence[StatusSlot],
        shares: Sequence[int],
        first_env_id: int = 0,
        first_worker: int = 0,
        max_memory_bytes: int | None = None,
        begun: Workers | None = None,
    ) -> None:
        self.placement, self._status = placement, status
        self._begun: list[_Process] = [] if begun is None else begun._processes
        others = range(len(self._begun), len(shares))
        self._processes: list[_Process] = [*self._begun, *(_Process(Sender(worker, 0)) for worker in others)]
        self.shares = list(shares)
        self.first_env_id, self._first_worker = first_env_id, first_worker
        self._max_memory_bytes = max_memory_bytes
        self.calls: dict[int, OpenCall] = {}
        self._arrived: deque[Received | Ended] = deque()
        self.warn: Warner = Warner() if begun is None else begun.warn
        self.received: list[int] = [*([] if begun is None else begun.received), *(0 for _ in others)]
        self.messages = self.refused_messages = 0
        self.closed = False

    def sender(self, worker: int) -> Sender:
        """Return the number and the generation of a worker."""
        return self._processes[worker].sender

    def pid(self, worker: int) -> int:
        """Return the process id of a worker, or -1 if it is not known."""
        return self.placement.pid(self._processes[worker].sender)

    def doing(self, worker: int) -> str:
        """Return the operation of a worker in words."""
        return self._status[worker].describe()

    def doing_in_brief(self, worker: int) -> str:
        """Return the operation of a worker, one of :data:`~parenv.memory.status_slot.DOING`."""
        return self._status[worker].doing

    def env_at_work(self, worker: int) -> int:
        """Return the env_id of the sub-environment that a worker calls, or called before its end; -1 if none."""
        return self._status[worker].env_id

    def about(self, worker: int) -> dict[str, Any]:
        """Return the attributes of an error about a worker."""
        return {"worker": worker, "env_ids": self.env_ids(worker), "pid": self.pid(worker), "doing": self.doing(worker)}

    def error_of(self, failure: Failure, worker: int) -> Exception:
        """Return the exception that a worker has reported."""
        return from_failure(failure, worker, self.pid(worker), self.env_ids(worker), self._max_memory_bytes)

    def liveness_token(self, worker: int) -> tuple[Any, ...]:
        """Return a value that changes with each operation of a worker, each request and each answer."""
        process = self._processes[worker]
        return (*self._status[worker].liveness_token, len(process.credits), len(process.open_calls))

    def busy_with(self, worker: int, asked: bool) -> str:
        """Return one of :data:`~parenv.memory.status_slot.DOING`, empty if the worker has no open request."""
        process = self._processes[worker]
        return self._status[worker].doing if asked or process.credits or process.open_calls else ""

    def env_ids(self, worker: int) -> range:
        """Return the sub-environments of a worker."""
        first = self.first_env_id + sum(self.shares[:worker])
        return range(first, first + self.shares[worker])

    def start(self, launch: Launch, timeout_s: float, meanwhile: Callable[[], object] = lambda: None) -> list[Any]:
        """Start all workers, wait until they are ready, and return the message of each.

        Args:
            launch: Launch of the workers.
            timeout_s: Time limit in seconds.
            meanwhile: Function to call while the workers start.

        Raises:
            WorkerTimeoutError: Some are not ready in time.
            ProtocolError: They have other numbers of sub-environments than planned, and these differ.
        """
        self.placement.start(launch, [process.sender for process in self._processes[len(self._begun) :]])
        meanwhile()
        watchdog, suspected = Watchdog(1, timeout_s), set[int]()
        while not all(process.ready for process in self._processes) or self._expel_odd_hosts(suspected):
            if watchdog.look(0, time.monotonic(), "starting", timeout_s):
                raise self.late(timeout_s)
            try:
                self.listen(watchdog.interval_s)
            except HostLostError as lost:
                # Another host can take over the worker. Any other error ends the start.
                _log.warning("%s It is started elsewhere.", str(lost))
                self.restart(launch, lost.worker)
        ready: list[Any] = [process.ready for process in self._processes]
        shares = [one.num_envs for one in ready]
        if shares != self.shares:
            if len(set(shares)) > 1:
                raise ProtocolError(f"workers have {shares} sub-environments, but must have {self.shares}")
            self.shares, self.first_env_id = shares, self._first_worker * shares[0]
        return ready

    def _expel_odd_hosts(self, suspected: set[int]) -> bool:
        """End hosts whose workers describe sub-environments differently from most, and return whether there were any.

        A worker that does so on a second host is right, because its sub-environments do differ.

        Args:
            suspected: Workers that did so before, added to.
        """
        ready: list[Any] = [process.ready for process in self._processes]
        numbers = [one.num_envs for one in ready]
        due = self.shares if len(set(numbers)) > 1 else numbers
        described = [(one.num_envs == number, _spaces(one)) for one, number in zip(ready, due, strict=True)]
        ((usual, count),) = Counter(described).most_common(1)
        odd = [worker for worker, one in enumerate(described) if one != usual and worker not in suspected]
        suspected.update(odd)
        # Without a majority, it is unknown which description is right.
        why = "its sub-environments differ in spaces or number from the sub-environments of most workers"
        expelled = [self.expel(worker, why, if_room=True) for worker in odd if 2 * count > len(described)]
        return any(expelled)

    def restart(self, launch: Launch, worker: int) -> None:
        """Start another process of a worker. Late messages of the former process are refused."""
        process = self._processes[worker] = _Process(Sender(worker, self._processes[worker].stands_for + 1))
        # The new process counts its messages from 0, and the main process waits for as many as it has counted.
        self.received[worker] = self._status[worker].said[0] = 0
        self.placement.start(launch, [process.sender])

    def skip_generations(self, worker: int, generation: int) -> int:
        """Continue to count from the generation of another run, and return the generation of the present process."""
        process = self._processes[worker]
        process.stands_for = max(generation, process.stands_for) + 1
        return process.stands_for

    def first_made(self, worker: int) -> FirstMade | None:
        """Return the message about the first sub-environment of a worker, ``None`` before that."""
        return self._processes[worker].first_made

    def ready(self, worker: int) -> Ready | StepReady | None:
        """Return the message of the present process of a worker when it was ready, ``None`` before that."""
        return self._processes[worker].ready

    def is_done(self, worker: int) -> bool:
        """Return whether the present process of a worker has ended, or only waits for its end."""
        return self._processes[worker].is_done

    def generation(self, worker: int) -> int:
        """Return the number of restarts of a worker."""
        return self._processes[worker].sender.generation

    def say(self, worker: int, message: Message) -> None:
        """Send a message to a worker."""
        process = self._processes[worker]
        process.conversation.say(DRIVER, message)
        self.placement.send(process.sender, message)
        self.messages += 1
        match message:
            case Credit():
                process.credits.append(message.sequence)
            case Call():
                process.open_calls.add(message.sequence)

    def signal(self, worker: int, signum: int, alone: bool) -> None:
        """Send a signal to a worker, alone or with the processes that it has started."""
        self.placement.signal(self._processes[worker].sender, signum, alone)

    def expel(self, worker: int, why: str, if_room: bool = False) -> bool:
        """End the host of a worker, see :meth:`~parenv.placement.base.Placement.expel`."""
        return self.placement.expel(self._processes[worker].sender, why, if_room)

    def stack(self, worker: int) -> str:
        """Request the Python stack of a worker, wait for it and return it, empty if it cannot be had."""
        return self.placement.stack(self._processes[worker].sender)

    def close(self, timeout_s: float) -> None:
        """End all workers, by force after the limit. It must be called once only."""
        self.closed = True
        self.placement.are_missing = self._are_missing
        try:
            # A worker that collects a rollout reads no messages. It checks this flag at every row.
            self._status[0].closing[0] = True
            for process in self._processes:
                process.conversation.say(DRIVER, Close())
                self.placement.send(process.sender, Close())
        finally:
            events = self.placement.close(timeout_s)
        for event in events:
            self._handle_records(event)

    def listen(self, timeout_s: float, hear: Callable[[Event], object] = lambda event: None) -> None:
        """Receive messages, and wait for one up to the limit if none has arrived.

        Args:
            timeout_s: Limit in seconds.
            hear: Function that receives rollouts, side data and exceptions of steps in the order of their arrival.

        Raises:
            WorkerDiedError: A worker has ended. The next call receives the messages after that.
            BaseException: Exception that :attr:`stopped` returns.
        """
        if self.stopped is not None:
            raise self.stopped()
        try:
            # An exception may have left events behind, which must not wait for further ones.
            self._arrived.extend(self.placement.wait(0.0 if self._arrived else timeout_s))
        except Exception as error:
            line = self._status[0]
            env_id = line.env_id if line.env_id >= 0 else None
            say_where(error, where_it_happened(0, self.pid(0), env_id, line.doing))
            raise
        while self._arrived:
            event = self._arrived.popleft()
            worker = event.sender.worker
            process = self._processes[worker]
            if event.sender != process.sender:
                # A process that was replaced may have sent messages before its end.
                self.refused_messages += 1
                self._handle_records(event)
                continue
            if isinstance(event, Ended):
                # The messages behind this event stay in the queue for the next call, after the caller has replaced the
                # worker. Those of the ended process are then refused by their generation.
                process.is_done = True
                raise from_end(event, self.env_ids(worker), self.doing(worker))
            self.messages += 1
            self.received[worker] += 1
            try:
                process.conversation.say(WORKER, event.message)
                is_refused = isinstance(event.message, Commit) and not self._is_owed(process, event.message)
            except ProtocolError as error:
                raise error from where_it_happened(worker, self.pid(worker), None, self.doing(worker))
            if not is_refused:
                self._hear(process, event.message, hear)
                self._handle_records(event)

    def _are_missing(self, events: Sequence[Received | Ended]) -> bool:
        """Return whether a worker that has ended by itself has counted more messages than have arrived."""
        ended = [event.sender for event in events if isinstance(event, Ended) and event.exit_code == 0]
        arrived = Counter(event.sender for event in (*self._arrived, *events) if isinstance(event, Received))
        present = [process.sender for process in self._processes if process.sender in ended]
        return any(self._status[one.worker].said[0] > self.received[one.worker] + arrived[one] for one in present)

    def _handle_records(self, event: Received | Ended) -> None:
        if isinstance(event, Received) and isinstance(event.message, Logged):
            handle_records(event.message, event.sender.worker)

    def _hear(self, process: _Process, message: Message, hear: Callable[[Event], object]) -> None:
        match message:
            case Commit():
                hear(Committed(process.sender.worker, message))
            case Reply():
                self._hear_answer(process, message.sequence, message.value)
            case FirstMade():
                process.first_made = message
            case Ready() | StepReady():
                process.ready = message
            case SideData():
                hear(message)
            case Failure():
                self._hear_failure(process, message, hear)

    def _is_owed(self, process: _Process, message: Commit) -> bool:
        """Take a credit back for its rollout. Rollouts of a worker arrive in the order of their credits.

        Raises:
            ProtocolError: A rollout before it is missing.
        """
        if message.sequence not in process.credits:
            self.refused_messages += 1
            return False
        if message.sequence != process.credits[0]:
            raise ProtocolError(
                f"credits must be committed in order, but the worker commits credit {message.sequence} before credit "
                f"{process.credits[0]}"
            )
        process.credits.popleft()
        return True

    def _hear_failure(self, process: _Process, message: Failure, hear: Callable[[Event], object]) -> None:
        worker = process.sender.worker
        error = self.error_of(message, worker)
        if isinstance(error, Warning):
            self.warn(str(error))
        elif message.call < 0:
            process.is_done = True
            raise error
        elif message.call == 0:
            hear(StepFailed(error))
        else:
            if message.call in process.open_calls and (call := self.calls.get(message.call)) is not None:
                call.errors.setdefault(worker, []).append(error)
            if not message.more:
                self._hear_answer(process, message.call, None)

    def _hear_answer(self, process: _Process, number: int, value: Any) -> None:
        # A worker may answer only calls to itself, although the numbers of all calls are in one table.
        call = self.calls.pop(number, None) if number in process.open_calls else None
        process.open_calls.discard(number)
        if call is None:
            self.refused_messages += 1
        else:
            call.answers[process.sender.worker] = value
            call.heard()

    def late(self, timeout_s: float) -> WorkerTimeoutError:
        """Return the error of workers that are not ready in time."""
        late = [process.sender.worker for process in self._processes if not process.ready]
        # The error shows the stack of the first worker, and a worker that waits for a host has none.
        late.sort(key=lambda worker: self.doing(worker) == WAITING_FOR_A_HOST)
        return WorkerTimeoutError(
            f"{len(late)} of {len(self._processes)} workers are not ready after {timeout_s:g} s: "
            + "; ".join(f"worker {w} (env_ids {span(self.env_ids(w))}) is at: {self.doing(w)}" for w in late)
            + "".join(f". {problem}" for problem in self.placement.problems())
            + ". Raise WorkerOptions.start_timeout_s if they only need longer.",
            **self.about(late[0]),
        )


def _spaces(ready: Any) -> bytes:
    """Return the spaces of a worker of a pool. Workers of a vector env may have different ones."""
    return pack(ready.spaces)[0] if isinstance(ready, Ready) else b""
