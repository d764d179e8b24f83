"""Fixtures and hooks of all tests, which check that each test leaves no process, thread or descriptor behind."""

from __future__ import annotations

import os

# Set this before torch is loaded: on busy cores, several threads take a hundred times as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import contextlib
import gc
import importlib.util
import logging
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from multiprocessing import active_children, resource_tracker
from typing import Any

import pytest
from hypothesis import settings
from leftovers import processes_left

from parenv.platform import system
from parenv.process import launcher

settings.register_profile("however busy the machine", deadline=None)
settings.load_profile("however busy the machine")
# These import the module of Linux, which cannot be imported under the guard of make test-portable.
if not hasattr(os, "memfd_create"):
    collect_ignore = ["unit/test_cores.py", "unit/test_free_memory.py", "unit/test_platform.py"]
FAILED = pytest.StashKey[bool]()
# Wake-ups are pipes on the layer for POSIX. On Linux, those of other libraries would be found only.
PIPES = ("pipe",) if system.NAME == "posix" else ()
GONE_S = 60.0
"""Seconds within which everything that a test has started must be gone, on a busy machine too."""


@pytest.fixture(autouse=True, scope="session")
def collecting_garbage_is_quick() -> None:
    """Exclude the objects of imported modules from the garbage collections after each test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def fork_servers_stay_for_other_tests() -> None:
    """Keep many idle fork servers: tests need different ones, and each takes seconds to import torch."""
    launcher.MAX_IDLE_FORK_SERVERS = 12


@pytest.fixture(autouse=True, scope="session")
def bars_of_tqdm_start_no_thread() -> None:
    """Disable the monitor thread of tqdm, which would never end."""
    if importlib.util.find_spec("tqdm") is not None:
        importlib.import_module("tqdm").tqdm.monitor_interval = 0


@pytest.fixture(autouse=True, scope="session")
def sb3_writes_logs_into_a_temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make SB3 write its logs into a directory that pytest removes, and not into new ones that remain."""
    os.environ["SB3_LOGDIR"] = str(tmp_path_factory.mktemp("sb3"))


@pytest.fixture(autouse=True, scope="session")
def no_signal_goes_to_all_processes() -> Iterator[None]:
    """Refuse signals to pid -1, which go to every process: the pid of a worker is -1 while it is unknown."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("kill", "killpg"):
            patch.setattr(os, name, _to_one(getattr(os, name)))
        yield


def _to_one(send: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def send_checked(pid: int, signum: int) -> None:
        assert pid > 0, f"a signal to {pid}"
        send(pid, signum)

    return send_checked


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of a test with the mark ``one_in(n)`` as ``more``, except every n-th."""
    turns: Counter[str] = Counter()
    for item in items:
        chosen, test = item.get_closest_marker("one_in"), item.nodeid.partition("[")[0]
        if chosen is None or item.get_closest_marker("soak"):
            continue
        if turns[test] % chosen.args[0]:
            item.add_marker("more")
        turns[test] += 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    item.stash[FAILED] = call.excinfo is not None
    return (yield)


@pytest.fixture(autouse=True)
def level_of_the_logger() -> Iterator[None]:
    """Restore the level of the logger, which some examples set, and which would hide records from other tests."""
    logger = logging.getLogger("parenv")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    before, threads = _descriptors(), set(threading.enumerate())
    yield
    if request.node.stash.get(FAILED, False):
        return  # The report of the failure keeps the frames, and everything that they reference.
    for generation in range(3):  # The oldest generation has all libraries that were imported since the first test.
        if not _left_behind(before, threads):
            return
        gc.collect(generation)
    deadline = time.monotonic() + GONE_S
    while (left := _left_behind(before, threads)) and time.monotonic() < deadline:
        time.sleep(0.02)
        gc.collect()  # A thread that has ended now may have kept something until here.
    assert not left, f"left behind: {left}"


def _left_behind(before: dict[str, str], threads: set[threading.Thread]) -> list[str]:
    # Only this call forgets children of multiprocessing that have ended. It keeps their pipes until then.
    active_children()
    descriptors = [f"descriptor {fd} -> {to}" for fd, to in _descriptors().items() if fd not in before]
    begun = [f"thread {thread.name}" for thread in threading.enumerate() if thread not in threads]
    return processes_left() + descriptors + begun


def _descriptors() -> dict[str, str]:
    """Return the open descriptors of shared memory, sockets, pipes and eventfds, except those that may stay.

    Fork servers stay for other tests, and the resource tracker of multiprocessing stays as long as this process.
    """
    may_stay = {resource_tracker._resource_tracker._fd}  # type: ignore[attr-defined]
    may_stay |= {end.socket.fileno() for server in launcher._fork_servers.values() for end in server._ends}
    found = {}
    for fd in set(map(int, os.listdir("/dev/fd"))) - may_stay:
        with contextlib.suppress(OSError):
            if target := _target_of(fd):
                found[str(fd)] = target
    return found


def _target_of(fd: int) -> str:
    """Return what a descriptor refers to, or an empty text for files of other libraries and for devices."""
    if os.path.exists("/proc/self/fd"):
        target = os.readlink(f"/proc/self/fd/{fd}")
        # Linux shows a file that never had a name by its number, and names that were removed as they were.
        own = ("/memfd", "socket", "anon_inode:[eventfd", *PIPES)
        return target if "/#" in target or target.startswith(own) else ""
    mode = os.fstat(fd).st_mode
    return "socket" if stat.S_ISSOCK(mode) else "pipe" if stat.S_ISFIFO(mode) else ""


@pytest.fixture
def warnings_are_expected(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Hide warnings of tests that restart workers on purpose."""
    with caplog.at_level(logging.ERROR, logger="parenv"):
        yield
