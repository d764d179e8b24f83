"""Check that ``parenv bench`` steps the vector envs and env runners of other libraries as often as it reports."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from envs import Plain
from scripts import printed_by

from parenv.bench import other_libraries
from parenv.bench.other_libraries import vector_peers

KINDS = {
    "SB3 DummyVecEnv": "stable_baselines3",
    "SB3 SubprocVecEnv": "stable_baselines3",
    "Tianshou DummyVectorEnv": "tianshou",
    "Tianshou ShmemVectorEnv": "tianshou",
    "TorchRL SerialEnv": "torchrl",
    "TorchRL ParallelEnv": "torchrl",
}


def counted(path: Path) -> Callable[[], Any]:
    """Return a factory of environments with episodes of 3 steps. Each step appends its process id to a file."""

    def write(env: Any) -> None:
        with path.open("a") as file:
            file.write(f"{os.getpid()}\n")

    return functools.partial(Plain, length=3, reward=1.0, on_step=write)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("kind", "package"), KINDS.items())
def test_a_peer_steps_every_sub_environment_once_and_resets_ended_ones(kind: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    in_process, make = next((in_process, make) for name, in_process, make in vector_peers("fork") if name == kind)
    envs = make([counted(tmp_path / "steps")] * 2)
    envs.reset()
    for _ in range(10):
        envs.step(np.zeros(2, np.int64))
    envs.close()
    steps = Counter(map(int, (tmp_path / "steps").read_text().split()))
    assert list(steps.values()) == ([20] if in_process else [10, 10])
    assert (os.getpid() in steps) == in_process


RUNNERS = """
import itertools, pathlib, sys
from test_peers import counted
from types import SimpleNamespace
from parenv.bench import other_libraries

path = pathlib.Path(sys.argv[1])
measure, close = other_libraries.open_rllib(counted(path), num_envs=5, num_workers=2, rollout_length=4)
path.write_text("")
other_libraries.time = SimpleNamespace(perf_counter=itertools.count().__next__)
print(measure(1.0), len(path.read_text().split()))
close()
"""


@pytest.mark.skipif(not other_libraries.has_rllib(), reason="needs ray[rllib]")
def test_the_measured_rate_of_rllib_counts_the_env_steps_of_its_runners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    assert printed_by(RUNNERS, str(tmp_path / "steps")).split() == ["16.0", "16"]
