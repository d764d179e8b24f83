"""Every test leaves nothing behind: no worker process, no thread, no descriptor."""

from __future__ import annotations

import os

# Before torch is loaded: threads that wait for each other on busy cores take a hundred times as long as one alone.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gc
import importlib.util
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings
from leftovers import processes_left

from parenv.process import launcher

settings.register_profile("however busy the machine", deadline=None)
settings.load_profile("however busy the machine")
FAILED = pytest.StashKey[bool]()
GONE_S = 60.0
"""Until when what a test has ended must be gone, however busy the machine is."""


@pytest.fixture(autouse=True, scope="session")
def collecting_garbage_is_quick() -> None:
    """What was imported for all tests is no garbage, and need not be searched after each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def fork_servers_stay_for_other_tests() -> None:
    """Tests need many different ones, each of which takes seconds to import torch."""
    launcher.MAX_IDLE_FORK_SERVERS = 12


@pytest.fixture(autouse=True, scope="session")
def bars_of_tqdm_start_no_thread() -> None:
    """It would stay."""
    if importlib.util.find_spec("tqdm") is not None:
        importlib.import_module("tqdm").tqdm.monitor_interval = 0


@pytest.fixture(autouse=True, scope="session")
def loggers_of_sb3_are_where_pytest_clears_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each would make a folder of its own in the system's, and leave it."""
    os.environ["SB3_LOGDIR"] = str(tmp_path_factory.mktemp("sb3"))


@pytest.fixture(autouse=True, scope="session")
def nobody_signals_everybody() -> Iterator[None]:
    """The pid of a worker is -1 while it is not known, and a signal to that goes to every process there is."""
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
    """Of the cases of a test that is marked ``one_in(n)``, all but one in n are ``more``."""
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
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    before, threads = _descriptors(), set(threading.enumerate())
    yield
    if request.node.stash.get(FAILED, False):
        return  # The frames in which it failed are kept for its report, and with them all that they hold.
    for generation in range(3):  # The last one has all libraries that were imported since the first test.
        if not _left_behind(before, threads):
            return
        gc.collect(generation)
    deadline = time.monotonic() + GONE_S
    while (left := _left_behind(before, threads)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, f"left behind: {left}"


def _left_behind(before: dict[str, str], threads: set[threading.Thread]) -> list[str]:
    descriptors = [f"descriptor {fd} -> {to}" for fd, to in _descriptors().items() if fd not in before]
    begun = [f"thread {thread.name}" for thread in threading.enumerate() if thread not in threads]
    return processes_left() + descriptors + begun


def _descriptors() -> dict[str, str]:
    """Open descriptors but those to a fork server, which outlives the pools."""
    fork_server_sockets = {str(fork_server._lines.socket.fileno()) for fork_server in launcher._fork_servers.values()}
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if fd not in fork_server_sockets and ("memfd" in target or "socket" in target or "eventfd" in target):
            found[fd] = target
    return found


@pytest.fixture
def warnings_are_expected(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """For tests in which workers are restarted on purpose."""
    with caplog.at_level(logging.ERROR, logger="parenv"):
        yield
