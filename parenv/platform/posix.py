"""Any POSIX system, such as macOS: unlinked files, pipes, sockets in a private folder, and nothing that Linux adds."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import math
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

if sys.platform == "win32":
    raise ImportError("this module is for POSIX")

from parenv.platform.base import ProcessorTime as ProcessorTime
from parenv.platform.base import Usage as Usage
from parenv.platform.base import unnamed_file as _unnamed_file
from parenv.platform.guard import NUMBER as _NUMBER

NAME = "posix"
HAS_FUTEXES = False
"""Whether processes can sleep on a number in shared memory."""
DESCRIPTORS_OF_WAKE_UP = 2
"""Number of descriptors of a wake-up."""
ADDRESSES_ARE_OPEN = False
"""Whether processes of other users can connect to an address, so that a worker must check who does."""
HAS_GUARD = True
"""Whether a fork server starts a process that watches it, because the kernel does not."""
FORK_IS_SAFE = sys.platform != "darwin"
"""Whether a process that uses system libraries may fork. On macOS, many of them fail in a process without an exec."""
BOUND = "ipc:///parenv"
"""Any address of the kind of :func:`listen`."""
RECEIVE_FLAGS = 0
"""Flags with which a socket receives descriptors, see :func:`owned`."""
HAS_PROCESSES = True
"""Whether parenv starts worker processes on this system."""
KILL_SIGNAL = signal.SIGKILL
"""Signal that ends a process at once."""
STACK_SIGNAL = signal.SIGUSR1
"""Signal that makes a worker write its stack to its pipe, even if native code holds the GIL."""
FINAL_SIGNALS = frozenset({signal.SIGKILL, signal.SIGSTOP})
"""Signals that no process can handle."""
PREEMPTION_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Signals by which schedulers announce that they will stop a job."""
_CHUNK = 1 << 20
_PIPE_BYTES = 1 << 16
# The path of a socket has at most 103 bytes on macOS, and temporary folders of jobs may be longer.
_MAX_FOLDER_BYTES = 103 - len("/1234567890")


# Memory


def make_memory() -> int:
    """Make a file without a name for shared memory, so no file can be left behind or guessed."""
    # macOS lets the size of POSIX shared memory be set only once, but this memory grows.
    return _unnamed_file()


def reserve(descriptor: int, offset: int, nbytes: int) -> None:
    """Allocate the bytes of a file that no process uses yet. They keep their values.

    Raises:
        OSError: Not enough room is left.
    """
    # macOS has no posix_fallocate. A block is allocated when it is written.
    for begin in range(offset, offset + nbytes, _CHUNK):
        size = min(_CHUNK, offset + nbytes - begin)
        os.pwrite(descriptor, os.pread(descriptor, size, begin).ljust(size, b"\0"), begin)


# Wake-ups


def make_wake_up() -> tuple[int, int]:
    """Return the descriptor at which one process waits, and the descriptor with which others notify it."""
    waiting, notifying = os.pipe()
    os.set_blocking(notifying, False)
    return waiting, notifying


def notifier(descriptor: int) -> Callable[[], object]:
    """Return the function that notifies the process that waits."""
    return partial(_notify, descriptor)


def _notify(descriptor: int) -> None:
    try:
        os.write(descriptor, b"\0")
    except BlockingIOError:
        pass  # A full pipe is readable, so the other process does not sleep.


def taker(descriptor: int) -> Callable[[], object]:
    """Return the function that waits for a notification, and takes all that have come."""
    return partial(os.read, descriptor, _PIPE_BYTES)


def enlarge_pipe(descriptor: int, nbytes: int) -> None:
    """Give a pipe so many bytes of room, if the system can."""


# Addresses


def address_folder() -> str:
    """Choose the path of a folder for the addresses of one fork server; empty if addresses are not in a folder.

    :func:`make_address_folder` makes it. The fork server removes it when the main process has ended.
    """
    name = f"parenv-{secrets.token_hex(8)}"
    folder = f"{tempfile.gettempdir()}/{name}"
    return folder if len(os.fsencode(folder)) <= _MAX_FOLDER_BYTES else f"/tmp/{name}"


def make_address_folder(folder: str) -> None:
    """Make the folder, to which other users have no access."""
    os.mkdir(folder, 0o700)


_addresses = itertools.count()


def listen(folder: str) -> tuple[socket.socket, str]:
    """Return a listening socket in a folder of :func:`address_folder`, and its address for ZeroMQ."""
    listening, path = socket.socket(socket.AF_UNIX), f"{folder}/{next(_addresses)}"
    try:
        try:
            listening.bind(path)
        except FileNotFoundError:
            # Systems remove folders from the temporary folder that have not been used for days: macOS after three.
            make_address_folder(folder)
            listening.bind(path)
    except BaseException:
        listening.close()
        raise
    listening.listen()
    listening.setblocking(False)
    return listening, f"ipc://{path}"


def forget(address: str) -> None:
    """Remove what is left of an address."""
    with contextlib.suppress(OSError):
        os.unlink(address.removeprefix("ipc://"))


