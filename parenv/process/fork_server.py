"""The fork server: one small process per main process, which forks the workers.

It starts as a fresh interpreter, so the user's main module is not imported again and needs no guard. It imports the
modules of the workers once and stays single-threaded, so a fork is safe. It ends with the main process, and all its
workers end with it.

The main process sends lines of JSON over stream sockets. The root socket has one command, ``session``, which passes
another socket for each pool. A session carries:

    main process: {"shared": {...}}, for all launches after it
                  {"fork": [handle, arguments, number of descriptors]}, with the descriptors
                  {"signal": [handle, signal, alone]}
    fork server:  {"started": [handle, pid]}
                  {"exited": [handle, exit code | null, signal | null]}
                  {"refused": [handle, traceback]}

Neither side waits for the other to read. The end of file on a session kills its workers. The end of file on the root
socket kills all workers.

When a worker ends, the processes that it has started become children of the fork server. The fork server kills them,
also those in a session of their own. If the parent of a process ends while the worker lives, the process becomes a
child of the fork server too, and continues. The fork server recognizes it by the worker's process id in its
environment, or by its process group. The environment is empty for a moment when a process executes a new program, so
the fork server looks again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import current_process
from typing import Any, NoReturn

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.platform import system
from parenv.process.lines import Lines
from parenv.process.script_names import replace_main

WORKER_VARIABLE = "PARENV_WORKER_PID"
UNCLEAR_S = 5.0
"""Seconds within which a process must have environment variables, on a busy machine too."""
LOOK_AGAIN_S = 0.05


class PoolGroup:
    """The workers of one pool.

    Attributes:
        shared: Launch data that the next workers have in common.
        children: Handles of the workers by process id.
    """

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.shared: dict[str, Any] = {}
        self.children: dict[int, int] = {}

    def report(self, **event: Any) -> None:
        """Send an event to the main process, unless that has ended."""
        with contextlib.suppress(OSError):
            self.lines.send(event)

    def signal(self, handle: int, signum: int, alone: bool) -> None:
        """Signal a worker that is still running, alone or with its process group."""
        for pid, child in self.children.items():
            if child == handle:
                os.kill(pid, signum) if alone else _signal_group(pid, signum)

    def kill_all(self) -> None:
        """Kill every worker and its process group."""
        for pid in self.children:
            _signal_group(pid, signal.SIGKILL)


class Orphans:
    """Decides which processes of ended workers are left.

    Attributes:
        look_again_s: Seconds until the next look, or ``None`` if no process is unclear.
    """

    def __init__(self) -> None:
        self.look_again_s: float | None = None
        self._limits: dict[int, float] = {}

    def find(self, adopted: set[int], workers: set[int]) -> list[int]:
        """Return the adopted processes that no living worker has started."""
        found, limits, now = [], {}, time.monotonic()
        self.look_again_s = None
        for pid in sorted(adopted):
            variables = system.variables_of(pid)
            if workers & _owners(pid, variables):
                continue
            if workers and not variables:
                # While a process executes a new program, the kernel shows no variables, and a living worker may have
                # started it. Variables that stay unknown must not keep a process of an ended worker alive.
                limits[pid] = self._limits.get(pid, now + UNCLEAR_S)
                if now < limits[pid]:
                    self.look_again_s = LOOK_AGAIN_S
                    continue
            found.append(pid)
        self._limits = limits
        return found


class ForkServer:
    """The loop of the fork server process.

    Args:
        root: Socket whose other end only the main process has.
        preload: Modules to import before the first fork.
        main_process: Descriptor that reports the end of the main process, if the system needs a guard.
        folder: Folder of the addresses of workers; may be empty.
    """

    def __init__(self, root: socket.socket, preload: list[str], main_process: int, folder: str) -> None:
        # The socket was inherited through an exec, and no other program needs it.
        root.set_inheritable(False)
        self._root = Lines(root)
        self._sessions: list[PoolGroup] = []
        self._wakeup, self._wakeup_write = socket.socketpair()
        for end in (self._wakeup, self._wakeup_write):
            end.setblocking(False)
        # A child may end between the last look and the next select. Its signal writes a byte that ends the select.
        # Python writes that byte only if the signal has a handler, so this one does nothing.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_write.fileno(), warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        self._watch(self._wakeup, self._reap)
        self._watch(root, self._accept)
        self._guard = system.lead_workers(main_process, folder)
        self._broken = _import_all(preload)
        self._started_by_modules = system.children(set())
        self._orphans = Orphans()

    def run(self) -> NoReturn:
        """Serve until the main process ends."""
        while True:
            for key, _ in self._selector.select(self._orphans.look_again_s):
                key.data()
            if self._orphans.look_again_s is not None:
                self._kill_orphans()
            for session in self._sessions:
                self._watch_writing(session)

    def _watch_writing(self, session: PoolGroup) -> None:
        sock, events = session.lines.socket, selectors.EVENT_READ
        if session.lines.is_pending:
            events |= selectors.EVENT_WRITE
        if sock.fileno() >= 0 and self._selector.get_key(sock).events != events:
            self._selector.modify(sock, events, self._selector.get_key(sock).data)

    def _watch(self, sock: socket.socket, act: Callable[[], None]) -> None:
        self._selector.register(sock, selectors.EVENT_READ, act)

    def _accept(self) -> None:
        lines = self._root.receive()
        if lines is None:
            self._end()
        for _ in lines:
            (descriptor,) = self._root.take_descriptors(1)
            session = PoolGroup(Lines(socket.socket(fileno=descriptor)))
            self._sessions.append(session)
            self._watch(session.lines.socket, lambda session=session: self._serve(session))  # type: ignore[misc]

    def _serve(self, session: PoolGroup) -> None:
        with contextlib.suppress(OSError):
            session.lines.flush()
        lines = session.lines.receive()
        if lines is None:
            self._selector.unregister(session.lines.socket)
            session.lines.close()
            session.kill_all()
            if not session.children:
                self._sessions.remove(session)
            return
        for line in lines:
            if "fork" in line:
                self._fork(session, *line["fork"])
            elif "shared" in line:
                session.shared = line["shared"]
            else:
                session.signal(*line["signal"])

    def _fork(self, session: PoolGroup, handle: int, arguments: dict[str, Any], count: int) -> None:
        descriptors = session.lines.take_descriptors(count)
        refused = self._broken
        if refused is None:
            try:
                self._fork_child(session, handle, arguments, descriptors)
            except OSError:
                refused = traceback.format_exc()
        if refused is not None:
            session.report(refused=[handle, refused])
        for descriptor in descriptors:
            os.close(descriptor)

    def _fork_child(self, session: PoolGroup, handle: int, arguments: dict[str, Any], descriptors: list[int]) -> None:
        # The child would write the buffered output a second time.
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        # The child waits for the end of this pipe, so the main process learns the process id before any other message.
        reported, report = os.pipe()
        try:
            pid = os.fork()
            if pid == 0:
                _run_child(lambda: self._become_child(parent, reported, report), session.shared, arguments, descriptors)
            # The child does the same. Either call comes before a signal to the group and before the first member.
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            session.children[pid] = handle
            system.tell_guard(self._guard, pid)
            session.report(started=[handle, pid])
        finally:
            # The child must also see the end of this pipe if the fork or the report has failed.
            os.close(reported)
            os.close(report)

    def _become_child(self, parent: int, reported: int, report: int) -> None:
        # This comes first, because the child's signals wake the fork server through the socket that they share.
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        system.end_with_leader(parent, self._guard)
        # A socket reports the end of file only when its last copy is closed, and the child has copies.
        self._selector.close()
        for sock in (self._wakeup, self._wakeup_write, self._root.socket, *(s.lines.socket for s in self._sessions)):
            sock.close()
        os.close(report)
        os.read(reported, 1)
        os.close(reported)
        # If the fork server was killed before it told the guard about this process, nothing else would end it.
        if os.getppid() != parent:
            os._exit(1)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(1 << 12)
        ended = []
        while (reaped := system.reap(self._kill_group)) is not None:
            pid, code = reaped
            system.tell_guard(self._guard, pid, has_ended=True)
            self._started_by_modules.discard(pid)
            if (session := self._session_of(pid)) is not None:
                ended.append((session, session.children.pop(pid), code))
        self._kill_orphans()
        for session, handle, code in ended:
            session.report(exited=[handle, code if code >= 0 else None, -code if code < 0 else None])
            if session.lines.socket.fileno() < 0 and not session.children and session in self._sessions:
                self._sessions.remove(session)

    def _session_of(self, pid: int) -> PoolGroup | None:
        return next((session for session in self._sessions if pid in session.children), None)

    def _kill_group(self, pid: int) -> None:
        if self._session_of(pid) is not None:
            _signal_group(pid, signal.SIGKILL)

    def _workers(self) -> set[int]:
        return {pid for session in self._sessions for pid in session.children}

    def _kill_orphans(self) -> None:
        """Kill the processes that ended workers have left. Their own children become ours when they end."""
        workers = self._workers()
        for pid in self._orphans.find(system.children(workers) - workers - self._started_by_modules, workers):
            _kill(pid)

    def _end(self) -> NoReturn:
        for session in self._sessions:
            session.kill_all()
        # The children of a worker become children of this process before the worker can be reaped.
        while sum(map(_kill, system.children(self._workers()))):
            os.waitpid(-1, 0)
        os._exit(0)


def _run_child(
    become_child: Callable[[], None], shared: dict[str, Any], arguments: dict[str, Any], descriptors: list[int]
) -> NoReturn:
    def begin() -> None:
        become_child()
        if shared["spawn"]:
            _become_interpreter(shared, arguments, descriptors)
        if os.environ != shared["environment"]:  # Seldom: each assignment copies a page.
            os.environ.clear()
            os.environ.update(shared["environment"])
        os.environ[WORKER_VARIABLE] = str(os.getpid())
        sys.path[:] = shared["sys_path"]

    run_entry(shared, arguments, descriptors, begin)


def _become_interpreter(shared: dict[str, Any], arguments: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Replace this process by a fresh interpreter that runs the same entry point with the same descriptors."""
    common = {name: shared[name] for name in ("argv", "main", "directory", "entry", "authkey")}
    # Every user of the machine can read command lines, so the launch data is passed in memory.
    memory = system.make_memory()
    os.write(memory, json.dumps([shared["sys_path"], common, arguments, descriptors]).encode())
    os.lseek(memory, 0, os.SEEK_SET)
    for descriptor in (memory, *descriptors):
        os.set_inheritable(descriptor, True)
    command = (
        f"import json, sys\nwith open({memory}) as file: sys.path[:], *launch = json.load(file)\n"
        "from parenv.process.fork_server import run_entry; run_entry(*launch)"
    )
    options = [f"-W{option}" for option in sys.warnoptions]
    environment = {**shared["environment"], WORKER_VARIABLE: str(os.getpid())}
    os.execve(sys.executable, [sys.executable, *options, "-c", command], environment)


