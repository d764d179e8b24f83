"""Check the number of usable cores under CPU affinity and container limits, and the cores of each worker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from parenv.platform import linux
from parenv.process import cores


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """Return a function that fakes the number of cores and the files of the control group or of the whole system."""

    def pretend(count: int, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / name.lstrip("/") if name.startswith("/") else tmp_path / "sys/fs/cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(linux, "Path", lambda path: tmp_path / str(path).lstrip("/"))
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(count)))

    return pretend


MINE = "/proc/self/cgroup"
V1_MINE = "9:name=systemd:/job\n3:cpuset:/other\n4:cpu,cpuacct:/slurm/job\n0::/job\n"


def v1(quota: str, period: str = "100000\n") -> dict[str, str]:
    return {"cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": period}


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "1000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu.max": "nonsense\n"}, 8),
        (v1("-1\n"), 8),
        (v1("200000\n"), 2),
        (v1("150000\n", "50000\n"), 3),
        (v1("nonsense\n"), 8),
        ({"cpu/cpu.cfs_quota_us": "200000\n"}, 8),
        ({"cpu.max": "300000 100000\n", **v1("200000\n")}, 3),
        ({MINE: "0::/\n", "cpu.max": "400000 100000\n"}, 4),
        ({MINE: "0::/a/job\n", "a/job/cpu.max": "200000 100000\n"}, 2),
        ({MINE: "0::/a/job\n", "a/cpu.max": "200000 100000\n", "a/job/cpu.max": "max 100000\n"}, 2),
        ({MINE: "0::/a/job\n", "a/cpu.max": "200000 100000\n", "a/job/cpu.max": "300000 100000\n"}, 2),
        ({MINE: "0::/a/job\n", "other/cpu.max": "200000 100000\n"}, 8),
        ({MINE: "0::/../job\n", "cpu.max": "500000 100000\n"}, 5),
        ({MINE: "0::/not/mounted/here\n", "cpu.max": "500000 100000\n"}, 5),
        ({MINE: "nonsense\n", "cpu.max": "500000 100000\n"}, 5),
        ({MINE: "1:cpu:/\n0::/job\n", "unified/job/cpu.max": "500000 100000\n"}, 5),
        ({MINE: V1_MINE, "cpu/slurm/cpu.cfs_quota_us": "-1\n", "cpu/slurm/job/cpu.cfs_quota_us": "200000\n"}, 8),
        (
            {
                MINE: V1_MINE,
                **v1("-1\n"),
                "cpu/slurm/job/cpu.cfs_quota_us": "200000\n",
                "cpu/slurm/job/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
    ],
)
def test_the_cpu_limit_of_the_container_is_respected(machine: object, files: dict[str, str], usable: int) -> None:
    machine(8, files)
    assert cores.usable_cores() == usable


def test_the_affinity_is_respected(machine: object) -> None:
    machine(3, {"cpu.max": "800000 100000\n"})
    assert cores.usable_cores() == 3


@pytest.mark.parametrize(("usable", "workers"), [(1, 1), (2, 1), (3, 2), (4, 3), (6, 4), (16, 11), (96, 64)])
def test_experience_leaves_a_third_to_the_learner_and_gradients_take_all(
    machine: object, usable: int, workers: int
) -> None:
    machine(usable, {})
    assert cores.recommended_num_workers() == cores.recommended_num_workers(cores=usable) == workers
    assert cores.recommended_num_workers("gradient") == usable


TWO_NODES = {
    "/sys/devices/system/node/node0/cpulist": "0-1,4-5\n",
    "/sys/devices/system/node/node1/cpulist": "2-3,6-7\n",
}
NODES = [(0, 1, 4, 5), (2, 3, 6, 7)]


def test_the_workers_are_distributed_among_the_nodes_by_their_cores(machine: object) -> None:
    machine(8, TWO_NODES)
    assert cores.own_cores(2) == tuple(NODES)
    assert cores.own_cores(5) == (NODES[0],) * 3 + (NODES[1],) * 2
    assert cores.own_cores(8) == (NODES[0],) * 4 + (NODES[1],) * 4
    assert cores.own_cores(8, threads=2) == cores.own_cores(8)


@pytest.mark.parametrize(
    ("count", "files", "workers", "threads"),
    [(8, {}, 4, 1), (2, TWO_NODES, 4, 1), (8, TWO_NODES, 1, 1), (8, TWO_NODES, 0, 1), (8, TWO_NODES, 4, 5)],
    ids=["unknown nodes", "cores of one node", "fewer workers than nodes", "no workers", "too many threads"],
)
def test_workers_are_not_bound_to_cores(
    machine: object, count: int, files: dict[str, str], workers: int, threads: int
) -> None:
    machine(count, files)
    assert cores.own_cores(workers, threads) is None


def test_learners_on_one_machine_share_the_nodes(machine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(8, TWO_NODES)
    for name, value in (("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        assert cores.own_cores(3) == (NODES[rank % 2],) * 3


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(1, 40), st.integers(1, 4))
def test_workers_of_a_node_differ_from_its_share_by_less_than_one(sizes: list[int], workers: int, local: int) -> None:
    numbers = iter(range(100))
    nodes = [[next(numbers) for _ in range(size)] for size in sizes]
    total = workers * local
    sets = [cores.core_sets(nodes, workers, cores.Learner(rank, local, local)) for rank in range(local)]
    if total < len(nodes):
        assert sets == [None] * local
        return
    found = [mine for of_learner in sets for mine in of_learner or ()]
    assert len(found) == total
    for node in nodes:
        assert abs(found.count(tuple(node)) - total * len(node) / sum(sizes)) < 1
