"""Linux: memfd, eventfd, abstract socket names, prctl, /proc, control groups and CPU affinity."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

if sys.platform != "linux":
    raise ImportError("this module is for Linux")

from parenv.platform.base import ProcessorTime as ProcessorTime
from parenv.platform.base import Usage as Usage
from parenv.platform.posix import FINAL_SIGNALS as FINAL_SIGNALS
from parenv.platform.posix import HAS_PROCESSES as HAS_PROCESSES
from parenv.platform.posix import KILL_SIGNAL as KILL_SIGNAL
from parenv.platform.posix import PREEMPTION_SIGNALS as PREEMPTION_SIGNALS
from parenv.platform.posix import STACK_SIGNAL as STACK_SIGNAL
from parenv.platform.posix import after_fork_in_child as after_fork_in_child
from parenv.platform.posix import descriptor_limits as descriptor_limits
from parenv.platform.posix import load_average as load_average
from parenv.platform.posix import memory_bytes as memory_bytes
from parenv.platform.posix import raise_descriptor_limit as raise_descriptor_limit
from parenv.platform.posix import take_lock as take_lock
from parenv.platform.posix import unlock as unlock
from parenv.platform.posix import usage as usage

NAME = "linux"
HAS_FUTEXES = True
DESCRIPTORS_OF_WAKE_UP = 1
ADDRESSES_ARE_OPEN = True
BOUND = "ipc://@parenv"
HAS_GUARD = False
FORK_IS_SAFE = True
# recv_fds() ignores the close-on-exec flag. Without it a worker's children inherit its descriptors.
RECEIVE_FLAGS = int(socket.MSG_CMSG_CLOEXEC)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)
_GROUPS = "/sys/fs/cgroup"
_MEMORY_V2 = ("memory.max", "memory.current", "inactive_file")
_MEMORY_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


# Memory


def make_memory() -> int:
    """Make a file in memory."""
    # Without the flag, a program that an environment starts would inherit the descriptor and keep the memory.
    return os.memfd_create("parenv", os.MFD_CLOEXEC)


def reserve(descriptor: int, offset: int, nbytes: int) -> None:
    """Allocate the bytes of a file."""
    os.posix_fallocate(descriptor, offset, nbytes)


# Wake-ups


def make_wake_up() -> tuple[int, int]:
    """Return an eventfd, with which both sides work."""
    descriptor = os.eventfd(0)
    return descriptor, descriptor


def notifier(descriptor: int) -> Callable[[], object]:
    """Return the function that notifies the process that waits."""
    return partial(os.eventfd_write, descriptor, 1)


def taker(descriptor: int) -> Callable[[], object]:
    """Return the function that waits for a notification."""
    return partial(os.eventfd_read, descriptor)


def enlarge_pipe(descriptor: int, nbytes: int) -> None:
    """Give a pipe so many bytes of room, unless a limit of the user forbids it."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, nbytes)


# Addresses


def address_folder() -> str:
    """Return an empty text, because addresses are not in the file system."""
    return ""


def make_address_folder(folder: str) -> None:
    """Do nothing."""


def listen(folder: str) -> tuple[socket.socket, str]:
    """Return a listening socket, and its address for ZeroMQ."""
    listening = socket.socket(socket.AF_UNIX)
    # Linux chooses a free name that is not in the file system, of which nothing is left after any end.
    listening.bind("")
    listening.listen()
    listening.setblocking(False)
    return listening, f"ipc://@{listening.getsockname()[1:].decode()}"


def forget(address: str) -> None:
    """Do nothing, because nothing is left."""


def owned(descriptors: Collection[int]) -> list[int]:
    """Return received descriptors."""
    return list(descriptors)


# Processes


def lead_workers(main_process: int, folder: str) -> int:
    """Have processes whose parent has ended become children of this process, a fork server."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # A stopped process does not see the end of file. The kernel also sends SIGCONT when only the thread ends that
    # started this process, which is harmless.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    return -1


def tell_guard(guard_descriptor: int, pid: int, has_ended: bool = False) -> None:
    """Do nothing, because the kernel ends the workers."""


def end_with_leader(leader: int, guard_descriptor: int) -> None:
    """Have the kernel kill this process when its single-threaded parent ends, however it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The kernel sends no signal if the parent had ended before the call.
    if os.getppid() != leader:
        os._exit(1)


def reap(last_look: Callable[[int], object]) -> tuple[int, int] | None:
    """Reap a child that has ended, after a last look."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if ended is None:
        return None
    # The kernel may use the number again once the child is reaped.
    last_look(ended.si_pid)
    return ended.si_pid, os.waitstatus_to_exitcode(os.waitpid(ended.si_pid, 0)[1])


def children(known: set[int]) -> set[int]:
    """Return the children of this process. An adopted child may belong to any of its threads."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found.update(map(int, (thread / "children").read_text().split()))
    return found


def variables_of(pid: int) -> list[bytes]:
    """Return the environment variables with which a process was started.

    There are none while it executes a new program, after it has ended, and if they cannot be read.
    """
    try:
        return [one for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if one]
    except OSError:
        return []


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped or has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return pid > 0
    return state in "TtZX"


def has_signal(pid: int, mask: str, signum: int) -> bool | None:
    """Return whether a signal is in a mask of the main thread of a process; ``False`` if the process has ended."""
    try:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return False
    return bool(int(lines[mask], 16) >> (signum - 1) & 1)


