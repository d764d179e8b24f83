"""The workers of an evaluation, and the episodes that they play."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from parenv.crew.events import Back, Event, Lost
from parenv.crew.failures import ended_by
from parenv.crew.launch import start_workers
from parenv.crew.open_call import OpenCall
from parenv.crew.workers import FOREVER_S
from parenv.errors import HostLostError, WorkerMemoryError
from parenv.evaluation.arguments import EvaluationPlan
from parenv.evaluation.queue import EpisodeQueue, QueuedEpisode
from parenv.evaluation.results import EvaluatedEpisode
from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import header_bytes
from parenv.placement.base import drained
from parenv.policy.assignment import UNNAMED
from parenv.protocol.messages import Failure
from parenv.worker.episode_envs import AskedEpisode

_log = logging.getLogger("parenv")
_BEFORE_STEPS = {"making the environment", "reset"}


class Place(NamedTuple):
    """A sub-environment: its worker, and its row there."""

    worker: int
    row: int


class LostEpisode(NamedTuple):
    """An episode that was lost.

    Args:
        episode: Episode.
        blamed: Whether it may be the cause.
        ended_by: Reason.
        error: Exception as text.
    """

    episode: QueuedEpisode
    blamed: bool
    ended_by: str
    error: str


class EvaluationSession:
    """Workers that play the episodes of a queue.

    Each free sub-environment requests the next episode by a call, so an episode of one worker waits for no other. An
    episode that is lost returns to the queue.

    Args:
        plan: Plan of the evaluation.
    """

    def __init__(self, plan: EvaluationPlan) -> None:
        self._plan, job = plan, plan.job
        self._in_progress: dict[Place, QueuedEpisode] = {}
        self._asked: dict[OpenCall, list[Place]] = {}
        self._task_of: dict[Place, str] = {}
        self._lost: deque[LostEpisode] = deque()
        self._playable: set[str] = set()
        with contextlib.ExitStack() as stack:
            memory = SharedMemory(header_bytes(len(job.shares)))
            stack.callback(memory.close)
            policies = {} if job.policies is None else job.policies.sources
            named = {"policy": policies.get(UNNAMED), "tasks": job.factories}
            self._crew = start_workers(stack, job, named, memory, inline=plan.inline, hear=self._hear)
            self._closing = stack.pop_all()
        self._free = {Place(worker, row) for worker, share in enumerate(job.shares) for row in range(share)}

    def __enter__(self) -> EvaluationSession:
        return self

    def __exit__(self, *raised: object) -> None:
        self._closing.close()

    def next(self, queue: EpisodeQueue) -> list[EvaluatedEpisode]:
        """Begin episodes in all free sub-environments, wait for something to happen, and return finished episodes.

        Raises:
            Exception: Exception of the policy, or of an environment whose task has not worked once.
            RestartLimitError: A worker without an episode has died too often.
        """
        self._begin(queue)
        self._act()
        self._crew.listen(FOREVER_S)
        found = [self._repeated(queue, lost) for lost in drained(self._lost)]
        for call, places in list(self._asked.items()):
            if call.is_answered:
                del self._asked[call]
                answer = self._crew.calls.take(call)[places[0].worker]
                answers = answer if call.method == "advance" else [answer]
                for place, one in zip(places, answers, strict=True):
                    found.append(self._take(queue, place, self._in_progress[place], one))
        return [result for result in found if result is not None]

    def _act(self) -> None:
        """Act, if the workers do not."""

    def _batch_row(self, place: Place) -> int:
        """Return the row of a sub-environment in the batch of its policy."""
        return place.row

    def _leave(self, place: Place) -> None:
        """Note that a sub-environment has no episode any more."""

    def _take(self, queue: EpisodeQueue, place: Place, episode: QueuedEpisode, answer: Any) -> EvaluatedEpisode | None:
        """Take the answer of a worker; return the result of the episode if it has finished."""
        del self._in_progress[place]
        self._free.add(place)
        self._leave(place)
        if isinstance(answer, Mapping):
            return self._failed(queue, place, episode, Failure(*answer["failure"]))
        self._playable.add(episode.task)
        queue.finished(episode)
        return self._plan.result(episode, *answer)

    def _begin(self, queue: EpisodeQueue) -> None:
        """Begin episodes, one per worker in turn, so that few episodes reach all workers."""
        begun = True
        while begun:
            begun = False
            for worker in sorted({place.worker for place in self._free}):
                mine = sorted(place for place in self._free if place.worker == worker)
                begun = any(self._begin_at(place, queue) for place in mine) or begun

    def _begin_at(self, place: Place, queue: EpisodeQueue) -> bool:
        """Begin the next episode of a sub-environment, and return whether there is one."""
        episode = queue.next(self._batch_row(place), self._task_of.get(place))
        if episode is None:
            return False
        self._free.remove(place)
        self._task_of[place] = episode.task
        asked = AskedEpisode(
            row=place.row,
            task=self._plan.job.tasks.index(episode.task),
            seed=self._plan.seed_of(episode),
            options=self._plan.options_of(episode),
            video=episode.video,
        )
        self._in_progress[place] = episode
        self._ask("episode", [place], tuple(asked))
        return True

    def _ask(self, method: str, places: list[Place], arguments: tuple[Any, ...]) -> None:
        """Call the worker of some sub-environments."""
        call = self._crew.calls.begin(method, {places[0].worker: arguments})
        self._asked[call] = places

    def _hear(self, event: Event) -> bool:
        """Note the episodes that end with a worker, and return whether one of them may be the cause.

        This is called before another process overwrites the status slot, which names the environment at work.
        """
        workers = self._crew.workers
        if isinstance(event, Back):
            self._free.update(Place(event.worker, row) for row in range(workers.shares[event.worker]))
            return False
        assert isinstance(event, Lost)
        self._free = {place for place in self._free if place.worker != event.worker}
        at_work = workers.env_at_work(event.worker) - workers.env_ids(event.worker)[0]
        for call, (place, *_) in list(self._asked.items()):
            if place.worker == event.worker:
                del self._asked[call]
                self._crew.calls.forget(call)
        mine = [place for place in self._in_progress if place.worker == event.worker]
        blames_one = any(place.row == at_work for place in mine)
        for place in mine:
            self._task_of.pop(place, None)
            episode = self._in_progress.pop(place)
            self._leave(place)
            is_cause = place.row == at_work or not blames_one
            is_cause = is_cause and not isinstance(event.reason, HostLostError)
            self._lost.append(LostEpisode(episode, is_cause, ended_by(event.reason), str(event.reason)))
        return bool(mine)

    def _repeated(self, queue: EpisodeQueue, lost: LostEpisode) -> EvaluatedEpisode | None:
        """Return an episode to the queue, or return its result if it was lost too often."""
        if queue.lost(lost.episode, lost.blamed):
            return None
        about = lost.episode.index, lost.episode.task, lost.ended_by, lost.error
        _log.warning("episode %s of task %r is recorded as lost (%s): %s", *about)
        return self._plan.lost(lost.episode, lost.ended_by, lost.error)

    def _failed(
        self, queue: EpisodeQueue, place: Place, episode: QueuedEpisode, failure: Failure
    ) -> EvaluatedEpisode | None:
        """Return an episode whose environment has raised to the queue, or return its result."""
        is_new = episode.task not in self._playable or episode.video is not None
        if failure.doing in _BEFORE_STEPS and is_new:
            raise self._in_words(failure, place, episode)
        error = f"{failure.kind[1]}: {failure.message}"
        if isinstance(made := self._crew.workers.error_of(failure, place.worker), WorkerMemoryError):
            error = f"WorkerMemoryError: {made}"
        return self._repeated(queue, LostEpisode(episode, True, "environment_error", error))

    def _in_words(self, failure: Failure, place: Place, episode: QueuedEpisode) -> Exception:
        error = self._crew.workers.error_of(failure, place.worker)
        error.args = (f"task {episode.task!r}: {error.args[0] if error.args else error}",)
        return error
