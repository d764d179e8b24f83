"""Centralized inference for an evaluation: workers step, and the main process acts for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parenv.envs.fitting import Fit
from parenv.errors import ObservationError
from parenv.evaluation.arguments import EvaluationPlan
from parenv.evaluation.queue import EpisodeQueue, QueuedEpisode
from parenv.evaluation.results import EvaluatedEpisode
from parenv.evaluation.session import EvaluationSession, Place
from parenv.memory.spaces import rebuild
from parenv.policy.assignment import UNNAMED
from parenv.policy.copies import copied
from parenv.protocol.messages import Failure
from parenv.worker.episode_envs import EpisodeRow
from parenv.worker.failures import as_answer
from parenv.worker.policy_batches import PolicyBatches


class CentralSession(EvaluationSession):
    """Workers that only step, while this process acts for all of them.

    The policy acts as soon as at least half of the episodes in progress wait for it, for all that wait. Meanwhile the
    others step.

    Args:
        plan: Plan of the evaluation.
    """

    def __init__(self, plan: EvaluationPlan) -> None:
        # A copy, because acting moves a module to its device. It comes first, so no worker has started if it raises.
        policy = copied(plan.policies)[UNNAMED]
        super().__init__(plan)
        job, num_rows = plan.job, sum(plan.job.shares)
        fit = Fit.of(job.options, self._crew.workers.warn)
        self._batches = PolicyBatches(policy, plan.device, job.deterministic, num_rows, fit)
        self._closing.callback(self._batches.close)
        self._rows = {place: EpisodeRow(self._batch_row(place)) for place in self._free}
        self._waiting: list[Place] = []

    def _batch_row(self, place: Place) -> int:
        return sum(self._plan.job.shares[: place.worker]) + place.row

    def _leave(self, place: Place) -> None:
        self._batches.end(self._rows[place])
        if place in self._waiting:
            self._waiting.remove(place)

    def _take(self, queue: EpisodeQueue, place: Place, episode: QueuedEpisode, answer: Any) -> EvaluatedEpisode | None:
        if not isinstance(answer, Mapping) or "observation" not in answer:
            return super()._take(queue, place, episode, answer)
        try:
            self._observe(place, episode, answer)
        except ObservationError as error:
            failure = Failure(-1, 0, -1, "step", [__name__, type(error).__qualname__], str(error), "", {})
            return super()._take(queue, place, episode, as_answer(failure))
        self._waiting.append(place)
        return None

    def _observe(self, place: Place, episode: QueuedEpisode, seen: Mapping[str, Any]) -> None:
        one = self._rows[place]
        one.info = seen["infos"]
        if one.batch is not None:
            one.batch.observe(one, seen["observation"])
            return
        observation_space, action_space = map(rebuild, seen["spaces"])
        one.task, one.spaces = episode.task, (observation_space, action_space)
        self._batches.begin(one, seen["observation"])

    def _act(self) -> None:
        if not self._waiting or 2 * len(self._waiting) < len(self._in_progress):
            return
        waiting, self._waiting = self._waiting, []
        actions = dict(zip(waiting, self._batches.act([self._rows[place] for place in waiting]), strict=True))
        by_worker: dict[int, list[Place]] = {}
        for place in waiting:
            by_worker.setdefault(place.worker, []).append(place)
        for places in by_worker.values():
            self._ask("advance", places, ([(place.row, actions[place]) for place in places],))
