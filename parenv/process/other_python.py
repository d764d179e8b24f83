"""Another Python interpreter as a child of this process, in which ``served_envs.py`` runs."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from mmap import mmap
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.errors import ConfigurationError
from parenv.platform import system
from parenv.process import served_envs
from parenv.process.fork_server import WORKER_VARIABLE
from parenv.process.served_envs import Channel
from parenv.process.stack_pipe import PIPE_BYTES, stack_descriptor, with_stack_of

LOOK_S = 0.1
"""Seconds between two looks at an interpreter that does not answer."""
END_S = 5.0
"""Seconds that an interpreter has to end."""
MIN_VERSION = (3, 6)
_BOOT = """import os, sys
target, size, text = int(sys.argv[1]), int(sys.argv[4]), None
os.write(target, ("parenv %d.%d.%d %d\\n" % (tuple(sys.version_info[:3]) + (os.getpid(),))).encode("ascii"))
while text is None or 0 < len(text) < size:
    more = os.read(0, size - len(text or b""))
    text = (text or b"") + more if more else b""
names = {"__name__": "parenv_served_envs"}
if text:
    exec(compile(text, "<string>", "exec"), names)
    names["main"](*sys.argv[1:4])
"""
"""Python 2 can read it too. The main process sends the text of ``served_envs.py`` if the version is new enough."""
_OF_THIS_INTERPRETER = {"PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "VIRTUAL_ENV"}


class OtherPython(Channel):
    """An interpreter, and the channel to it. It ends with this process.

    Args:
        command: Path of the interpreter, or a program with its arguments, such as the one of a container.
        environment: Environment variables that the user has set. Variables of this interpreter, which would lead
            another one to the wrong packages, are left out unless they are among these.

    Attributes:
        at: Environment of the present batch that is at work, see :class:`~parenv.process.served_envs.Server`.
        look: Function that is called each :data:`LOOK_S` while an answer is awaited.

    Raises:
        ConfigurationError: The program cannot be started, or is not a new enough Python.
    """

    def __init__(self, command: str | Sequence[str], environment: Mapping[str, str]) -> None:
        is_path, folder = isinstance(command, str), str(Path(served_envs.__file__).parent)
        # Commands may name a folder for a container, which nothing needs any more.
        words = [command] if isinstance(command, str) else command
        self._words = [word.replace("{sockets}", folder) for word in words]
        self.look: Callable[[], object] = lambda: None
        cell = system.make_memory()
        os.truncate(cell, 8)
        self.at = memoryview(mmap(cell, 8)).cast("q")
        self.at[0] = -1
        # A message over pipes takes half as long as over sockets.
        (theirs, ours), (source, target) = _pipe(), _pipe()
        super().__init__(source, ours)
        self._poll = select.poll()
        self._poll.register(source, select.POLLIN)
        shared = (cell, stack_descriptor() if stack_descriptor() >= 0 else cell)
        text = Path(served_envs.__file__).read_bytes()
        places = [f"{one}:{os.fstat(one).st_ino}" for one in shared]
        # A container has only the standard streams. Otherwise, environments may print.
        more = ["-u", "-c", _BOOT, str(target if is_path else 1), *places, str(len(text))]
        inherited = {name: value for name, value in os.environ.items() if name not in _OF_THIS_INTERPRETER}
        try:
            self._process = subprocess.Popen(
                [*self._words, *more],
                stdin=theirs,
                stdout=None if is_path else target,
                pass_fds={*shared, *([target] if is_path else [])},
                env={**inherited, **environment},
            )
        except OSError as error:
            _close(source, ours)
            raise self._refusal(f"cannot be started: {error}") from None
        finally:
            _close(theirs, target, cell)
        _pipes.update((source, ours))
        self.end = weakref.finalize(self, _end, os.getpid(), source, ours, self._process)
        try:
            self._greet(text)
        except BaseException:
            self._process.kill()
            self.end()
            raise

    def result(self) -> int:
        """Return how the program has ended, as ``Popen.returncode`` does."""
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def end_alike(self) -> str:
        """End this process as the program has ended, if it is a worker process; otherwise, return its exit in words.

        So the death of an interpreter has the same exit code, signal and restart as the death of a worker.
        """
        code = self.result()
        if os.environ.get(WORKER_VARIABLE) != str(os.getpid()):
            return f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        sys.stdout.flush()
        sys.stderr.flush()
        if code < 0:
            faulthandler.disable()
            if -code not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
            time.sleep(END_S)
        os._exit(code if code >= 0 else 1)

    def _greet(self, text: bytes) -> None:
        """Check the version, and send the program."""
        line = b""
        try:
            while not (line.startswith(b"parenv ") and line.endswith(b"\n")):
                # A container may print something else before.
                line, byte = b"" if line.endswith(b"\n") else line, bytearray(1)
                self._read(memoryview(byte))
                line += byte
            _, version, pid = line.decode().split()
            is_old = tuple(map(int, version.split("."))) < MIN_VERSION
        except (EOFError, ConnectionError, ValueError):
            how = ""
            with contextlib.suppress(subprocess.TimeoutExpired):
                how = f" It ended with code {self._process.wait(1.0)}."
            raise self._refusal(f"must be a Python interpreter, but it did not answer as one.{how}") from None
        if is_old:
            raise self._refusal(f"must be Python 3.6 or later, got Python {version}")
        self._is_direct = int(pid) == self._process.pid
        while text:
            text = text[os.write(self._target, text) :]

    def _refusal(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"WorkerOptions.python={' '.join(self._words)!r} {why.rstrip('.')}. Correct it.")

    def _read(self, view: Any) -> int:
        if self._poll.poll(LOOK_S * 1000):
            return super()._read(view)
        # A stack that is requested now must be the one of the environment.
        with with_stack_of(self._process.pid if getattr(self, "_is_direct", False) else None):
            while not self._poll.poll(LOOK_S * 1000):
                self.look()
                # If the environment has started processes, they may hold the other end.
                if self._process.poll() is not None and not self._poll.poll(0):
                    raise EOFError
        return super()._read(view)


_pipes: set[int] = set()
"""Our ends of all pipes. A fork of this process must not hold back the end of file."""


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    # Images need more than the default of 64 KiB.
    system.enlarge_pipe(ends[1], PIPE_BYTES)
    return ends


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        _pipes.discard(descriptor)
        os.close(descriptor)


def _end(owner: int, source: int, target: int, process: subprocess.Popen[bytes]) -> None:
    """End a program by the end of its input. A fork of this process must leave it alone."""
    if owner != os.getpid():
        return
    _close(source, target)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


system.after_fork_in_child(lambda: _close(*_pipes))