def owned(descriptors: Collection[int]) -> list[int]:
    """Return received descriptors. Programs that this process starts do not inherit them."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return list(descriptors)


# Processes


def after_fork_in_child(call: Callable[[], object]) -> None:
    """Have each forked child of this process call a function first."""
    os.register_at_fork(after_in_child=call)


def lead_workers(main_process: int, folder: str) -> int:
    """Have the workers of this process, a fork server, end with it, and continue it if it is stopped at the main's end.

    Args:
        main_process: Descriptor that reports the end of file when the main process ends. Used if :data:`HAS_GUARD`.
        folder: Folder of :func:`address_folder`, which is removed after the end of this process.

    Returns:
        Descriptor for :func:`tell_guard`.
    """
    reading, writing = os.pipe()
    words = [str(os.getpid()), str(main_process), str(reading), folder]
    subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), *words],
        pass_fds=(reading, main_process),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ).returncode = 0  # This process reaps all its children itself.
    os.close(reading)
    os.close(main_process)
    return writing


def tell_guard(guard_descriptor: int, pid: int, has_ended: bool = False) -> None:
    """Note that a worker has started, or that it has ended."""
    with contextlib.suppress(BrokenPipeError):
        os.write(guard_descriptor, _NUMBER.pack(-pid if has_ended else pid))


def end_with_leader(leader: int, guard_descriptor: int) -> None:
    """Have this process, which the fork server has just forked, end with it.

    Args:
        leader: Process id of the fork server.
        guard_descriptor: Result of :func:`lead_workers`.
    """
    # A pipe reports the end of file only when its last copy is closed.
    os.close(guard_descriptor)


def reap(last_look: Callable[[int], object]) -> tuple[int, int] | None:
    """Reap a child that has ended; return its process id and exit code, or ``None`` if no child has ended.

    Args:
        last_look: Function that is called with its process id.
    """
    # macOS has no waitid before Python 3.13. So the child is reaped first, but a number that was in use a moment ago is
    # the last one that the kernel uses again.
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    if pid == 0:
        return None
    last_look(pid)
    return pid, os.waitstatus_to_exitcode(status)


def children(known: set[int]) -> set[int]:
    """Return the children of this process: all of them if the system lists them, else the known ones."""
    return known


def variables_of(pid: int) -> list[bytes]:
    """Return the environment variables with which a process was started, as far as the system shows them."""
    return []


def is_stopped(pid: int) -> bool:
    """Return whether a process is known to be stopped or to have ended."""
    if pid <= 0:
        return False  # The process id is unknown yet. A signal to such a number would go to several processes.
    try:
        os.kill(pid, 0)
    except OSError:
        return True
    return False


def has_signal(pid: int, mask: str, signum: int) -> bool | None:
    """Return whether a signal is in a mask of the main thread of a process, or ``None`` if the system does not tell.

    Args:
        pid: Process id.
        mask: ``"SigBlk"`` (blocked), ``"SigIgn"`` (ignored) or ``"ShdPnd"`` (pending).
        signum: The signal.
    """
    return None


# Machine


def usable_core_numbers() -> list[int]:
    """Return the cores that this process may use."""
    return list(range(os.cpu_count() or 1))


def core_limit() -> float:
    """Return the lowest CPU limit that a container sets for this process, in cores, or infinity."""
    return math.inf


def numa_nodes(cores: Collection[int]) -> list[list[int]]:
    """Return the given cores of each NUMA node that has some. An empty list if the system does not describe nodes."""
    return []


def pin(cores: Collection[int]) -> None:
    """Have this process run on these cores only, if the system can. They are cores of :func:`numa_nodes`."""


def free_bytes() -> float:
    """Return the bytes of memory that the machine and its containers leave to this process, or infinity."""
    return math.inf


def limit_memory(more: int) -> None:
    """Have the kernel refuse allocations beyond the present size of this process plus so many bytes."""
    raise NotImplementedError


def num_descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/dev/fd"))


def descriptor_limits() -> tuple[float, float]:
    """Return the soft and the hard limit of descriptors, each a number or infinity."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # RLIM_INFINITY is -1 in Python.
    return (math.inf if soft == resource.RLIM_INFINITY else soft, math.inf if hard == resource.RLIM_INFINITY else hard)


def raise_descriptor_limit(soft: int) -> None:
    """Raise the soft limit of descriptors."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def take_lock(descriptor: int, wait: bool = False) -> bool:
    """Lock a file; return ``False`` if another process or another descriptor has the lock.

    Args:
        descriptor: Descriptor of the file.
        wait: Whether to wait for the lock.

    Raises:
        OSError: The file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Remove the lock of a file.

    Closing the file does not suffice, because a child that the user or native code has forked has the file too.
    """
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def usage() -> Usage:
    """Return the use of the processor by this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(used.ru_utime + used.ru_stime, used.ru_nvcsw, used.ru_nivcsw)


def voluntary_switches() -> int:
    """Return the voluntary context switches of this thread, or of all threads of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def processor_time(pid: int | None = None) -> ProcessorTime | None:
    """Return the times of a process's main thread, by default of this thread, or ``None`` if they are not counted."""
    return None


def is_asleep(pid: int) -> bool:
    """Return whether the main thread of a process is known to sleep: it neither runs nor waits for a core or a disk."""
    return False


def resident_bytes() -> int:
    """Return the bytes of memory that this process shares with no other, or 0 if the system does not count them."""
    return 0


def num_threads() -> int:
    """Return the number of threads of this process that are known."""
    return threading.active_count()


def running_threads() -> int:
    """Return the number of threads of the machine that run or wait for a core now, at least 1 (this one)."""
    return 1


def memory_bytes() -> int:
    """Return the bytes of memory of the machine, or 0 if the system does not tell."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def load_average() -> float:
    """Return the mean number of processes that ran or waited for a core in the last minute, or 0 if unknown."""
    return os.getloadavg()[0]


def processor_name() -> str:
    """Return the name of the processor, or an empty text."""
    return ""
