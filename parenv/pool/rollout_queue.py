"""Queue of rollouts, which carries out the decisions of a scheduler of :mod:`parenv.pool.dispatch`."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from parenv.errors import during
from parenv.pool.arrival import Arrival, ArrivalOf
from parenv.pool.dispatch import CreditKey, Dispatch, Rounds
from parenv.pool.layout import Room
from parenv.pool.statistics import Counters
from parenv.pool.versions import Versions
from parenv.protocol.messages import Commit, Credit
from parenv.supervision.supervisor import Event, Lost, Supervisor
from parenv.supervision.workers import FOREVER_S, Committed

_log = logging.getLogger("parenv")


class RolloutQueue:
    """Rollouts in slots of shared memory, from the credit that lets workers fill one to the arrival that is yielded.

    Args:
        scheduler: Scheduler that decides which worker may fill a slot, and which rollout is yielded next.
        arrival_of: Function that makes an arrival from the arrays of a slot.
        room: Slots.
        drop_lag: Policy lag in publishes above which a rollout is dropped when its turn comes. ``None``: never.
        supervisor: Supervisor of the workers.
        versions: Versions of the policies.
        counters: Counters of the pool.
    """

    def __init__(
        self,
        scheduler: Dispatch | Rounds,
        arrival_of: ArrivalOf,
        room: Room,
        drop_lag: int | None,
        supervisor: Supervisor,
        versions: Versions,
        counters: Counters,
    ) -> None:
        self.scheduler = scheduler
        self._arrival_of, self._blocks = arrival_of, room.blocks
        self._slots, self._max_leases = room.slots, room.leases
        self._drop_lag = drop_lag
        self._supervisor, self._versions, self._counters = supervisor, versions, counters
        # The key of both is the credit that represents the rollout.
        self._slot_of: dict[CreditKey, int] = {}
        self._commits: defaultdict[CreditKey, dict[int, Commit]] = defaultdict(dict)
        self._in_hand: CreditKey | None = None
        # The credits of a round of a synchronous pool are equal, so they are one message.
        self._credit: Credit | None = None

    def next(self, deadline: float) -> Arrival | None:
        """Return the next rollout, or ``None`` if none arrives until the deadline on the monotonic clock."""
        while (key := self._chosen(deadline)) is not None:
            lag = self.scheduler.version - self.scheduler.version_of(key)
            slot, commits = self._slot_of.pop(key), self._commits.pop(key)
            if self._drop_lag is None or lag <= self._drop_lag:
                return self._take(key, slot, [commits[worker] for worker in sorted(commits)], lag)
            self._slots.release(slot)
            self._counters.totals.dropped_rollouts += 1
        self.scheduler.gave_up()
        return None

    def listen(self, timeout_s: float = FOREVER_S) -> None:
        """Wait until a rollout is committed, which may free the version that acted in it."""
        self._note(self._supervisor.events(timeout_s))

    def _chosen(self, deadline: float) -> CreditKey | None:
        """Return the credit of the rollout to yield. The learner is done with the rollout before."""
        # Ctrl-C may interrupt the waiting, and the next call must not report the same rollout again.
        in_hand, self._in_hand = self._in_hand, None
        if in_hand is not None:
            self.scheduler.done(in_hand)
        self._note(self._supervisor.past_events())
        self._issue()
        self._in_hand = self._wait(self.scheduler.patience(deadline))
        return self._in_hand

    def _wait(self, deadline: float) -> CreditKey | None:
        while (chosen := self.scheduler.next()) is None:
            left = deadline - time.monotonic()
            self.listen(max(0.0, left))
            self._issue()
            if left <= 0:
                return self.scheduler.next()
        return chosen

    def _issue(self) -> None:
        for key in self.scheduler.issue():
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
        self._supervisor.workers.say(key.worker, self._credit)

    def _note(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Committed):
                key = CreditKey(event.worker, event.commit.sequence)
                if self.scheduler.commit(key):
                    self._commits[self.scheduler.rollout_of(key)][event.worker] = event.commit
            elif isinstance(event, Lost):
                for key in self.scheduler.lose(event.worker):
                    self._slots.release(self._slot_of.pop(key))
            else:
                for key in self.scheduler.regain(event.worker):
                    self._give(key)

    def _take(self, key: CreditKey, slot: int, commits: Sequence[Commit], lag: int) -> Arrival:
        """Return the rollout in a slot, over the slot itself, or as a copy if the user holds too many."""
        block, version = self._blocks[key.worker], self.scheduler.version_of(key)
        lend = self._slots.leased < self._max_leases
        root = self._slots.lease(slot) if lend else self._slots.peek(slot)
        arrays = self._slots.arrays(block.layout, slot, root)
        arrival = self._arrival_of(block, arrays, commits, version, lag)
        if not lend:
            arrival = arrival.copy()
            self._slots.release(slot)
            self._counters.totals.copied_rollouts += 1
        self._counters.add(arrival)
        for env_id, doing, error in chain.from_iterable(arrival.replaced):
            _log.warning("env_id %s raised %s and was replaced: %s", env_id, during(doing), error)
        return arrival
