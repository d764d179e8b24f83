"""Check that the memory that is needed is compared with the free memory of the machine and its control groups."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from policies import zeros

from parenv import AsyncWorkerPool, ConfigurationError, ParallelVectorEnv
from parenv.platform import linux, system

STAT_V2 = "anon 1\ninactive_file 300\n"
STAT_V1 = "cache 1\ntotal_inactive_file 300\n"
MACHINE = {"proc/meminfo": "MemTotal: 99 kB\nMemFree: 1 kB\nMemAvailable: 10 kB\n"}


def v2(path: str, limit: str, used: int) -> dict[str, str]:
    files = {"memory.max": f"{limit}\n", "memory.current": f"{used}\n", "memory.stat": STAT_V2}
    return {f"sys/fs/cgroup{path}/{name}": text for name, text in files.items()}


def v1(path: str, limit: str, used: int) -> dict[str, str]:
    files = {"memory.limit_in_bytes": f"{limit}\n", "memory.usage_in_bytes": f"{used}\n", "memory.stat": STAT_V1}
    return {f"sys/fs/cgroup/memory{path}/{name}": text for name, text in files.items()}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, math.inf),
        (MACHINE, 10240),
        ({"proc/meminfo": "nonsense\n"}, math.inf),
        ({**MACHINE, "proc/self/cgroup": "0::/a/b\n"}, 10240),
        ({**MACHINE, "proc/self/cgroup": "0::/a/b\n", **v2("/a/b", "5000", 4000)}, 1300),
        ({**MACHINE, "proc/self/cgroup": "0::/a/b\n", **v2("/a/b", "max", 4000)}, 10240),
        ({**MACHINE, "proc/self/cgroup": "0::/a/b\n", **v2("/a/b", "max", 1), **v2("/a", "5000", 4800)}, 500),
        ({**MACHINE, "proc/self/cgroup": "0::/named/outside\n", **v2("", "5000", 4000)}, 1300),
        ({**MACHINE, "proc/self/cgroup": "0::/\n", **v2("", "5000", 6000)}, 0),
        ({**MACHINE, "proc/self/cgroup": "3:cpu:/a\n2:memory:/a\n0::/\n", **v1("/a", "5000", 4000)}, 1300),
        ({**MACHINE, "proc/self/cgroup": "2:cpu,memory:/a\n", **v1("", "5000", 4000)}, 1300),
        ({**MACHINE, "proc/self/cgroup": "2:memory:/a\n", **v1("/a", str(1 << 62), 4000)}, 10240),
        ({**MACHINE, "proc/self/cgroup": "2:cpu:/a\n", **v1("/a", "5000", 4000)}, 10240),
    ],
)
def test_free_memory_is_the_least_of_machine_and_groups(
    tmp_path: Path, files: Mapping[str, str], free: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(linux, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    assert linux.free_bytes() == free


def test_some_memory_of_this_machine_is_free() -> None:
    assert 0 < linux.free_bytes() < math.inf


class Large(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(0, 1, (250, 1000), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros((250, 1000), np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros((250, 1000), np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_error_for_a_pool_that_is_too_large_explains_its_memory(
    num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "free_bytes", lambda: 100e6)
    message = (
        r"the pool needs .* MB of memory, but 100 MB are free: \d+ rollouts of .* MB that may be in progress or in use "
        r"at once, for rollout_length=20 and observations of 1 MB each, and .* MB for versions of the policy. Use "
        "a shorter rollout_length, fewer sub-environments, a smaller prefetch"
    )
    with pytest.raises(ConfigurationError, match=message):
        AsyncWorkerPool([Large] * 2, zeros, num_workers=num_workers, rollout_length=20)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_vector_env_that_is_too_large_is_refused(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "free_bytes", lambda: 3e6)
    message = (
        "the vector env needs 4.01 MB of memory, but 3 MB are free: observations of 1 MB each from 4 sub-environments"
    )
    with pytest.raises(ConfigurationError, match=message):
        ParallelVectorEnv([Large] * 4, num_workers=num_workers)


def test_a_vector_env_that_takes_more_than_half_of_the_free_memory_logs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="parenv"):
        for free, words in ((7e6, ["the vector env needs 4.01 MB of memory, but 7 MB are free"]), (9e6, [])):
            monkeypatch.setattr(system, "free_bytes", lambda free=free: free)
            caplog.clear()
            ParallelVectorEnv([Large] * 4, num_workers=0).close()
            assert [record.getMessage().partition(":")[0] for record in caplog.records] == words
