"""Check that the transitions of agents with named policies equal those of plain loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from audits import LATE_S
from gymnasium import spaces
from policies import zeros
from scripted_agents import (
    AGENTS,
    Ledger,
    Scripted,
    ScriptedTurns,
    act,
    delivered,
    named_pool,
    plain_loop,
    plain_turns,
    scripted,
    species,
)

from parenv import AsyncWorkerPool, Stop


def check(found: Ledger, wanted: Ledger) -> None:
    """Check that the delivered transitions of each agent are the first ones of a plain loop."""
    for key, mine in found.items():
        for i, (got, expected) in enumerate(zip(mine, wanted[key], strict=False)):
            assert got == expected, (key, i)
        assert len(mine) <= len(wanted[key])


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("num_envs", "num_workers"), [(1, 0), (3, 0), (5, 2)])
def test_transitions_of_parallel_agents_equal_those_of_a_plain_loop(mode: Any, num_envs: int, num_workers: int) -> None:
    found: Ledger = {}
    with named_pool(num_envs, num_workers=num_workers, mode=mode, rollout_length=7) as pool:
        steps = dict.fromkeys(range(num_envs), 0)
        states: dict[int, Any] = {env_id: [] for env_id in range(num_envs)}
        for rollout in pool.rollouts(Stop(env_steps=7 * num_envs * 12)):
            assert set(rollout) == {"hen", "fox"}
            for rows in rollout.values():
                delivered(rows, found)
            for column, env_id in enumerate(rollout.env_ids.tolist()):
                steps[env_id] += 7
                states[env_id] += rollout.states[:, column].tolist()
    for env_id, count in steps.items():
        wanted, wanted_states = plain_loop(env_id, count)
        mine = {key: lived for key, lived in found.items() if key[0] == env_id}
        assert mine == wanted
        assert states[env_id] == wanted_states


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("num_envs", "num_workers"), [(1, 0), (3, 0), (5, 2)])
def test_transitions_of_aec_agents_equal_those_of_a_plain_loop(mode: Any, num_envs: int, num_workers: int) -> None:
    found: Ledger = {}
    env_steps = 0
    with named_pool(num_envs, ScriptedTurns, num_workers=num_workers, mode=mode, rollout_length=7) as pool:
        for rollout in pool.rollouts(Stop(seconds=LATE_S)):
            env_steps += rollout.num_steps
            for rows in rollout.values():
                delivered(rows, found)
            # On a busy machine, one worker may deliver nearly all steps of an asynchronous pool.
            if env_steps >= num_envs * 300 and len(found) == num_envs * len(AGENTS):
                break
    wanted: Ledger = {}
    for env_id in range(num_envs):
        wanted |= plain_turns(env_id, env_steps + 100)
    check(found, wanted)
    # A turn is delivered when its reward is complete, so the last turn of each agent may be missing.
    assert env_steps - sum(map(len, found.values())) <= num_envs * len(AGENTS) * (1 + (mode == "async"))
    assert len(found) == num_envs * len(AGENTS)


class Emptying:
    """Environment with the interface of PettingZoo's AECEnv, which empties ``agents`` without an end of any agent.

    This happens after three turns of each agent.
    """

    metadata = {"name": "emptying_v0"}  # noqa: RUF012
    possible_agents = ("x", "y")

    def __init__(self) -> None:
        self.unwrapped = self
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1, 100, (1,), np.int64)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def agent_iter(self) -> Iterator[str]:
        raise NotImplementedError

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.now, self.agent_selection = ["x", "y"], 0, "x"
        self.infos = {"x": {}, "y": {}}
        self._cumulative_rewards = {"x": 0.0, "y": 0.0}

    def observe(self, agent: str) -> Any:
        return np.array([self.now])

    def last(self) -> Any:
        agent = self.agent_selection
        return self.observe(agent), self._cumulative_rewards[agent], False, False, self.infos[agent]

    def step(self, action: int) -> None:
        self._cumulative_rewards[self.agent_selection] = 0.0
        self.now += 1
        for number, agent in enumerate(self.possible_agents, 1):
            self._cumulative_rewards[agent] += number * self.now
        self.agent_selection = self.possible_agents[self.now % 2]
        if self.now == 6:
            self.agents = []

    def close(self) -> None:
        pass


def test_agents_of_an_emptied_aec_environment_are_truncated_with_their_last_rewards() -> None:
    with AsyncWorkerPool(Emptying, {"all": zeros}, num_workers=0, mode="sync", rollout_length=4) as pool:
        rollout: Any = next(pool.rollouts())
        evaluated: Any = pool.evaluate(2)
    rows = rollout["all"]
    assert rollout.episodes.returns.tolist() == [(1 + 2 + 3 + 4 + 5 + 6) + 2 * (2 + 3 + 4 + 5 + 6)]
    assert evaluated.returns.tolist() == rollout.episodes.returns.tolist() * 2
    assert evaluated["all"].agents == ["x", "y"] * 2
    for row, (seen, rewards, following) in enumerate(
        [([0, 2, 4], [3.0, 7.0, 11.0], [2, 4, 6]), ([1, 3, 5], [10.0, 18.0, 12.0], [3, 5, 6])]
    ):
        assert rows.observations[:3, row, 0].tolist() == seen
        assert rows.rewards[:3, row].tolist() == rewards
        assert rows.next_observations()[:3, row, 0].tolist() == following
        assert rows.truncated[:3, row].tolist() == [False, False, True]
        assert not rows.terminated[:, row].any()


class Stateless(Scripted):
    """Environment that has a state only while agents are alive, and whose agents are never truncated."""

    def cuts(self, agent: str) -> bool:
        return False

    def state(self) -> Any:
        if not self.agents:
            raise AttributeError("the agents are gone, and so is the state")
        return super().state()


def test_no_state_is_read_after_all_agents_have_terminated() -> None:
    factories = scripted(2, Stateless)
    with AsyncWorkerPool(factories, {"hen": act, "fox": act}, policy_of=species, num_workers=0) as pool:
        rollout: Any = next(pool.rollouts())
    steps, columns = rollout.final_index
    assert len(steps) > 1
    following = rollout.next_states()
    assert (following[steps, columns] == 0).all()
    continues = np.ones(following.shape[:2], bool)
    continues[steps, columns] = continues[-1] = False
    assert (following[:-1] == rollout.states[1:])[continues[:-1]].all()
