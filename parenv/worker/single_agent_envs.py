"""Sub-environments of a single agent: make them, report their rollouts, and build the task that collects them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from parenv.envs.fitting import Fit
from parenv.envs.infos import first_seen
from parenv.envs.make import make_envs, make_stepper
from parenv.envs.seeding import RandomState, environment_seed
from parenv.errors import ConfigurationError
from parenv.memory.layout import (
    PART_STEPS,
    WHOLE_EPISODES,
    RolloutSpec,
    SlotSpec,
    extras_and_carry,
    infos_as_data,
    infos_from_data,
    leaves_as_data,
)
from parenv.memory.spaces import describe, leaves
from parenv.policy.assignment import UNNAMED
from parenv.policy.policy import as_policy, infos_needed
from parenv.policy.snapshots import WeightsReader
from parenv.protocol.messages import Layout, Ready
from parenv.worker.actor import Actor
from parenv.worker.collect_task import CollectTask
from parenv.worker.episode_parts import EpisodePartsCollector
from parenv.worker.evaluation import EnvsEpisodeRunner, Evaluation, Within
from parenv.worker.half_batches import HalfBatchCollector
from parenv.worker.job import Job
from parenv.worker.probes import extras_as_data, infos_in, infos_in_episode, not_in_resets, probe, probe_postprocess
from parenv.worker.replacements import Replacements, ReplacingCollector
from parenv.worker.single_agent_collector import ScratchEnvs, SingleAgentCollector, reset
from parenv.worker.task import Context
from parenv.worker.whole_episodes import EpisodeCollector
from parenv.worker.writing import RolloutWriter, SlotWriters

_SECOND_IN_A_PROCESS = (
    "An evaluation makes a second set of sub-environments in each worker, beside those of the training. If a process "
    "may have only one, as with stable-retro, use pool.evaluate(..., in_place=True)."
)


class SingleAgentEnvs:
    """Sub-environments of Gymnasium that have been made and reset.

    Worker 0 also acts once with a copy of the policy, to find out what a rollout contains.

    Args:
        context: Job of the task, and its connections to the worker.
    """

    def __init__(self, context: Context[Job]) -> None:
        self._context, job, sender, status = context, context.job, context.sender, context.status
        self._fit = Fit.of(job.options, context.output.warn)
        env_ids = job.env_ids(sender.worker)
        envs = make_envs(job.factories, env_ids, status)
        if job.options.on_env_error == "restart_env" and isinstance(envs[0], VectorEnv):
            # A SyncVectorEnv too: its factory cannot make one of its sub-environments.
            raise ConfigurationError(
                'on_env_error="restart_env" needs single sub-environments, but env_fn makes a VectorEnv. Use '
                '"restart_worker".'
            )
        self._stepper = stepper = make_stepper(envs, env_ids.start, status, self._fit, job.options.step_threads)
        self._closing = contextlib.ExitStack()
        self._closing.callback(stepper.close)
        num_envs = stepper.num_envs
        if job.num_envs_is_given and num_envs != len(env_ids):
            raise ConfigurationError(
                f"env_fn must make a VectorEnv of {len(env_ids)} sub-environments for worker {sender.worker}, got "
                f"{num_envs}. Leave num_envs out, or pass {num_envs} for each worker."
            )
        if job.gradient is not None and job.rollout_length == 1 and stepper.autoreset.spends_step:
            raise ConfigurationError(
                "rollout_length must be at least 2 with gradients and a VectorEnv in NEXT_STEP mode, because a single "
                "row may contain only resets, got 1. Raise it."
            )
        first = env_ids.start if num_envs == len(env_ids) else (job.first_worker + sender.worker) * num_envs
        seeds = [environment_seed(job.seed, first + column, sender.generation) for column in range(num_envs)]
        observed, acted = leaves(stepper.observation_space), leaves(stepper.action_space)
        length = PART_STEPS if job.in_parts else job.rollout_length
        self._spec = RolloutSpec(length, observed, acted, in_parts=job.in_parts)
        self._rows, self._infos = reset(stepper, observed, seeds)
        if sender.worker == 0:
            status.begin("act")
            with RandomState(0):
                self._spec = self._probed(context.load_job())

    def ready(self) -> Ready:
        """Return what the driver needs for the layout."""
        stepper, spec = self._stepper, self._spec
        spaces = [describe(stepper.observation_space), describe(stepper.action_space)]
        contents = extras_as_data(spec.extras), leaves_as_data(spec.carry), infos_as_data(spec.infos)
        return Ready(spaces, stepper.num_envs, *contents)

    def lay_out(self, layout: Layout, mapping: Any) -> CollectTask:
        """Build the task from the layout of the slots and the shared memory."""
        context, job, stepper = self._context, self._context.job, self._stepper
        extras, carry = extras_and_carry(layout.extras, layout.carry)
        infos = infos_from_data(layout.infos, job.infos)
        spec = replace(self._spec, extras=extras, carry=carry, infos=infos, gradient_bytes=job.gradient_bytes)
        spec = replace(spec, on_device=bool(layout.device))
        writers = SlotWriters(RolloutWriter, SlotSpec((spec,)), layout, stepper.num_envs, mapping)
        read = partial(WeightsReader, memory=mapping, offset=job.weights_offsets[UNNAMED], device=job.device)

        def make_actor(job: Job) -> Actor:
            return Actor(job.policy, spec.observations, spec.actions, job.device, read, self._fit)

        actor, env_ids = make_actor(job), range(layout.first_env_id, layout.first_env_id + stepper.num_envs)
        collector = self._make_collector(actor, spec, env_ids, lambda: make_actor(context.load_job()))
        threads, others = job.options.step_threads, stepper.envs
        scratch_envs = ScratchEnvs(job.factories, env_ids, context.status, self._fit, threads, others)
        self._closing.callback(scratch_envs.close)
        begin = partial(self._begin_episodes, spec, scratch_envs)
        begin_in_place = partial(self._begin_episodes, spec, scratch_envs.over(stepper))
        restart = partial(collector.restart, cuts=True)
        evaluation = Evaluation(context, lambda: collector.actor, make_actor, begin, begin_in_place, restart)
        return CollectTask(context, env_ids, collector, writers, evaluation, mapping)

    def close(self) -> None:
        """Close all sub-environments of the training and of evaluations."""
        self._closing.close()

    def _make_collector(
        self, actor: Actor, spec: RolloutSpec, env_ids: range, make_actor: Callable[[], Actor]
    ) -> SingleAgentCollector:
        job, (worker, generation), status = self._context.job, self._context.sender, self._context.status
        about = (self._stepper, actor, spec, self._rows, np.array(env_ids), worker, status)
        more: dict[str, Any] = {"restarted": generation > 0, "infos": self._infos}
        if spec.in_parts:
            holds = job.postprocess is not None
            return EpisodePartsCollector(*about, **more, make_actor=make_actor, keeps=job.keeps, holds=holds)
        if spec.rollout_length == WHOLE_EPISODES:
            return EpisodeCollector(*about, **more)
        if job.options.step_workers is not None:
            return HalfBatchCollector(*about, **more)
        if job.options.on_env_error != "restart_env":
            return SingleAgentCollector(*about, **more)
        return ReplacingCollector(Replacements(job, self._stepper, env_ids.start, generation, status), *about, **more)

    def _begin_episodes(
        self, spec: RolloutSpec, envs: ScratchEnvs, actor: Actor, seed: int, episodes: int, within: Within
    ) -> EnvsEpisodeRunner:
        """Begin the episodes of an evaluation."""
        extras = tuple(extra for extra in spec.extras if not extra.postprocessed)
        spec = replace(spec, extras=extras, on_device=False, in_parts=False)
        try:
            collector, _ = envs.collector(actor, spec, seed, self._context.sender.worker)
        except Exception as error:
            error.add_note(_SECOND_IN_A_PROCESS)
            raise
        return EnvsEpisodeRunner(collector, episodes, within)

    def _probed(self, job: Job) -> RolloutSpec:
        """Return the contents of a rollout, found with a copy of the job that is used for nothing else."""
        spec, stepper, rows, batch = self._spec, self._stepper, self._rows, self._stepper.num_envs
        actor = Actor(job.policy, spec.observations, spec.actions, job.device, fit=self._fit)
        actor.settle(job.settings.get(UNNAMED, {}))
        spec = replace(spec, infos=infos_in(job.infos, actor.infos_taken, self._infos))
        seen = first_seen(spec.infos, self._infos)
        if absent := infos_needed(as_policy(job.policy)) - seen.keys():
            raise not_in_resets(sorted(absent), self._infos)
        extras, carry = probe(actor, spec, stepper.action_space, rows, batch, seen)
        spec = replace(spec, extras=extras, carry=carry)
        if missing := [name for name in job.infos if name not in {info.name for info in spec.infos}]:
            scratch_envs = ScratchEnvs(job.factories, range(1), self._context.status, self._fit, 1, stepper.envs)
            spec = replace(spec, infos=(*spec.infos, *infos_in_episode(scratch_envs, actor, spec, missing)))
        if job.postprocess is not None:
            if spec.in_parts:  # Each call has the episode of one sub-environment.
                rows, batch, seen = [row[:1] for row in rows], 1, {name: value[:1] for name, value in seen.items()}
            more = probe_postprocess(actor, spec, job.postprocess, rows, batch, seen)
            spec = replace(spec, extras=(*extras, *more))
        return spec
