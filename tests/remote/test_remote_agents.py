"""Check that named policies on hosts give the same rollouts, versions, frozen policies and evaluations as locally."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scripted_agents
import torch
from comparison import assert_same
from scripted_agents import Ledger, Scripted, ScriptedTurns, act, delivered, opponents, scripted, species

from parenv import AsyncWorkerPool, Policy, Stop, TorchPolicy
from parenv.policy.policy import Action


class Scorer(torch.nn.Module):
    """Module that acts by its weights and returns them as an extra."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, ...]:
        actions = (observations.sum(1) + self.weight.sum().long()) % 50
        return actions, self.weight.expand(len(observations), 3)


class Counter(Policy):
    """Policy that counts steps in its carry and returns the published setting ``said`` as an extra."""

    def initial_carry(self, batch: int) -> Any:
        return {"steps": np.zeros(batch, np.int64)}

    def act(self, observations: Any, carry: Any) -> Action:
        said = np.full(len(observations), self.settings.get("said", 0))
        return Action(act(observations), {"steps": carry["steps"], "said": said}, {"steps": carry["steps"] + 1})


ROWS = (
    "observations", "actions", "rewards", "terminated", "truncated", "alive", "extras", "initial_carry", "env_ids",
    "agents", "policy_version", "policy_lag", "first_versions", "last_observations", "last_steps", "restarted",
    "infos", "next_infos",
)  # fmt: skip
EPISODES = ("returns", "lengths", "env_ids", "numbers")


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: copied(part) for name, part in value.items()}
    return np.array(value) if isinstance(value, np.ndarray) else value


def everything(rollout: Any) -> dict[str, Any]:
    found = {
        name: {field: copied(getattr(rows, field)) for field in ROWS}
        | {"next": copied(rows.next_observations())}
        | {field: copied(getattr(rows.episodes, field)) for field in (*EPISODES, "agents")}
        for name, rows in rollout.items()
    }
    whole = {field: copied(getattr(rollout.episodes, field)) for field in EPISODES}
    return {**found, "whole": whole, "states": copied(rollout.states), "steps": rollout.num_steps}


def league(kind: Any, **placement: Any) -> list[Any]:
    """Run a pool in which policies are published, frozen, released and evaluated, and return all results."""
    hen, past, found = TorchPolicy(Scorer(), "act", ("actions", "weight")), list[str](), []
    with AsyncWorkerPool(
        scripted(5, kind), {"hen": hen, "fox": Counter()}, policy_of=opponents, num_workers=3, mode="sync",
        rollout_length=6, seed=4, infos=("now",), postprocess=lambda policy, rows: {"twice": rows.rewards * 2},
        **placement,
    ) as pool:  # fmt: skip
        for number, rollout in enumerate(pool.rollouts()):
            found.append(everything(rollout))
            with torch.no_grad():
                hen.module.weight += 1
            if number in (1, 3):
                past.append(pool.freeze("hen"))
            if number == 6:
                pool.release(past.pop(0))
            if number == 12:
                return found
            pool.publish({"hen": hen}, past=list(past))
            if number % 3 == 0:
                pool.publish({"fox": Counter()}, said=number)
            if number == 5:
                played = pool.evaluate(7)
                found.append({field: getattr(played, field) for field in EPISODES[:3]})
                found.append({field: getattr(played["fox"], field) for field in (*EPISODES, "agents")})
    raise AssertionError("a stream without criteria has ended")


@pytest.mark.more
@pytest.mark.parametrize("kind", [Scripted, ScriptedTurns])
def test_rollouts_of_named_policies_are_equal_to_local_ones(hosts: Any, kind: Any) -> None:
    wanted = league(kind)
    assert any("hen@1" in rollout for rollout in wanted)
    hosts.start(1, 1)
    got = league(kind, placement=hosts.placement(num_local=1))
    for one, other in zip(got, wanted, strict=True):
        assert_same(one, other)


def loss_of_all(policies: Any, rollout: Any) -> Any:
    losses = [(policies["hen"].module.weight[0] - rows.rewards[rows.alive]).square().sum() for rows in rollout.values()]
    return sum(losses) / rollout.num_steps, {"alive": sum(rows.num_steps for rows in rollout.values())}


def gradients(**placement: Any) -> list[Any]:
    hen, found = TorchPolicy(Scorer(), "act", ("actions", "weight")), []
    with AsyncWorkerPool(
        scripted(3, ScriptedTurns), {"hen": hen, "fox": Counter()}, policy_of=species, num_workers=2, mode="sync",
        rollout_length=6, parallelism="gradient", loss_fn=loss_of_all, seed=4, **placement,
    ) as pool:  # fmt: skip
        for gradient in pool.gradients(Stop(env_steps=400)):
            gradient.assign_to({"hen": hen})
            assert hen.module.weight.grad is not None
            found.append([hen.module.weight.grad.tolist(), gradient.metrics, gradient.num_samples])
            if len(found) == 2:
                beside = pool.evaluate(4, wait=False)
            with torch.no_grad():
                hen.module.weight -= 1e-3 * hen.module.weight.grad
            pool.publish({"hen": hen})
        played = beside.result().episodes
    return [*found, {field: getattr(played, field).tolist() for field in EPISODES[:2]}]


@pytest.mark.more
def test_gradients_of_named_policies_and_concurrent_evaluations_are_equal_to_local_ones(hosts: Any) -> None:
    wanted = gradients()
    hosts.start(1, 1)
    assert gradients(placement=hosts.placement()) == wanted


def script(env_id: int, agent: str) -> Iterator[list[int]]:
    """Yield the observations of an agent before each of its actions."""
    for episode in itertools.count():
        for begin, stop in scripted_agents.lives(env_id, episode, agent):
            for now in range(begin, stop):
                yield [env_id, episode, now, scripted_agents.AGENTS.index(agent)]


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_transitions_of_agents_arrive_once_and_in_order_although_a_host_is_killed(hosts: Any) -> None:
    hosts.start(2, 2)
    lives: list[Ledger] = [{}]
    with AsyncWorkerPool(
        scripted(6), {"hen": act, "fox": act}, policy_of=species, num_workers=3, rollout_length=5,
        placement=hosts.placement(),
    ) as pool:  # fmt: skip
        for rollout in pool.rollouts(Stop(seconds=200)):
            for rows in rollout.values():
                for row in np.flatnonzero(rows.restarted).tolist():
                    key = int(rows.env_ids[row]), rows.agents[row]
                    lives.append({key: lives[0].pop(key, [])})
                delivered(rows, lives[0])
            if len(hosts.processes) == 2 and len(lives[0]) == 30:
                hosts.processes[0].kill()
                hosts.start(2)
            if any(key[0] in rollout.env_ids for life in lives[1:] for key in life):
                break
    assert len(hosts.processes) == 3
    for life in lives:
        for key, lived in life.items():
            # Each new process of a worker starts the script from the beginning.
            wanted = list(itertools.islice(script(*key), len(lived)))
            assert [one.observation[:4] for one in lived] == wanted
