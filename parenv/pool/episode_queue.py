"""Queue of whole episodes, which come in parts: each slot has rows of several episodes of one worker."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parenv.experience.assembly import episodes_of
from parenv.experience.episode_parts import (
    OpenEpisodes,
    Values,
    copied,
    cut,
    joined,
    pieces_of,
    rollout_of_episode,
    rows_of_slot,
)
from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.rollout import Rollout
from parenv.memory.layout import COMMIT_DTYPE, MAX_EPISODE_STEPS, RolloutSpec
from parenv.memory.trees import copy_of
from parenv.pool.arrival import Arrival, Block
from parenv.pool.dispatch import CreditKey, Dispatch
from parenv.pool.rollout_queue import RolloutQueue
from parenv.protocol.messages import Commit

Arrays = Mapping[tuple[str, Any], Any]


class Whole(NamedTuple):
    """A complete episode.

    Args:
        worker: Worker that collected it.
        env_id: Sub-environment.
        commits: Times of each slot that has arrived since the episode before: its worker, and
            :data:`~parenv.memory.layout.COMMIT_DTYPE` ``[1]``.
        rollout: Function of the newest version that returns the rollout.
    """

    worker: int
    env_id: int
    commits: Sequence[tuple[int, Any]]
    rollout: Callable[[int], Rollout]


class EpisodeParts:
    """Joins the rows of episodes.

    Args:
        spec: Content of a slot.
        num_workers: Number of workers.

    Attributes:
        complete: Episodes that have not been yielded.
        lost: Episodes that the worker reports as lost, since the process that stepped them was gone.
    """

    def __init__(self, spec: RolloutSpec, num_workers: int) -> None:
        self._spec, self._extras = spec, [extra.name for extra in spec.extras]
        self._generations = [0] * num_workers
        # Only a host can send a longer episode, whose worker has not checked its length.
        self._open = [OpenEpisodes(MAX_EPISODE_STEPS + 1) for _ in range(num_workers)]
        self._commits: list[tuple[int, Any]] = []
        self.complete: deque[Whole] = deque()
        self.lost: list[EpisodeStatistics] = []

    def add(self, block: Block, arrays: Arrays, commit: Commit, is_leased: bool) -> None:
        """Add the rows of a slot.

        Args:
            block: Worker of the slot, and its sub-environments.
            arrays: Arrays of the slot.
            commit: Message of the worker about it.
            is_leased: Whether complete episodes may be views of the slot.
        """
        worker, stamps = block.workers[0], arrays["commits", 0].copy()
        if (generation := int(stamps["generation"][0])) != self._generations[worker]:
            # The worker has died, and its episodes in progress are lost.
            self._generations[worker] = generation
            self._open[worker].clear()
        self._commits.append((worker, stamps))
        values = cut({**rows_of_slot(arrays), **_rows_of_objects(commit.objects)}, 0, commit.env_steps)
        ends = arrays["ends", 0][: int(stamps["num_ends"][0])].copy()
        carry = {name: array[:1].copy() for name, array in arrays.items() if name[0] == "carry"}
        found, episodes = 0, self._open[worker]
        for piece in pieces_of(values["rows", 0]):
            if piece.begins:
                episodes.begin(piece.column)
            if piece.column in episodes:
                mine = cut(values, piece.begin, piece.stop)
                is_view = piece.ends and piece.begins and is_leased
                episodes.add(piece.column, mine if is_view else copied(mine), piece.stop - piece.begin)
            if piece.ends:
                parts, record = episodes.end(piece.column), ends[found : found + 1]
                if record["void"][0]:
                    record["column"] = 0
                    self.lost.append(episodes_of(record, block.env_ids[piece.column : piece.column + 1]))
                elif parts:
                    finals = self._finals(arrays, commit.objects, found)
                    env_id = int(block.env_ids[piece.column])
                    self._complete(worker, env_id, joined(parts), record, finals, carry)
                found += 1

    def take(self, newest: int) -> Arrival:
        """Return the next complete episode, given the newest version."""
        worker, env_id, commits, rollout_of = self.complete.popleft()
        rollout, others = rollout_of(newest), [by for by, _ in commits[1:]]
        stamps = np.concatenate([stamp for _, stamp in commits]) if commits else np.zeros(0, COMMIT_DTYPE)
        return Arrival(
            rollout,
            workers=[commits[0][0] if commits else worker, *others],
            env_ids=[[env_id], *([] for _ in others)],
            samples=[rollout.num_steps, *(0 for _ in others)],
            gradients=None,
            norms=stamps["gradient_norm"].tolist(),
            metrics=[{} for _ in commits],
            commits=stamps,
            replaced=[[], *([] for _ in others)],
        )

    def _finals(self, arrays: Arrays, objects: Arrays, place: int) -> list[Any]:
        """Return copies of the final observation of an end."""
        blocks = ({**arrays, **objects}["finals", i] for i in range(len(self._spec.observations)))
        return [copy_of(block[place : place + 1]) for block in blocks]

    def _complete(
        self, worker: int, env_id: int, values: Values, record: Any, finals: Sequence[Any], carry: Arrays
    ) -> None:
        def rollout(newest: int) -> Rollout:
            return rollout_of_episode(
                self._spec,
                values,
                record,
                finals,
                initial_carry=carry,
                env_id=env_id,
                worker=worker,
                newest=newest,
                extras=self._extras,
            )

        self.complete.append(Whole(worker, env_id, self._commits, rollout))
        self._commits = []


class EpisodeQueue(RolloutQueue):
    """Yields episodes one by one. A rollout of the base class is a slot with parts of several of them.

    Args:
        *arguments: Arguments of :class:`~parenv.pool.rollout_queue.RolloutQueue`.
        spec: Content of a slot.
    """

    scheduler: Dispatch

    def __init__(self, *arguments: Any, spec: RolloutSpec) -> None:
        super().__init__(*arguments)
        self._episodes = EpisodeParts(spec, len(self._room.blocks))

    def next(self, deadline: float) -> Arrival | None:
        """Return the next episode, or ``None`` if none arrives until the deadline on the monotonic clock."""
        episodes, scheduler = self._episodes, self.scheduler
        while True:
            # If the next publish would make the rows of a slot too old, they are taken first. No worker gets another
            # credit meanwhile, so that the number of episodes here is bounded.
            while not episodes.complete or scheduler.is_urgent:
                key = self._chosen(deadline, in_use=bool(episodes.complete))
                if key is None:
                    scheduler.gave_up()
                    return None
                self._add(key, self._slot_of.pop(key), self._commits.pop(key)[key.worker])
            arrival = episodes.take(scheduler.version)
            if self._drop_lag is None or arrival.rollout.policy_lag <= self._drop_lag:
                arrival = self.in_progress.add_lost(arrival)
                self._counters.add(arrival)
                return arrival
            self._counters.totals.dropped_rollouts += 1

    def under_way(self) -> Mapping[int, int]:
        """Return the number of parts that are requested and not taken, and of episodes not yielded, by worker."""
        return self.scheduler.under_way() + Counter(whole.worker for whole in self._episodes.complete)

    def _add(self, key: CreditKey, slot: int, commit: Commit) -> None:
        block = self._room.blocks[key.worker]
        arrays, is_leased = self._opened(block, slot)
        self.in_progress.note(block, arrays[0], [commit])
        self._episodes.add(block, arrays[0], commit, is_leased)
        while self._episodes.lost:
            self.in_progress.add(self._episodes.lost.pop(0))
        if not is_leased:
            self._slots.release(slot)
            self._counters.totals.copied_rollouts += 1


def _rows_of_objects(objects: Arrays) -> dict[tuple[str, Any], Any]:
    """Return the values without a fixed size that have rows."""
    return {name: values for name, values in objects.items() if name[0] != "finals"}
