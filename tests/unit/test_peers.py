"""Check how ``parenv bench`` calls other libraries, with stand-ins for them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from parenv.bench import other_libraries
from parenv.bench.other_libraries import vector_peers

RLLIB = ("ray", "ray.tune", "ray.tune.trainable.trainable", "ray.rllib.algorithms.ppo",
         "ray.rllib.execution.rollout_ops", "ray.rllib.core.rl_module.default_model_config")  # fmt: skip


def test_sub_environments_of_tianshou_that_have_ended_are_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    resets: list[Any] = []

    class DummyVectorEnv:
        def __init__(self, factories: Any) -> None:
            self.reset, self.close = resets.append, None

        def step(self, actions: Any) -> Any:
            terminated, truncated = actions == 1, actions == 2
            return None, None, terminated, truncated, None

    monkeypatch.setattr("parenv.bench.other_libraries.is_installed", lambda package: package == "tianshou")
    monkeypatch.setitem(sys.modules, "tianshou.env", SimpleNamespace(DummyVectorEnv=DummyVectorEnv))  # type: ignore[arg-type]
    _, _, make = next(vector_peers("fork"))
    envs = make([dict] * 4)
    envs.step(np.array([0, 1, 0, 2]))
    envs.step(np.zeros(4))
    assert [ids.tolist() for ids in resets] == [[1, 3]]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace Ray and all of its modules with one mock."""
    whole = MagicMock()
    for name in RLLIB:
        monkeypatch.setitem(sys.modules, name, whole)
    whole.PPOConfig().environment().env_runners.return_value = whole.configured
    return whole


def test_rllib_runners_step_equal_shares_and_all_their_env_steps_count(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, close = other_libraries.open_rllib(dict, num_envs=7, num_workers=2, rollout_length=10)
    asked = ray.PPOConfig().environment().env_runners.call_args.kwargs
    made = asked["num_envs_per_env_runner"] * asked["num_env_runners"] * asked["rollout_fragment_length"]
    assert ray.configured.training.call_args.kwargs["train_batch_size_per_learner"] == made == 60
    monkeypatch.setattr(other_libraries, "time", SimpleNamespace(perf_counter=iter([0.0, 1.0, 2.0]).__next__))
    ray.synchronous_parallel_sample.side_effect = [["abc", "de"], ["fgh"]]
    assert measure(2.0) == 8 / 2.0
    close()
    ray.shutdown.assert_called_once()


def test_rllib_runners_that_return_no_sample_are_an_error(ray: Any) -> None:
    measure, _ = other_libraries.open_rllib(dict, num_envs=2, num_workers=1, rollout_length=10)
    ray.synchronous_parallel_sample.return_value = []
    with pytest.raises(RuntimeError, match="no env runner has returned a sample"):
        measure(0.0)


def test_ray_is_shut_down_if_no_runners_can_be_made(ray: Any) -> None:
    ray.configured.training().rl_module().training().build_algo.side_effect = ValueError("no such space")
    with pytest.raises(ValueError, match="no such space"):
        other_libraries.open_rllib(dict, num_envs=2, num_workers=1, rollout_length=10)
    ray.shutdown.assert_called_once()
