"""Fork servers of this process: one per set of imports and settings, shared by all pools."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import current_process
from typing import Any, NamedTuple

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.platform import system
from parenv.platform.base import Handle
from parenv.process.cores import thread_variables
from parenv.process.fork_server import WORKER_VARIABLE
from parenv.process.lines import Lines
from parenv.process.script_names import place_of_script

MAX_IDLE_FORK_SERVERS = 2
"""Number of fork servers that stay without a session, such as one for pools and one for an evaluating vector env."""


@dataclass(frozen=True)
class ForkServerSpec:
    """Settings that take effect before the first import. Pools share a fork server only if they are equal.

    Args:
        preload: Modules to import before workers are forked.
        environment: Environment variables, in addition to the main process's own.
        threads: Number of threads per worker.
        spawn: Whether workers become fresh interpreters. The fork server then imports nothing.
    """

    preload: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    threads: int
    spawn: bool = False


class Exited(NamedTuple):
    """The end of a process.

    Args:
        handle: Handle of the process.
        pid: Process id, or -1 if the process was never started.
        exit_code: Exit code, or ``None`` if a signal ended the process.
        signal: That signal, or ``None``.
        refused: Traceback of the error that prevented the start. Default: empty.
    """

    handle: int
    pid: int
    exit_code: int | None
    signal: int | None
    refused: str = ""


class Launcher:
    """The processes of one pool, started through a fork server.

    Args:
        spec: Settings of the fork server.

    Attributes:
        folder: Folder for the addresses of the processes; empty if addresses are not in a folder. The fork server
            removes it after the end of this process.
        running: Handles of the processes that were launched and whose end has not been reported.
        lost: Whether the fork server has died. A new launcher starts a new fork server.
    """

    def __init__(self, spec: ForkServerSpec) -> None:
        self._spec = spec
        with _line() as (self._lines, theirs):
            self._fork_server = _open_session(spec, theirs)
        self.folder = self._fork_server.folder
        self._shared: dict[str, Any] = {}
        self._pids: dict[int, int] = {}
        self.running: set[int] = set()
        self.lost = False

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`events` has something to return."""
        return self._lines.socket.fileno()

    def pid(self, handle: int) -> int:
        """Return the process id, or -1 until the fork server has reported it, before the process does anything."""
        if handle not in self._pids:
            # The lines are only peeked at, because events() must still see the ends of processes among them.
            self._pids.update(line["started"] for line in self._lines.peek() if "started" in line)
        return self._pids.get(handle, -1)

    def launch(self, handle: int, entry: str, arguments: dict[str, Any], descriptors: tuple[Handle, ...]) -> None:
        """Start a process that calls ``entry`` (``module:function``) with the arguments and its own descriptors.

        Returns at once. The descriptors must stay open until the process is known to have started or ended. If the
        fork server is gone, :meth:`events` reports the end of this process as well.
        """
        shared = {
            "entry": entry,
            "environment": _environment(self._spec),
            "sys_path": _sys_path(),
            "argv": list(map(str, sys.argv)),
            "main": place_of_script(),
            "directory": _directory(),
            "authkey": bytes(current_process().authkey).hex(),
            "spawn": self._spec.spawn,
        }
        if shared != self._shared:
            self._send({"shared": shared})
            self._shared = shared
        self.running.add(handle)
        self._send({"fork": [handle, arguments, len(descriptors)]}, descriptors)

    def signal(self, handle: int, signum: int, alone: bool = False) -> None:
        """Send a signal to a process, alone or with its process group."""
        # A fork server that was stopped by SIGSTOP would not pass the signal on.
        self._fork_server.go_on()
        self._send({"signal": [handle, int(signum), alone]})

    def events(self) -> list[Exited]:
        """Return the processes that have ended since the last call, without waiting."""
        self.flush()
        lines = self._lines.receive()
        if lines is None:
            return self._all_gone()
        return [exited for line in lines if (exited := self._apply(line))]

    def flush(self) -> None:
        """Send the lines that the socket had no room for. Call this before each wait for :meth:`fileno`."""
        if self._lines.is_pending:
            with contextlib.suppress(OSError):
                self._lines.flush()

    def close(self) -> None:
        """End the session, which kills the processes that still run. Idempotent."""
        if self.fileno() >= 0:
            self._lines.close()
            _close_session(self._fork_server)

    def _send(self, line: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        # If the fork server is gone, events() will report that.
        with contextlib.suppress(OSError):
            self._lines.send(line, descriptors)

    def _apply(self, line: dict[str, Any]) -> Exited | None:
        if "started" in line:
            handle, pid = line["started"]
            self._pids[handle] = pid
            return None
        handle, *how = line.get("exited") or line["refused"]
        self.running.discard(handle)
        if "refused" in line:
            return Exited(handle, -1, None, None, how[0])
        return Exited(handle, self.pid(handle), *how)

    def _all_gone(self) -> list[Exited]:
        """Report all workers as ended, because they die with their fork server. Kill their process groups."""
        self.lost = True
        self._fork_server.bury()
        for handle in self.running:
            if (pid := self.pid(handle)) > 0:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
        gone = [Exited(handle, self.pid(handle), None, None) for handle in sorted(self.running)]
        self.running.clear()
        return gone


class _ForkServerProcess:
    """A fork server process.

    Attributes:
        sessions: Number of open sessions.
        folder: Folder for the addresses of workers, see :attr:`Launcher.folder`.
        end: Function that ends the fork server and all its workers.
    """

    def __init__(self, spec: ForkServerSpec) -> None:
        self.spec, self.owner, self.sessions = spec, os.getpid(), 0
        self.folder = system.address_folder()
        preload = [] if spec.spawn else list(spec.preload)
        with contextlib.ExitStack() as stack:
            self._lines, theirs = stack.enter_context(_line())
            self._ends, passed = [self._lines], [theirs.fileno()]
            if system.HAS_GUARD:
                ours, watched = stack.enter_context(_line())
                self._ends, passed = [*self._ends, ours], [*passed, watched.fileno()]
            command = (
                f"import gc, sys; gc.disable(); sys.path[:] = {_sys_path()!r}; from parenv.process.fork_server import "
                f"main; main({passed[0]}, {preload!r}, {passed[-1]}, {self.folder!r})"
            )
            self._process = subprocess.Popen(
                [sys.executable, *(f"-W{option}" for option in sys.warnoptions), "-c", command],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                env=_environment(spec),
                start_new_session=True,
            )
        self.end = weakref.finalize(self, _end_fork_server, self.owner, self._ends, self._process, self.folder)
        # This is registered after the exit handler of weakref, so it is called before it.
        atexit.register(_refuse_sessions)
        # The process is there first, so it removes the folder even if this process is killed now.
        system.make_address_folder(self.folder)

    @property
    def alive(self) -> bool:
        return self.owner == os.getpid() and self._process.poll() is None

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def bury(self) -> None:
        """Kill the process and wait for it. Its sockets close a moment before its end can be seen."""
        self._process.kill()
        self._process.wait()

    def open_session(self, theirs: socket.socket) -> None:
        self._lines.send({"session": True}, (theirs.fileno(),))
        self.sessions += 1


@contextlib.contextmanager
def _line() -> Iterator[tuple[Lines, socket.socket]]:
    """Make a socket pair. Our end is closed if the block fails, and their end after the block."""
    ours, theirs = socket.socketpair()
    lines = Lines(ours)
    _driver_only.add(ours)
    try:
        with theirs:
            yield lines, theirs
    except BaseException:
        lines.close()
        raise


def _end_fork_server(owner: int, ends: list[Lines], process: subprocess.Popen[bytes], folder: str) -> None:
    """End a fork server, by the end of file on its root socket. At exit this runs after every pool has closed."""
    if owner != os.getpid():
        return
    for end in ends:
        end.close()
    try:
        process.wait(timeout=2.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _refuse_sessions() -> None:
    """Refuse new sessions at exit, because another thread could otherwise use a fork server that is ending."""
    global _is_ending
    with _fork_servers_lock:
        _is_ending = True


_is_ending = False
_fork_servers: dict[ForkServerSpec, _ForkServerProcess] = {}
"""Ordered by last use."""
# The lock is reentrant, because the garbage collector or a signal handler may close a session at any line.
_fork_servers_lock = threading.RLock()
_driver_only: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""Sockets that are closed in children of ``os.fork``, because a copy would hold back the end of file."""


def _open_session(spec: ForkServerSpec, theirs: socket.socket) -> _ForkServerProcess:
    """Open a session at the fork server of this spec. Start a new one if there is none or it has died."""
    if WORKER_VARIABLE in os.environ and getattr(current_process(), "_inheriting", False):
        raise RuntimeError(
            "a worker cannot be started while a process that an environment has spawned imports the script. Put the "
            'code that starts workers below `if __name__ == "__main__":`.'
        )
    with _fork_servers_lock:
        if _is_ending:
            raise RuntimeError(
                "no worker can be started while the interpreter is ending. Join the thread before the main thread ends."
            )
        fork_server = _fork_servers.get(spec)
        if fork_server is not None and fork_server.alive:
            with contextlib.suppress(OSError):
                fork_server.open_session(theirs)
                return fork_server
        fork_server = _fork_servers[spec] = _ForkServerProcess(spec)
        fork_server.open_session(theirs)
        return fork_server


def _close_session(fork_server: _ForkServerProcess) -> None:
    """End the fork servers that have no session left, except the ones that were used last."""
    with _fork_servers_lock:
        fork_server.sessions -= 1
        if _fork_servers.get(fork_server.spec) is fork_server:
            _fork_servers[fork_server.spec] = _fork_servers.pop(fork_server.spec)
        idle = [spec for spec, other in _fork_servers.items() if not other.sessions]
        for spec in idle[:-MAX_IDLE_FORK_SERVERS]:
            _fork_servers.pop(spec).end()


def _after_fork_in_child() -> None:
    global _fork_servers_lock
    for sock in list(_driver_only):
        sock.close()
    _fork_servers.clear()
    # A thread that does not exist in the child may have held the old lock.
    _fork_servers_lock = threading.RLock()


system.after_fork_in_child(_after_fork_in_child)


def _environment(spec: ForkServerSpec) -> dict[str, str]:
    return {**os.environ, **thread_variables(spec.threads), **dict(spec.environment)}


def _sys_path() -> list[str]:
    """Return ``sys.path`` without entries that are not strings, which imports ignore too."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def _directory() -> str:
    """Return the working directory, or nothing if it has been removed; workers then stay in the fork server's."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
