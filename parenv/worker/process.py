"""Entry points of worker processes: one is driven by messages, one by requests to step in shared memory."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import cloudpickle

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.memory.pool_signals import RoundSignals
from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import code
from parenv.memory.step_buffer import Request
from parenv.memory.step_signals import told
from parenv.process.script_settings import apply_settings
from parenv.process.spinning import Spinner
from parenv.process.stack_pipe import write_stack_to
from parenv.process.wake_up import Answers, FutexWaiter, WakeUp
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import Commit, Message
from parenv.transport.zeromq import WorkerSocket
from parenv.worker.step_task import StepTask
from parenv.worker.worker import Worker


def serve_messages(arguments: dict[str, Any], *descriptors: int) -> int:
    """Do what messages ask for until the driver sends ``Close``; return the exit code.

    All messages that have arrived are read before the next task begins.

    The first wake-up, if there are any, wakes the main process. The other two alternate in requests to all workers to
    load a version, see :class:`~parenv.pool.synchronization.Synchronization`. Without them, versions come by message
    only.
    """
    with _opened(arguments, *descriptors, in_rounds=True) as (worker, socket, wake_ups):
        while worker.open:
            try:
                busy = worker.work()
                loads = worker.loads if wake_ups else None
                if loads is not None and loads.load():
                    wake_ups[0].notify()
                also = worker.completed if loads is None else wake_ups[1 + loads.turn]
                while worker.open and (frames := socket.receive(block=not busy and also is None)) is not None:
                    worker.receive(from_frames(frames)[1])
                    busy = True
                if also is not None and not busy and worker.open and not (loads is not None and loads.is_asked):
                    socket.wait(also.fileno())
            except BaseException as error:
                worker.fail(error)
    return 0


def serve_steps(arguments: dict[str, Any], *descriptors: int) -> int:
    """Serve requests in shared memory and messages until the driver sends ``Close``; return the exit code.

    Both kinds come with a wake-up, so this loop waits in one place only. It looks for requests and messages after each
    wake-up, and a needless one is harmless. The main process is notified after the data is written: by the last worker
    that finishes its rows of a step, and after each message.

    The first wake-up wakes the main process. On a machine without futexes, the second one wakes this worker.
    """
    with _opened(arguments, *descriptors) as (worker, socket, (answers_wake_up, *own)):
        status, head = worker.status, worker.memory.map()
        cell, said, waiting = status.cell, status.said, code("waiting")
        waiter = own[0] if own else FutexWaiter(head, arguments["worker"])
        take, answers = waiter.take, Answers(head, answers_wake_up)
        incoming = Incoming(worker, told(head, arguments["worker"]), lambda: _receive(worker, socket, waiter, answers))
        _drain(worker)
        _let_spin(worker, waiter)
        # While a driver waits for other workers to step, it must learn at once that a restarted worker is ready.
        answers.notify()
        while worker.open:
            cell[0] = waiting
            take()
            try:
                due = incoming.due()
                before, task = said[0], cast(StepTask, worker.task)
                for number, columns in due:
                    task.serve(number, columns)
                    answers.notify_if_enough(task.step_buffer.rendezvous)
                if said[0] != before:
                    answers.notify()
            except BaseException as error:
                worker.fail(error)
                answers.notify()
    return 0


@contextlib.contextmanager
def _opened(
    arguments: dict[str, Any],
    socket_fd: int,
    memory_fd: int,
    job_fd: int,
    stacks_fd: int,
    *wake_up_fds: int,
    in_rounds: bool = False,
) -> Iterator[tuple[Worker, WorkerSocket, list[WakeUp]]]:
    """Make the worker, its socket and its wake-ups; close worker and socket afterwards.

    With ``in_rounds``, the main process may wait for the first wake-up instead of messages, see
    :class:`~parenv.memory.pool_signals.RoundSignals`.
    """
    # This must come first: without a handler, the signal that asks for a stack kills the process. If native code
    # crashes, stacks go to stderr.
    faulthandler.enable()
    write_stack_to(stacks_fd)
    sender = Sender(arguments["worker"], arguments["generation"])
    socket = WorkerSocket(socket_fd, arguments["driver"])
    job = mmap.mmap(job_fd, os.fstat(job_fd).st_size, access=mmap.ACCESS_READ)
    memory, wake_ups = SharedMemory(fd=memory_fd), [WakeUp(descriptor) for descriptor in wake_up_fds]
    signals = RoundSignals(memory.map()) if in_rounds and wake_ups else None

    def send(message: Message) -> None:
        socket.send(to_frames(sender, message))
        sequence = message.sequence if isinstance(message, Commit) else None
        if signals is not None and signals.must_notify(sender.worker, sequence):
            wake_ups[0].notify()

    settings = [arguments["settings"]] if "settings" in arguments else []

    def load_job() -> Any:
        loaded = cloudpickle.loads(job)
        if settings:
            # Modules that the job has imported may have set levels, and torch may be among them.
            apply_settings(settings.pop())
        return loaded

    worker = Worker(sender, memory, load_job, send, owns_process=True)
    if settings:
        apply_settings(settings[0])
        worker.send_log_records(settings[0]["places"])
    yield worker, socket, wake_ups
    worker.close()
    socket.close()


def _let_spin(worker: Worker, waiter: FutexWaiter | WakeUp) -> None:
    """Let a worker poll before it sleeps, once it knows its share."""
    spinning = worker.prepared.spinning if isinstance(worker.prepared, StepTask) else None
    if spinning is not None and isinstance(waiter, FutexWaiter) and waiter.spinner is None:
        waiter.spinner = Spinner(spinning, waiter.changes, worker.status.spun_ns)


class Incoming:
    """Messages and requests of the main process to a worker of a vector env.

    Args:
        worker: The worker.
        told: Number of messages to this process so far, one item that the main process writes.
        receive: Function that receives the next message, and does what it asks for.
    """

    def __init__(self, worker: Worker, told: Any, receive: Callable[[], object]) -> None:
        self._worker, self._told, self._receive = worker, told, receive
        self._received = 0

    def due(self) -> list[Request]:
        """Receive all messages that were counted so far; return the requests that are to be served now."""
        # The main process counts a message before it writes the number of a request that needs it. So this process
        # reads the numbers first. In the other order, it could see a request without its message.
        due = self._requests()
        while self._worker.open and self._told[0] != self._received:
            self._received += 1
            self._receive()
            due = self._requests()
        return due

    def _requests(self) -> list[Request]:
        task: Any = self._worker.task
        return [] if task is None or self._worker.failed else task.due()


def _receive(worker: Worker, socket: WorkerSocket, waiter: FutexWaiter | WakeUp, answers: Answers) -> None:
    """Receive a message that was counted, and do what it asks for."""
    # A message is counted before it is sent, so this waits for it.
    frames = socket.receive(block=True)
    assert frames is not None
    worker.receive(from_frames(frames)[1])
    _drain(worker)
    _let_spin(worker, waiter)
    answers.notify()


def _drain(worker: Worker) -> None:
    """Do everything that is pending. All exceptions, also ``SystemExit``, become messages."""
    try:
        while worker.work():
            pass
    except BaseException as error:
        worker.fail(error)
