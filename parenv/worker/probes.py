"""Find out what policies, ``postprocess`` and named infos add to rollouts, before rollouts are laid out."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from parenv.envs.agents import acts_in_turns, state_space
from parenv.envs.fitting import Fit
from parenv.envs.infos import Found, InfoRows, first_seen, row_of
from parenv.envs.values import action_splitter, row_writer
from parenv.errors import ConfigurationError, PolicyOutputError
from parenv.experience.agent_rollouts import AgentRollout
from parenv.experience.assembly import assemble
from parenv.experience.rollout import Rollout
from parenv.memory.agent_layout import agent_groups
from parenv.memory.layout import Extra, Info, RolloutSpec, infos_as_data, leaves_as_data
from parenv.memory.spaces import Leaf, flatten, is_single, leaves
from parenv.policy.assignment import EpisodeStart, PolicyRow, drawn
from parenv.policy.policy import as_policy
from parenv.worker.actor import NO_INFOS, Actor, carry_of, check_actions, extras_of
from parenv.worker.job import Job
from parenv.worker.single_agent_collector import ScratchEnvs, private_writer

MAX_STEPS = 1000
"""Maximum length in env steps of the episode that is played to find an info that no reset returns."""
Seen = Sequence[tuple[str, Any, Found]]
"""Agents with an observation and its info each, in temporal order."""


def infos_in(names: Mapping[str, Any], taken: Collection[str], of_each: Sequence[Found]) -> tuple[Info, ...]:
    """Describe the named infos that have a default or are in the given infos.

    Args:
        names: Defaults by name of an info. ``None``: no default.
        taken: Names of the infos that the policy takes. Other names may be among them.
        of_each: Infos of sub-environments.

    Raises:
        ConfigurationError: A named info is not numeric.
    """
    found = []
    for name, default in names.items():
        value = default
        if value is None:
            value = next((info[name] for info in of_each if info.get(name) is not None), None)
        if value is not None:
            array = np.asarray(value)
            if array.dtype.kind not in "?biuf":
                raise ConfigurationError(
                    f"infos must name numbers, booleans or arrays of them, got {name!r} of type "
                    f"{type(value).__name__}. Leave it out, or convert it in the environment."
                )
            is_taken = not {name, f"_{name}"}.isdisjoint(taken)
            found.append(Info(name, array.shape, array.dtype.str, is_taken, default))
    return tuple(found)


def infos_in_episode(
    scratch_envs: ScratchEnvs, actor: Actor, spec: RolloutSpec, missing: Sequence[str]
) -> tuple[Info, ...]:
    """Describe infos that only steps return. An episode is played for this in scratch environments, which are closed.

    Raises:
        ConfigurationError: The episode, or its first ``MAX_STEPS`` env steps, did not return one of them.
    """
    spec = replace(spec, rollout_length=1)
    with contextlib.closing(scratch_envs):
        collector, _ = scratch_envs.collector(actor, spec, 0, 0)
        writer = private_writer(spec, collector.stepper.num_envs)
        writer.infos = all_infos = _KeptInfos(spec.infos, writer.arrays)
        for _ in range(MAX_STEPS):
            collector.collect(writer)
            found = infos_in(dict.fromkeys(missing), (), all_infos.kept)
            if len(found) == len(missing):
                return found
            if writer.num_ends:
                break
    raise _never_returned([name for name in missing if name not in {info.name for info in found}], all_infos.kept)


def infos_of_groups(
    job: Job, groups: Sequence[Sequence[str]], seen: Seen, make: Callable[[], Any]
) -> tuple[list[tuple[Info, ...]], Seen]:
    """Describe the named infos of each group of agents.

    Args:
        job: Job with the names, and with the policies, which may take some of the infos.
        groups: Agents of each group.
        seen: Observations and infos after resets.
        make: Function that makes an environment. If resets do not return all infos for all groups, an episode of
            sampled actions is played in it.

    Returns:
        The infos of each group, and all observations and infos that were seen.

    Raises:
        ConfigurationError: No agent gets one of the infos, or an info is not numeric.
    """
    names = job.infos
    taken = frozenset[str]().union(*(as_policy(policy).infos_taken() for policy in job.policies.values()))

    def found_in(seen: Seen) -> list[tuple[Info, ...]]:
        return [infos_in(names, taken, [info for agent, _, info in seen if agent in mine]) for mine in groups]

    infos = found_in(seen)
    if all(len(found) == len(names) for found in infos):
        return infos, seen
    with contextlib.closing(make()) as env:
        seen = [*seen, *_sampled_episode(env)]
    infos = found_in(seen)
    if absent := [name for name in names if name not in {info.name for found in infos for info in found}]:
        raise _never_returned(absent, [info for *_, info in seen])
    return infos, seen


def not_in_resets(needed: Sequence[str], of_each: Sequence[Found]) -> ConfigurationError:
    """Make the error for infos that the policy cannot act without, but that resets did not return."""
    returned = sorted({str(name) for info in of_each for name in info})
    return ConfigurationError(
        f"reset() must return the infos {needed}, which the policy takes without a default, got {returned}. "
        "Correct the names, return them from the environment, or give the parameters defaults."
    )


class _KeptInfos(InfoRows):
    """Info rows that also keep every info that is written, in ``kept``."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.kept: list[Found] = []

    def __bool__(self) -> bool:
        return True

    def write(self, step: int, column: int, info: Found) -> None:
        """Keep the info of a step, and write the infos that the policy takes."""
        self.kept.append(info)
        super().write(step, column, info)

    def write_batch(self, step: int, infos: Found, columns: Any, own: bool = True, seen: bool = True) -> None:
        """Keep the infos of a step of a ``VectorEnv``, one by one."""
        self.kept += [row_of(infos, column) for column in columns.tolist()]
        super().write_batch(step, infos, columns, own, seen)