# Machine


def usable_core_numbers() -> list[int]:
    """Return the cores that CPU affinity leaves to this process."""
    return sorted(os.sched_getaffinity(0))


def core_limit() -> float:
    """Return the lowest CPU limit of this process's control groups (v2 or v1), in cores, or infinity."""
    groups = _control_groups("", _GROUPS, f"{_GROUPS}/unified")
    v2 = [limit for group in groups for limit in _limit(group, "cpu.max")]
    groups = _control_groups("cpu", f"{_GROUPS}/cpu")
    v1 = [limit for group in groups for limit in _limit(group, "cpu.cfs_quota_us", "cpu.cfs_period_us")]
    return min(v2 or v1 or [math.inf])


def _control_groups(controller: str, *mounts: str) -> list[str]:
    """Return folders that may hold the limits of this process's control group and of all groups above it.

    A container may show its own group as the root, under the name that the group has outside.

    Args:
        controller: Name of the controller, such as ``"cpu"``; empty for version 2.
        *mounts: Folders at which control groups are mounted.
    """
    paths = {"/"}
    for line in _text("/proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controller in controllers.split(",") and path.startswith("/") and ".." not in path:
            mine = PurePosixPath(path)
            paths |= {str(group) for group in (mine, *mine.parents)}
    return [mount + path.rstrip("/") for mount in mounts for path in paths]


def _limit(group: str, *files: str) -> list[float]:
    """Return the limit in cores, from the quota and the period in these files, or an empty list."""
    try:
        quota, period = " ".join(_text(f"{group}/{file}") for file in files).split()
        return [math.inf if quota == "max" or int(quota) <= 0 else int(quota) / int(period)]
    except ValueError:
        return []


def _text(path: str) -> str:
    """Return the text of a file, or an empty text if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def numa_nodes(cores: Collection[int]) -> list[list[int]]:
    """Return the given cores of each NUMA node that has some."""
    folder = "/sys/devices/system/node"
    numbers = sorted(int(path.name.removeprefix("node")) for path in Path(folder).glob("node[0-9]*"))
    nodes = [sorted(_cores_of(_text(f"{folder}/node{number}/cpulist")) & {*cores}) for number in numbers]
    return [node for node in nodes if node]


def _cores_of(text: str) -> set[int]:
    """Return the cores of a list in the format of Linux.

    >>> _cores_of("0-2,8")
    {0, 1, 2, 8}
    """
    found = set[int]()
    for part in text.strip().split(",") if text.strip() else ():
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def pin(cores: Collection[int]) -> None:
    """Have this process run on these cores only."""
    os.sched_setaffinity(0, cores)


def free_bytes() -> float:
    """Return the bytes of memory that the machine and the control groups leave to this process, or infinity."""
    return min([_of_machine(), *_of_groups()])


def _of_machine() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return math.inf


def _of_groups() -> Iterator[float]:
    """Yield the bytes that each control group of this process leaves."""
    for controller, mount, files in (("", _GROUPS, _MEMORY_V2), ("memory", f"{_GROUPS}/memory", _MEMORY_V1)):
        for group in _control_groups(controller, mount):
            yield _left_in(group, *files)


def _left_in(group: str, limit: str, usage: str, reclaimable: str) -> float:
    """Return the limit minus the memory in use that is not reclaimable at once."""
    try:
        statistics = dict(line.split() for line in _text(f"{group}/memory.stat").splitlines())
        used = int(_text(f"{group}/{usage}")) - int(statistics.get(reclaimable, 0))
        return max(0.0, int(_text(f"{group}/{limit}")) - used)
    except ValueError:
        return math.inf  # There is no such group, or its limit is "max".


def limit_memory(more: int) -> None:
    """Have the kernel refuse allocations beyond the present size of this process plus so many bytes."""
    status = Path("/proc/self/status").read_text()
    kilobytes = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmData:")))
    resource.setrlimit(resource.RLIMIT_DATA, (kilobytes * 1024 + more, resource.RLIM_INFINITY))


def num_descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def voluntary_switches() -> int:
    """Return the voluntary context switches of this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def processor_time(pid: int | None = None) -> ProcessorTime | None:
    """Return the times of a process's main thread, by default of this thread, or ``None`` if they are not counted."""
    try:
        used, queued, _ = Path(f"/proc/{pid or 'thread-self'}/schedstat").read_text().split()
    except (OSError, ValueError):
        return None
    return ProcessorTime(int(used) * 1e-9, int(queued) * 1e-9)


def is_asleep(pid: int) -> bool:
    """Return whether the main thread of a process sleeps, and so neither runs nor waits for a core or a disk."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] == "S"
    except OSError:
        return False


def resident_bytes() -> int:
    """Return the bytes of memory that this process shares with no other, or 0 if the system does not count them."""
    try:
        _, resident, shared = Path("/proc/self/statm").read_text().split()[:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")


def num_threads() -> int:
    """Return the number of threads of this process, or 0 if the system does not list them."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def running_threads() -> int:
    """Return the number of threads of the machine that run or wait for a core now, at least 1 (this one)."""
    try:
        return max(1, int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]))
    except (OSError, ValueError, IndexError):
        return 1


def processor_name() -> str:
    """Return the name of the processor, or an empty text."""
    named = (
        line.split(":", 1)[1].strip() for line in _text("/proc/cpuinfo").splitlines() if line.startswith("model name")
    )
    return next(named, "")
