"""A worker: takes messages, does one thing at a time, says what came of it. Without I/O, so that it runs anywhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import cloudpickle

from parenv.envs.board_rows import EnvError
from parenv.envs.seeding import RandomState, worker_seed
from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import StatusSlot
from parenv.protocol.conversation import ANSWERING, DRIVER, WORKER, Conversation
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Call, Close, Credit, Layout, Message, Reply, Rows, as_warning
from parenv.protocol.plain import as_data
from parenv.worker.agents_task import AgentsTask
from parenv.worker.calling import ENV_METHODS
from parenv.worker.evaluation import FRACTION
from parenv.worker.failing import PENDING, FailedCallError, failure_of
from parenv.worker.job import AgentsJob, MemberJob, StepJob
from parenv.worker.loads import Loads
from parenv.worker.member_task import MemberTask
from parenv.worker.rollout_task import RolloutTask
from parenv.worker.starting import prepare_process
from parenv.worker.step_task import StepTask


class Inbox:
    """What was asked and is still to be done: credits come last, so that a question waits for one rollout at most.

    Attributes:
        later: the call that is answered bit by bit while there is nothing else to do, and a little beside that.
    """

    def __init__(self) -> None:
        self._newest: dict[type[Message], int] = {Call: -1, Credit: -1}
        self._asked: deque[Message] = deque()
        self._credits: deque[Message] = deque()
        self.later: Call | None = None

    def put(self, message: Message) -> None:
        """Take a message. A call or credit that has come before, or is older than one that has, is not taken again."""
        if isinstance(message, Call | Credit):
            if message.sequence <= self._newest[type(message)]:
                return
            self._newest[type(message)] = message.sequence
        (self._credits if isinstance(message, Credit) else self._asked).append(message)

    def next(self) -> Message | None:
        """What comes next, if there is anything."""
        queue = self._asked or self._credits
        return queue.popleft() if queue else None


class Worker:
    """One worker of a pool or a vector env.

    Args:
        sender: who this is.
        memory: the shared memory; at first only its head is laid out.
        load_job: makes another copy of the job, whose policy shares nothing with the others'.
        send: sends a message to the driver.
        owns_process: whether the random states and thread settings of this process are the worker's alone.

    Attributes:
        progress: its status slot in shared memory.
        task: what it is there for, once it has started.
        open: whether the driver has not said ``Close``.
        failed: whether it does nothing more but wait for that.
        answering: sequence of the call at hand, or -1.
    """

    def __init__(
        self,
        sender: Sender,
        memory: SharedMemory,
        load_job: Callable[[], Any],
        send: Callable[[Message], None],
        owns_process: bool,
    ) -> None:
        self._sender, self._memory = sender, memory
        self._load_job: Callable[[], Any] = lambda: load_job().of_worker(sender.worker)
        self._send = send
        self._own_process = os.getpid() if owns_process else None
        self._conversation = Conversation()
        self._inbox = Inbox()
        self._warnings: deque[str] = deque()
        self._random_state: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self._cleanup = contextlib.ExitStack()
        self.progress = StatusSlot(memory.map(), sender.worker)
        # Which messages it gets is settled by the conversation: those for rollouts and for steps exclude each other.
        self.task: Any = None
        self.open = True
        self.failed = False
        self.answering = -1

    @property
    def loads(self) -> Loads | None:
        """What the driver asks for by wake-up, once that can be done."""
        return None if self.failed or self.task is None else self.task.loads

    def receive(self, message: Message) -> None:
        """Take a message. Nothing is done yet, except that ``Close`` ends the work."""
        self._conversation.say(DRIVER, message)
        if isinstance(message, Close):
            self.open = False
        else:
            self._inbox.put(message)

    def work(self) -> bool:
        """Do the next thing there is to do; whether there was one."""
        if not self.open or self.failed:
            return False
        self.answering = -1
        with self._random_state:
            if self.task is None:
                self._start()
            elif (message := self._inbox.next()) is not None:
                self._do(message)
            elif self._inbox.later is not None:
                self._go_on(self._inbox.later)
            else:
                return False
        self.progress.begin("waiting")
        return True

    def say(self, message: Message) -> None:
        """Send a message to the driver."""
        self._send(self._conversation.say(WORKER, message))
        # Behind the message and before any wake-up: who is woken and reads this number knows what is still to be heard.
        self.progress.said[0] += 1

    def warn(self, text: str) -> None:
        """Have the user warned, as soon as the conversation is that far."""
        self._warnings.append(text)
        self._say_warnings()

    def give_up(self) -> None:
        """Do nothing more but wait to be closed."""
        self.failed = True

    def fail(self, error: BaseException) -> None:
        """Say what went wrong; unless it was a call, do nothing more but wait to be closed."""
        call, self.answering = self.answering, -1
        if call < 0:
            self.give_up()
        if self._inbox.later is not None and self._inbox.later.sequence == call:
            self._inbox.later = None
        single = EnvError(self.progress.env_id, self.progress.doing, error)
        self.report_error(error.errors if isinstance(error, FailedCallError) else [single], call)

    def report_error(self, errors: Sequence[EnvError], call: int = 0) -> None:
        """Say what sub-environments raised, in a call or in a step on the step buffer."""
        if self._own_process not in (None, os.getpid()):
            _leave(errors[0].error)
        for left, (env_id, doing, error) in zip(reversed(range(len(errors))), errors, strict=True):
            self.say(failure_of(error, doing, env_id, call, more=left))

    def close(self) -> None:
        """Close the sub-environments and call the user's cleanup. Idempotent."""
        self.open = False
        self.progress.begin("closing")
        self._cleanup.close()

    def _start(self) -> None:
        job = self._load_job()
        seed = worker_seed(job.seed, job.first_worker + self._sender.worker, self._sender.generation)
        if self._own_process is not None:
            prepare_process(seed, job, self._sender.worker)
        else:
            self._random_state = RandomState(seed)
        with self._random_state:
            job.set_up(self._sender.worker, self.progress, self._cleanup)
            if isinstance(job, StepJob):
                self.task = StepTask(job, self._sender, self.progress, self)
            elif isinstance(job, MemberJob):
                self.task = MemberTask(job, self._sender, self.progress, self)
            elif isinstance(job, AgentsJob):
                self.task = AgentsTask(job, self._sender, self._load_job, self.progress, self)
            else:
                self.task = RolloutTask(job, self._sender, self._load_job, self.progress, self)
        self._cleanup.callback(self.task.close)
        self.say(self.task.ready())

    def _do(self, message: Message) -> None:
        if isinstance(message, Call):
            self._answer(message)
        elif isinstance(message, Layout | Rows):
            self.task.lay_out(message, self._memory.map())
            self._say_warnings()
        else:
            began = time.perf_counter()
            self.task.take(message)
            if self._inbox.later is not None:
                self._go_on(self._inbox.later, FRACTION * (time.perf_counter() - began))

    def _go_on(self, call: Call, seconds: float = 0.0) -> None:
        """Go on with the answer to a call."""
        self.answering = call.sequence
        try:
            answer = self.task.go_on(seconds)
        except Exception as error:
            # Said, and not raised: in the driver's own process it would come in the middle of something else.
            self.fail(error)
            return
        if answer is not PENDING:
            self._inbox.later = None
            self.say(Reply(call.sequence, answer))

    def _answer(self, call: Call) -> None:
        self.answering = call.sequence
        self.progress.begin("evaluate" if call.method == "evaluate" else "call")
        answer = self.task.answer(call.method, *cloudpickle.loads(call.arguments))
        if answer is PENDING:
            self._inbox.later = call
            return
        if call.method in ENV_METHODS:
            self.progress.begin("call")
            answer = as_data(answer)
        self.say(Reply(call.sequence, answer))

    def _say_warnings(self) -> None:
        while self._warnings and self._conversation.state in ANSWERING:
            self.say(as_warning(self._warnings.popleft()))


def _leave(error: BaseException) -> NoReturn:
    """End a process that an environment has forked, as Python does: it must not speak for the worker, or become one."""
    code = error.code or 0 if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    elif not isinstance(code, int):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)
