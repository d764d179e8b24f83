"""Finding out what the infos of agents are like that the user named: from resets, or else from an episode elsewhere."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from parenv.envs.agents import acts_in_turns
from parenv.envs.infos import Found
from parenv.envs.values import action_splitter
from parenv.memory.layout import Info
from parenv.memory.spaces import flatten, leaves
from parenv.policy.policy import as_policy
from parenv.worker.job import AgentsJob
from parenv.worker.naming import MAX_STEPS, infos_in, nowhere

Told = Sequence[tuple[str, Any, Found]]
"""Agents, and what they observed and were told with it, one after the other."""


def infos_of_groups(
    job: AgentsJob, groups: Sequence[Sequence[str]], told: Told, make: Callable[[], Any]
) -> tuple[list[tuple[Info, ...]], Told]:
    """What the named infos are like that the agents of each group are told, and all that they were told.

    Args:
        job: has the names, and the policies, which may take some of them.
        groups: the agents of each.
        told: by resets.
        make: makes an environment; in one an episode is played, unless resets have told everybody everything.

    Raises:
        ConfigurationError: no agent is told one of them, or it is no array of numbers.
    """
    names = job.infos
    taken = frozenset[str]().union(*(as_policy(policy).infos_taken() for policy in job.policy.values()))

    def found_in(told: Told) -> list[tuple[Info, ...]]:
        return [infos_in(names, taken, [info for agent, _, info in told if agent in mine]) for mine in groups]

    if all(len(found) == len(names) for found in found_in(told)):
        return found_in(told), told
    with contextlib.closing(make()) as env:
        told = [*told, *_episode(env)]
    everywhere = found_in(told)
    if absent := [name for name in names if name not in {info.name for found in everywhere for info in found}]:
        raise nowhere(absent, [info for *_, info in told])
    return everywhere, told


def _episode(env: Any) -> Iterator[tuple[str, Any, Found]]:
    """What agents are told in an episode of actions that are drawn, or in the first part of a long one."""
    action_spaces = {agent: copy.deepcopy(env.action_space(agent)) for agent in env.possible_agents}
    for number, space in enumerate(action_spaces.values()):
        space.seed(number)
    steps = _turns(env, action_spaces) if acts_in_turns(env) else _steps(env, action_spaces)
    for _, told in zip(range(MAX_STEPS), steps, strict=False):
        yield from copy.deepcopy(told)


def _steps(env: Any, action_spaces: dict[str, Space[Any]]) -> Iterator[Told]:
    seen, infos = env.reset(seed=0)
    while env.agents:
        actions = {agent: _drawn(action_spaces[agent], seen[agent], infos.get(agent, {})) for agent in env.agents}
        seen, *_, infos = env.step(actions)
        yield [(agent, seen[agent], infos.get(agent, {})) for agent in seen]


def _turns(env: Any, action_spaces: dict[str, Space[Any]]) -> Iterator[Told]:
    env.reset(seed=0)
    while env.agents:
        agent = env.agent_selection
        observation, _, terminated, truncated, info = env.last()
        yield [(agent, observation, info)]
        env.step(None if terminated or truncated else _drawn(action_spaces[agent], observation, info))


def _drawn(space: Space[Any], observation: Any, info: Found) -> Any:
    """An action, and a legal one where the environment says which are, as those of PettingZoo do."""
    mask = info.get("action_mask", observation.get("action_mask") if isinstance(observation, dict) else None)
    masked = mask is not None and isinstance(space, spaces.Discrete)
    action = space.sample(np.asarray(mask, np.int8)) if masked else space.sample()
    parts = leaves(space)
    rows = [np.asarray(value, leaf.dtype)[None] for leaf, value in zip(parts, flatten(parts, action), strict=True)]
    return action_splitter(parts)(rows)[0]
