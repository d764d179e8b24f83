"""Policies by name, and what their agents lived through, against plain loops."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_agents import (
    AGENTS,
    Ledger,
    Scripted,
    ScriptedTurns,
    act,
    delivered,
    plain_loop,
    plain_turns,
)

from parenv import AsyncWorkerPool, Stop


def scripted(count: int, kind: Any = Scripted) -> list[Any]:
    return [lambda env_id=env_id: kind(env_id) for env_id in range(count)]


def species(agent: str, episode: Any) -> str:
    return agent.split("_")[0]


def check(found: Ledger, wanted: Ledger) -> None:
    """What was delivered is the beginning of what a plain loop lived through."""
    for key, mine in found.items():
        for i, (got, expected) in enumerate(zip(mine, wanted[key], strict=False)):
            assert got == expected, (key, i)
        assert len(mine) <= len(wanted[key])


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("num_envs", "num_workers"), [(1, 0), (3, 0), (5, 2)])
def test_every_agent_lives_through_what_it_does_in_a_plain_loop(mode: Any, num_envs: int, num_workers: int) -> None:
    found: Ledger = {}
    policies = {"hen": act, "fox": act}
    with AsyncWorkerPool(
        scripted(num_envs), policies, policy_of=species, num_workers=num_workers, mode=mode, rollout_length=7
    ) as pool:
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
def test_every_agent_that_acts_in_turns_lives_through_what_it_does_in_a_plain_loop(
    mode: Any, num_envs: int, num_workers: int
) -> None:
    found: Ledger = {}
    policies = {"hen": act, "fox": act}
    env_steps = 0
    with AsyncWorkerPool(
        scripted(num_envs, ScriptedTurns), policies, policy_of=species, num_workers=num_workers, mode=mode,
        rollout_length=7,
    ) as pool:  # fmt: skip
        for rollout in pool.rollouts(Stop(env_steps=num_envs * 300)):
            env_steps += rollout.num_steps
            for rows in rollout.values():
                delivered(rows, found)
    wanted: Ledger = {}
    for env_id in range(num_envs):
        wanted |= plain_turns(env_id, env_steps + 100)
    check(found, wanted)
    # What is not there yet are the turns whose reward is still to come: at most one of each agent.
    assert env_steps - sum(map(len, found.values())) <= num_envs * len(AGENTS) * (1 + (mode == "async"))
    assert len(found) == num_envs * len(AGENTS)
