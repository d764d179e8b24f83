"""The main function of every worker process, whatever its task, and wherever it runs."""

from __future__ import annotations

import faulthandler
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import code
from parenv.process.spinning import Spinner
from parenv.process.stack_pipe import STACK_SIGNAL
from parenv.process.wake_up import WakeUp, counts_of
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.transport.zeromq import WorkerSocket
from parenv.worker.worker import Worker

WORKER_ENTRY = "parenv.worker.process:main"


def main(arguments: dict[str, Any], socket_fd: int, memory_fd: int, job_fd: int, stacks_fd: int, *wake_ups: int) -> int:
    """Serve the driver until it says ``Close``; the exit code.

    Args:
        arguments: which worker this is, and the process id of its driver.
        socket_fd: the listening socket that the driver has made for it.
        memory_fd: the shared memory.
        job_fd: the pickled job.
        stacks_fd: where to write stacks.
        *wake_ups: Descriptors of wake-ups. For a step task: of the main process and of this worker. For a pool:
            of the main process, and the two that alternate in asking all workers to load a version.
    """
    # First of all, because without a handler the signal that asks for a stack kills. When native code crashes, stacks
    # go to stderr.
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL, file=stacks_fd)
    sender = Sender(arguments["worker"], arguments["generation"])
    socket = WorkerSocket(socket_fd, arguments["driver"])
    job = mmap.mmap(job_fd, os.fstat(job_fd).st_size, access=mmap.ACCESS_READ)
    worker = Worker(
        sender,
        SharedMemory(fd=memory_fd),
        lambda: cloudpickle.loads(job),
        lambda message: socket.send(to_frames(sender, message)),
        owns_process=True,
    )
    rung_by, *mine = (WakeUp(wake_up) for wake_up in wake_ups) if wake_ups else (None,)
    if len(mine) == 1:
        assert rung_by is not None
        _serve_requests(worker, socket, rung_by, mine[0])
    else:
        _serve_messages(worker, socket, rung_by, mine)
    worker.close()
    socket.close()
    return 0


def _serve_messages(worker: Worker, socket: WorkerSocket, answers: WakeUp | None, wake_ups: Sequence[WakeUp]) -> None:
    """Do what messages ask for; all that are there are taken before the next thing is done.

    With wake-ups, the main process requests versions by them too, see
    :class:`~parenv.pool.synchronization.Synchronization`.
    """
    while worker.open:
        try:
            busy = worker.work()
            loads = worker.loads if wake_ups else None
            if loads is not None and loads.load():
                assert answers is not None
                answers.notify(1)
            while worker.open and (frames := socket.receive(block=not busy and loads is None)) is not None:
                worker.receive(from_frames(frames)[1])
                busy = True
            if loads is not None and not busy and worker.open and not loads.is_asked:
                socket.wait(wake_ups[loads.turn].fileno())
        except BaseException as error:
            worker.fail(error)


def _serve_requests(worker: Worker, socket: WorkerSocket, answers: WakeUp, wake_up: WakeUp) -> None:
    """Serve requests in shared memory and messages. Both come with a wake-up, so this loop waits in one place only.

    The main process is notified after the data is written. An eventfd goes through the kernel, so the process that it
    wakes sees everything that was written to shared memory or to the socket before.
    """
    progress = worker.progress
    cell, waiting = progress.cell, code("waiting")
    _work_off(worker)
    take = _awake_first(worker, wake_up)
    # A driver that waits for others to step is to hear at once that this one is ready in the place of another.
    answers.notify(1)
    while worker.open:
        cell[0] = waiting
        echoes, messages, all_rows, orders = counts_of(take())
        try:
            if echoes:
                progress.heartbeat[0] += 1
                answers.notify(1)
            _hear(worker, socket, answers, messages)
            if worker.failed:
                continue
            while orders:
                orders -= worker.task.serve(orders)
                answers.notify(1)
            if all_rows:
                worker.task.step_all()
                answers.notify(1)
        except BaseException as error:
            worker.fail(error)
            answers.notify(1)


def _hear(worker: Worker, socket: WorkerSocket, answers: WakeUp, messages: int) -> None:
    for _ in range(messages):
        # A driver that a signal handler cut short may have rung for a message that it does not send before it closes.
        if not worker.open:
            return
        # A wake-up may overtake the message that it is rung for.
        frames = socket.receive(block=True)
        assert frames is not None
        worker.receive(from_frames(frames)[1])
        _work_off(worker)
        answers.notify(1)


def _awake_first(worker: Worker, wake_up: WakeUp) -> Callable[[], int]:
    """What takes from the wake-up, and looks for a while before it sleeps where the job says so."""
    spinning = None if worker.task is None else worker.task.spinning
    if spinning is None:
        return wake_up.take
    spinner = Spinner(spinning, wake_up.fileno(), worker.progress.spun_ns)

    def take() -> int:
        heard = spinner.heard()
        value = wake_up.take()
        if not heard:
            spinner.woke()
        return value

    return take


def _work_off(worker: Worker) -> None:
    """Do all that there is to do; whatever is raised, ``SystemExit`` included, becomes a message."""
    try:
        while worker.work():
            pass
    except BaseException as error:
        worker.fail(error)
