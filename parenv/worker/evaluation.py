"""Evaluating: whole episodes in sub-environments of their own, which disturb nothing of the training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from parenv.envs.made import make_envs
from parenv.envs.seeding import RandomState, evaluation_seed
from parenv.envs.stepping import Stepper, make_stepper
from parenv.experience.assembly import episodes_of
from parenv.experience.episodes import EpisodeStatistics
from parenv.memory.status_slot import StatusSlot
from parenv.worker.collecting import Collector, private_writer, reset
from parenv.worker.job import Job

CHUNK = 16
"""Env steps between two looks at who is done."""


class Evaluation:
    """One worker's part of every evaluation. Its sub-environments are made for the first one.

    Args:
        job: how to make them.
        training: the collector whose policy is evaluated.
        env_ids: of the sub-environments, int64 ``[B]``.
        worker: index of the worker.
        progress: where to say what is going on.
    """

    def __init__(self, job: Job, training: Collector, env_ids: Any, worker: int, progress: StatusSlot) -> None:
        self._job, self._training, self._env_ids = job, training, env_ids
        self._worker, self._progress = worker, progress
        self._stepper: Stepper | None = None

    def run(self, episodes: int, deterministic: bool, number: int) -> tuple[Any, ...]:
        """Play episodes by the policy as it is.

        Args:
            episodes: how many.
            deterministic: what ``settings["deterministic"]`` says meanwhile.
            number: counts the evaluations.

        Returns:
            Returns, lengths, seconds and env_ids of the episodes, each ``[episodes]``.
        """
        actor, worker = self._training.actor, self._worker
        seed = evaluation_seed(self._job.seed, self._job.first_worker + worker, number)
        training = self._training.spec
        extras = tuple(extra for extra in training.extras if not extra.postprocessed)
        spec = replace(training, rollout_length=CHUNK, extras=extras)
        with RandomState(seed), actor.deterministic(deterministic):
            stepper = self._stepper = self._stepper or self._make()
            seeds = np.random.SeedSequence(seed).generate_state(stepper.num_envs).tolist()
            rows, infos = reset(stepper, spec.observations, seeds)
            collector = Collector(stepper, actor, spec, rows, self._env_ids, worker, self._progress, infos=infos)
            played = play(collector, episodes, self._env_ids)
        return played.returns, played.lengths, played.seconds, played.env_ids

    def close(self) -> None:
        """Close its sub-environments."""
        if self._stepper is not None:
            self._stepper.close()

    def _make(self) -> Stepper:
        training, first = self._training, int(self._env_ids[0])
        env_ids = range(first, first + len(self._env_ids))
        envs = make_envs(self._job.factories, env_ids, self._progress, training.stepper.envs)
        return make_stepper(envs, first, self._progress, training.actor.fit, self._job.options.step_threads)


def play(collector: Collector, episodes: int, env_ids: Any) -> EpisodeStatistics:
    """Whole episodes, as many from each sub-environment as from every other, give or take one.

    The number per sub-environment is fixed before, since taking the first that end would favour short ones.

    Args:
        collector: at the beginning of episodes.
        episodes: how many.
        env_ids: of its sub-environments, int64 ``[B]``.
    """
    batch = collector.stepper.num_envs
    wanted = [episodes // batch + (column < episodes % batch) for column in range(batch)]
    records: list[Any] = []
    writer = private_writer(collector.spec, batch)
    while any(wanted):
        collector.collect(writer)
        for record in writer.end_records().copy():
            if wanted[record["column"]] and record["counts"]:
                wanted[record["column"]] -= 1
                records.append(record)
    return episodes_of(np.array(records), env_ids)
