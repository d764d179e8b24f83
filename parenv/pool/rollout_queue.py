"""Queue of rollouts, which carries out the decisions of a scheduler of :mod:`parenv.pool.dispatch`."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parenv.crew.crew import Crew
from parenv.crew.events import Back, Committed, Event, Lost
from parenv.crew.failures import ended_by, failure_of_worker
from parenv.crew.workers import FOREVER_S
from parenv.errors import during
from parenv.pool.arrival import Arrival, ArrivalOf, Block
from parenv.pool.dispatch import CreditKey, Dispatch, Rounds
from parenv.pool.episodes_in_progress import EpisodesInProgress
from parenv.pool.layout import Room
from parenv.pool.statistics import Counters
from parenv.pool.versions import Versions
from parenv.protocol.messages import Commit, Credit

_log = logging.getLogger("parenv")


class RolloutQueue:
    """Rollouts in slots of shared memory, from the credit that lets workers fill one to the arrival that is yielded.

    Args:
        scheduler: Scheduler that decides which worker may fill a slot, and which rollout is yielded next.
        arrival_of: Function that makes an arrival from the arrays of a slot.
        room: Slots.
        drop_lag: Policy lag in publishes above which a rollout is dropped when its turn comes. ``None``: never.
        crew: Crew of the workers.
        versions: Versions of the policies.
        counters: Counters of the pool.
        begin_round: Function that is called with the number of new credits before they are sent.
        in_progress: Episodes in progress.
        tell: Function that receives each loss and return of a worker after the queue.
    """

    def __init__(
        self,
        scheduler: Dispatch | Rounds,
        arrival_of: ArrivalOf,
        room: Room,
        drop_lag: int | None,
        crew: Crew,
        versions: Versions,
        counters: Counters,
        begin_round: Callable[[int], object],
        in_progress: EpisodesInProgress,
        tell: Callable[[Lost | Back], object],
    ) -> None:
        self.scheduler, self._begin_round = scheduler, begin_round
        self._arrival_of, self._room, self._slots = arrival_of, room, room.slots
        self._drop_lag = drop_lag
        self._crew, self._versions, self._counters = crew, versions, counters
        self.in_progress, self._tell = in_progress, tell
        # The key of both is the credit that represents the rollout.
        self._slot_of: dict[CreditKey, int] = {}
        self._commits: defaultdict[CreditKey, dict[int, Commit]] = defaultdict(dict)
        self._in_hand: list[CreditKey] = []
        # The credits of a round of a synchronous pool are equal, so they are one message.
        self._credit: Credit | None = None

    def next(self, deadline: float) -> Arrival | None:
        """Return the next rollout, or ``None`` if none arrives until the deadline on the monotonic clock."""
        while (key := self._chosen(deadline)) is not None:
            lag = self.scheduler.version - self.scheduler.version_of(key)
            slot, committed = self._slot_of.pop(key), self._commits.pop(key)
            commits = [committed[worker] for worker in sorted(committed)]
            if self._drop_lag is None or lag <= self._drop_lag:
                return self._take(key, slot, commits, lag)
            block = self._room.blocks[key.worker]
            arrays = self._slots.arrays(block.layout, slot, self._slots.peek(slot))
            self.in_progress.note(block, arrays[0], commits)
            self._slots.release(slot)
            self._counters.totals.dropped_rollouts += 1
        self.scheduler.gave_up()
        return None

    def under_way(self) -> Mapping[int, int]:
        """Return the number of rollouts that are requested and not yielded, by worker."""
        return self.scheduler.under_way()

    def listen(self, timeout_s: float = FOREVER_S) -> None:
        """Wait until a rollout is committed, which may free the version that acted in it."""
        self._crew.listen(timeout_s)

    def hear(self, event: Event) -> None:
        """Take a committed rollout, or note a loss or a return of a worker."""
        match event:
            case Committed(worker, commit):
                key = CreditKey(worker, commit.sequence)
                if self.scheduler.commit(key):
                    self.in_progress.committed(worker, commit.sequence)
                    self._commits[self.scheduler.rollout_of(key)][worker] = commit
            case Lost(worker, reason, again):
                self._counters.failures.add(failure_of_worker(worker, reason))
                self._tell(event)
                if not again:
                    self.in_progress.worker_lost(worker, ended_by(reason))
                    # The lost process writes nothing more to these slots, so other workers may use them.
                    for key in self.scheduler.lose(worker):
                        self._slots.release(self._slot_of.pop(key))
            case Back(worker):
                self._tell(event)
                for key in self.scheduler.regain(worker):
                    self._give(key)

    def _chosen(self, deadline: float, in_use: bool = False) -> CreditKey | None:
        """Return the credit of the rollout to yield. The learner is done with those before, unless they are in use."""
        if not in_use:
            # Ctrl-C may interrupt the waiting, and the next call must not report the same rollout again.
            in_hand, self._in_hand = self._in_hand, []
            for key in in_hand:
                self.scheduler.done(key)
        self._issue()
        chosen = self._wait(self.scheduler.patience(deadline))
        if chosen is not None:
            self._in_hand.append(chosen)
        return chosen

    def _wait(self, deadline: float) -> CreditKey | None:
        while (chosen := self.scheduler.next()) is None:
            left = deadline - time.monotonic()
            self.listen(max(0.0, left))
            self._issue()
            if left <= 0:
                return self.scheduler.next()
        return chosen

    def _issue(self) -> None:
        issued = self.scheduler.issue()
        if issued:
            self._begin_round(issued[-1].sequence)
        for key in issued:
            self._give(key)

    def _give(self, key: CreditKey) -> None:
        """Send a worker the credit to fill its columns of a slot."""
        rollout = self.scheduler.rollout_of(key)
        if rollout not in self._slot_of:
            self._slot_of[rollout] = self._slots.claim()
        about = key.sequence, self._slot_of[rollout], self.scheduler.version_of(key)
        if self._credit is None or (self._credit.sequence, self._credit.slot, self._credit.policy_version) != about:
            which = self._versions[about[2]]
            self._credit = Credit(*about[:2], which.number, which.place, which.snapshot)
        self._crew.workers.say(key.worker, self._credit)

    def _take(self, key: CreditKey, slot: int, commits: Sequence[Commit], lag: int) -> Arrival:
        """Return the rollout in a slot, over the slot itself, or as a copy if the user holds too many."""
        block, version = self._room.blocks[key.worker], self.scheduler.version_of(key)
        arrays, is_leased = self._opened(block, slot)
        self.in_progress.note(block, arrays[0], commits)
        arrival = self.in_progress.add_lost(self._arrival_of(block, arrays, commits, version, lag))
        if not is_leased:
            # A user who keeps many rollouts must not stop the workers, which need free slots.
            arrival = arrival.copy()
            self._slots.release(slot)
            self._counters.totals.copied_rollouts += 1
        self._counters.add(arrival)
        for _, failure in arrival.failures():
            doing = during(failure.doing)
            _log.warning("env_id %s raised %s and was replaced: %s", failure.env_id, doing, failure.error)
        return arrival

    def _opened(self, block: Block, slot: int) -> tuple[list[Mapping[tuple[str, Any], Any]], bool]:
        """Return the arrays of a slot, and whether it is leased. Otherwise, copy from it and release it."""
        is_leased = self._slots.leased < self._room.leases
        root = self._slots.lease(slot) if is_leased else self._slots.peek(slot)
        return self._slots.arrays(block.layout, slot, root), is_leased
