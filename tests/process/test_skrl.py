"""Check that skrl can wrap a ``ParallelVectorEnv`` like a vector env of Gymnasium."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium as gym
import pytest
import torch
from late import Late

from parenv import ParallelVectorEnv

skrl = Late("skrl.envs.wrappers.torch")
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("skrl") is None, reason="needs pip install skrl"),
    pytest.mark.more,
    # skrl and its dependencies emit warnings.
    pytest.mark.filterwarnings("ignore"),
]


def make() -> Any:
    return gym.make("CartPole-v1", max_episode_steps=20)


def trace(envs: Any) -> list[Any]:
    wrapped = skrl.wrap_env(envs, verbose=False)
    try:
        assert wrapped.num_envs == 4
        wrapped._seed = 11
        found = [wrapped.reset()[0]]
        drawn = torch.Generator().manual_seed(0)
        for _ in range(100):
            found += wrapped.step(torch.randint(0, 2, (4, 1), generator=drawn))[:4]
        return found
    finally:
        wrapped.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_wrapped_env_equals_a_wrapped_sync_vector_env(num_workers: int) -> None:
    mine = trace(ParallelVectorEnv([make] * 4, num_workers=num_workers))
    wanted = trace(gym.vector.SyncVectorEnv([make] * 4))
    assert len(mine) == len(wanted) == 401
    assert all(map(torch.equal, mine, wanted))
    assert sum(int(flags.sum()) for flags in mine[3::4]) > 5
