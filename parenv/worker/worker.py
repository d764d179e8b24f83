"""A worker: takes messages, does one thing at a time, says what came of it. Without I/O, so that it runs anywhere."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from parenv.envs.seeding import RandomState, worker_seed
from parenv.memory.progress import Progress
from parenv.memory.shared import SharedMemory
from parenv.protocol.conversation import DRIVER, WORKER, Conversation
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Call, Close, Credit, Layout, Message, Reply, as_warning
from parenv.worker.collecting import StopCollectingError
from parenv.worker.job import Job
from parenv.worker.starting import Started, prepare_process, start
from parenv.worker.rollout_task import Station


class Worker:
    """One worker of a pool. Calls go before credits, so that a question waits for one rollout at most.

    Args:
        sender: who this is.
        memory: the pool's shared memory; at first only its head is laid out.
        load_job: makes another copy of the job, whose policy shares nothing with the others'.
        say: sends a message to the driver.
        owns_process: whether the random states and thread settings of this process are the worker's alone.
    """

    def __init__(
        self,
        sender: Sender,
        memory: SharedMemory,
        load_job: Callable[[], Job],
        say: Callable[[Message], None],
        owns_process: bool,
    ) -> None:
        self._sender, self._memory, self._load_job = sender, memory, load_job
        self._conversation = Conversation()
        self._send = say
        self._owns_process = owns_process
        self._random_state: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self._job: Job | None = None
        self._started: Started | None = None
        self._station: Station | None = None
        self._layout: Layout | None = None
        self._calls: deque[Call] = deque()
        self._credits: deque[Credit] = deque()
        self._newest_call = self._newest_credit = -1
        self.progress = Progress(memory.map(), sender.worker)
        self._failed = False
        self.open = True
        self.answering = -1
        self._warnings: deque[str] = deque()

    def receive(self, message: Message) -> None:
        """Take a message. Nothing is done yet, except that ``Close`` ends the work.

        A call or credit that has come before, or is older than one that has, is not taken again.
        """
        self._conversation.say(DRIVER, message)
        if isinstance(message, Close):
            self.open = False
        elif isinstance(message, Layout):
            self._layout = message
        elif isinstance(message, Call) and message.sequence > self._newest_call:
            self._newest_call = message.sequence
            self._calls.append(message)
        elif isinstance(message, Credit) and message.sequence > self._newest_credit:
            self._newest_credit = message.sequence
            self._credits.append(message)

    def say(self, message: Message) -> None:
        """Send a message to the driver."""
        self._send(self._conversation.say(WORKER, message))

    def give_up(self) -> None:
        """After a failure: do nothing more but wait to be closed."""
        self._failed = True

    def work(self) -> bool:
        """Do the next thing there is to do; whether there was one."""
        if not self.open or self._failed:
            return False
        self.answering = -1
        with self._random_state:
            worked = self._next()
        while self._warnings and self._station is not None:
            self.say(as_warning(self._warnings.popleft()))
        if worked:
            self.progress.begin("waiting")
        return worked

    def close(self) -> None:
        """Close the sub-environments and call the user's cleanup. Idempotent."""
        self.open = False
        self.progress.begin("closing")
        job, self._job = self._job, None
        if job is None:
            return
        with contextlib.ExitStack() as stack:
            if job.options.cleanup_fn is not None:
                stack.callback(job.options.cleanup_fn, job.first_worker + self._sender.worker)
            if self._station is not None:
                stack.callback(self._station.close_envs)
            elif self._started is not None:
                stack.callback(self._started.stepper.close)

    def _next(self) -> bool:
        if self._job is None:
            self._start()
        elif self._layout is not None and self._started is not None:
            layout, self._layout = self._layout, None
            self._station = Station(self._sender, self._started, layout, self._memory.map(), self.progress)
        elif self._station is None:
            return False
        elif self._calls:
            call = self._calls.popleft()
            self.answering = call.sequence
            self.say(Reply(call.sequence, self._station.answer(call)))
        elif self._credits:
            self._collect(self._station, self._credits.popleft())
        else:
            return False
        return True

    def _start(self) -> None:
        self._job = job = self._load_job()
        job.factories.register()
        seed = worker_seed(job.seed, job.first_worker + self._sender.worker, self._sender.generation)
        if self._owns_process:
            prepare_process(seed, job.options)
        else:
            self._random_state = RandomState(seed)
        with self._random_state:
            self._started = start(self._sender, job, self._load_job, self.progress, self._warnings.append)
        self.say(self._started.ready)

    def _collect(self, station: Station, credit: Credit) -> None:
        with contextlib.suppress(StopCollectingError):
            self.say(station.collect(credit))
