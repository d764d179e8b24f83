"""Evaluate a version of the policy by whole episodes, in new sub-environments or in the ones of the training."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from parenv.envs.seeding import RandomState, evaluation_seed
from parenv.experience.assembly import episodes_of
from parenv.experience.endings import indices_of
from parenv.memory.layout import RolloutSpec
from parenv.worker.agents_collector import AgentsCollector
from parenv.worker.single_agent_collector import SingleAgentCollector, StopCollectingError, private_writer
from parenv.worker.task import Context, Pending, PendingAnswers
from parenv.worker.writing import AgentWriter, writer_in_own_memory

MAX_STEPS = 16
"""Maximum number of env steps between two checks of which sub-environments have finished."""
PIECE_S = 0.005
"""Maximum duration in seconds of one piece of an evaluation beside the training, unless one env step takes longer."""
Within = Callable[[], contextlib.AbstractContextManager[None]]
Records = list[list[Any]]


class EpisodeRunner(ABC):
    """Episodes in progress.

    Each sub-environment plays a fixed number of them. Taking the episodes that end first would favour short ones.

    Args:
        num_envs: Number of sub-environments.
        episodes: Total number of episodes. The numbers of two sub-environments differ by one at most.
        within: Function that makes a context for the steps, such as a random state.

    Attributes:
        wanted: Number of missing episodes of each sub-environment.
    """

    def __init__(self, num_envs: int, episodes: int, within: Within) -> None:
        self._within = within
        self.wanted = [episodes // num_envs + (column < episodes % num_envs) for column in range(num_envs)]
        self._step_s = float("inf")

    @property
    def is_over(self) -> bool:
        """True if all episodes have ended."""
        return not any(self.wanted)

    def play_all(self) -> tuple[Any, ...]:
        """Play all episodes; return the answer."""
        while not self.is_over:
            self.play(MAX_STEPS)
        return self.answer()

    def play_piece(self) -> None:
        """Play for about ``PIECE_S`` seconds."""
        self.play(MAX_STEPS if self._step_s * MAX_STEPS < PIECE_S else 1)

    def play(self, steps: int) -> None:
        """Take this many steps in every sub-environment."""
        began = time.perf_counter()
        with self._within():
            self._collect(steps)
        self._step_s = (time.perf_counter() - began) / steps

    @abstractmethod
    def answer(self) -> tuple[Any, ...]:
        """Return the columns of the episodes, each ``[episodes]``: see :meth:`EpisodeStatistics.columns`.

        Named policies add a dict with the same columns by policy, and with agents and episode numbers.
        """

    @abstractmethod
    def _collect(self, steps: int) -> None:
        """Take this many steps, and note the wanted episodes that end."""


class EnvsEpisodeRunner(EpisodeRunner):
    """Episodes of a single agent, in the sub-environments of a collector that begin an episode."""

    def __init__(self, collector: SingleAgentCollector, episodes: int, within: Within = contextlib.nullcontext) -> None:
        super().__init__(collector.stepper.num_envs, episodes, within)
        self._collector = collector
        self._writer = private_writer(collector.spec, collector.stepper.num_envs)
        self._records: list[Any] = []

    def answer(self) -> tuple[Any, ...]:
        """Return the columns of the episodes."""
        played = episodes_of(np.array(self._records), self._collector.env_ids)
        ended_by = np.array(indices_of(played.ended_by), np.int64)
        return played.returns, played.lengths, played.seconds, played.env_ids, ended_by

    def _collect(self, steps: int) -> None:
        collector = self._collector
        if steps != collector.spec.rollout_length:
            collector.spec = replace(collector.spec, rollout_length=steps)
            self._writer = private_writer(collector.spec, collector.stepper.num_envs)
        collector.collect(self._writer)
        for record in self._writer.end_records().copy():
            if self.wanted[record["column"]] and record["counts"] and not record["void"]:
                self.wanted[record["column"]] -= 1
                self._records.append(record)


class AgentsEpisodeRunner(EpisodeRunner):
    """Episodes of agents with named policies. ``names`` has the names by index of the policy."""

    def __init__(self, collector: AgentsCollector, episodes: int, names: Mapping[int, str], within: Within) -> None:
        super().__init__(len(collector.envs), episodes, within)
        self._collector, self._spec, self._names = collector, collector.assignments.spec, names
        self._whole: Records = []
        self._by_policy: defaultdict[str, Records] = defaultdict(list)
        self._parts: defaultdict[tuple[int, int], list[tuple[str, list[Any]]]] = defaultdict(list)
        self._resize(MAX_STEPS)

    def answer(self) -> tuple[Any, ...]:
        """Return the columns of the episodes, and columns by policy."""
        by_policy = {name: _columns(records, 7) for name, records in self._by_policy.items()}
        return *_columns(self._whole, 5), by_policy

    def _resize(self, steps: int) -> None:
        """Set the rollout length."""
        factor = steps / self._spec.rollout_length

        def shortened(group: RolloutSpec) -> RolloutSpec:
            return replace(group, rollout_length=round(group.rollout_length * factor), gradient_bytes=0)

        assignments = self._collector.assignments
        assignments.spec = replace(self._spec, groups=tuple(map(shortened, self._spec.groups)))
        self._writer = writer_in_own_memory(AgentWriter, assignments.spec, len(self._collector.envs))

    def _collect(self, steps: int) -> None:
        collector, env_ids = self._collector, self._collector.assignments.env_ids
        if steps != collector.assignments.spec.rollout_length:
            self._resize(steps)
        collector.collect(self._writer)
        self._note_parts()
        for record, number in zip(*self._writer.groups[0].ended(), strict=True):
            column = int(record["column"])
            if self.wanted[column]:
                self.wanted[column] -= 1
                self._whole.append([*_figures(record), env_ids[column], int(record["ended_by"])])
                for name, part in self._parts.pop((column, number)):
                    self._by_policy[name].append(part)

    def _note_parts(self) -> None:
        """Note the policy and record of each agent whose part of an episode has ended, by column and episode."""
        assignments = self._collector.assignments
        for group, mine in zip(assignments.spec.groups[1:], self._writer.groups[1:], strict=True):
            for record, number in zip(*mine.ended(), strict=True):
                column, place = divmod(int(record["column"]), len(group.agents))
                name = self._names[int(mine.policies[record["step"], record["column"]])]
                env_id, ended_by = assignments.env_ids[column], int(record["ended_by"])
                part = [*_figures(record), env_id, ended_by, group.agents[place], number]
                self._parts[column, number].append((name, part))


def _figures(record: Any) -> list[Any]:
    return [float(record["return"]), int(record["length"]), float(record["seconds"])]


def _columns(records: Records, count: int) -> list[list[Any]]:
    return [list(column) for column in zip(*records, strict=True)] if records else [[] for _ in range(count)]


APART, BESIDE, IN_PLACE = "apart", "beside", "in place"
"""Modes of an evaluation: it plays while the training waits, beside the training, or in its sub-environments."""
FRACTION = 0.1
"""Share of the time of rollouts that a busy worker adds for an evaluation beside the training."""


class Acting(Protocol):
    """A policy, or several named policies, with one version at a time."""

    def load(self, place: int, snapshot: bytes, /) -> None:
        """Load a version."""

    def deterministic(self, wanted: bool) -> contextlib.AbstractContextManager[None]:
        """Make a context in which ``settings["deterministic"]`` has this value."""


A = TypeVar("A", bound=Acting)
Begin = Callable[[A, int, int, Within], EpisodeRunner]
"""``(acting, seed, episodes, within) -> runner``: begins episodes; called within ``within()``."""


class Evaluation(Generic[A]):
    """The part of one worker in every evaluation.

    Args:
        context: Job of the task, and its connections to the worker.
        training: Function that returns the policies with the version that was loaded last for the training.
        make: Function that makes the policies of a job, for evaluations beside the training.
        begin: Function that begins episodes in sub-environments of their own.
        begin_in_place: Function that begins episodes in the sub-environments of the training. Default: not supported.
        restart: Function that begins new episodes of the training after an evaluation in place.
    """

    def __init__(
        self,
        context: Context[Any],
        training: Callable[[], A],
        make: Callable[[Any], A],
        begin: Begin[A],
        begin_in_place: Begin[A] | None = None,
        restart: Callable[[], object] = lambda: None,
    ) -> None:
        self._context, self._training, self._make = context, training, make
        self._begin_apart, self._begin_in_place, self._restart = begin, begin_in_place, restart
        self._beside: A | None = None
        self._runner: EpisodeRunner | None = None
        self._pending = Pending()

    @property
    def acting(self) -> A | None:
        """The policies of an evaluation in progress beside the training, or ``None``."""
        return None if self._runner is None else self._beside

    def run(self, episodes: int, deterministic: bool, number: int, in_place: bool = False) -> tuple[Any, ...]:
        """Play episodes by the version that acts in the training.

        Args:
            episodes: Number of episodes.
            deterministic: Value of ``settings["deterministic"]`` in the evaluation.
            number: Sequence number of the evaluation.
            in_place: Whether to play in the sub-environments of the training, whose episodes are cut.

        Returns:
            The answer, see :meth:`EpisodeRunner.answer <parenv.worker.evaluation.EpisodeRunner.answer>`.
        """
        begin = self._begin_in_place if in_place else self._begin_apart
        assert begin is not None
        try:
            return self._runner_of(begin, self._training(), episodes, deterministic, number).play_all()
        finally:
            if in_place:
                self._restart()

    def begin(self, episodes: int, deterministic: bool, number: int, place: int, snapshot: bytes) -> Pending:
        """Begin to evaluate a version beside the training; :meth:`play_for` continues."""
        self._beside = self._beside or self._make(self._context.load_job())
        self._beside.load(place, snapshot)
        self._runner = self._runner_of(self._begin_apart, self._beside, episodes, deterministic, number)
        self._pending = Pending()
        return self._pending

    def play_for(self, seconds: float) -> PendingAnswers:
        """Continue for about this many seconds; return the answer if it is complete."""
        until, runner = time.perf_counter() + seconds, self._runner
        assert runner is not None
        self._context.progress.begin("evaluate")
        with contextlib.suppress(StopCollectingError):
            runner.play_piece()
            while not runner.is_over and time.perf_counter() < until:
                runner.play_piece()
            if runner.is_over:
                self._runner = None
                return [(self._pending, runner.answer())]
        return []

    def _runner_of(self, begin: Begin[A], acting: A, episodes: int, deterministic: bool, number: int) -> EpisodeRunner:
        job, worker = self._context.job, self._context.sender.worker
        seed = evaluation_seed(job.seed, job.first_worker + worker, number)
        random_state = RandomState(seed)

        @contextlib.contextmanager
        def within() -> Iterator[None]:
            with random_state, acting.deterministic(deterministic):
                yield

        with within():
            return begin(acting, seed, episodes, within)
