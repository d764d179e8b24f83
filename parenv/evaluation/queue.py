"""The episodes of an evaluation that are still to be played. Pure."""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class QueuedEpisode:
    """One episode of an evaluation.

    Args:
        task: Name of the task.
        index: Index among the episodes of the task.
        video: Path of a video of the episode, or ``None``.
    """

    task: str
    index: int
    video: str | None = None

    def row(self, num_rows: int) -> int:
        """Return the row of the policy's batch in which the episode is played, on any worker.

        Matrix products round the rows of a batch differently, so an episode must always have the same row.
        """
        return (zlib.crc32(self.task.encode()) + self.index) % num_rows


class EpisodeQueue:
    """Gives out each episode once, and again if it is lost.

    Args:
        episodes: Episodes to play.
        num_rows: Number of sub-environments of a worker.
        retries: Number of losses after which an episode is still repeated.

    Attributes:
        unfinished: Number of episodes of each task that have not finished.

    >>> reach, push = QueuedEpisode("reach", 0), QueuedEpisode("push", 0)
    >>> queue = EpisodeQueue([reach, QueuedEpisode("reach", 1), push], num_rows=1, retries=1)
    >>> [queue.next(0, "reach") for _ in range(3)] == [reach, push, QueuedEpisode("reach", 1)]
    True
    >>> queue.lost(push, blamed=True), queue.next(0, "reach") == push, queue.next(0, "reach")
    (True, True, None)
    """

    def __init__(self, episodes: Iterable[QueuedEpisode], num_rows: int, retries: int) -> None:
        self._num_rows, self._retries = num_rows, retries
        self._waiting: list[dict[str, deque[QueuedEpisode]]] = [{} for _ in range(num_rows)]
        self._losses: Counter[QueuedEpisode] = Counter()
        self.unfinished: Counter[str] = Counter()
        for episode in episodes:
            self._waiting[episode.row(num_rows)].setdefault(episode.task, deque()).append(episode)
            self.unfinished[episode.task] += 1
        self._fresh = list(self.unfinished)

    @property
    def is_over(self) -> bool:
        """True if all episodes have finished."""
        return not self.unfinished.total()

    def next(self, row: int, task: str | None) -> QueuedEpisode | None:
        """Return the next episode of a sub-environment, or ``None`` if none is waiting.

        Tasks that have not begun come first, so that a task that does not work is noticed early. After that, a
        sub-environment stays with its task, because making another environment takes time.

        Args:
            row: Row of the sub-environment in its worker.
            task: Task of the environment that the sub-environment has, or ``None``.
        """
        waiting = self._waiting[row]
        if not waiting:
            return None
        fresh = next((name for name in self._fresh if name in waiting), None)
        if fresh is not None:
            self._fresh.remove(fresh)
            task = fresh
        elif task not in waiting:
            task = max(waiting, key=lambda name: len(waiting[name]))
        found = waiting[task].popleft()
        if not waiting[task]:
            del waiting[task]
        return found

    def lost(self, episode: QueuedEpisode, blamed: bool) -> bool:
        """Note that an episode was lost.

        Args:
            episode: Episode.
            blamed: Whether it may be the cause. Otherwise the loss does not count.

        Returns:
            Whether the episode is repeated. If not, it has finished.
        """
        self._losses[episode] += blamed
        if self._losses[episode] > self._retries:
            self.finished(episode)
            return False
        self._waiting[episode.row(self._num_rows)].setdefault(episode.task, deque()).appendleft(episode)
        return True

    def finished(self, episode: QueuedEpisode) -> None:
        """Note that an episode has finished."""
        self.unfinished[episode.task] -= 1
