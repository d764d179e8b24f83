"""Overhead of named policies: a pool with one agent, and two policies of 32 rows compared with one of 64 rows.

The environment has one agent and dicts as in PettingZoo. One pool has a named policy. The other pool has a single
policy and a wrapper that takes the agent out of the dicts. All run in one process, without workers.

python benchmarks/agents.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from lib.common import consumption_rate, interleaved, save, summary
from torch import nn

from parenv import AsyncWorkerPool, TorchPolicy

SECONDS, REPEATS, ROLLOUT_LENGTH = 2.0, 7, 128


class CartPoles:
    """Independent CartPoles, one per agent, with the interface of PettingZoo's ParallelEnv.

    Args:
        agents: Names of the agents.
    """

    def __init__(self, agents: tuple[str, ...] = ("a_0",)) -> None:
        self.unwrapped, self.possible_agents = self, list(agents)
        self._envs = {agent: gym.make("CartPole-v1") for agent in agents}
        self.agents = list(agents)

    def observation_space(self, agent: str) -> Any:
        """Return the observation space of an agent."""
        return self._envs[agent].observation_space

    def action_space(self, agent: str) -> Any:
        """Return the action space of an agent."""
        return self._envs[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        self.agents = list(self.possible_agents)
        found = {agent: env.reset(seed=seed) for agent, env in self._envs.items()}
        return {agent: seen for agent, (seen, _) in found.items()}, {agent: info for agent, (_, info) in found.items()}

    def step(self, actions: Any) -> Any:
        """Step the CartPoles of these agents. An agent whose CartPole has ended leaves until the next reset."""
        found = {agent: self._envs[agent].step(action) for agent, action in actions.items()}
        seen, rewards, terminated, truncated, infos = (
            {agent: part[i] for agent, part in found.items()} for i in range(5)
        )
        self.agents = [agent for agent in actions if not (terminated[agent] or truncated[agent])]
        return seen, rewards, terminated, truncated, infos

    def close(self) -> None:
        """Close all CartPoles."""
        for env in self._envs.values():
            env.close()


class OneCartPole(gym.Env[Any, Any]):
    """Gymnasium environment with the only agent of :class:`CartPoles`."""

    def __init__(self) -> None:
        self._env = CartPoles()
        self.observation_space = self._env.observation_space("a_0")
        self.action_space = self._env.action_space("a_0")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        seen, infos = self._env.reset(seed)
        return seen["a_0"], infos["a_0"]

    def step(self, action: Any) -> Any:
        """Take a step."""
        seen, rewards, terminated, truncated, infos = self._env.step({"a_0": action})
        return seen["a_0"], rewards["a_0"], terminated["a_0"], truncated["a_0"], infos["a_0"]


class Agent(nn.Module):
    """MLP with two layers of 64 units that returns actions, log-probabilities and values, as for PPO."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return sampled actions, their log-probabilities, and values, each ``[N]``."""
        both = self.body(observations)
        log_probs = both[:, :2].log_softmax(-1)
        actions = log_probs.exp().multinomial(1)
        return actions.squeeze(-1), log_probs.gather(1, actions).squeeze(-1), both[:, 2]


def network() -> TorchPolicy:
    return TorchPolicy(Agent(), "act", ("actions", "log_prob", "value"))


def lean(observations: Any) -> Any:
    return (observations[:, 2] > 0).astype(np.int64)


def rate(make_env: Any, policy: Any, rows: int = 1, **more: Any) -> Callable[[], float]:
    """Return a function that measures the rows per second of a new pool, as if all agents were always alive."""

    def measure() -> float:
        how: dict[str, Any] = {"num_envs": 32, "num_workers": 0, "rollout_length": ROLLOUT_LENGTH, **more}
        with AsyncWorkerPool(make_env, policy, **how) as pool:
            return rows * consumption_rate(pool, SECONDS)

    return measure


def pair() -> CartPoles:
    return CartPoles(("a_0", "b_0"))


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for kind, policy in (("a callable", lambda: lean), ("a network", network)):
        measures = {
            "one policy": rate(OneCartPole, policy()),
            "by name": rate(CartPoles, {"a": policy()}),
        }
        found[f"rows per second, 32 sub-environments of one agent, {kind}"] = summary(
            interleaved(measures, REPEATS, alternating=True), "one policy"
        )
    measures = {
        "one of 64 rows": rate(pair, {"a": network()}, 2),
        "two of 32 rows": rate(
            pair, {"a": network(), "b": network()}, 2, policy_of=lambda agent, episode: agent.split("_")[0]
        ),
    }
    found["rows per second, 32 sub-environments of two agents"] = summary(
        interleaved(measures, REPEATS, alternating=True), "one of 64 rows"
    )
    save("agents", found)


if __name__ == "__main__":
    main()