def _never_returned(absent: Sequence[str], infos: Sequence[Found]) -> ConfigurationError:
    returned = sorted({str(name) for info in infos for name in info})
    return ConfigurationError(
        f"infos must name infos of the environment, got {', '.join(map(repr, absent))}, but the resets and "
        f"{len(infos)} steps of an episode returned only {returned}. Correct the name, or, if only some steps return "
        f"the info, give it a default: infos={{{absent[0]!r}: False}} or another number or array."
    )


def _sampled_episode(env: Any) -> Iterator[tuple[str, Any, Found]]:
    """Play one episode, or ``MAX_STEPS`` steps of it, with sampled actions."""
    action_spaces = {agent: copy.deepcopy(env.action_space(agent)) for agent in env.possible_agents}
    for number, space in enumerate(action_spaces.values()):
        space.seed(number)
    steps = _aec_steps(env, action_spaces) if acts_in_turns(env) else _parallel_steps(env, action_spaces)
    for _, seen in zip(range(MAX_STEPS), steps, strict=False):
        yield from copy.deepcopy(seen)


def _parallel_steps(env: Any, action_spaces: dict[str, Space[Any]]) -> Iterator[Seen]:
    observations, infos = env.reset(seed=0)
    while env.agents:
        actions = {
            agent: _sampled(action_spaces[agent], observations[agent], infos.get(agent, {})) for agent in env.agents
        }
        observations, *_, infos = env.step(actions)
        yield [(agent, observation, infos.get(agent, {})) for agent, observation in observations.items()]


def _aec_steps(env: Any, action_spaces: dict[str, Space[Any]]) -> Iterator[Seen]:
    env.reset(seed=0)
    while env.agents:
        agent = env.agent_selection
        observation, _, terminated, truncated, info = env.last()
        yield [(agent, observation, info)]
        env.step(None if terminated or truncated else _sampled(action_spaces[agent], observation, info))


def _sampled(space: Space[Any], observation: Any, info: Found) -> Any:
    """Sample an action. PettingZoo environments may return a mask of the legal actions."""
    mask = info.get("action_mask", observation.get("action_mask") if isinstance(observation, dict) else None)
    masked = mask is not None and isinstance(space, spaces.Discrete)
    action = space.sample(np.asarray(mask, np.int8)) if masked else space.sample()
    parts = leaves(space)
    rows = [np.asarray(value, leaf.dtype)[None] for leaf, value in zip(parts, flatten(parts, action), strict=True)]
    return action_splitter(parts)(rows)[0]


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
        error.add_note(f"The policy received a batch of observations of shape {shapes}, a row per sub-environment.")
        raise
    check_actions(spec.actions, action_space, actor.actions.fitted(actions, batch), batch)
    if carry and carry_of(following, batch) != carry:
        raise PolicyOutputError(
            f"the policy's carry must keep its structure, shapes and dtypes: initial_carry returned {carry}, and act "
            f"returned {carry_of(following, batch)}"
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
        raise PolicyOutputError(f"policy and postprocess must return different extras, but both return {sorted(both)}")
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
                f"policy {name!r} cannot act for agent {agents[0]!r} with the observation space "
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
                            f"all agents of policy {name!r} must have the same spaces, but {other!r} and {agent!r} "
                            "have different ones. Give each its own policy, or pad the spaces in the environment."
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
