"""The task of a pool's worker: rollouts into slots, answers to calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from parenv.envs.seeding import environment_seed, random_state, set_random_state
from parenv.memory.layout import (
    WHOLE_EPISODES,
    RolloutSpec,
    extras_and_carry,
    infos_as_data,
    infos_from_data,
    leaves_as_data,
    slot_layout,
)
from parenv.memory.spaces import describe
from parenv.policy.snapshots import WeightsReader
from parenv.protocol.messages import Commit, Credit, Layout, Ready
from parenv.worker.acting import Actor
from parenv.worker.collecting import Collector
from parenv.worker.collecting_task import CollectingTask
from parenv.worker.differentiating import NOTHING_LEARNED, Differentiator
from parenv.worker.evaluation import EnvsEvaluation
from parenv.worker.half_batches import HalfBatchCollector
from parenv.worker.job import Job
from parenv.worker.loads import Loads
from parenv.worker.replacing import Replacements, ReplacingCollector
from parenv.worker.stamping import RolloutTimer
from parenv.worker.starting import start
from parenv.worker.whole_episodes import EpisodeCollector
from parenv.worker.writing import RolloutWriter, SlotWriters


class RolloutTask(CollectingTask[Job]):
    """Collects a rollout for each credit, and answers what it is asked between two of them."""

    _policy_version = -1

    def ready(self) -> Ready:
        """What the driver needs to know of the sub-environments."""
        stepper, spec = self._started.stepper, self._started.spec
        spaces = [describe(stepper.observation_space), describe(stepper.action_space)]
        extras = [[e.name, list(e.shape), e.dtype, e.postprocessed] for e in spec.extras]
        return Ready(spaces, stepper.num_envs, extras, leaves_as_data(spec.carry), infos_as_data(spec.infos))

    def lay_out(self, layout: Layout, mapping: Any) -> None:
        """Be told where everything lies in shared memory, all of which is mapped there."""
        job, started, worker = self._job, self._started, self._sender.worker
        extras, carry = extras_and_carry(layout.extras, layout.carry)
        spec = replace(started.spec, extras=extras, carry=carry, gradient_bytes=job.gradient_bytes)
        spec = replace(spec, infos=infos_from_data(layout.infos, job.infos), on_device=bool(layout.device))
        self._writers = SlotWriters(RolloutWriter, slot_layout, spec, layout, started.stepper.num_envs, mapping)

        read = partial(WeightsReader, memory=mapping, offset=job.weights_offset, device=job.device)

        def make_actor(job: Job) -> Actor:
            return Actor(job.policy, spec.observations, spec.actions, job.device, read, started.fit)

        self._actor, self._asked = make_actor(job), started.stepper
        self._env_ids = np.arange(layout.first_env_id, layout.first_env_id + started.stepper.num_envs)
        self._collector = self._make_collector(spec)
        self._evaluation = EnvsEvaluation(
            self._collector, job, worker, self._progress, self._actor, lambda: make_actor(self._load_job())
        )
        self._episodes = EpisodeCollector(self._collector) if spec.rollout_length == WHOLE_EPISODES else None
        self._differentiator = None if job.gradient is None else Differentiator(job.gradient, job.policy)
        self._timer = RolloutTimer(self._sender.generation)
        self.loads = Loads(mapping, len(job.shares), worker, self._load)

    def _start(self) -> None:
        self._started = start(self._sender, self._job, self._load_job, self._progress, self._output.warn)

    def _answers(self) -> dict[str, Callable[..., Any]]:
        return {**super()._answers(), "restart": self._collector.restart}

    def _close_envs(self) -> None:
        self._started.stepper.close()

    def _collect(self, credit: Credit) -> Commit:
        """Produce the rollout of a credit and stamp its slot."""
        self._timer.begin()
        self._load(credit.policy_version, credit.weights_slot, credit.snapshot)
        writer, version = self._writers[credit.slot], credit.policy_version
        episodes = None
        if self._episodes is not None:
            episodes, seconds = self._episodes.collect(version)
        else:
            seconds = self._collector.collect(writer)
        if self._job.postprocess is not None:
            self._progress.begin("postprocess")
            rollout = self._collector.rollout(writer, version)
            writer.write_extras(self._actor.postprocess(self._job.postprocess, rollout))
        report, learned = None, NOTHING_LEARNED
        if self._differentiator is not None:
            self._progress.begin("loss_fn")
            rollout = episodes or self._collector.rollout(writer, version, postprocessed=True)
            learned = self._differentiator.run(rollout.to(self._job.device), writer.gradient)
            report = [rollout.num_steps, learned.metrics, episodes and episodes.episodes.columns()]
        self._progress.begin("commit")
        if self._writers.device is not None:
            self._writers.device.finish()
        self._timer.stamp(writer, credit, seconds, learned)
        return Commit(credit.sequence, dict(writer.columns.objects), report, self._collector.take_replaced())

    def _make_collector(self, spec: RolloutSpec) -> Collector:
        started, job, generation = self._started, self._job, self._sender.generation
        about = (started.stepper, self._actor, spec, started.rows, self._env_ids, self._sender.worker, self._progress)
        more: dict[str, Any] = {"restarted": generation > 0, "infos": started.infos}
        if job.options.step_workers is not None:
            return HalfBatchCollector(*about, **more)
        if job.options.on_env_error != "restart_env":
            return Collector(*about, **more)
        replacements = Replacements(job, started.stepper, int(self._env_ids[0]), generation, self._progress)
        return ReplacingCollector(replacements, *about, **more)

    def _load(self, version: int, place: int, snapshot: bytes) -> int:
        if version != self._policy_version:
            self._progress.begin("loading the policy")
            # A load that fails may leave parts of both versions: the next rollout must not trust the old number.
            self._policy_version = -1
            self._actor.load(place, snapshot)
            self._policy_version = version
        return version

    def _get_state(self) -> dict[str, Any]:
        return {**self._collector.get_state(), "random": random_state(), "generation": self._sender.generation}

    def _set_state(self, state: dict[str, Any], generation: int, broken: bool) -> list[int]:
        seeds = [environment_seed(self._job.seed, int(env_id), generation) for env_id in self._env_ids]
        anew = self._collector.set_state(state, seeds, broken)
        if self._episodes is not None:
            self._episodes.all_fresh = False
        set_random_state(state["random"])
        return anew
