"""A worker at work: rollouts into slots, answers to calls."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np

from parenv.envs.seeding import RandomState, environment_seed, evaluation_seed, random_state, set_random_state
from parenv.experience.assembly import Share
from parenv.memory.layout import WHOLE_EPISODES, extras_and_carry, infos_from_data, slot_layout
from parenv.memory.progress import Progress
from parenv.policy.snapshots import WeightsReader
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Call, Commit, Credit, Layout
from parenv.protocol.plain import as_data
from parenv.worker.acting import Actor
from parenv.worker.collecting import Collector, reset
from parenv.worker.differentiating import Differentiator
from parenv.worker.episodes import EpisodeCollector
from parenv.worker.evaluation import evaluate, evaluation_spec
from parenv.worker.replacing import Replacements, ReplacingCollector
from parenv.worker.starting import Started, make_envs
from parenv.worker.writing import RolloutWriter


class Station:
    """A started worker for which everything is laid out.

    Args:
        sender: who this is.
        started: the sub-environments.
        layout: where everything lies.
        mapping: the shared memory, all of it.
        progress: where to say what is going on.
    """

    def __init__(self, sender: Sender, started: Started, layout: Layout, mapping: Any, progress: Progress) -> None:
        self._sender, self._job, self._progress, self._mapping = sender, started.job, progress, mapping
        self._layout = layout
        extras, carry = extras_and_carry(layout.extras, layout.carry)
        gradient_bytes = self._job.gradient.layout.nbytes if self._job.gradient else 0
        infos = infos_from_data(layout.infos)
        spec = replace(started.spec, extras=extras, carry=carry, infos=infos, gradient_bytes=gradient_bytes)
        self._slots = slot_layout(spec, layout.slot_envs, layout.slot_workers)
        self._share = Share(layout.share, layout.first_column, layout.first_column + started.stepper.num_envs)
        self._writers: dict[int, RolloutWriter] = {}
        device = self._job.options.device
        self._actor = Actor(
            self._job.policy,
            spec.observations,
            spec.actions,
            device,
            lambda module: WeightsReader(module, mapping, self._job.weights_offset, device),
            started.fit,
        )
        env_ids = np.arange(layout.first_env_id, layout.first_env_id + started.stepper.num_envs)
        self._spec = spec
        self._collector, self._replacements = self._make_collector(started, spec, env_ids)
        self._episodes = EpisodeCollector(self._collector) if spec.rollout_length == WHOLE_EPISODES else None
        self._differentiator: Differentiator | None = None
        if self._job.gradient is not None:
            self._differentiator = Differentiator(self._job.gradient, self._job.policy)
        self._evaluation_envs: Any = None
        self._policy_version = -1
        self._idle_since = time.perf_counter()

    def collect(self, credit: Credit) -> Commit:
        """Produce the rollout of a credit and stamp its slot.

        Raises:
            StopCollectingError: the driver wants this worker to end.
        """
        began, used_before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        self._load(credit.policy_version, credit.weights_slot, credit.snapshot)
        writer, version = self._writer(credit.slot), credit.policy_version
        episodes = None
        if self._episodes is not None:
            episodes, seconds = self._episodes.collect(version)
        else:
            seconds = self._collector.collect(writer)
        if self._job.postprocess is not None:
            self._progress.begin("postprocess")
            rollout = self._collector.rollout(writer, version)
            writer.write_extras(self._actor.postprocess(self._job.postprocess, rollout))
        norm, learning_began, report = 0.0, math.inf, None
        if self._differentiator is not None:
            self._progress.begin("loss_fn")
            rollout = episodes or self._collector.rollout(writer, version, postprocessed=True)
            learning_began = time.perf_counter()
            norm, metrics = self._differentiator.run(rollout.to(self._job.options.device), writer.gradient)
            report = [rollout.num_steps, metrics, episodes and episodes.episodes.columns()]
        self._progress.begin("commit")
        self._idle_since, waited_s = time.perf_counter(), began - self._idle_since
        used = resource.getrusage(resource.RUSAGE_SELF)
        writer.stamp(
            environment_s=seconds.environment,
            acting_s=seconds.acting,
            learning_s=max(0.0, self._idle_since - learning_began),
            waiting_s=waited_s,
            processor_s=used.ru_utime + used.ru_stime - used_before.ru_utime - used_before.ru_stime,
            voluntary_switches=used.ru_nvcsw - used_before.ru_nvcsw,
            involuntary_switches=used.ru_nivcsw - used_before.ru_nivcsw,
            began_s=began,
            ended_s=self._idle_since,
            gradient_norm=norm,
            generation=self._sender.generation,
            policy_version=version,
            sequence=credit.sequence,
        )
        replaced = [] if self._replacements is None else self._replacements.take_causes()
        return Commit(credit.sequence, dict(writer.share.objects), report, replaced)

    def answer(self, call: Call) -> Any:
        """Answer a call."""
        arguments = cloudpickle.loads(call.arguments)
        answers: dict[str, Callable[..., Any]] = {
            "call": self._call,
            "get_attr": self._get_attr,
            "set_attr": self._set_attr,
            "evaluate": self._evaluate,
            "get_state": self._get_state,
            "set_state": self._set_state,
            "load": self._load,
        }
        self._progress.begin("evaluate" if call.method == "evaluate" else "call")
        return answers[call.method](*arguments)

    def close_envs(self) -> None:
        """Close the sub-environments."""
        try:
            self._collector.stepper.close()
        finally:
            if self._evaluation_envs is not None:
                self._evaluation_envs.close()

    def _make_collector(self, started: Started, spec: Any, env_ids: Any) -> tuple[Collector, Replacements | None]:
        sender, job, progress = self._sender, self._job, self._progress
        about = (started.stepper, self._actor, spec, started.rows, env_ids, sender.worker, progress)
        restarted = sender.generation > 0
        if job.options.on_env_error != "restart_env":
            return Collector(*about, restarted=restarted, infos=started.first_infos), None
        replacements = Replacements(job, started.stepper, int(env_ids[0]), sender.generation, progress)
        more: dict[str, Any] = {"restarted": restarted, "infos": started.first_infos}
        return ReplacingCollector(replacements, *about, **more), replacements

    def _load(self, version: int, place: int, snapshot: bytes) -> int:
        if version != self._policy_version:
            self._progress.begin("loading the policy")
            self._actor.load(place, snapshot)
            self._policy_version = version
        return version

    def _writer(self, slot: int) -> RolloutWriter:
        if slot not in self._writers:
            offset = self._layout.slots_offset + slot * self._layout.slot_bytes
            view = memoryview(self._mapping)[offset : offset + self._layout.slot_bytes]
            self._writers[slot] = RolloutWriter(self._spec, self._slots.arrays(view), self._share)
        return self._writers[slot]

    def _call(self, columns: list[int], name: str, args: Any, kwargs: Any) -> list[Any]:
        def called(env: Any) -> Any:
            attribute = env.get_wrapper_attr(name)
            return attribute(*args, **kwargs) if callable(attribute) else attribute

        return [as_data(answer) for answer in self._collector.stepper.each(name, called, columns)]

    def _get_attr(self, columns: list[int], name: str) -> list[Any]:
        found = self._collector.stepper.each(name, lambda env: env.get_wrapper_attr(name), columns)
        return [as_data(value) for value in found]

    def _set_attr(self, columns: list[int], name: str, values: list[Any]) -> None:
        left = iter(values)
        self._collector.stepper.each(name, lambda env: env.set_wrapper_attr(name, next(left)), columns)

    def _get_state(self) -> dict[str, Any]:
        return {**self._collector.get_state(), "random": random_state(), "generation": self._sender.generation}

    def _set_state(self, state: dict[str, Any], generation: int, broken: bool) -> list[int]:
        first, count = self._layout.first_env_id, self._collector.stepper.num_envs
        seeds = [environment_seed(self._job.seed, first + column, generation) for column in range(count)]
        anew = self._collector.set_state(state, seeds, broken)
        if self._episodes is not None:
            self._episodes.all_fresh = False
        set_random_state(state["random"])
        return anew

    def _evaluate(
        self, episodes: int, deterministic: bool, evaluation: int, version: int, place: int, snapshot: bytes
    ) -> tuple[Any, ...]:
        self._load(version, place, snapshot)
        seed = evaluation_seed(self._job.seed, self._job.first_worker + self._sender.worker, evaluation)
        spec = evaluation_spec(self._collector.spec)
        with RandomState(seed), self._actor.deterministic(deterministic):
            if self._evaluation_envs is None:
                count, envs = self._collector.stepper.num_envs, self._collector.stepper.envs
                about = (self._job, self._layout.first_env_id, count, self._progress, envs)
                self._evaluation_envs = make_envs(*about, fit=self._actor.fit)
            envs = self._evaluation_envs
            seeds = np.random.SeedSequence(seed).generate_state(envs.num_envs).tolist()
            rows, infos = reset(envs, spec.observations, seeds)
            env_ids = np.arange(envs.num_envs) + self._layout.first_env_id
            worker = self._sender.worker
            collector = Collector(envs, self._actor, spec, rows, env_ids, worker, self._progress, infos=infos)
            returns, lengths, seconds, columns = evaluate(collector, episodes)
        return returns, lengths, seconds, env_ids[columns]
