"""Multi-agent environments that follow a script, and plain loops that compute what a pool must deliver."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from parenv import AsyncWorkerPool, Policy
from parenv.policy.policy import Action

AGENTS = ("fox_0", "fox_1", "hen_0", "hen_1", "hen_2")
"""All possible agents. Foxes observe one number more than hens."""


def length(env_id: int, episode: int) -> int:
    return 3 + (env_id * 5 + episode * 7) % 6


def lives(env_id: int, episode: int, agent: str) -> list[tuple[int, int]]:
    """Return the ranges of steps in which an agent is alive: some agents join late, others die and return."""
    number, end = AGENTS.index(agent), length(env_id, episode)
    found = {
        0: [(0, end)],
        1: [(0, 2), (3, end)],
        2: [(0, end)],
        3: [(2, end - 1)],
        4: [(0, 1), (2, 3), (4, end)] if (env_id + episode) % 2 else [],
    }[number]
    return [(begin, stop) for begin, stop in found if begin < stop]


class Scripted:
    """Environment with the interface of PettingZoo's ParallelEnv, which reuses the buffers of its observations."""

    metadata = {"name": "scripted_v0"}  # noqa: RUF012

    def __init__(self, env_id: int) -> None:
        self.env_id, self.episode, self.now = env_id, -1, 0
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self.state_space = spaces.Box(-1, 1 << 30, (3,), np.int64)
        self.unwrapped = self
        self._buffers = {agent: np.zeros(self.width(agent), np.int64) for agent in AGENTS}

    @staticmethod
    def width(agent: str) -> int:
        return 5 if agent.startswith("fox") else 4

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1 << 30, (self.width(agent),), np.int64)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(100 if agent.startswith("fox") else 50)

    def state(self) -> Any:
        return np.array([self.env_id, self.episode, self.now])

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.episode += 1
        self.now = 0
        self.agents = self._there()
        return {agent: self._see(agent) for agent in self.agents}, {agent: {"now": self.now} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        acted = self.agents
        assert list(actions) == acted, (actions, acted)
        assert all(type(action) is np.int64 for action in actions.values())
        self.now += 1
        there = [agent for agent in acted if self._stays(agent)]
        gone = [agent for agent in acted if agent not in there]
        born = [agent for agent in self._there() if agent not in acted]
        seen = {agent: self._see(agent) for agent in (*acted, *born)}
        rewards = {agent: self.reward(agent, actions[agent]) for agent in acted}
        terminated = {agent: agent in gone and not self.cuts(agent) for agent in seen}
        truncated = {agent: agent in gone and self.cuts(agent) for agent in seen}
        self.agents = [*there, *born]
        return seen, rewards, terminated, truncated, {agent: {"now": self.now} for agent in seen}

    def reward(self, agent: str, action: int) -> float:
        return float((self.env_id * 31 + self.episode * 17 + self.now * 7 + AGENTS.index(agent) * 3 + action) % 1000)

    def cuts(self, agent: str) -> bool:
        return (self.episode + AGENTS.index(agent)) % 3 == 0

    def get_state(self) -> Any:
        return [self.episode, self.now, list(self.agents)]

    def set_state(self, state: Any) -> None:
        self.episode, self.now, self.agents = state[0], state[1], list(state[2])

    def close(self) -> None:
        pass

    def _there(self) -> list[str]:
        end = length(self.env_id, self.episode)
        if self.now >= end:
            return []
        return [a for a in AGENTS if any(b <= self.now < s for b, s in lives(self.env_id, self.episode, a))]

    def _stays(self, agent: str) -> bool:
        return agent in self._there()

    def _see(self, agent: str) -> Any:
        buffer = self._buffers[agent]
        buffer[:4] = self.env_id, self.episode, self.now, AGENTS.index(agent)
        return buffer


class ScriptedTurns(Scripted):
    """Environment with the same script and the interface of PettingZoo's AECEnv: living agents act in turn."""

    def agent_iter(self) -> Any:
        raise NotImplementedError

    def observe(self, agent: str) -> Any:
        return self._see(agent)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._sum = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._queue = list(self.agents)
        self.agent_selection = self._queue[0]

    def last(self) -> Any:
        agent, info = self.agent_selection, {"now": self.now}
        return self.observe(agent), self._sum[agent], self.terminations[agent], self.truncations[agent], info

    def step(self, action: Any) -> None:
        agent = self._queue.pop(0)
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None
            self.agents.remove(agent)
            for table in (self._sum, self.terminations, self.truncations):
                del table[agent]
        else:
            assert type(action) is np.int64
            self._sum[agent] = 0.0
            for other in self.agents:
                self._sum[other] += self.reward(other, action) / 8
        if not self._queue:
            self._next_round()
        self.agent_selection = self._queue[0] if self._queue else ""

    def get_state(self) -> Any:
        names = "_sum", "terminations", "truncations", "_queue", "agent_selection"
        return [*super().get_state(), {name: getattr(self, name) for name in names}]

    def set_state(self, state: Any) -> None:
        super().set_state(state)
        for name, value in state[3].items():
            setattr(self, name, value.copy() if hasattr(value, "copy") else value)

    def _next_round(self) -> None:
        self.now += 1
        for agent in self.agents:
            if not self._stays(agent):
                self.terminations[agent], self.truncations[agent] = not self.cuts(agent), self.cuts(agent)
        for agent in self._there():
            if agent not in self.agents:
                self.agents.append(agent)
                self._sum[agent] = 0.0
                self.terminations[agent] = self.truncations[agent] = False
        self._queue = list(self.agents)


def scripted(count: int, kind: Any = Scripted) -> list[Any]:
    """Return factories of scripted environments with the numbers 0 to ``count - 1``."""
    return [functools.partial(kind, env_id) for env_id in range(count)]


def species(agent: str, episode: Any) -> str:
    """Return the species of an agent, such as ``fox`` for ``fox_0``."""
    return agent.split("_")[0]


def opponents(agent: str, episode: Any) -> str:
    """Return ``fox`` for foxes. For hens, draw ``hen`` or one of its frozen versions."""
    if agent.startswith("fox"):
        return "fox"
    return str(episode.generator.choice(["hen", *episode.settings["hen"].get("past", [])]))


def act(observations: Any) -> Any:
    """Return the action for each observation, which depends on the agent. All policies of the tests act like this."""
    return (observations[:, :4] * [1, 3, 5, 7]).sum(1) % 50


class Lived(NamedTuple):
    """Transition of an agent."""

    observation: list[int]
    action: int
    reward: float
    following: list[int]
    terminated: bool
    truncated: bool


Ledger = dict[tuple[int, str], list[Lived]]


class Counter(Policy):
    """Policy that counts the steps of each life of an agent in its carry."""

    def initial_carry(self, batch: int) -> Any:
        return {"steps": np.zeros(batch, np.int64)}

    def act(self, observations: Any, carry: Any) -> Action:
        return Action(act(observations), {"steps": carry["steps"]}, {"steps": carry["steps"] + 1})


def named_pool(
    count: int,
    kind: Any = Scripted,
    *,
    hen: Any = act,
    fox: Any = act,
    policy_of: Any = species,
    num_workers: int = 0,
    **options: Any,
) -> AsyncWorkerPool:
    """Return a pool of scripted environments with the policies ``hen`` and ``fox``."""
    envs, policies = scripted(count, kind), {"hen": hen, "fox": fox}
    return AsyncWorkerPool(envs, policies, policy_of=policy_of, num_workers=num_workers, **options)


def one_action(observation: Any) -> Any:
    return np.int64(act(np.asarray(observation)[None])[0])


def plain_loop(env_id: int, env_steps: int) -> tuple[Ledger, list[list[int]]]:
    """Step an environment in a plain loop; return the transitions of each agent and the state before each step."""
    env, ledger, states = Scripted(env_id), defaultdict(list), []
    seen, _ = env.reset()
    for _ in range(env_steps):
        states.append(env.state().tolist())
        before = {agent: seen[agent].tolist() for agent in env.agents}
        actions = {agent: one_action(before[agent]) for agent in env.agents}
        seen, rewards, terminated, truncated, _ = env.step(actions)
        for agent in actions:
            ledger[env_id, agent].append(
                Lived(
                    before[agent],
                    actions[agent],
                    rewards[agent],
                    seen[agent].tolist(),
                    terminated[agent],
                    truncated[agent],
                )
            )
        if not env.agents:
            seen, _ = env.reset()
    return dict(ledger), states


def plain_turns(env_id: int, env_steps: int) -> Ledger:
    """Step an environment whose agents act in turn in a plain loop; return the transitions of each agent."""
    env, ledger = ScriptedTurns(env_id), defaultdict(list)
    begun: dict[str, tuple[list[int], int]] = {}
    env.reset()
    while env_steps:
        if not env.agents:
            env.reset()
        agent = env.agent_selection
        observation, reward, terminated, truncated, _ = env.last()
        observed = observation.tolist()
        if agent in begun:
            ledger[env_id, agent].append(Lived(*begun.pop(agent), reward, observed, terminated, truncated))
        if terminated or truncated:
            env.step(None)
            continue
        begun[agent] = observed, one_action(observed)
        env.step(begun[agent][1])
        env_steps -= 1
    return dict(ledger)


def delivered(rows: Any, ledger: Ledger) -> None:
    """Add the transitions of an ``AgentRollout`` to a ledger."""
    following = rows.next_observations()
    for row, (env_id, agent) in enumerate(zip(rows.env_ids.tolist(), rows.agents, strict=True)):
        for step in np.flatnonzero(rows.alive[:, row]):
            ledger.setdefault((env_id, agent), []).append(
                Lived(
                    rows.observations[step, row].tolist(),
                    int(rows.actions[step, row]),
                    float(rows.rewards[step, row]),
                    following[step, row].tolist(),
                    bool(rows.terminated[step, row]),
                    bool(rows.truncated[step, row]),
                )
            )
