"""Finding out which agents each policy acts for, and what it returns, before the first rollout is laid out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from parenv.envs.agents import acts_in_turns, state_space
from parenv.envs.fitting import Fit
from parenv.envs.values import row_writer
from parenv.errors import ConfigurationError, PolicyOutputError
from parenv.memory.agent_layout import agent_groups
from parenv.memory.layout import RolloutSpec, leaves_as_data
from parenv.memory.spaces import is_single, leaves
from parenv.policy.assignment import EpisodeStart, PolicyRow, drawn
from parenv.worker.acting import Actor
from parenv.worker.job import AgentsJob
from parenv.worker.probing import probe_actor

EPISODES_DRAWN = 8
"""Of each sub-environment, to see who may play by which policy."""


def probe_agents(job: AgentsJob, envs: Sequence[Any], first: Sequence[Any], spaces_of: Any, fit: Fit) -> dict[str, Any]:
    """What rollouts hold, as plain data for :func:`~parenv.memory.agent_layout.agents_spec`.

    Args:
        job: a copy whose policies are thrown away afterwards.
        envs: of the worker that finds out.
        first: what their resets returned.
        spaces_of: observation and action spaces, by agent.
        fit: how values must fit their spaces.

    Raises:
        ConfigurationError: a policy does not fit its agents.
    """
    groups = agent_groups(*spaces_of)
    samples = [_sample(mine, envs, first, spaces_of[0], fit) for mine in groups]
    wanted = _groups_drawn(job, groups)
    state, turns = state_space(envs[0]), acts_in_turns(envs[0])
    state_leaves = () if state is None or turns or not is_single(leaves(state)) else leaves(state)
    found = {}
    for name, policy in job.policy.items():
        where = [wanted[name]] if name in wanted else range(len(groups))
        found[name] = _found(job, name, policy, [(i, groups[i], samples[i]) for i in where], spaces_of, fit)
    return {"state": leaves_as_data(state_leaves), "turns": turns, "found": found}


def _found(job: AgentsJob, name: str, policy: Any, where: Sequence[Any], spaces_of: Any, fit: Fit) -> list[Any]:
    """Group, extras and carry of a policy: in the first group that it can act for."""
    refusals: list[ConfigurationError] = []
    for index, agents, rows in where:
        spec = RolloutSpec(1, leaves(spaces_of[0][agents[0]]), leaves(spaces_of[1][agents[0]]))
        actor = Actor(policy, spec.observations, spec.actions, job.device, fit=fit)
        actor.settle(job.settings.get(name, {}))
        try:
            extras, carry = probe_actor(actor, spec, spaces_of[1][agents[0]], rows, len(rows[0]))
        except PolicyOutputError as error:
            refusals.append(PolicyOutputError(f"policy {name!r} for agent {agents[0]!r}: {error}"))
        except Exception as error:
            refusals.append(_cannot_act(name, agents[0], spaces_of[0][agents[0]], error))
        else:
            return [index + 1, [[e.name, list(e.shape), e.dtype] for e in extras], leaves_as_data(carry)]
    raise refusals[-1]


def _cannot_act(name: str, agent: str, space: Any, error: Exception) -> ConfigurationError:
    refusal = ConfigurationError(
        f"policy {name!r} cannot act for agent {agent!r}, whose observations are {space}: "
        f"{type(error).__name__}: {error}"
    )
    refusal.__cause__ = error
    return refusal


def _groups_drawn(job: AgentsJob, groups: Sequence[tuple[str, ...]]) -> Mapping[str, int]:
    """By policy, the group whose agents have it in the first episodes.

    Raises:
        ConfigurationError: the agents of a policy have different spaces.
    """
    table = {name: PolicyRow(i, name, 0, 0, b"", job.settings.get(name, {})) for i, name in enumerate(job.policy)}
    settings = {name: row.settings for name, row in table.items()}
    agents: dict[str, tuple[int, str]] = {}
    for env_id in (env_id for worker in range(len(job.shares)) for env_id in job.env_ids(worker)):
        for number in range(EPISODES_DRAWN):
            episode = EpisodeStart(env_id, number, settings, (job.seed, 0))
            for index, mine in enumerate(groups):
                for agent in mine:
                    name = drawn(job.policy_of, agent, episode, table)
                    before, other = agents.setdefault(name, (index, agent))
                    if before != index:
                        raise ConfigurationError(
                            f"policy {name!r} is to act for the agents {other!r} and {agent!r}, whose spaces are "
                            "different: give each its own policy, or pad the spaces in the environment"
                        )
    return {name: index for name, (index, _) in agents.items()}


def _sample(agents: Sequence[str], envs: Sequence[Any], first: Sequence[Any], of: spaces.Dict, fit: Fit) -> list[Any]:
    """Observations of agents that have the same spaces, one array ``[n, ...]`` per leaf; drawn where none is there."""
    observed = [each for env, found in zip(envs, first, strict=True) for each in _observed(agents, env, found)]
    space = of[agents[0]]
    observed = observed or [space.sample()]
    observations = leaves(space)
    rows = [np.zeros((len(observed), *leaf.shape), leaf.dtype) for leaf in observations]
    write = row_writer(observations, fit)
    for i, observation in enumerate(observed):
        write(rows, i, observation)
    return rows


def _observed(agents: Sequence[str], env: Any, found: Any) -> list[Any]:
    """What some agents see behind a reset; where they act in turns, the one that is to act, since its mask is real."""
    there = [agent for agent in agents if agent in env.agents]
    if not acts_in_turns(env):
        return [found[0][agent] for agent in there if agent in found[0]]
    return [env.last()[0]] if env.agent_selection in there else [env.observe(agent) for agent in there]
