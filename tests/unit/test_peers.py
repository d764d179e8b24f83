"""Check how the benchmarks call other libraries, with stand-ins for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
RLLIB = ("ray", "ray.tune", "ray.tune.trainable", "ray.tune.trainable.trainable", "ray.rllib", "ray.rllib.algorithms",
         "ray.rllib.algorithms.ppo", "ray.rllib.core", "ray.rllib.core.rl_module", "ray.rllib.execution",
         "ray.rllib.core.rl_module.default_model_config", "ray.rllib.execution.rollout_ops")  # fmt: skip


@pytest.fixture
def systems(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that imports a module of the peers, after modules with these names were replaced."""

    def imported(name: str, **modules: Any) -> Any:
        for module, stand_in in modules.items():
            monkeypatch.setitem(sys.modules, module, stand_in)
        return import_module(f"systems.{name}")

    monkeypatch.syspath_prepend(str(PEERS))
    yield imported
    for name in [name for name in sys.modules if name.split(".")[0] == "systems"]:
        del sys.modules[name]


def test_sub_environments_of_tianshou_that_have_ended_are_reset(systems: Any) -> None:
    resets: list[Any] = []

    def step(actions: Any) -> Any:
        return None, None, actions == 1, actions == 2, None

    whole = MagicMock()
    envs = systems("tianshou_envs", tianshou=whole, **{"tianshou.env": whole.env}).ResettingEnvs(
        SimpleNamespace(step=step, reset=resets.append, close=None)
    )
    envs.step(np.array([0, 1, 0, 2]))
    envs.step(np.zeros(4))
    assert [ids.tolist() for ids in resets] == [[1, 3]]


def test_rllib_runners_step_equal_shares_and_all_their_env_steps_count(systems: Any) -> None:
    ray = MagicMock()
    rllib = systems("rllib", **dict.fromkeys(RLLIB, ray))
    rllib.configuration(num_envs=7, num_workers=2, rollout_length=10, vf_share_layers=False)
    runners = ray.PPOConfig().environment().env_runners
    asked = runners.call_args.kwargs
    made = asked["num_envs_per_env_runner"] * asked["num_env_runners"] * asked["rollout_fragment_length"]
    assert runners().training.call_args.kwargs["train_batch_size_per_learner"] == made == 60
    ray.synchronous_parallel_sample.return_value = ["abc", "de"]
    assert rllib.collected(ray.algorithm) == 5
    ray.synchronous_parallel_sample.return_value = []
    with pytest.raises(RuntimeError, match="no env runner has returned a sample"):
        rllib.collected(ray.algorithm)