def run_entry(
    shared: dict[str, Any], arguments: dict[str, Any], descriptors: list[int], begin: Callable[[], None] = lambda: None
) -> NoReturn:
    """Run a worker from its beginning to its end, forked or in a fresh interpreter."""
    code = 1
    try:
        begin()
        sys.argv[:] = shared["argv"]
        replace_main(*shared["main"])
        # Managers of multiprocessing answer only processes that have the key of the main process.
        current_process().authkey = bytes.fromhex(shared["authkey"])
        with contextlib.suppress(OSError):
            os.chdir(shared["directory"])
        module, _, name = shared["entry"].partition(":")
        code = getattr(importlib.import_module(module), name)(arguments, *descriptors)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _import_all(modules: list[str]) -> str | None:
    """Import modules; return the traceback of the first that fails, or a message if one has started threads.

    The imported objects are frozen. The workers' garbage collectors do not touch them, so their pages stay shared.
    """
    gc.disable()
    threads = {}
    try:
        for module in modules:
            before = system.num_threads()
            importlib.import_module(module)
            threads[module] = system.num_threads() - before
    except Exception:
        return traceback.format_exc()
    finally:
        gc.freeze()
        gc.enable()
    begun = [module for module, more in threads.items() if more > 0 and not module.startswith("parenv.")]
    if not begun or _threads_after_a_fork() == 1:
        return None
    return (
        f"WorkerOptions.preload must not start threads, but importing {' and '.join(begun)} does. A lock that a thread "
        "holds during a fork stays locked in every worker. Remove the module from preload, or use "
        'start_method="spawn". Each worker then imports it by itself.'
    )


def _threads_after_a_fork() -> int:
    """Return the number of threads after a fork. Linear algebra libraries end their threads before a fork."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    threads = system.num_threads()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return threads


def _owners(pid: int, variables: list[bytes]) -> set[int]:
    """Return the process ids of workers that may have started a process with these environment variables."""
    prefix, owners = f"{WORKER_VARIABLE}=".encode(), set()
    with contextlib.suppress(OSError):
        owners.add(os.getpgid(pid))
    owners.update(int(one.removeprefix(prefix)) for one in variables if one.startswith(prefix))
    return owners


def _kill(pid: int) -> bool:
    """Kill a process; return whether that is permitted."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _signal_group(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)


def main(descriptor: int, preload: list[str], main_process: int, folder: str) -> NoReturn:
    """Entry point of the fork server process."""
    ForkServer(socket.socket(fileno=descriptor), preload, main_process, folder).run()
