"""Check that named policies on hosts give the same rollouts, versions, frozen policies and evaluations as locally."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scripted_agents
from scripted_agents import Ledger, act, delivered, scripted, species

from parenv import AsyncWorkerPool, Stop


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
