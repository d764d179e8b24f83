"""Finding out which agents each policy acts for, and what it returns, before the first rollout is laid out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from parenv.envs.agents import acts_in_turns, state_space
from parenv.envs.fitting import Fit
from parenv.envs.infos import first_seen
from parenv.envs.values import row_writer
from parenv.errors import ConfigurationError, PolicyOutputError
from parenv.experience.agent_rollouts import AgentRollout
from parenv.experience.rollout import Rollout
from parenv.memory.agent_layout import agent_groups
from parenv.memory.layout import Info, RolloutSpec, infos_as_data, leaves_as_data
from parenv.memory.spaces import is_single, leaves
from parenv.policy.assignment import EpisodeStart, PolicyRow, drawn
from parenv.worker.acting import Actor
from parenv.worker.agents_naming import Told, infos_of_groups
from parenv.worker.job import AgentsJob
from parenv.worker.probing import probe, probe_postprocess

EPISODES_DRAWN = 8
"""Of each sub-environment, to see who may play by which policy."""


def probe_agents(
    job: AgentsJob, envs: Sequence[Any], first: Sequence[Any], spaces_of: Any, fit: Fit, make: Callable[[], Any]
) -> dict[str, Any]:
    """What rollouts hold, as plain data for :func:`~parenv.memory.agent_layout.agents_spec`.

    Args:
        job: a copy whose policies are thrown away afterwards.
        envs: of the worker that finds out.
        first: what their resets returned.
        spaces_of: observation and action spaces, by agent.
        fit: how values must fit their spaces.
        make: makes an environment, to hear infos that no reset returns.

    Raises:
        ConfigurationError: a policy does not fit its agents, or no agent is told an info that was named.
    """
    groups = agent_groups(*spaces_of)
    resets = list(zip(envs, first, strict=True))
    told: Told = [each for mine in groups for reset in resets for each in _found_by(mine, *reset)]
    infos, told = infos_of_groups(job, groups, told, make)
    samples = [_sample(mine, named, told, spaces_of[0], fit) for mine, named in zip(groups, infos, strict=True)]
    wanted = _groups_drawn(job, groups)
    state, turns = state_space(envs[0]), acts_in_turns(envs[0])
    state_leaves = () if state is None or turns or not is_single(leaves(state)) else leaves(state)
    found = {}
    for name, policy in job.policy.items():
        where = [wanted[name]] if name in wanted else range(len(groups))
        found[name] = _found(job, name, policy, [(i, groups[i], samples[i]) for i in where], spaces_of, fit)
    about = {"state": leaves_as_data(state_leaves), "turns": turns, "infos": list(map(infos_as_data, infos))}
    return {**about, "found": found}


def _found(job: AgentsJob, name: str, policy: Any, where: Sequence[Any], spaces_of: Any, fit: Fit) -> list[Any]:
    """Group, extras and carry of a policy: in the first group that it can act for."""
    refusals: list[ConfigurationError] = []
    for index, agents, (rows, seen) in where:
        spec = RolloutSpec(job.rollout_length, leaves(spaces_of[0][agents[0]]), leaves(spaces_of[1][agents[0]]))
        actor = Actor(policy, spec.observations, spec.actions, job.device, fit=fit)
        actor.settle(job.settings.get(name, {}))
        try:
            extras, carry = probe(actor, spec, spaces_of[1][agents[0]], rows, len(rows[0]), seen)
            if job.postprocess is not None:
                known = replace(spec, extras=extras, carry=carry)
                of = partial(_of_agents, agents[0])
                extras += probe_postprocess(actor, known, job.postprocess, rows, len(rows[0]), seen, of)
        except PolicyOutputError as error:
            refusals.append(PolicyOutputError(f"policy {name!r} for agent {agents[0]!r}: {error}"))
        except Exception as error:
            refusal = ConfigurationError(
                f"policy {name!r} cannot act for agent {agents[0]!r}, whose observations are "
                f"{spaces_of[0][agents[0]]}: {type(error).__name__}: {error}"
            )
            refusal.__cause__ = error
            refusals.append(refusal)
        else:
            said = [[e.name, list(e.shape), e.dtype, e.postprocessed] for e in extras]
            return [index + 1, said, leaves_as_data(carry)]
    raise refusals[-1]


def _of_agents(agent: str, rollout: Rollout) -> AgentRollout:
    """A rollout as one of agents that are there all the time."""
    T, rows = rollout.rewards.shape
    mine = {one.name: getattr(rollout, one.name) for one in fields(Rollout) if one.init}
    more: dict[str, Any] = {"first_versions": np.zeros(rows, np.int64), "last_steps": np.full(rows, T - 1)}
    return AgentRollout(**mine, **more, alive=np.ones((T, rows), bool), agents=[agent] * rows)


def _groups_drawn(job: AgentsJob, groups: Sequence[tuple[str, ...]]) -> Mapping[str, int]:
    """By policy, the group whose agents have it in the first episodes.

    Raises:
        ConfigurationError: the agents of a policy have different spaces.
    """
    table = {name: PolicyRow(i, name, 0, 0, b"", job.settings.get(name, {})) for i, name in enumerate(job.policy)}
    settings = {name: row.settings for name, row in table.items()}
    agents: dict[str, tuple[int, str]] = {}
    for env_id in range(job.first_env_id, job.first_env_id + sum(job.shares)):
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


def _sample(
    agents: Sequence[str], infos: Sequence[Info], told: Told, of: spaces.Dict, fit: Fit
) -> tuple[list[Any], dict[str, Any]]:
    """Observations of agents that have the same spaces, one array ``[n, ...]`` per leaf, and the infos with them.

    Of all that they were told, what came with the infos that policies take; drawn where none is there.
    """
    space = of[agents[0]]
    mine = [each for each in told if each[0] in agents]
    named = {info.name for info in infos if info.acted_on}
    mine = [each for each in mine if named <= set(each[2])] or mine or [(agents[0], space.sample(), {})]
    observations = leaves(space)
    rows = [np.zeros((len(mine), *leaf.shape), leaf.dtype) for leaf in observations]
    write = row_writer(observations, fit)
    for i, (_, observation, _) in enumerate(mine):
        write(rows, i, observation)
    return rows, first_seen(infos, [info for *_, info in mine])


def _found_by(agents: Sequence[str], env: Any, found: Any) -> Told:
    """What some agents see and are told behind a reset; in turns the one that is to act, since its mask is real."""
    there = [agent for agent in agents if agent in env.agents]
    if not acts_in_turns(env):
        return [(agent, found[0][agent], found[1].get(agent, {})) for agent in there if agent in found[0]]
    if env.agent_selection not in there:
        return [(agent, env.observe(agent), {}) for agent in there]
    observation, *_, info = env.last()
    return [(env.agent_selection, observation, info)]
