"""The main function of a worker process."""

from __future__ import annotations

import faulthandler
import mmap
import os
import traceback
from typing import Any

import cloudpickle

from parenv.errors import ProtocolError, without_own_frames
from parenv.memory.shared import SharedMemory
from parenv.process.stack_pipe import STACK_SIGNAL
from parenv.protocol.data import is_data
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import Failure
from parenv.transport.zeromq import WorkerSocket
from parenv.worker.worker import Worker

MAX_ATTRIBUTE_BYTES = 1 << 16


def main(arguments: dict[str, Any], socket_fd: int, memory_fd: int, job_fd: int, stacks_fd: int) -> int:
    """Serve the driver until it says ``Close``; the exit code."""
    show_stacks(stacks_fd)
    sender = Sender(arguments["worker"], arguments["generation"])
    socket = WorkerSocket(address_of(socket_fd), *sender)
    job = mmap.mmap(job_fd, os.fstat(job_fd).st_size, access=mmap.ACCESS_READ)
    memory = SharedMemory(fd=memory_fd)
    worker = Worker(
        sender,
        memory,
        lambda: cloudpickle.loads(job),
        lambda message: socket.send(to_frames(sender, message)),
        owns_process=True,
    )
    while worker.open:
        busy = _guarded(worker)
        while worker.open and (frames := socket.receive(block=not busy)) is not None:
            try:
                worker.receive(from_frames(frames)[1])
            except ProtocolError as error:
                _give_up(worker, error, -1)
            busy = True
    worker.close()
    socket.close()
    return 0


def address_of(socket_fd: int) -> str:
    """Where to find the driver, given a descriptor that refers to its socket."""
    return f"ipc:///proc/self/fd/{socket_fd}"


def show_stacks(descriptor: int) -> None:
    """Write stacks here when :data:`STACK_SIGNAL` comes, and to stderr when native code crashes."""
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL, file=descriptor)


def _guarded(worker: Worker) -> bool:
    """Let it work; whatever is raised, ``SystemExit`` included, becomes a message before anything else happens."""
    try:
        return worker.work()
    except BaseException as error:
        _give_up(worker, error, worker.answering)
        return True


def _give_up(worker: Worker, error: BaseException, call: int) -> None:
    """Say what went wrong; unless it was a call, do nothing more."""
    worker.say(failure_of(error, worker.progress.doing, worker.progress.env_id, call))
    if call < 0:
        worker.give_up()


def _traceback_of(error: BaseException) -> str:
    """As text; from where the user's own code begins, if that is part of it."""
    within: BaseException | None = error
    while within is not None:
        within.__traceback__ = without_own_frames(within.__traceback__) or within.__traceback__
        within = within.__cause__ or within.__context__
    return "".join(traceback.format_exception(error))


def failure_of(error: BaseException, doing: str, env_id: int, call: int = -1, more: int = 0) -> Failure:
    """An exception as a message; of its attributes, those that are plain data, and not much of it."""
    kind, text = type(error), str(error)
    if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
        text = error.args[0]  # Which it shows in quotes, and would do so again.
    return Failure(
        call=call,
        more=more,
        env_id=env_id,
        doing=doing,
        kind=[kind.__module__, kind.__qualname__],
        message=text,
        traceback=_traceback_of(error),
        attributes={name: value for name, value in vars(error).items() if is_data(value, MAX_ATTRIBUTE_BYTES)},
    )
