"""Evaluating: whole episodes in sub-environments of their own, which disturb nothing of the training."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from parenv.envs.seeding import RandomState, evaluation_seed
from parenv.experience.assembly import episodes_of
from parenv.experience.episodes import EpisodeStatistics
from parenv.memory.status_slot import StatusSlot
from parenv.worker.acting import Actor
from parenv.worker.collecting import Collector, private_writer
from parenv.worker.grounds import Grounds
from parenv.worker.job import Job

MAX_STEPS = 16
"""Env steps between two looks at who is done."""
PIECE_S = 0.005
"""How long a piece of an evaluation beside the training may take, unless a single env step takes longer."""
FRACTION = 0.1
"""Of its time with rollouts, what a worker that always has some to collect spends on an evaluation beside them."""


class Evaluation:
    """One worker's part of every evaluation. Its sub-environments are made for the first one.

    Args:
        job: how to make them.
        training: the collector whose policy is evaluated.
        make_actor: makes an actor with a copy of the policy that the training does not touch.
        worker: index of the worker.
        progress: where to say what is going on.
    """

    def __init__(
        self,
        job: Job,
        training: Collector,
        make_actor: Callable[[], Actor],
        worker: int,
        progress: StatusSlot,
    ) -> None:
        self._job, self._training, self._make_actor = job, training, make_actor
        self._worker, self._progress = worker, progress
        env_ids = range(int(training.env_ids[0]), int(training.env_ids[-1]) + 1)
        fit, step_threads, in_use = training.actor.fit, job.options.step_threads, training.stepper.envs
        self._grounds = Grounds(job.factories, env_ids, progress, fit, step_threads, in_use)
        self._beside: Actor | None = None
        self._game: Game | None = None

    def run(self, episodes: int, deterministic: bool, number: int) -> tuple[Any, ...]:
        """Play episodes by the policy of the training as it is.

        Args:
            episodes: how many.
            deterministic: what ``settings["deterministic"]`` says meanwhile.
            number: counts the evaluations.

        Returns:
            Returns, lengths, seconds and env_ids of the episodes, each ``[episodes]``.
        """
        return _columns(self._begun(self._training.actor, episodes, deterministic, number).play_all())

    def begin(self, episodes: int, deterministic: bool, number: int, place: int, snapshot: bytes) -> None:
        """The same by a version of the policy that stays meanwhile; :meth:`go_on` plays.

        Args:
            episodes: how many.
            deterministic: what ``settings["deterministic"]`` says meanwhile.
            number: counts the evaluations.
            place: where the weights of the version lie.
            snapshot: of the version.
        """
        self._beside = self._beside or self._make_actor()
        self._beside.load(place, snapshot)
        self._game = self._begun(self._beside, episodes, deterministic, number)

    def go_on(self) -> tuple[Any, ...] | None:
        """Play for a moment; what :meth:`run` returns, or ``None`` where there is more to play."""
        game = self._game
        assert game is not None
        self._progress.begin("evaluate")
        game.play(MAX_STEPS if game.step_s * MAX_STEPS < PIECE_S else 1)
        if not game.is_over:
            return None
        self._game = None
        return _columns(game.episodes)

    def close(self) -> None:
        """Close its sub-environments."""
        self._grounds.close()

    def _begun(self, actor: Actor, episodes: int, deterministic: bool, number: int) -> Game:
        seed = evaluation_seed(self._job.seed, self._job.first_worker + self._worker, number)
        training = self._training.spec
        extras = tuple(extra for extra in training.extras if not extra.postprocessed)
        spec = replace(training, rollout_length=MAX_STEPS, extras=extras)
        random_state = RandomState(seed)

        @contextlib.contextmanager
        def within() -> Iterator[None]:
            with random_state, actor.deterministic(deterministic):
                yield

        with within():
            collector, _ = self._grounds.collector(actor, spec, seed, self._worker)
        return Game(collector, episodes, within)


class Game:
    """Episodes under way, as many from each sub-environment as from every other, give or take one.

    The number per sub-environment is fixed before, since taking the first that end would favour short ones.

    Args:
        collector: over sub-environments that begin an episode.
        episodes: how many.
        within: makes what steps are taken within, such as a random state.

    Attributes:
        records: of the episodes that have ended and count.
        step_s: seconds that a step of all sub-environments took; infinite before the first.
    """

    def __init__(
        self,
        collector: Collector,
        episodes: int,
        within: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        batch = collector.stepper.num_envs
        self._collector, self._within = collector, within
        self._wanted = [episodes // batch + (column < episodes % batch) for column in range(batch)]
        self._writer = private_writer(collector.spec, batch)
        self._records: list[Any] = []
        self.step_s = float("inf")

    @property
    def is_over(self) -> bool:
        """Whether all episodes have ended."""
        return not any(self._wanted)

    @property
    def episodes(self) -> EpisodeStatistics:
        """Those that have ended."""
        return episodes_of(np.array(self._records), self._collector.env_ids)

    def play_all(self) -> EpisodeStatistics:
        """Play to the end."""
        while not self.is_over:
            self.play(MAX_STEPS)
        return self.episodes

    def play(self, steps: int) -> None:
        """Take so many steps in every sub-environment."""
        collector = self._collector
        if steps != collector.spec.rollout_length:
            collector.spec = replace(collector.spec, rollout_length=steps)
            self._writer = private_writer(collector.spec, collector.stepper.num_envs)
        began = time.perf_counter()
        with self._within():
            collector.collect(self._writer)
        self.step_s = (time.perf_counter() - began) / steps
        for record in self._writer.end_records().copy():
            if self._wanted[record["column"]] and record["counts"]:
                self._wanted[record["column"]] -= 1
                self._records.append(record)


def _columns(played: EpisodeStatistics) -> tuple[Any, ...]:
    return played.returns, played.lengths, played.seconds, played.env_ids
