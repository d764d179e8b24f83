"""Evaluating: whole episodes in sub-environments of their own, which disturb nothing of the training."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from parenv.envs.seeding import RandomState, evaluation_seed
from parenv.experience.assembly import episodes_of
from parenv.memory.status_slot import StatusSlot
from parenv.worker.acting import Actor
from parenv.worker.collecting import Collector, StopCollectingError, private_writer
from parenv.worker.failing import PENDING
from parenv.worker.job import Job
from parenv.worker.scratch_envs import ScratchEnvs

APART, BESIDE, IN_PLACE = "apart", "beside", "in place"
"""An evaluation plays while the training waits, beside it, or in the training's own sub-environments."""
MAX_STEPS = 16
"""Env steps between two looks at who is done."""
PIECE_S = 0.005
"""How long a piece of an evaluation beside the training may take, unless a single env step takes longer."""
FRACTION = 0.1
"""Of its time with rollouts, what a worker that always has some to collect spends on an evaluation beside them."""
_SECOND_IN_A_PROCESS = (
    "An evaluation makes a second set of sub-environments in each worker, beside those of the training. If a process "
    "may have only one, as with stable-retro, use pool.evaluate(..., in_place=True)."
)
Within = Callable[[], contextlib.AbstractContextManager[None]]


class Evaluation(ABC):
    """One worker's part of every evaluation.

    Args:
        job: of the worker.
        worker: index of the worker.
        progress: where to say what is going on.
        training: what acts in the training, with a version at a time.
        make_other: makes another one, which the training does not touch.
    """

    def __init__(
        self, job: Job, worker: int, progress: StatusSlot, training: Any, make_other: Callable[[], Any]
    ) -> None:
        self._job, self._worker, self._progress = job, worker, progress
        self._training, self._make_other = training, make_other
        self._beside: Any = None
        self._runner: EpisodeRunner | None = None

    def run(self, episodes: int, deterministic: bool, number: int) -> tuple[Any, ...]:
        """Play episodes by the version that acts in the training.

        Args:
            episodes: how many.
            deterministic: what ``settings["deterministic"]`` says meanwhile.
            number: counts the evaluations.

        Returns:
            What :meth:`Game.answer` does.
        """
        return self._begun(self._training, episodes, deterministic, number).play_all()

    def begin(self, episodes: int, deterministic: bool, number: int, place: int, snapshot: bytes) -> None:
        """The same by a version that stays meanwhile; :meth:`go_on` plays.

        Args:
            episodes: how many.
            deterministic: what ``settings["deterministic"]`` says meanwhile.
            number: counts the evaluations.
            place: where the weights of the version lie.
            snapshot: of the version.
        """
        self._beside = self._beside or self._make_other()
        self._beside.load(place, snapshot)
        self._runner = self._begun(self._beside, episodes, deterministic, number)

    def go_on(self, seconds: float) -> Any:
        """Continue for about this many seconds; return the answer, or ``PENDING`` if it is not complete."""
        until, runner = time.perf_counter() + seconds, self._runner
        assert runner is not None
        self._progress.begin("evaluate")
        with contextlib.suppress(StopCollectingError):
            runner.play_on()
            while not runner.is_over and time.perf_counter() < until:
                runner.play_on()
            if runner.is_over:
                self._runner = None
                return runner.answer()
        return PENDING

    @abstractmethod
    def close(self) -> None:
        """Close its sub-environments."""

    @abstractmethod
    def _begin(self, acting: Any, seed: int, episodes: int, within: Within) -> EpisodeRunner:
        """Begin episodes in sub-environments that are made for the first evaluation; called within ``within``."""

    def _begun(self, acting: Any, episodes: int, deterministic: bool, number: int) -> EpisodeRunner:
        seed = evaluation_seed(self._job.seed, self._job.first_worker + self._worker, number)
        random_state = RandomState(seed)

        @contextlib.contextmanager
        def within() -> Iterator[None]:
            with random_state, acting.deterministic(deterministic):
                yield

        with within():
            return self._begin(acting, seed, episodes, within)


