"""The task of a pool's worker: fill a slot for each credit, and answer calls between two rollouts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

from parenv.envs.seeding import environment_seed
from parenv.platform import system
from parenv.protocol.messages import Commit, Credit
from parenv.worker.differentiator import NOTHING_LEARNED, Differentiated, Differentiator
from parenv.worker.evaluation import BESIDE, IN_PLACE, Evaluation
from parenv.worker.job import Job
from parenv.worker.single_agent_collector import Seconds, StopCollectingError
from parenv.worker.task import ENV_METHODS, Context, Loads, PendingAnswers, Task
from parenv.worker.writing import RolloutWriter, SlotWriters

W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)


class Collector(Protocol[W_contra]):
    """The sub-environments of a worker with everything that lasts from one rollout to the next.

    There is one implementation for environments of a single agent, and one for agents with named policies.
    """

    @property
    def replacements(self) -> Any:
        """:class:`~parenv.worker.replacements.Replacements`, or ``None`` if exceptions of environments are raised."""

    def load(self, version: int, place: int, snapshot: bytes) -> None:
        """Load a version of the policy, or a table of versions of the named policies."""

    def collect(self, writer: W_contra) -> Seconds:
        """Fill a rollout; raise ``StopCollectingError`` if the worker must end."""

    def rollout(self, writer: W_contra, policy_version: int) -> Any:
        """Return the rollout that was collected last, as ``loss_fn`` gets it."""

    def postprocess(self, function: Callable[[Any, Any], Any], writer: W_contra, policy_version: int) -> None:
        """Call ``postprocess`` of the user, and write the extras that it returns."""

    def commit_writer(self, writer: W_contra) -> RolloutWriter:
        """Return the writer of the commit record and the gradient."""

    def commit(self, credit: Credit, rollout: Any, learned: Differentiated, evaluating: Any) -> Commit:
        """Return the commit of a credit, without values of spaces and replaced sub-environments.

        ``rollout`` is ``None`` if no gradient was computed. ``evaluating`` are the policies of an evaluation beside the
        training, or ``None``.
        """

    @property
    def step_worker_restarts(self) -> int:
        """Number of step workers of this worker that were replaced so far."""

    def each(self, name: str, function: Callable[[Any], Any], columns: Sequence[int]) -> list[Any]:
        """Apply a function to some of the sub-environments."""

    def get_state(self) -> dict[str, Any]:
        """Return everything that lasts from one rollout to the next, and the random state, as plain data."""

    def set_state(self, state: dict[str, Any], seeds: Sequence[int], broken: bool) -> list[int]:
        """Restore a state; return the columns of the sub-environments that offer none and begin a new episode.

        ``seeds`` has a seed for each sub-environment. ``broken`` means that the next rollout does not follow the last
        one that was delivered.
        """


class CollectTask(Task):
    """Collect a rollout for each credit, and answer calls.

    Args:
        context: Job of the task, and its connections to the worker.
        env_ids: env_ids of the sub-environments.
        collector: Sub-environments and policies.
        writers: Writer of each slot.
        evaluation: Evaluations of this worker.
        mapping: Shared memory, if the driver may request versions in it. Default: versions come by message only.

    Attributes:
        loads: Requests in shared memory to load a version, or ``None``.
    """

    def __init__(
        self,
        context: Context[Any],
        env_ids: Sequence[int],
        collector: Collector[W],
        writers: SlotWriters[W],
        evaluation: Evaluation[Any],
        mapping: Any = None,
    ) -> None:
        job: Job = context.job
        self._job, self._sender, self._status, self._output = job, context.sender, context.status, context.output
        self._env_ids, self._writers, self._evaluation = env_ids, writers, evaluation
        self._collector: Collector[Any] = collector
        self._differentiator = None if job.gradient is None else Differentiator(job.gradient, job.policy)
        self._timer = RolloutTimer(self._sender.generation)
        self._loaded = (-1, -1)
        self.loads = None if mapping is None else Loads(mapping, len(job.shares), self._sender.worker, self._load)

    def take(self, credit: Credit) -> None:
        """Collect the rollout of a credit, unless the driver wants this worker to end."""
        with contextlib.suppress(StopCollectingError):
            self._output.say(self._collect(credit))

    def answer(self, method: str, *arguments: Any) -> Any:
        """Answer a call, see :class:`~parenv.worker.task.Task`."""
        if method in ENV_METHODS:
            return self._ask_envs(method, *arguments)
        answers: dict[str, Callable[..., Any]] = {
            "evaluate": self._evaluate,
            "get_state": self._get_state,
            "set_state": self._set_state,
            "load": self._load,
            # A LibraryPool asks for it. It has one policy, and the collectors of named policies have no restart.
            "restart": lambda seeds: cast(Any, self._collector).restart(seeds),
        }
        return answers[method](*arguments)

    def play_for(self, seconds: float) -> PendingAnswers:
        """Continue with a pending evaluation, see :meth:`~parenv.worker.evaluation.Evaluation.play_for`."""
        return self._evaluation.play_for(seconds)

    def _collect(self, credit: Credit) -> Commit:
        """Fill the slot of a credit, and write its commit record."""
        self._timer.begin()
        self._load(credit.policy_version, credit.weights_slot, credit.snapshot)
        collector, job, version = self._collector, self._job, credit.policy_version
        writer = self._writers[credit.slot]
        commit_writer = collector.commit_writer(writer)
        seconds = collector.collect(writer)
        if job.postprocess is not None:
            self._status.begin("postprocess")
            collector.postprocess(job.postprocess, writer, version)
        rollout, learned = None, NOTHING_LEARNED
        if self._differentiator is not None:
            self._status.begin("loss_fn")
            rollout = collector.rollout(writer, version)
            learned = self._differentiator.run(rollout.to(job.device), commit_writer.gradient)
        commit = collector.commit(credit, rollout, learned, self._evaluation.acting)
        self._status.begin("commit")
        if self._writers.device is not None:
            self._writers.device.finish()
        self._timer.stamp(commit_writer, credit, seconds, learned, collector.step_worker_restarts)
        replaced = [] if collector.replacements is None else collector.replacements.take_causes()
        return replace(commit, objects=dict(commit_writer.columns.objects), replaced=replaced)

    def _load(self, version: int, place: int, snapshot: bytes) -> int:
        """Load a version, unless it is loaded; return its number."""
        if (version, place) != self._loaded:
            self._status.begin("loading the policy")
            # A load that fails may leave parts of two versions. The next rollout must not trust the old number.
            self._loaded = (-1, -1)
            self._collector.load(version, place, snapshot)
            self._loaded = (version, place)
        return version

    def _ask_envs(self, name: str, columns: Sequence[int], *arguments: Any) -> Any:
        method, positions = ENV_METHODS[name], iter(range(len(columns)))
        answers = self._collector.each(name, lambda env: method(env, next(positions), *arguments), columns)
        if name == "set_attr" and self._collector.replacements is not None:
            self._collector.replacements.note_values(columns, *arguments)
        return answers

    def _evaluate(
        self, episodes: int, deterministic: bool, number: int, where: str, version: int, place: int, snapshot: bytes
    ) -> Any:
        if where == BESIDE:
            return self._evaluation.begin(episodes, deterministic, number, place, snapshot)
        self._load(version, place, snapshot)
        return self._evaluation.run(episodes, deterministic, number, where == IN_PLACE)

    def _get_state(self) -> dict[str, Any]:
        return {**self._collector.get_state(), "generation": self._sender.generation}

    def _set_state(self, state: dict[str, Any], generation: int, broken: bool) -> list[int]:
        seeds = [environment_seed(self._job.seed, env_id, generation) for env_id in self._env_ids]
        return self._collector.set_state(state, seeds, broken)


class RolloutTimer:
    """Times the rollouts of a worker of this generation, and the waiting time between them."""

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._idle_since = self._began = time.perf_counter()
        self._used = system.usage()
        self._restarts = 0

    def begin(self) -> None:
        """Begin a rollout."""
        self._began, self._used = time.perf_counter(), system.usage()

    def stamp(
        self, writer: RolloutWriter, credit: Credit, seconds: Seconds, learned: Differentiated, restarts: int
    ) -> None:
        """Write the commit record of the rollout that began last. After this, the slot holds the rollout.

        Args:
            writer: Writer of the rollout.
            credit: Credit of the rollout.
            seconds: Seconds of the environments and of the policy.
            learned: Result of the gradient.
            restarts: Number of step workers that were replaced so far.
        """
        before, waited_s = self._used, self._began - self._idle_since
        self._idle_since, used = time.perf_counter(), system.usage()
        writer.stamp(
            environment_s=seconds.environment,
            acting_s=seconds.acting,
            learning_s=learned.seconds,
            waiting_s=waited_s,
            processor_s=used.processor_s - before.processor_s,
            voluntary_switches=used.voluntary - before.voluntary,
            involuntary_switches=used.involuntary - before.involuntary,
            step_worker_restarts=restarts - self._restarts,
            began_s=self._began,
            ended_s=self._idle_since,
            gradient_norm=learned.norm,
            generation=self._generation,
            policy_version=credit.policy_version,
            sequence=credit.sequence,
        )
        self._restarts = restarts
