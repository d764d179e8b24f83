"""Evaluate a version of the policy by whole episodes, in sub-environments of their own or in those of the training."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from parenv.envs.seeding import RandomState, evaluation_seed
from parenv.worker.episode_runner import EpisodeRunner, Within
from parenv.worker.single_agent_collector import StopCollectingError
from parenv.worker.task import PENDING, Context

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
        training: Policies that act in the training.
        make: Function that makes the policies of a job, for evaluations beside the training.
        begin: Function that begins episodes in sub-environments of their own.
        begin_in_place: Function that begins episodes in the sub-environments of the training. Default: not supported.
        restart: Function that begins new episodes of the training after an evaluation in place.
    """

    def __init__(
        self,
        context: Context[Any],
        training: A,
        make: Callable[[Any], A],
        begin: Begin[A],
        begin_in_place: Begin[A] | None = None,
        restart: Callable[[], object] = lambda: None,
    ) -> None:
        self._context, self._training, self._make = context, training, make
        self._begin_apart, self._begin_in_place, self._restart = begin, begin_in_place, restart
        self._beside: A | None = None
        self._runner: EpisodeRunner | None = None

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
            The answer, see :meth:`EpisodeRunner.answer <parenv.worker.episode_runner.EpisodeRunner.answer>`.
        """
        begin = self._begin_in_place if in_place else self._begin_apart
        assert begin is not None
        try:
            return self._runner_of(begin, self._training, episodes, deterministic, number).play_all()
        finally:
            if in_place:
                self._restart()

    def begin(self, episodes: int, deterministic: bool, number: int, place: int, snapshot: bytes) -> None:
        """Begin to evaluate a version beside the training; :meth:`play_for` continues."""
        self._beside = self._beside or self._make(self._context.load_job())
        self._beside.load(place, snapshot)
        self._runner = self._runner_of(self._begin_apart, self._beside, episodes, deterministic, number)

    def play_for(self, seconds: float) -> Any:
        """Continue for about this many seconds; return the answer, or ``PENDING`` if it is not complete."""
        until, runner = time.perf_counter() + seconds, self._runner
        assert runner is not None
        self._context.progress.begin("evaluate")
        with contextlib.suppress(StopCollectingError):
            runner.play_piece()
            while not runner.is_over and time.perf_counter() < until:
                runner.play_piece()
            if runner.is_over:
                self._runner = None
                return runner.answer()
        return PENDING

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
