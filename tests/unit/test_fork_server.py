"""Check which processes a fork server takes for orphans, with stand-ins for the clock and for the system."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parenv.process import fork_server
from parenv.process.fork_server import UNCLEAR_S, WORKER_VARIABLE, Orphans

WORKERS = {10, 11}
OF_A_WORKER = [f"{WORKER_VARIABLE}=11".encode()]
OF_A_DEAD_WORKER = [b"PATH=/usr/bin", f"{WORKER_VARIABLE}=9".encode()]


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[bytes]]:
    """Environment variables by process id. Each process leads its own group, except 30, which is in that of a worker.

    No variables stand for a process that executes a new program, has ended or cannot be read.
    """
    found: dict[int, list[bytes]] = {}
    monkeypatch.setattr(fork_server.system, "variables_of", lambda pid: found.get(pid, []))
    monkeypatch.setattr(fork_server.os, "getpgid", lambda pid: 10 if pid == 30 else pid)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(fork_server, "time", clock)
    return clock


@pytest.mark.usefixtures("clock")
def test_processes_of_living_workers_are_no_orphans(variables: dict[int, list[bytes]]) -> None:
    variables |= {20: OF_A_WORKER, 21: OF_A_DEAD_WORKER, 22: [b"PATH=/usr/bin"]}
    orphans = Orphans()
    assert orphans.find({20, 21, 22, 30}, WORKERS) == [21, 22]
    assert orphans.look_again_s is None


def test_a_process_that_executes_a_new_program_is_looked_at_again(
    variables: dict[int, list[bytes]], clock: SimpleNamespace
) -> None:
    orphans = Orphans()
    for _ in range(100):  # A signal for each child that ends leads to a look.
        assert orphans.find({20, 21}, WORKERS) == []
        assert orphans.look_again_s is not None
    clock.now += UNCLEAR_S / 2
    variables |= {20: OF_A_WORKER, 21: OF_A_DEAD_WORKER}
    assert orphans.find({20, 21}, WORKERS) == [21]
    assert orphans.look_again_s is None
    # The process may execute another program later, and has the whole time limit again.
    del variables[20]
    clock.now += UNCLEAR_S
    assert orphans.find({20}, WORKERS) == []


@pytest.mark.usefixtures("variables")
def test_a_process_whose_variables_stay_unknown_is_an_orphan_after_a_time_limit(clock: SimpleNamespace) -> None:
    orphans = Orphans()
    looks = 0
    while not (found := orphans.find({20}, WORKERS)):
        assert orphans.look_again_s is not None
        clock.now += orphans.look_again_s
        looks += 1
    assert found == [20]
    assert clock.now - 100.0 == pytest.approx(UNCLEAR_S, abs=0.2)
    assert looks < 1000
    # It may not be permitted to kill it. Then each further look tries again, and causes no other look.
    assert orphans.find({20}, WORKERS) == [20]
    assert orphans.look_again_s is None
    # A process that has ended is a child no more. Another process may get its number.
    assert orphans.find(set(), WORKERS) == []
    assert orphans.find({20}, WORKERS) == []


@pytest.mark.usefixtures("variables", "clock")
def test_without_living_workers_all_processes_are_orphans() -> None:
    orphans = Orphans()
    assert orphans.find({20, 30}, set()) == [20, 30]
    assert orphans.look_again_s is None
