"""What a pool with policies by name has in place of a pool's with one: memory, versions, slots, and what arrives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

from parenv.envs.factories import Spaces
from parenv.experience.agents_assembly import assemble_agents
from parenv.memory.agent_layout import AgentsSpec, agents_spec
from parenv.memory.maps import WeightsByName
from parenv.policy.snapshots import modules_of
from parenv.pool.arena import Arena
from parenv.pool.arrival import Arrival, ArrivalOf, arrived
from parenv.pool.blocks import Block
from parenv.pool.laying_out import Room, checked_spaces, make_room
from parenv.pool.policy_versions import PolicyVersions
from parenv.pool.pool_plan import Plan
from parenv.protocol.messages import Commit, Ready
from parenv.supervision.workers import Workers
from parenv.worker.job import AgentsJob


def agents_memory(plan: Plan, job: AgentsJob) -> tuple[Arena, PolicyVersions, WeightsByName]:
    """Memory and versions of a pool with policies by name, and where the weights of these lie."""
    arena = Arena(len(job.shares), modules_of(job.policy), job.places)
    versions = PolicyVersions(job.policy, arena.writers, job.places, job.settings, plan.max_frozen, len(job.shares))
    return arena, versions, WeightsByName(tuple(job.policy), arena.maps, lambda number: versions.tables[number])


def lay_out_agents(
    plan: Plan, workers: Workers, arena: Arena, versions: PolicyVersions, ready: Sequence[Ready]
) -> tuple[Spaces, ArrivalOf, Room]:
    """Make room for rollouts, as :func:`~parenv.pool.laying_out.lay_out` does for one policy.

    Raises:
        ConfigurationError: sub-environments have different agents or spaces, or there is not enough memory.
    """
    job, spaces = plan.job, checked_spaces(ready, None, "agents and spaces")
    observed, acted = cast(tuple[Any, Any], spaces)
    spec = agents_spec(job.rollout_length, observed, acted, list(job.policy), ready[0].extras, job.gradient_bytes)
    room = make_room(plan, workers, arena, ready, spec, partial(_policies, versions, range(len(job.policy))))
    return spaces, partial(_arrival_of, spec, versions), room


def _policies(versions: PolicyVersions, learning: Iterable[int]) -> dict[int, str]:
    """By index, what every policy that there has been is a version of."""
    return {index: one.of for index, one in versions.played(dict.fromkeys(learning, 0)).items()}


def _arrival_of(
    spec: AgentsSpec,
    versions: PolicyVersions,
    block: Block,
    arrays: Any,
    commits: Sequence[Commit],
    policy_version: int,
    policy_lag: int,
) -> Arrival:
    """What came of the credits for one slot."""
    for worker, said in zip(block.workers, commits, strict=True):
        versions.heard(worker, *said.report[1:3])
    played = versions.played(dict(enumerate(arrays[0]["versions", 0][0].tolist())))
    samples = [said.report[0] for said in commits]
    widths = [len(env_ids) for env_ids in block.env_ids_of]
    rollouts = assemble_agents(spec, arrays, widths, played, block.env_ids, block.worker, policy_version, sum(samples))
    return arrived(rollouts, block, arrays[0], commits, samples, [said.report[3] for said in commits])