class EnvsEvaluation(Evaluation):
    """In sub-environments of one agent, or of one policy for all.

    Args:
        collector: of the training.
        *arguments: as for :class:`Evaluation`.
    """

    def __init__(self, collector: Collector, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._collector = collector
        job, env_ids = self._job, range(int(collector.env_ids[0]), int(collector.env_ids[-1]) + 1)
        fit, in_use = collector.actor.fit, collector.stepper.envs
        self._scratch_envs = ScratchEnvs(job.factories, env_ids, self._progress, fit, job.options.step_threads, in_use)

    def run_in_place(self, episodes: int, deterministic: bool, number: int) -> tuple[Any, ...]:
        """The same as :meth:`run` in the training's sub-environments, whose episodes under way are cut."""
        apart, self._scratch_envs = self._scratch_envs, self._scratch_envs.over(self._collector.stepper)
        try:
            return self.run(episodes, deterministic, number)
        finally:
            self._scratch_envs = apart
            self._collector.restart(cuts=True)

    def close(self) -> None:
        """Close its sub-environments."""
        self._scratch_envs.close()

    def _begin(self, acting: Actor, seed: int, episodes: int, within: Within) -> EpisodeRunner:
        training = self._collector.spec
        extras = tuple(extra for extra in training.extras if not extra.postprocessed)
        spec = replace(training, rollout_length=MAX_STEPS, extras=extras, on_device=False)
        try:
            collector, _ = self._scratch_envs.collector(acting, spec, seed, self._worker)
        except Exception as error:
            error.add_note(_SECOND_IN_A_PROCESS)
            raise
        return EnvsEpisodeRunner(collector, episodes, within)


class EpisodeRunner(ABC):
    """Episodes under way, as many from each sub-environment as from every other, give or take one.

    The number per sub-environment is fixed before, since taking the first that end would favour short ones.

    Args:
        batch: how many sub-environments.
        episodes: how many.
        within: makes what steps are taken within, such as a random state.

    Attributes:
        wanted: of each sub-environment, how many are missing.
    """

    def __init__(self, batch: int, episodes: int, within: Within) -> None:
        self._within = within
        self.wanted = [episodes // batch + (column < episodes % batch) for column in range(batch)]
        self._step_s = float("inf")

    @property
    def is_over(self) -> bool:
        """Whether all episodes have ended."""
        return not any(self.wanted)

    def play_all(self) -> tuple[Any, ...]:
        """Play to the end; the answer."""
        while not self.is_over:
            self.play(MAX_STEPS)
        return self.answer()

    def play_on(self) -> None:
        """Play for a moment."""
        self.play(MAX_STEPS if self._step_s * MAX_STEPS < PIECE_S else 1)

    def play(self, steps: int) -> None:
        """Take so many steps in every sub-environment."""
        began = time.perf_counter()
        with self._within():
            self._collect(steps)
        self._step_s = (time.perf_counter() - began) / steps

    @abstractmethod
    def answer(self) -> tuple[Any, ...]:
        """Returns, lengths, seconds and env_ids of the episodes, each ``[episodes]``; more of several agents."""

    @abstractmethod
    def _collect(self, steps: int) -> None:
        """Take so many steps, and take note of what has ended and is wanted."""


class EnvsEpisodeRunner(EpisodeRunner):
    """Where sub-environments have one agent.

    Args:
        collector: over sub-environments that begin an episode.
        episodes: how many.
        within: as in :class:`Game`.
    """

    def __init__(self, collector: Collector, episodes: int, within: Within = contextlib.nullcontext) -> None:
        super().__init__(collector.stepper.num_envs, episodes, within)
        self._collector = collector
        self._writer = private_writer(collector.spec, collector.stepper.num_envs)
        self._records: list[Any] = []

    def answer(self) -> tuple[Any, ...]:
        """See above."""
        played = episodes_of(np.array(self._records), self._collector.env_ids)
        return played.returns, played.lengths, played.seconds, played.env_ids

    def _collect(self, steps: int) -> None:
        collector = self._collector
        if steps != collector.spec.rollout_length:
            collector.spec = replace(collector.spec, rollout_length=steps)
            self._writer = private_writer(collector.spec, collector.stepper.num_envs)
        collector.collect(self._writer)
        for record in self._writer.end_records().copy():
            if self.wanted[record["column"]] and record["counts"]:
                self.wanted[record["column"]] -= 1
                self._records.append(record)
