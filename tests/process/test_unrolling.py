"""Check that ``unroll`` recomputes the outputs and carries that a recurrent policy had while it acted."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
import torch
from envs import OwnVectorEnv
from gymnasium.vector import AutoresetMode

from parenv import AsyncWorkerPool, Stop, TorchPolicy
from parenv.learning import unroll


def short() -> Any:
    return gym.make("CartPole-v1", max_episode_steps=12)


class Agent(torch.nn.Module):
    """Recurrent module with a nested carry of two parts, which are initially ones."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = torch.nn.ModuleList([torch.nn.GRUCell(4, 3), torch.nn.GRUCell(4, 2)])

    def initial_carry(self, batch: int) -> Any:
        return {"a": torch.ones(batch, 3), "b": (torch.ones(batch, 2),)}

    def step(self, observations: Any, carry: Any) -> Any:
        a, b = self.cells[0](observations, carry["a"]), self.cells[1](observations, carry["b"][0])
        return (a, b.sum(-1)), {"a": a, "b": (b,)}

    def act(self, observations: Any, carry: Any) -> Any:
        (a, b), carry = self.step(observations, carry)
        return a.argmax(-1) % 2, a, b, carry


MAKERS = {
    "single": short,
    "next step": lambda: OwnVectorEnv([short, short], autoreset_mode=AutoresetMode.NEXT_STEP),
    "same step": lambda: OwnVectorEnv([short, short], autoreset_mode=AutoresetMode.SAME_STEP),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_unrolled_outputs_and_carries_equal_the_recorded_ones(make: Any) -> None:
    agent, ends = Agent(), 0
    policy = TorchPolicy(agent, "act", ("actions", "a", "b", "carry"))
    with AsyncWorkerPool(make, policy, num_envs=2, num_workers=1, mode="sync", rollout_length=16) as pool:
        for arrived in pool.rollouts(Stop(env_steps=200)):
            rollout = arrived.to("cpu")
            (a, b), carries = unroll(agent.step, rollout, agent.initial_carry(2))
            torch.testing.assert_close(a, rollout.extras["a"])
            torch.testing.assert_close(b, rollout.extras["b"])
            torch.testing.assert_close(carries["a"], a)
            assert carries["b"][0].shape == (16, 2, 2)
            ends += len(rollout.final_index[0])
    assert ends > 4
    a.sum().backward()
    assert agent.cells[0].weight_hh.grad is not None
