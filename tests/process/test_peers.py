"""Check that ``parenv bench`` and the benchmarks step the vector envs of other libraries as often as they report."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from envs import Plain

from parenv.bench.subjects import other_vector_envs

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


def counted(path: Path) -> Callable[[], Any]:
    """Return a factory of environments with episodes of 3 steps. Each step appends its process id to a file."""

    def write(env: Any) -> None:
        with path.open("a") as file:
            file.write(f"{os.getpid()}\n")

    return functools.partial(Plain, length=3, reward=1.0, on_step=write)


def sb3(kind: str, factory: Any) -> Any:
    return next(make for name, _, make in other_vector_envs() if name == f"SB3 {kind}")([factory] * 2)


def tianshou(kind: str, factory: Any) -> Any:
    tianshou_envs = import_module("systems.tianshou_envs")
    envs = tianshou_envs.ResettingEnvs(getattr(tianshou_envs.tianshou.env, kind)([factory] * 2))
    envs.reset = envs.envs.reset
    return envs


def torchrl(kind: str, factory: Any) -> Any:
    return import_module("systems.torchrl_envs").make(kind, factory, 2, "fork")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("package", "make", "kind", "in_process"),
    [
        ("stable_baselines3", sb3, "DummyVecEnv", True),
        ("stable_baselines3", sb3, "SubprocVecEnv", False),
        ("tianshou", tianshou, "DummyVectorEnv", True),
        ("tianshou", tianshou, "ShmemVectorEnv", False),
        ("torchrl", torchrl, "SerialEnv", True),
        ("torchrl", torchrl, "ParallelEnv", False),
    ],
)
def test_a_peer_steps_every_sub_environment_once_and_resets_ended_ones(
    package: str, make: Any, kind: str, in_process: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    monkeypatch.syspath_prepend(str(PEERS))
    # TorchRL keeps the frames of its callers, with all their variables. A new thread has no frames of the test.
    with ThreadPoolExecutor(1) as thread:
        envs = thread.submit(make, kind, counted(tmp_path / "steps")).result()
    envs.reset()
    for _ in range(10):
        envs.step(np.zeros(2, np.int64))
    envs.close()
    steps = Counter(map(int, (tmp_path / "steps").read_text().split()))
    assert list(steps.values()) == ([20] if in_process else [10, 10])
    assert (os.getpid() in steps) == in_process
