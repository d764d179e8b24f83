"""The driver's side of the fork server: one per set of imports and settings, shared by all pools of this process."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from parenv.process.lines import Lines

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
MAX_IDLE_FORK_SERVERS = 2
"""Number of fork servers that stay without a session, such as one for pools and one for an evaluating vector env."""


@dataclass(frozen=True)
class ForkServerSpec:
    """What must be settled before the first import, and so cannot be shared between different pools.

    Args:
        preload: modules imported before workers are forked.
        environment: environment variables beside the driver's.
        threads: threads per worker.
        spawn: whether workers become fresh interpreters, which import everything for themselves; nothing is imported
            before.
    """

    preload: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    threads: int
    spawn: bool = False


class Exited(NamedTuple):
    """A process ended: its handle, its pid (-1: never started), and its exit code or the signal that ended it.

    ``refused`` is the traceback that kept the fork server from starting it at all.
    """

    handle: int
    pid: int
    exit_code: int | None
    signal: int | None
    refused: str = ""


class Launcher:
    """The processes of one pool, started through a fork server.

    Args:
        spec: which fork server.

    Attributes:
        running: handles of the processes that were launched and have not been seen to end.
        lost: whether the fork server has died; another launcher will have another one.
    """

    def __init__(self, spec: ForkServerSpec) -> None:
        self._spec = spec
        with _line() as (self._lines, theirs):
            self._fork_server = _open_session(spec, theirs)
        self._shared: dict[str, Any] = {}
        self._pids: dict[int, int] = {}
        self.running: set[int] = set()
        self.lost = False

    def fileno(self) -> int:
        """Becomes readable when there is something for :meth:`events`."""
        return self._lines.socket.fileno()

    def pid(self, handle: int) -> int:
        """Process id, or -1 while it is not known. It is known of every process that has done anything."""
        if handle not in self._pids:
            self._pids.update(line["started"] for line in self._lines.peek() if "started" in line)
        return self._pids.get(handle, -1)

    def launch(self, handle: int, entry: str, arguments: dict[str, Any], descriptors: tuple[int, ...]) -> None:
        """Start a process that calls ``entry`` (``module:function``) with the arguments and its own descriptors.

        Returns at once. The descriptors must stay open until the process is known to have started or ended. If the
        fork server is gone, :meth:`events` reports the end of this process as well.
        """
        shared = {
            "entry": entry,
            "environment": _environment(self._spec),
            "sys_path": _sys_path(),
            "argv": list(map(str, sys.argv)),
            "directory": _directory(),
            "spawn": self._spec.spawn,
        }
        if shared != self._shared:
            self._send({"shared": shared})
            self._shared = shared
        self.running.add(handle)
        self._send({"fork": [handle, arguments, len(descriptors)]}, descriptors)

    def signal(self, handle: int, signum: int, alone: bool = False) -> None:
        """Send a signal to a process, alone or with all that it has started."""
        # A fork server that somebody has stopped would pass nothing on.
        self._fork_server.go_on()
        self._send({"signal": [handle, int(signum), alone]})

    def events(self) -> list[Exited]:
        """The processes that have ended since the last call. Never waits."""
        self.flush()
        lines = self._lines.receive()
        if lines is None:
            return self._all_gone()
        return [exited for line in lines if (exited := self._apply(line))]

    def flush(self) -> None:
        """Send on what the fork server has not taken yet. To be called before waiting for :meth:`fileno`."""
        if self._lines.is_pending:
            with contextlib.suppress(OSError):
                self._lines.flush()

    def close(self) -> None:
        """End the session: what still runs is killed. Idempotent."""
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
        """The fork server has died, and with it the workers; what they had started is killed here."""
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
    """A fork server.

    Attributes:
        sessions: how many are open.
        end: ends it, and everything that it has started.
    """

    def __init__(self, spec: ForkServerSpec) -> None:
        self.spec, self.owner, self.sessions = spec, os.getpid(), 0
        preload = [] if spec.spawn else list(spec.preload)
        with _line() as (self._lines, theirs):
            command = (
                f"import gc, sys; gc.disable(); sys.path[:] = {_sys_path()!r}; "
                f"from parenv.process.fork_server import main; main({theirs.fileno()}, {preload!r})"
            )
            self._process = subprocess.Popen(
                [sys.executable, *(f"-W{option}" for option in sys.warnoptions), "-c", command],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=_environment(spec),
                start_new_session=True,
            )
        self.end = weakref.finalize(self, _end_fork_server, self.owner, self._lines, self._process)
        # Registered behind that of weakref, and so called before it.
        atexit.register(_refuse_sessions)

    @property
    def alive(self) -> bool:
        return self.owner == os.getpid() and self._process.poll() is None

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def bury(self) -> None:
        """Wait until it is gone: its sockets close a moment before it is seen to end."""
        self._process.kill()
        self._process.wait()

    def open_session(self, theirs: socket.socket) -> None:
        self._lines.send({"session": True}, (theirs.fileno(),))
        self.sessions += 1


@contextlib.contextmanager
def _line() -> Iterator[tuple[Lines, socket.socket]]:
    """Our end of a line, which is closed where the block fails, and their end, which is closed behind it."""
    ours, theirs = socket.socketpair()
    lines = Lines(ours)
    _driver_only.add(ours)
    try:
        with theirs:
            yield lines, theirs
    except BaseException:
        lines.close()
        raise


def _end_fork_server(owner: int, lines: Lines, process: subprocess.Popen[bytes]) -> None:
    """At interpreter exit, after every pool: the fork server ends at the end of file, and with it what it started."""
    if owner != os.getpid():
        return
    lines.close()
    try:
        process.wait(timeout=2.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _refuse_sessions() -> None:
    """At interpreter exit, before the fork servers end: a thread that still runs finds none of them half ended."""
    global _is_ending
    with _fork_servers_lock:
        _is_ending = True


_is_ending = False
_fork_servers: dict[ForkServerSpec, _ForkServerProcess] = {}
"""In the order in which they were used."""
# One thread may take it twice: the garbage collector or a signal handler may close a session at any time.
_fork_servers_lock = threading.RLock()
_driver_only: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""Closed in children that the user forks, which must not keep the fork server's end of file from coming."""


def _open_session(spec: ForkServerSpec, theirs: socket.socket) -> _ForkServerProcess:
    """Hand one end of a session to the fork server of this spec, or to a new one if there is none or it has died."""
    with _fork_servers_lock:
        if _is_ending:
            raise RuntimeError("no worker can be started any more: the interpreter is ending. Join the thread first")
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
    # A thread that is not in the child may have held the other.
    _fork_servers_lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _environment(spec: ForkServerSpec) -> dict[str, str]:
    return {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(spec.threads)), **dict(spec.environment)}


def _sys_path() -> list[str]:
    """Without what importing here skips as well: entries that are not text."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def _directory() -> str:
    """Return the working directory, or nothing if it has been removed; workers then stay in the fork server's."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
