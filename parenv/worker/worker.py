"""Worker: receives messages, does one thing at a time, and reports the result. It does no I/O, so it runs anywhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import cloudpickle

from parenv.envs.seeding import RandomState, worker_seed
from parenv.envs.step_buffer_rows import EnvError
from parenv.memory.order import fence
from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import StatusSlot
from parenv.platform import system
from parenv.process.debuggers import refuse_debuggers
from parenv.process.wake_up import WakeUp
from parenv.protocol.conversation import ANSWERING, DRIVER, WORKER, Conversation
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Call, Close, Credit, Layout, Message, Reply, Rows, Shares, as_warning
from parenv.protocol.plain import as_data
from parenv.worker.evaluation import FRACTION
from parenv.worker.failures import FailedCallError, failure_of
from parenv.worker.job import WorkerJob
from parenv.worker.log_records import RecordQueue
from parenv.worker.task import ENV_METHODS, Context, Loads, Pending, Prepared, Task


class Output:
    """Sends messages of a worker and its task, see :class:`~parenv.worker.task.TaskOutput`.

    Attributes:
        records: Log records that are not sent yet.
    """

    def __init__(
        self,
        conversation: Conversation,
        send: Callable[[Message], None],
        status: StatusSlot,
        owns_process: bool,
    ) -> None:
        self._conversation, self._send, self._status = conversation, send, status
        self.records = RecordQueue(status)
        self._own_process = os.getpid() if owns_process else None
        self._warnings: deque[str] = deque()

    def say(self, message: Message) -> None:
        """Send a message to the driver, after the log records before it."""
        self.flush_records()
        self._say(message)

    def flush_records(self) -> None:
        """Send the log records. Each message that the driver awaits takes them along, so they cannot pile up there."""
        if self.records.waiting:
            self._say(self.records.take())

    def _say(self, message: Message) -> None:
        self._send(self._conversation.say(WORKER, message))
        # The count comes after the message and before any wake-up: a driver that is notified reads from it how many
        # messages it has to receive.
        self._status.said[0] += 1
        fence()
        self._status.spoke[0] = 1

    def warn(self, text: str) -> None:
        """Warn the user, as soon as the conversation allows it."""
        self._warnings.append(text)
        self.flush()

    def flush(self) -> None:
        """Send the warnings that had to wait."""
        while self._warnings and self._conversation.state in ANSWERING:
            self.say(as_warning(self._warnings.popleft()))

    def report_error(self, errors: Sequence[EnvError], call: int = 0) -> None:
        """Report exceptions of sub-environments, in a call or in a step on the step buffer."""
        if self._own_process not in (None, os.getpid()):
            _leave(errors[0].error)
        for left, (env_id, doing, error) in zip(reversed(range(len(errors))), errors, strict=True):
            self.say(failure_of(error, doing, env_id, call, more=left))


class Inbox:
    """Messages that are not handled yet. Credits come last, so that a call waits for one rollout at most.

    Attributes:
        pending: Calls whose answers are computed in pieces, while there is no other message and a little beside
            rollouts, by the value that the task has returned instead of the answer.
    """

    def __init__(self) -> None:
        self._newest: dict[type[Message], int] = {Call: -1, Credit: -1}
        self._asked: deque[Message] = deque()
        self._credits: deque[Message] = deque()
        self.pending: dict[Pending, Call] = {}

    def put(self, message: Message) -> None:
        """Add a message. A call or credit that is repeated, or older than the newest one, is ignored."""
        if isinstance(message, Call | Credit):
            if message.sequence <= self._newest[type(message)]:
                return
            self._newest[type(message)] = message.sequence
        (self._credits if isinstance(message, Credit) else self._asked).append(message)

    def next(self) -> Message | None:
        """Remove and return the next message, or ``None``."""
        queue = self._asked or self._credits
        return queue.popleft() if queue else None


class Worker:
    """One worker of a pool, a vector env or a population.

    Args:
        sender: Worker and generation.
        memory: Shared memory. At first only its header is laid out.
        load_job: Function that makes another copy of the job. Copies share no policy.
        send: Function that sends a message to the driver.
        owns_process: Whether random states and thread settings of this process belong to the worker.

    Attributes:
        memory: Shared memory.
        status: Status slot of the worker in shared memory.
        prepared: Sub-environments, once they are made.
        task: Task, once the layout has arrived.
        open: Whether the driver has not sent ``Close``.
        failed: Whether the worker only waits for ``Close``.
        answering: Sequence number of the call in progress, or -1.
    """

    def __init__(
        self,
        sender: Sender,
        memory: SharedMemory,
        load_job: Callable[[], WorkerJob],
        send: Callable[[Message], None],
        owns_process: bool,
    ) -> None:
        self._sender, self.memory, self._owns_process = sender, memory, owns_process
        self._load_job: Callable[[], WorkerJob] = lambda: load_job().of_worker(sender.worker)
        self._conversation = Conversation()
        self._inbox = Inbox()
        self._random_state: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self._cleanup = contextlib.ExitStack()
        self.status = StatusSlot(memory.map(), sender.worker)
        self._output = Output(self._conversation, send, self.status, owns_process)
        self.prepared: Prepared | None = None
        self.task: Task | None = None
        self.open = True
        self.failed = False
        self.answering = -1

    @property
    def completed(self) -> WakeUp | None:
        """Wake-up that is notified when a pending answer is complete, if the task has one."""
        return None if self.failed or self.task is None else self.task.completed

    @property
    def loads(self) -> Loads | None:
        """Requests in shared memory to load a version, once the task can handle them."""
        return None if self.failed or self.task is None else self.task.loads

    def receive(self, message: Message) -> None:
        """Take a message. ``Close`` ends the work at once, other messages wait for :meth:`work`."""
        self._conversation.say(DRIVER, message)
        if isinstance(message, Close):
            self.open = False
        else:
            self._inbox.put(message)

    def work(self) -> bool:
        """Do the next thing; return whether there was one."""
        if not self.open or self.failed:
            return False
        self.answering = -1
        with self._random_state:
            if self.prepared is None:
                self._prepare()
            elif (message := self._inbox.next()) is not None:
                self._handle(message)
            elif not self._inbox.pending or not self._continue():
                return False
        self.status.begin("waiting")
        return True

    def send_log_records(self, places: Mapping[str, Sequence[str]]) -> None:
        """Send what is logged in this process to the driver, see :meth:`RecordQueue.install`."""
        self._output.records.install(places)

    def give_up(self) -> None:
        """Only wait for ``Close`` from now on."""
        self.failed = True

    def fail(self, error: BaseException) -> None:
        """Report an exception. Unless a call raised it, only wait for ``Close`` from now on."""
        call, self.answering = self.answering, -1
        if call < 0:
            self.give_up()
        pending = self._inbox.pending
        self._inbox.pending = {value: one for value, one in pending.items() if one.sequence != call}
        single = EnvError(self.status.env_id, self.status.doing, error)
        self._output.report_error(error.errors if isinstance(error, FailedCallError) else [single], call)

    def close(self) -> None:
        """Close the sub-environments and call the user's cleanup. Idempotent."""
        self.open = False
        self.status.begin("closing")
        self._cleanup.close()
        self._output.flush_records()

    def _prepare(self) -> None:
        """Set up the process, make the sub-environments, and report that they exist."""
        job = self._load_job()
        seed = worker_seed(job.seed, job.first_worker + self._sender.worker, self._sender.generation)
        if self._owns_process:
            _set_up_process(seed, job, self._sender.worker)
        else:
            self._random_state = RandomState(seed)
        with self._random_state:
            job.set_up(self._sender.worker, self.status, self._cleanup)
            self.prepared = job.prepare(Context(job, self._load_job, self._sender, self.status, self._output))
        self._cleanup.callback(self.prepared.close)
        self._output.say(self.prepared.ready())

    def _handle(self, message: Message) -> None:
        if isinstance(message, Shares):
            assert self.prepared is not None
            self._output.say(self.prepared.take_shares(message))
            return
        if isinstance(message, Layout | Rows):
            assert self.prepared is not None
            self.task = self.prepared.lay_out(message, self.memory.map())
            self._output.flush()
            return
        assert self.task is not None
        if isinstance(message, Call):
            self._answer(self.task, message)
            return
        began = time.perf_counter()
        self.task.take(message)
        if self._inbox.pending:
            self._continue(FRACTION * (time.perf_counter() - began))

    def _continue(self, seconds: float = 0.0) -> bool:
        """Continue with pending answers; return whether there is more to do. An exception answers the oldest call."""
        assert self.task is not None
        self.answering = next(iter(self._inbox.pending.values())).sequence
        try:
            answers = self.task.play_for(seconds)
        except Exception as error:
            # The exception is reported and not raised: in the driver's own process it would interrupt another call.
            self.fail(error)
            return True
        for value, answer in answers:
            self._output.say(Reply(self._inbox.pending.pop(value).sequence, answer))
        return bool(answers) or self.task.completed is None

    def _answer(self, task: Task, call: Call) -> None:
        self.answering = call.sequence
        self.status.begin("evaluate" if call.method == "evaluate" else "call")
        answer = task.answer(call.method, *cloudpickle.loads(call.arguments))
        if isinstance(answer, Pending):
            self._inbox.pending[answer] = call
            return
        if call.method in ENV_METHODS:
            self.status.begin("call")
            answer = as_data(answer)
        self._output.say(Reply(call.sequence, answer))


def _leave(error: BaseException) -> NoReturn:
    """End a process that an environment has forked, as Python does. It must not send messages as the worker."""
    code = error.code or 0 if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    elif not isinstance(code, int):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def _set_up_process(seed: int, job: WorkerJob, worker: int) -> None:
    """Apply the options that concern the whole process, and seed its random states."""
    refuse_debuggers()
    if job.options.max_memory_bytes is not None:
        system.limit_memory(job.options.max_memory_bytes)
    if job.cores is not None:
        system.pin(job.cores[worker])
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(job.options.threads)
        torch.manual_seed(seed)
    RandomState(seed).__enter__()
