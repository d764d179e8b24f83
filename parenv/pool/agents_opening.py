"""What a pool with policies by name has in place of a pool's with one: memory, versions, slots, and what arrives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from parenv.errors import ConfigurationError
from parenv.experience.agents_assembly import Played, assemble_agents
from parenv.memory.agent_layout import AgentsSpec, agents_layout, agents_spec
from parenv.memory.layout import aligned
from parenv.memory.maps import SlotMap, WeightsByName, WeightsMap
from parenv.memory.shared import SharedMemory
from parenv.memory.spaces import rebuild
from parenv.memory.status_slot import StatusSlot
from parenv.policy.snapshots import WeightsWriter, flat_layout, float32_parts, module_of
from parenv.pool.arena import Arena
from parenv.pool.arrival import Arrival
from parenv.pool.blocks import Block, blocks_of
from parenv.pool.laying_out import SYNC_LEASES, LaidOut
from parenv.pool.policy_versions import PolicyVersions
from parenv.pool.pool_plan import Plan
from parenv.protocol.data import pack
from parenv.protocol.messages import Commit, Layout, Ready
from parenv.supervision.workers import Workers
from parenv.worker.job import AgentsJob


class AgentsArena(Arena):
    """Shared memory with weights of several policies.

    Args:
        job: of the workers.
    """

    def __init__(self, job: AgentsJob) -> None:
        offsets, sizes = job.weights_offsets, job.weights_bytes
        end = max((offsets[name] + sizes[name] for name in sizes), default=0)
        self.places = job.places
        self.slots_offset = aligned(end, 4096)
        self.memory = SharedMemory(self.slots_offset)
        head = self.memory.map()
        self.progress = [StatusSlot(head, worker) for worker in range(len(job.shares))]
        modules = {name: module_of(policy) for name, policy in job.policy.items()}
        self.writers = {
            name: WeightsWriter(module, head, offsets[name], job.places)
            for name, module in modules.items()
            if module is not None
        }
        self.weights, self.weights_map, self.loading = None, None, None
        self.maps = {
            name: WeightsMap(head, offsets[name], flat_layout(module)[1], float32_parts(module))
            for name, module in modules.items()
            if module is not None
        }


def agents_memory(plan: Plan, job: AgentsJob) -> tuple[AgentsArena, PolicyVersions]:
    """Memory and versions of a pool with policies by name."""
    arena = AgentsArena(job)
    versions = PolicyVersions(job.policy, arena.writers, job.places, job.settings, plan.max_frozen, len(job.shares))
    arena.weights_map = WeightsByName(tuple(job.policy), arena.maps, versions.table_of)
    return arena, versions


def lay_out_agents(
    plan: Plan, workers: Workers, arena: Arena, versions: PolicyVersions, ready: Sequence[Ready]
) -> LaidOut:
    """Make room for rollouts.

    Args:
        plan: of the pool.
        workers: its workers.
        arena: its memory.
        versions: of its policies.
        ready: what each worker says of its sub-environments.

    Raises:
        ConfigurationError: sub-environments have different agents or spaces, or there is not enough memory.
    """
    described = _same_spaces(ready)
    spec = agents_spec(plan.job.rollout_length, *described, list(plan.job.policy), ready[0].extras)
    num_workers, together = len(ready), plan.mode == "sync"
    env_ids_of = [workers.env_ids(worker) for worker in range(num_workers)]
    blocks = blocks_of(partial(agents_layout, spec), env_ids_of, together)
    largest = max((block.layout for block in blocks), key=lambda layout: layout.total_bytes)
    leases = SYNC_LEASES if together else num_workers + 2
    num_slots = leases + (1 if together else num_workers * plan.credits)
    arena.check_fits(largest, num_slots, spec)
    slots = arena.add_slots(largest, num_slots)
    workers.lay_out(
        SlotMap(
            memory=arena.mapping,
            spec=spec,
            offset=arena.slots_offset,
            slot_bytes=largest.total_bytes,
            together=together,
            shares=tuple(workers.shares),
            credits=plan.credits,
            policies=versions.policies,
        )
    )
    layouts = []
    for worker, block in enumerate(blocks):
        mine = block.columns[block.workers.index(worker)]
        layouts.append(
            Layout(
                slots_offset=arena.slots_offset,
                slot_bytes=largest.total_bytes,
                slot_envs=len(block.env_ids),
                slot_workers=len(block.workers),
                first_column=mine.first,
                position=mine.position,
                first_env_id=workers.env_ids(worker).start,
                extras=ready[0].extras,
                carry=[],
            )
        )
    return LaidOut(described, partial(_arrival_of, spec, versions), blocks, slots, leases, layouts)


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
        versions.heard(worker, *said.report[1:])
    written = dict(enumerate(arrays[0]["versions", 0][0].tolist()))
    played = {
        index: Played(name, of, version, lag) for index, (name, of, version, lag) in versions.played(written).items()
    }
    samples = [said.report[0] for said in commits]
    widths = [len(env_ids) for env_ids in block.env_ids_of]
    rollouts = assemble_agents(spec, arrays, widths, played, block.env_ids, block.worker, policy_version, sum(samples))
    stamps = arrays[0]["commits", 0].copy()
    return Arrival(
        cast(Any, rollouts),
        workers=block.workers,
        env_ids=block.env_ids_of,
        samples=samples,
        gradients=None,
        norms=stamps["gradient_norm"].tolist(),
        metrics=[{} for _ in commits],
        commits=stamps,
        replaced=[said.replaced for said in commits],
    )


def _same_spaces(ready: Sequence[Ready]) -> tuple[Any, Any]:
    mine = rebuild(ready[0].spaces[0]), rebuild(ready[0].spaces[1])
    first = pack(ready[0].spaces)
    for worker, other in enumerate(ready):
        if pack(other.spaces) != first:
            theirs = rebuild(other.spaces[0]), rebuild(other.spaces[1])
            raise ConfigurationError(
                f"all sub-environments must have the same agents and spaces, but worker {worker} has observations "
                f"{theirs[0]} and actions {theirs[1]}, and worker 0 has observations {mine[0]} and actions {mine[1]}"
            )
    return mine
