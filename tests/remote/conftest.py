"""Fixture for worker hosts on this machine, and repetition of tests during which the machine stood still."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from worker_hosts import Hosts

TRIES = 4
STALL_S, TICK_S = 0.5, 0.05
"""Time for which this process must stand still before a failed test is repeated, and how often that is checked.

The time is half of the silence of 1 s after which some tests regard a connection as lost."""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    try:
        yield made
    finally:
        made.end()


class Stalls:
    """Context that measures the longest time for which this process stood still, as when the machine is suspended."""

    def __enter__(self) -> Stalls:
        self.longest_s, self._ended = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        looked_s = time.monotonic()
        while not self._ended.wait(TICK_S):
            before_s, looked_s = looked_s, time.monotonic()
            self.longest_s = max(self.longest_s, looked_s - before_s)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Function, nextitem: pytest.Item | None) -> bool | None:
    """Repeat a test that fails while this process stands still, because its connections may have timed out."""
    if Path(__file__).parent not in item.path.parents:  # Unlike other hooks, this one is called for all tests.
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(TRIES):
        with Stalls() as stalls:
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if stalls.longest_s < STALL_S or not any(report.failed for report in reports):
            break
        item._initrequest()
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
