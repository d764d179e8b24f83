"""Find out what policies and ``postprocess`` return, before rollouts are laid out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from parenv.envs.agents import acts_in_turns, state_space
from parenv.envs.fitting import Fit
from parenv.envs.infos import first_seen
from parenv.envs.values import row_writer
from parenv.errors import ConfigurationError, PolicyOutputError
from parenv.experience.agent_rollouts import AgentRollout
from parenv.experience.assembly import assemble
from parenv.experience.rollout import Rollout
from parenv.memory.agent_layout import agent_groups
from parenv.memory.layout import Extra, Info, RolloutSpec, infos_as_data, leaves_as_data
from parenv.memory.spaces import Leaf, is_single, leaves
from parenv.policy.assignment import EpisodeStart, PolicyRow, drawn
from parenv.worker.actor import NO_INFOS, Actor, carry_of, check_actions, extras_of
from parenv.worker.job import Job
from parenv.worker.named_infos import Seen, infos_of_groups
from parenv.worker.single_agent_collector import private_writer

EPISODES_DRAWN = 8
"""Number of episodes per sub-environment for which ``policy_of`` is called, to see who acts by which policy."""


def probe(
    actor: Actor,
    spec: RolloutSpec,
    action_space: Space[Any],
    rows: Sequence[Any],
    batch: int,
    infos: Mapping[str, Any] = NO_INFOS,
) -> tuple[tuple[Extra, ...], tuple[Leaf, ...]]:
    """Act once on real observations.

    Args:
        actor: Actor with a copy of the policy that is used for nothing else.
        spec: Contents of a rollout, with the leaves of both spaces.
        action_space: Action space of one row.
        rows: Observations, one array or list ``[batch, ...]`` per leaf.
        batch: Number of rows.
        infos: Infos of these observations, by name ``[batch, ...]``.

    Returns:
        Extras and leaves of the carry.

    Raises:
        PolicyOutputError: Actions, extras or carry do not fit.
    """
    initial = actor.initial_carry(batch)
    carry = carry_of(initial, batch)
    try:
        actions, extras, following = actor.act(rows, initial, infos)
    except Exception as error:
        shapes = ", ".join(str(getattr(part, "shape", f"({batch},)")) for part in rows)
        error.add_note(f"The policy was given a batch, observations of shape {shapes}: a row for each sub-environment.")
        raise
    check_actions(spec.actions, action_space, actor.actions.fitted(actions, batch), batch)
    if carry and carry_of(following, batch) != carry:
        raise PolicyOutputError(
            f"the policy's carry must keep its structure, shapes and dtypes: it began as {carry} and became "
            f"{carry_of(following, batch)}"
        )
    return extras_of(extras, (batch,), "policy"), carry


def probe_postprocess(
    actor: Actor,
    spec: RolloutSpec,
    postprocess: Any,
    rows: Sequence[Any],
    batch: int,
    infos: Mapping[str, Any],
    convert: Callable[[Rollout], Rollout] = lambda rollout: rollout,
) -> tuple[Extra, ...]:
    """Call ``postprocess`` with a rollout whose steps are all the same.

    Args:
        actor: Actor with a copy of the policy that is used for nothing else.
        spec: Contents of a rollout, without the extras of ``postprocess``.
        postprocess: Function of the user.
        rows: Observations, one array or list ``[batch, ...]`` per leaf.
        batch: Number of rows.
        infos: Infos of these observations, by name ``[batch, ...]``.
        convert: Function that makes the argument of ``postprocess`` from the rollout.

    Raises:
        PolicyOutputError: The returned extras do not fit.
    """
    initial = actor.initial_carry(batch)
    actions, extras, _ = actor.act(rows, initial, infos)
    writer = private_writer(spec, batch)
    writer.begin(rows)
    writer.write_carry(initial)
    for step in range(spec.rollout_length):
        writer.write_actions(step, actions, extras)
        for block, row in zip(writer.observations[step + 1], rows, strict=True):
            block[:] = row
    writer.write_ends([], [])
    about: dict[str, Any] = {"env_ids": np.arange(batch), "worker": 0, "policy_version": 0, "policy_lag": 0}
    names = [extra.name for extra in spec.extras]
    rollout = assemble(spec, writer.arrays, [writer.columns], **about, extras=names)
    returned = actor.postprocess(postprocess, convert(rollout))
    more = extras_of(returned, (spec.rollout_length, batch), "postprocess")
    both = {extra.name for extra in spec.extras} & {extra.name for extra in more}
    if both:
        raise PolicyOutputError(f"policy and postprocess both return {sorted(both)}: choose other names")
    return more


def extras_as_data(extras: Sequence[Extra]) -> list[Any]:
    """Return extras as plain data for a message."""
    return [[extra.name, list(extra.shape), extra.dtype, extra.postprocessed] for extra in extras]


def probe_agents(
    job: Job, envs: Sequence[Any], resets: Sequence[Any], spaces_of: Any, fit: Fit, make: Callable[[], Any]
) -> dict[str, Any]:
    """Find the contents of rollouts, as plain data for :func:`~parenv.memory.agent_layout.agents_spec`.

    Args:
        job: Copy of the job whose policies are used for nothing else.
        envs: Environments of this worker.
        resets: Return value of the reset of each environment.
        spaces_of: Observation spaces and action spaces by agent.
        fit: Rules for values that do not fit their space.
        make: Function that makes an environment. It is called if resets do not return all named infos.

    Raises:
        ConfigurationError: A policy does not fit its agents, or no agent gets one of the named infos.
    """
    groups = agent_groups(*spaces_of)
    both = list(zip(envs, resets, strict=True))
    seen: Seen = [one for agents in groups for env, found in both for one in _seen_after_reset(agents, env, found)]
    infos, seen = infos_of_groups(job, groups, seen, make)
    samples = [_sample(agents, named, seen, spaces_of[0], fit) for agents, named in zip(groups, infos, strict=True)]
    group_of = _groups_drawn(job, groups)
    state, in_turns = state_space(envs[0]), acts_in_turns(envs[0])
    state_leaves = () if state is None or in_turns or not is_single(leaves(state)) else leaves(state)
    found = {}
    for name, policy in job.policies.items():
        where = [group_of[name]] if name in group_of else range(len(groups))
        candidates = [(i, groups[i], infos[i], samples[i]) for i in where]
        found[name] = _probe_policy(job, name, policy, candidates, spaces_of, fit)
    about = {"state": leaves_as_data(state_leaves), "turns": in_turns, "infos": list(map(infos_as_data, infos))}
    return {**about, "found": found}


def _probe_policy(job: Job, name: str, policy: Any, candidates: Sequence[Any], spaces_of: Any, fit: Fit) -> list[Any]:
    """Return group, extras and carry of a policy. The group is the first one that the policy can act for."""
    refusals: list[ConfigurationError] = []
    for index, agents, named, (rows, seen) in candidates:
        observed, acted = leaves(spaces_of[0][agents[0]]), leaves(spaces_of[1][agents[0]])
        spec = RolloutSpec(job.rollout_length, observed, acted, infos=named)
        actor = Actor(policy, observed, acted, job.device, fit=fit)
        actor.settle(job.settings.get(name, {}))
        try:
            extras, carry = probe(actor, spec, spaces_of[1][agents[0]], rows, len(rows[0]), seen)
            if job.postprocess is not None:
                known, convert = replace(spec, extras=extras, carry=carry), partial(_as_agent_rollout, agents[0])
                extras += probe_postprocess(actor, known, job.postprocess, rows, len(rows[0]), seen, convert)
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
            return [index + 1, extras_as_data(extras), leaves_as_data(carry)]
    raise refusals[-1]


def _as_agent_rollout(agent: str, rollout: Rollout) -> AgentRollout:
    """Convert a rollout to the rollout of an agent that is alive in every row."""
    T, rows = rollout.rewards.shape
    values = {one.name: getattr(rollout, one.name) for one in fields(Rollout) if one.init}
    more: dict[str, Any] = {"first_versions": np.zeros(rows, np.int64), "last_steps": np.full(rows, T - 1)}
    return AgentRollout(**values, **more, alive=np.ones((T, rows), bool), agents=[agent] * rows)


def _groups_drawn(job: Job, groups: Sequence[tuple[str, ...]]) -> Mapping[str, int]:
    """Return the group of each policy that acts in the first episodes.

    Raises:
        ConfigurationError: The agents of a policy have different spaces.
    """
    table = {name: PolicyRow(i, name, 0, 0, b"", job.settings.get(name, {})) for i, name in enumerate(job.policies)}
    settings = {name: row.settings for name, row in table.items()}
    agents: dict[str, tuple[int, str]] = {}
    for env_id in range(job.first_env_id, job.first_env_id + sum(job.shares)):
        for number in range(EPISODES_DRAWN):
            episode = EpisodeStart(env_id, number, settings, (job.seed, 0))
            for index, group in enumerate(groups):
                for agent in group:
                    name = drawn(job.policy_of, agent, episode, table)
                    before, other = agents.setdefault(name, (index, agent))
                    if before != index:
                        raise ConfigurationError(
                            f"policy {name!r} is to act for the agents {other!r} and {agent!r}, whose spaces are "
                            "different: give each its own policy, or pad the spaces in the environment"
                        )
    return {name: index for name, (index, _) in agents.items()}


def _sample(
    agents: Sequence[str], infos: Sequence[Info], seen: Seen, observation_spaces: spaces.Dict, fit: Fit
) -> tuple[list[Any], dict[str, Any]]:
    """Return observations of a group of agents, one array ``[n, ...]`` per leaf, and their infos.

    If possible, these are observations that came with the infos that policies take. A group that was never seen gets
    one sampled observation.
    """
    space = observation_spaces[agents[0]]
    taken = {info.name for info in infos if info.acted_on}
    of_group = [one for one in seen if one[0] in agents]
    of_group = [one for one in of_group if taken <= set(one[2])] or of_group or [(agents[0], space.sample(), {})]
    observed = leaves(space)
    rows = [np.zeros((len(of_group), *leaf.shape), leaf.dtype) for leaf in observed]
    write = row_writer(observed, fit)
    for i, (_, observation, _) in enumerate(of_group):
        write(rows, i, observation)
    return rows, first_seen(infos, [info for *_, info in of_group])


def _seen_after_reset(agents: Sequence[str], env: Any, found: Any) -> Seen:
    """Return what some agents observe after a reset.

    An AEC environment computes the action mask of the selected agent only, so that the others are left out.
    """
    alive = [agent for agent in agents if agent in env.agents]
    if not acts_in_turns(env):
        return [(agent, found[0][agent], found[1].get(agent, {})) for agent in alive if agent in found[0]]
    if env.agent_selection not in alive:
        return [(agent, env.observe(agent), {}) for agent in alive]
    observation, *_, info = env.last()
    return [(env.agent_selection, observation, info)]
