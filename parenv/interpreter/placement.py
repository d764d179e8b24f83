"""Workers in another Python interpreter on this machine, or in containers."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle

from parenv.envs.entry_point import command_of
from parenv.envs.seeding import environment_seed
from parenv.errors import ConfigurationError, NotDataError, ProtocolError
from parenv.memory.kinds import FORMATS, kind_numbers
from parenv.memory.maps import StepBufferMap
from parenv.memory.status_slot import DOING
from parenv.memory.step_signals import offsets
from parenv.placement.base import Event, Launch, Received
from parenv.placement.local import LocalPlacement
from parenv.process.launcher import Launcher, thread_variables
from parenv.process.wake_up import Poller, WakeUps, WorkerWakeUp
from parenv.protocol.data import pack
from parenv.protocol.frames import PROTOCOL_VERSION, Sender, from_frames, number_of
from parenv.protocol.messages import Actions, Call, Close, Failure, Message, Reply, Rows, SideData, StepReady
from parenv.transport.stepper_sockets import SOCKET, StepperSockets
from parenv.worker.job import StepJob

MAX_MESSAGE_BYTES = 1 << 26
STEPPER = Path(__file__).with_name("stepper.py")
_log = logging.getLogger("parenv")


class _Lines:
    """Two sockets whose other ends a stepper has. The kernel signals the stepper when one becomes readable.

    Attributes:
        theirs: Descriptors for the stepper, which this process closes when the stepper has them.
    """

    def __init__(self) -> None:
        self._stack_requests, stack_requests = socket.socketpair()
        self._lifeline, lifeline = socket.socketpair()
        self._theirs = stack_requests, lifeline
        self.theirs = stack_requests.fileno(), lifeline.fileno()

    def request_stack(self) -> None:
        """Have the stepper write its stack."""
        self._stack_requests.send(b"\0")

    def close(self) -> None:
        """Kill the stepper, also in a container, which no signal from here reaches. Idempotent."""
        for line in (self._lifeline, self._stack_requests, *self._theirs):
            if line is self._lifeline and line.fileno() >= 0:
                # Another process, a fork of the user's, may have a copy.
                line.shutdown(socket.SHUT_RDWR)
            line.close()


class InterpreterPlacement(LocalPlacement):
    """Workers of a vector env as processes of another Python interpreter, see ``stepper.py``.

    The fork server starts, watches and kills them as it does with others. Only the way of messages differs.

    Args:
        job: Job of the workers, whose factories are entry points.
    """

    def __init__(self, job: StepJob) -> None:
        self._step_job, self._command = job, command_of(job.options.python)
        self._sockets = StepperSockets(MAX_MESSAGE_BYTES)
        super().__init__(beside=self._sockets)
        self._lines: dict[Sender, _Lines] = {}
        self._refused: list[Event] = []
        self._step_buffer: StepBufferMap | None = None

    def wake_up(self, worker: int, wake_ups: WakeUps) -> WorkerWakeUp:
        """Make the wake-up of the next process of a worker, an eventfd, which any interpreter can read."""
        wake_up = self._worker_wake_ups[worker] = wake_ups.of(worker, eventfd=True)
        return wake_up

    def lay_out_step_buffer(self, step_buffer: StepBufferMap) -> None:
        """Take the layout of the step buffer, before it is sent to any worker."""
        self._step_buffer = step_buffer

    def poller(self, descriptor: int) -> Poller:
        """Return a poller for a descriptor, for processes that have ended, and for new connections and messages."""
        poll: Any = super().poller(descriptor)
        poll.register(self._sockets.fileno())
        return poll  # type: ignore[no-any-return]

    def send(self, to: Sender, message: Message) -> None:
        """Send a message. A message to a dead worker is dropped, because :meth:`wait` reports its end."""
        if to not in self._wake_ups:
            return
        match message:
            case Rows():
                content: list[Any] = ["rows", self._fields(message)]
            case Actions():
                content = ["actions", message.dtypes]
                if message.values:
                    raise ConfigurationError(
                        "actions must have the shapes of their space, because they are sent to another interpreter. "
                        "Convert them before step()."
                    )
            case Call():
                # This process has pickled the arguments itself.
                columns, *arguments = cloudpickle.loads(message.arguments)
                content = ["call", [message.sequence, message.method, [list(columns), *arguments]]]
            case Close():
                content = ["close", None]
            case _:
                raise AssertionError(message)
        try:
            text, buffers = pack(content)
        except NotDataError as error:
            assert isinstance(message, Call)
            self._refuse(to, message, error)
            return
        self._wake_ups[to].notify_of_message()
        self._sockets.send(*to, [text, *buffers])

    def wait(self, timeout_s: float) -> list[Event]:
        """Return all events, and wait up to the limit for the first one."""
        events = super().wait(0.0 if self._refused else timeout_s)
        refused, self._refused = self._refused, []
        return refused + events

    def signal(self, worker: Sender, signum: int, alone: bool) -> None:
        """Send a signal to a worker that is still running, alone or with its process group."""
        if signum == signal.SIGKILL and worker in self._lines:
            self._lines[worker].close()
        super().signal(worker, signum, alone)

    def stack(self, worker: Sender) -> str:
        """Request the Python stack of a worker and wait for it; empty if the worker cannot write one."""
        # A process that has not connected has no handler, and the wait for its stack would be in vain.
        if self._stacks is None or not self._sockets.is_connected(*worker):
            return ""
        self._stacks.clear()
        self._lines[worker].request_stack()
        return self._stacks.read(self.pid(worker))

    def close(self, timeout_s: float) -> list[Event]:
        """End every worker, and kill those that have not ended by the limit in seconds. Idempotent."""
        # These workers send no log records, and nothing else is of interest at the end.
        self.are_missing = None
        try:
            return super().close(timeout_s)
        finally:
            for lines in self._lines.values():
                lines.close()
            self._lines.clear()
            self._wake_ups.clear()
            self._sockets.close()

    def _open_launcher(self, launch: Launch) -> Launcher:
        # A process that becomes another program loses all that this interpreter has imported.
        return super()._open_launcher(replace(launch, preload=()))

    def _received(self) -> list[Event]:
        events: list[Event] = []
        for worker in list(self._lines):
            try:
                while (frames := self._sockets.receive(*worker)) is not None:
                    events.append(Received(worker, self._checked(worker, *from_frames(frames, of_host=True))))
            except ProtocolError as error:
                _log.warning("worker %s sent a message that is not allowed, and is killed: %s", worker.worker, error)
                self._sockets.drop(worker.worker)
                self.signal(worker, signal.SIGKILL, alone=False)
        return events

    def _inheritance(self, worker: Sender, launch: Launch) -> tuple[dict[str, Any], tuple[int, ...]]:
        """Return the command of a new process. It gets its descriptors when it connects."""
        for former in [one for one in self._lines if one.worker == worker.worker]:
            self._lines.pop(former).close()
        lines = self._lines[worker] = _Lines()
        (wake_up,) = self._wake_ups[worker].inherited
        (answers,) = launch.descriptors
        folder = self._sockets.open(
            *worker, (launch.memory_fd, wake_up, answers, self._stack_pipe().descriptor, *lines.theirs)
        )
        shutil.copy(STEPPER, folder)
        text, buffers = pack(["job", self._job_of(worker)])
        self._sockets.send(*worker, [text, *buffers])
        command = [part.replace("{sockets}", str(folder)) for part in self._command]
        command += ["-u", str(folder / STEPPER.name), str(folder / SOCKET)]
        return {"command": command, "environment": dict(self._step_job.options.environment)}, ()

    def _job_of(self, worker: Sender) -> dict[str, Any]:
        job, index = self._step_job, worker.worker
        env_ids, options = job.env_ids(index), job.options
        factories: list[Any] = [job.factories.function(env_id) for env_id in env_ids]
        return {
            "worker": index,
            "generation": worker.generation,
            "version": PROTOCOL_VERSION,
            "kinds": {kind.__name__: number_of(kind) for kind in (StepReady, SideData, Reply, Failure)},
            "env_ids": [env_ids.start, env_ids.stop],
            "factories": [[one.name, dict(one.arguments)] for one in factories],
            "seeds": [environment_seed(job.seed, env_id, worker.generation) for env_id in env_ids]
            if worker.generation
            else None,
            "mode": job.autoreset_mode.name,
            "strict_dtype": options.strict_dtype,
            "check_finite": options.check_finite,
            "environment": {**thread_variables(options.threads), **options.environment},
            "paths": _paths(),
            "max_memory_bytes": options.max_memory_bytes,
            "doing": list(DOING),
            "offsets": offsets(index),
            "formats": FORMATS,
            "numbers": list(kind_numbers(index, len(job.shares))),
        }

    def _fields(self, rows: Rows) -> dict[str, Any]:
        """Return the arrays of the step buffer with their offsets in the shared memory."""
        assert self._step_buffer is not None
        spec, begin = self._step_buffer.spec, self._step_buffer.offset
        fields = [[*field.name, begin + field.offset, list(field.shape), field.dtype] for field in spec.fields()[0]]
        return {"fields": fields, "observations": rows.observations, "actions": rows.actions}

    def _checked(self, worker: Sender, sender: Sender, message: Any) -> Any:
        """Check the sender of a message.

        Raises:
            ProtocolError: It is another worker.
        """
        if sender != worker:
            raise ProtocolError(f"its sender is given as worker {sender.worker}")
        return message

    def _refuse(self, to: Sender, call: Call, error: NotDataError) -> None:
        """Answer a call whose arguments cannot be sent."""
        text = (
            f"the arguments of {call.method} must be plain data, because they are sent to another interpreter: {error}"
        )
        kind = [type(error).__module__, type(error).__qualname__]
        failure = Failure(call.sequence, 0, -1, "call", kind, text, "")
        self._refused.append(Received(to, failure))
        self._sockets.wake()


def _paths() -> list[str]:
    """Return where the other interpreter looks for modules first: here, and where the script is."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    paths = [os.getcwd()] + ([] if script is None else [str(Path(script).resolve().parent)])
    return list(dict.fromkeys(paths))
