"""The zygote: one small process per driver that forks the workers.

It is started as a fresh interpreter, so the user's main module is never imported again and needs no guard;
it imports what workers need once and stays single-threaded, so that forking it is safe. It ends, and everything
it started with it, as soon as its driver is gone.

The driver speaks to it over stream sockets in lines of JSON. The root socket carries one command, ``session``,
which hands over one more socket per pool. On a session:

    driver: {"fork": {...launch...}}, with descriptors      {"signal": [handle, signal, alone]}
    zygote: {"started": [handle, pid]}   {"exited": [handle, exit code | null, signal | null]}   {"refused": [handle,
        why]}

End of file on a session kills its workers; on the root socket, everything.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

MAX_DESCRIPTORS = 8
_PR_SET_PDEATHSIG = 1


class Lines:
    """Lines of JSON, and descriptors that come with them, over a non-blocking or blocking stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._buffer = b""
        self._descriptors: list[int] = []

    def send(self, line: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Send one line; descriptors travel with its first byte."""
        data = json.dumps(line).encode() + b"\n"
        sent = socket.send_fds(self.socket, [data], descriptors) if descriptors else 0
        self.socket.sendall(data[sent:])

    def receive(self) -> list[dict[str, Any]] | None:
        """The lines that are there now, or ``None`` at the end of file."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, MAX_DESCRIPTORS)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        self._descriptors += descriptors
        if not data:
            return None
        *complete, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in complete]

    def take_descriptors(self, count: int) -> list[int]:
        """The next descriptors that came, which the caller owns from now on."""
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return taken


class Session:
    """The workers of one pool."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.children: dict[int, int] = {}

    def report(self, **event: Any) -> None:
        """Tell the driver, unless it has gone."""
        with contextlib.suppress(OSError):
            self.lines.send(event)

    def signal(self, handle: int, signum: int, alone: bool) -> None:
        """Signal a worker, alone or with all that it has started. One that is gone already is let be."""
        for pid, child in self.children.items():
            if child == handle:
                os.kill(pid, signum) if alone else _signal_group(pid, signum)

    def kill_all(self) -> None:
        """Kill every worker and all that they have started."""
        for pid in self.children:
            _signal_group(pid, signal.SIGKILL)


class Zygote:
    """The loop of the zygote process.

    Args:
        root: the socket whose other end only the driver has.
        directory: removed when the driver is gone.
        preload: modules to import before the first fork.
    """

    def __init__(self, root: socket.socket, directory: str, preload: list[str]) -> None:
        self._root = Lines(root)
        self._directory = directory
        self._sessions: list[Session] = []
        self._wakeup, wakeup_write = socket.socketpair()
        for end in (self._wakeup, wakeup_write):
            end.setblocking(False)
        self._wakeup_write = wakeup_write
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_write.fileno(), warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        self._watch(self._wakeup, self._reap)
        self._watch(root, self._accept)
        self._broken = _import_all(preload)

    def run(self) -> NoReturn:
        """Serve until the driver is gone."""
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _watch(self, sock: socket.socket, act: Callable[[], None]) -> None:
        self._selector.register(sock, selectors.EVENT_READ, act)

    def _accept(self) -> None:
        lines = self._root.receive()
        if lines is None:
            self._end()
        for _ in lines:
            (descriptor,) = self._root.take_descriptors(1)
            session = Session(Lines(socket.socket(fileno=descriptor)))
            self._sessions.append(session)
            self._watch(session.lines.socket, lambda session=session: self._serve(session))  # type: ignore[misc]

    def _serve(self, session: Session) -> None:
        lines = session.lines.receive()
        if lines is None:
            self._selector.unregister(session.lines.socket)
            session.lines.socket.close()
            session.kill_all()
            if not session.children:
                self._sessions.remove(session)
            return
        for line in lines:
            if "fork" in line:
                self._fork(session, line["fork"])
            else:
                session.signal(*line["signal"])

    def _fork(self, session: Session, launch: dict[str, Any]) -> None:
        descriptors = session.lines.take_descriptors(launch["descriptors"])
        if self._broken is None:
            self._fork_child(session, launch, descriptors)
        else:
            session.report(refused=[launch["handle"], self._broken])
        for descriptor in descriptors:
            os.close(descriptor)

    def _fork_child(self, session: Session, launch: dict[str, Any], descriptors: list[int]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(parent)
            _run_child(launch, descriptors)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        session.children[pid] = launch["handle"]
        session.report(started=[launch["handle"], pid])

    def _become_child(self, parent: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        die_with_parent(parent)
        self._selector.close()
        for sock in (self._wakeup, self._wakeup_write, self._root.socket, *(s.lines.socket for s in self._sessions)):
            sock.close()

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(1 << 12)
        while (pid := _ended_child()) is not None:
            _signal_group(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            session = next(s for s in self._sessions if pid in s.children)
            handle = session.children.pop(pid)
            session.report(exited=[handle, code if code >= 0 else None, -code if code < 0 else None])
            if session.lines.socket.fileno() < 0 and not session.children:
                self._sessions.remove(session)

    def _end(self) -> NoReturn:
        for session in self._sessions:
            session.kill_all()
        shutil.rmtree(self._directory, ignore_errors=True)
        os._exit(0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its single-threaded parent ends, however it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _run_child(launch: dict[str, Any], descriptors: list[int]) -> NoReturn:
    code = 1
    try:
        os.environ.clear()
        os.environ.update(launch["environment"])
        sys.path[:] = launch["sys_path"]
        sys.argv[:] = launch["argv"]
        with contextlib.suppress(OSError):
            os.chdir(launch["directory"])
        module, _, name = launch["entry"].partition(":")
        code = getattr(importlib.import_module(module), name)(launch["arguments"], *descriptors)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _import_all(modules: list[str]) -> str | None:
    """Import them; the traceback of the first that fails.

    What was imported is frozen: the workers' garbage collectors never touch it, so that its pages stay shared.
    """
    gc.disable()
    try:
        for module in modules:
            importlib.import_module(module)
    except Exception:
        return traceback.format_exc()
    finally:
        gc.freeze()
        gc.enable()
    return None


def _ended_child() -> int | None:
    """A child that has ended and is not yet reaped, so that its process group cannot be another's."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if ended is None else ended.si_pid


def _signal_group(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)


def main(descriptor: int, directory: str, preload: list[str]) -> NoReturn:
    """Entry point of the zygote process."""
    Zygote(socket.socket(fileno=descriptor), directory, preload).run()
