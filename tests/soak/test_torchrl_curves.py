"""Check that TorchRL's losses learn as fast on a pool's rollouts as with TorchRL's collector (``make soak``)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore")]  # TorchRL warns about its next version.
SEEDS = (1, 2, 3)
GIVEN_UP, SOLVED = 200_000, 475.0


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module ``examples/torchrl_ppo.py``."""
    pytest.importorskip("torchrl", reason="needs parenv[torchrl]")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    return importlib.import_module("torchrl_ppo")


def steps_with_its_own_collector(example: Any, seed: int) -> int:
    """Train the learner of the example with TorchRL's collector; return the env steps until CartPole is solved."""
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv, RewardSum, SerialEnv, TransformedEnv

    torch.manual_seed(seed)
    args, actor, curve, env_steps = example.Args(seed=seed), example.make_actor(), example.Curve(), 0
    envs = SerialEnv(args.num_envs, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True))
    envs.set_seed(seed)
    frames = args.num_envs * args.rollout_length
    learner = example.Learner(args, actor)
    own = Collector(
        TransformedEnv(envs, RewardSum()), actor, frames_per_batch=frames, total_frames=GIVEN_UP // frames * frames
    )
    for data in own:
        learner.update(data)
        env_steps += data.numel()
        ended = data["next", "done"]
        curve.add(env_steps, data["next", "episode_reward"][ended].tolist())
        if curve.reached(SOLVED):
            break
    own.shutdown()
    return env_steps


def test_ppo_of_torchrl_solves_cartpole_with_every_seed_as_it_does_with_its_own_collector(example: Any) -> None:
    torch.set_num_threads(1)
    for seed in SEEDS:
        curve = example.main(["--seed", str(seed)])
        on_pool, alone = curve.points[-1][0], steps_with_its_own_collector(example, seed)
        print(f"\nseed {seed}: solved after {on_pool:,} env steps, with TorchRL's own collector after {alone:,}")
        assert curve.mean_return >= SOLVED
        assert on_pool < GIVEN_UP
        assert on_pool < 3 * alone
