"""Evaluate a version of the policy by whole episodes, in new sub-environments or in the ones of the training."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from parenv.worker.writing import AgentWriter, RolloutWriter, writer_in_own_memory

MAX_STEPS = 16
"""Maximum number of env steps between two checks of which sub-environments have finished."""
PIECE_S = 0.005
"""Maximum duration in seconds of one piece of an evaluation beside the training, unless one env step takes longer."""
Within = Callable[[], contextlib.AbstractContextManager[None]]


class EpisodeRunner(ABC):
    """Episodes in progress, in sub-environments of a collector that begin an episode.

    Each sub-environment plays a fixed number of them. Taking the episodes that end first would favour short ones.

    Args:
        collector: Collector that steps the sub-environments.
        env_ids: env_ids of the sub-environments.
        episodes: Total number of episodes. The numbers of two sub-environments differ by one at most.
        within: Function that makes a context for the steps, such as a random state.

    Attributes:
        wanted: Number of missing episodes of each sub-environment.
    """

    def __init__(self, collector: Any, env_ids: Sequence[int], episodes: int, within: Within) -> None:
        self._env_ids, self._within, num_envs = np.array(env_ids), within, len(env_ids)
        self.wanted = [episodes // num_envs + (column < episodes % num_envs) for column in range(num_envs)]
        self._step_s = float("inf")
        self._collect: Callable[[Any], object] = collector.collect
        self._steps, self._writer = 0, None
        self._played: list[tuple[Any, int]] = []
        """Record and number of each wanted episode that has ended."""

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
        """Take this many steps in every sub-environment, and note the wanted episodes that end."""
        began = time.perf_counter()
        if steps != self._steps:
            self._steps, self._writer = steps, self._writer_of(steps)
        with self._within():
            self._collect(self._writer)
        for record, number in self._ended(self._writer):
            if self.wanted[record["column"]] and record["counts"] and not record["void"]:
                self.wanted[record["column"]] -= 1
                self._played.append((record, number))
        self._step_s = (time.perf_counter() - began) / steps

    def answer(self) -> tuple[Any, ...]:
        """Return the columns of the episodes, each ``[episodes]``: see :meth:`EpisodeStatistics.columns`.

        Named policies add a dict with the same columns by policy, and with agents and episode numbers.
        """
        played = episodes_of(np.array([record for record, _ in self._played]), self._env_ids)
        ended_by = np.array(indices_of(played.ended_by), np.int64)
        return played.returns, played.lengths, played.seconds, played.env_ids, ended_by

    @abstractmethod
    def _writer_of(self, steps: int) -> Any:
        """Set the number of steps that the collector takes, and return a writer for them."""

    @abstractmethod
    def _ended(self, writer: Any) -> Iterable[tuple[Any, int]]:
        """Return the record and the number of each episode that has ended."""


class EnvsEpisodeRunner(EpisodeRunner):
    """Episodes of a single agent. Their numbers are 0."""

    def __init__(self, collector: SingleAgentCollector, episodes: int, within: Within = contextlib.nullcontext) -> None:
        super().__init__(collector, collector.env_ids, episodes, within)
        self._collector = collector

    def _writer_of(self, steps: int) -> RolloutWriter:
        collector = self._collector
        collector.spec = replace(collector.spec, rollout_length=steps)
        return private_writer(collector.spec, collector.stepper.num_envs)

    def _ended(self, writer: RolloutWriter) -> Iterable[tuple[Any, int]]:
        return ((record, 0) for record in writer.end_records().copy())


class AgentsEpisodeRunner(EpisodeRunner):
    """Episodes of agents with named policies. ``names`` has the names by index of the policy."""

    def __init__(self, collector: AgentsCollector, episodes: int, names: Mapping[int, str], within: Within) -> None:
        super().__init__(collector, collector.assignments.env_ids, episodes, within)
        self._assignments, self._spec, self._names = collector.assignments, collector.assignments.spec, names
        self._parts: defaultdict[tuple[int, int], list[tuple[str, list[Any]]]] = defaultdict(list)
        """Policy and part of each agent in an episode, by column and number of the episode."""

    def answer(self) -> tuple[Any, ...]:
        """Return the columns of the episodes, and columns by policy."""
        by_policy: defaultdict[str, list[list[Any]]] = defaultdict(list)
        for record, number in self._played:
            for name, part in self._parts[int(record["column"]), number]:
                by_policy[name].append(part)
        columns = {name: [list(column) for column in zip(*parts, strict=True)] for name, parts in by_policy.items()}
        return *super().answer(), columns

    def _writer_of(self, steps: int) -> AgentWriter:
        factor = steps / self._spec.rollout_length

        def shortened(group: RolloutSpec) -> RolloutSpec:
            return replace(group, rollout_length=round(group.rollout_length * factor), gradient_bytes=0)

        self._assignments.spec = replace(self._spec, groups=tuple(map(shortened, self._spec.groups)))
        return writer_in_own_memory(AgentWriter, self._assignments.spec, len(self._env_ids))

    def _ended(self, writer: AgentWriter) -> Iterable[tuple[Any, int]]:
        """Note the parts of agents that have ended, and return the episodes."""
        for group, mine in zip(self._assignments.spec.groups[1:], writer.groups[1:], strict=True):
            for record, number in zip(*mine.ended(), strict=True):
                column, place = divmod(int(record["column"]), len(group.agents))
                name = self._names[int(mine.policies[record["step"], record["column"]])]
                figures = float(record["return"]), int(record["length"]), float(record["seconds"])
                about = self._assignments.env_ids[column], int(record["ended_by"]), group.agents[place], number
                self._parts[column, number].append((name, [*figures, *about]))
        return zip(*writer.groups[0].ended(), strict=True)


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
        self._context.status.begin("evaluate")
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
