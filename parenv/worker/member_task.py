"""The task of a population's worker: training rounds of members."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from parenv.envs.fitting import Fit
from parenv.envs.normalising import Statistics, get_statistics, set_statistics
from parenv.envs.seeding import RandomState, member_seed
from parenv.experience.episodes import NO_EPISODES, EpisodeStatistics
from parenv.memory.layout import RolloutSpec
from parenv.memory.member_places import MemberPlaces
from parenv.memory.spaces import describe, leaves
from parenv.memory.status_slot import StatusSlot
from parenv.policy.policy import as_policy
from parenv.protocol.data import pack
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Failure, Layout, Ready
from parenv.worker.actor import Actor
from parenv.worker.differentiator import numbers_of
from parenv.worker.evaluation import EnvsEpisodeRunner
from parenv.worker.failures import failure_of
from parenv.worker.job import MemberJob
from parenv.worker.member import Member, made, restore, state_of
from parenv.worker.probes import probe
from parenv.worker.single_agent_collector import ScratchEnvs, StopCollectingError, private_writer
from parenv.worker.task import Task, TaskOutput


class MemberEnvs(ScratchEnvs):
    """Scratch environments of members, with normalization statistics for each member."""

    def get_to_know(self, envs: Sequence[Any]) -> None:
        """Keep the statistics that each member begins with."""
        self._at_first = get_statistics(envs)

    @property
    def statistics(self) -> Statistics:
        """Statistics of the normalization wrappers."""
        return get_statistics(self.stepper.envs)

    def normalise_by(self, saved: Statistics | None, updating: bool = True) -> None:
        """Set the statistics of the normalization wrappers. ``None``: the statistics of new environments."""
        envs = self.stepper.envs
        set_statistics(envs, self._at_first if saved is None else saved, updating)


class MemberTask(Task):
    """Restores a member, has it learn, measures it, and stores its new state.

    A training round depends only on the member's state, its hyper-parameters and the number of the round. It is bitwise
    identical on any worker, so another worker can repeat it after a death.

    Args:
        job: Job of the workers.
        sender: Identity of this worker.
        status: Status slot of this worker.
        output: Output for warnings.
    """

    def __init__(self, job: MemberJob, sender: Sender, status: StatusSlot, output: TaskOutput) -> None:
        self._job, self._worker, self._status = job, sender.worker, status
        self._fit = fit = Fit.of(job.options, output.warn)
        env_ids = job.env_ids(sender.worker)
        self._training = MemberEnvs(job.factories, env_ids, status, fit, job.options.step_threads)
        self._measuring = MemberEnvs(job.fitness_factories, env_ids, status, fit, job.options.step_threads)
        stepper = self._training.stepper
        self._spec = RolloutSpec(job.rollout_length, leaves(stepper.observation_space), leaves(stepper.action_space))
        self._spec = self._probed()
        self._places = MemberPlaces(len(job.shares))

    def ready(self) -> Ready:
        """Return the description of the sub-environments for the main process."""
        stepper = self._training.stepper
        return Ready([describe(stepper.observation_space), describe(stepper.action_space)], stepper.num_envs, [], [])

    def lay_out(self, layout: Layout, mapping: Any) -> MemberTask:
        """Map the shared memory with the states of members, and return this task."""
        self._places.buffer = mapping
        return self

    def answer(self, method: str, *arguments: Any) -> Any:
        """Answer a call. There is one kind."""
        return {"turn": self._training_round}[method](*arguments)

    def close(self) -> None:
        """Close the sub-environments."""
        try:
            self._training.close()
        finally:
            self._measuring.close()

    def _training_round(
        self, number: int, turn: int, hyperparameters: Mapping[str, float], source: Any, target: int
    ) -> dict[str, Any]:
        """Do a training round of a member.

        Args:
            number: Number of the member.
            turn: Number of training rounds that it has finished before.
            hyperparameters: Its hyper-parameters.
            source: Place of its state, or of its parent's. -1: it has no state yet. On a host, which does not share the
                memory of the places, the state itself.
            target: Place for its new state. -1: the answer contains the state.

        Returns:
            Results of the round. If it raised an exception, the fields of a
            :class:`~parenv.protocol.messages.Failure`.
        """
        seed = member_seed(self._job.seed, number, turn)
        try:
            with RandomState(seed):
                return self._done(number, hyperparameters, source, target, seed)
        except StopCollectingError:
            raise
        except Exception as error:
            # The exception may have broken the environments, so the next member gets new ones.
            failure = failure_of(error, self._status.doing, self._status.env_id)
            self.close()
            return {"failure": [getattr(failure, one.name) for one in fields(Failure)]}

    def _done(
        self, number: int, hyperparameters: Mapping[str, float], source: Any, target: int, seed: int
    ) -> dict[str, Any]:
        began, job = time.perf_counter(), self._job
        self._status.begin("loading the policy")
        member = made(job.make_member, number, hyperparameters, job.device)
        state: Any = source if isinstance(source, Mapping) else None
        if state is None and source >= 0:
            state = self._places.read(source)
        if state is not None:
            restore(member, state)
        self._training.normalise_by(state and state["normalising"])
        actor = self._actor(member)
        loaded = time.perf_counter()
        learned = self._learn(member, actor, seed)
        taught = time.perf_counter()
        measured = self._measure(member, actor, seed)
        known = time.perf_counter()
        self._status.begin("commit")
        after = {**state_of(member), "normalising": self._training.statistics}
        written = {"state_bytes": self._places.write(target, after)} if target >= 0 else {"state": after}
        seconds = [loaded - began + time.perf_counter() - known, taught - loaded, known - taught]
        return {**learned, **measured, **written, "seconds": seconds}

    def _learn(self, member: Member, actor: Actor, seed: int) -> dict[str, Any]:
        """Have a member learn in whole rollouts for the length of a training round."""
        collector, _ = self._training.collector(actor, self._spec, seed, self._worker)
        writer = private_writer(self._spec, collector.stepper.num_envs)
        env_steps, updates = 0, 0
        returns: list[float] = []
        metrics: Any = None
        while env_steps < self._job.every:
            collector.collect(writer)
            rollout = collector.rollout(writer, updates)
            self._status.begin("learn")
            given = rollout.to(self._job.device) if as_policy(member.policy).takes_tensors else rollout
            metrics = self._job.learn(member, given)
            env_steps += rollout.num_steps
            updates += 1
            returns += rollout.episodes.finished.returns.tolist()
        mean_return = float(np.mean(returns)) if returns else float("nan")
        metrics = {} if metrics is None else numbers_of(metrics, "learn", TypeError)
        return {"env_steps": env_steps, "mean_return": mean_return, "metrics": metrics}

    def _measure(self, member: Member, actor: Actor, seed: int) -> dict[str, Any]:
        """Measure a member by episodes that it does not learn from."""
        fitness = self._job.fitness
        episodes = NO_EPISODES
        if fitness.episodes:
            with actor.deterministic(fitness.deterministic):
                self._measuring.normalise_by(self._training.statistics, updating=False)
                collector, _ = self._measuring.collector(actor, self._spec, seed + 1, self._worker)
                episodes = EpisodeStatistics.of_columns(*EnvsEpisodeRunner(collector, fitness.episodes).play_all())
        self._status.begin("fitness")
        score = episodes.mean_return if fitness.score is None else float(fitness.score(member, episodes))
        return {"score": score, "episodes": episodes.columns()}

    def _actor(self, member: Member) -> Actor:
        spec = self._spec
        return Actor(member.policy, spec.observations, spec.actions, self._job.device, fit=self._fit)

    def _probed(self) -> RolloutSpec:
        """Find the fields of a rollout beside the spaces, with a temporary member."""
        with RandomState(0):
            self._status.begin("act")
            member = made(self._job.make_member, 0, self._job.first, self._job.device)
            pack(state_of(member))
            actor = self._actor(member)
            collector, rows = self._training.collector(actor, self._spec, 0, self._worker)
            stepper = collector.stepper
            extras, carry = probe(actor, self._spec, stepper.action_space, rows, stepper.num_envs)
            return replace(self._spec, extras=extras, carry=carry)
