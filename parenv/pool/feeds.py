"""Feeds: from credits to rollouts, one class per mode. ``dispatch`` decides, a feed carries it out."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from parenv.experience.assembly import Share, assemble
from parenv.experience.episodes import EpisodeStatistics
from parenv.memory.layout import WHOLE_EPISODES, RolloutSpec, SlotLayout, slot_layout
from parenv.memory.slots import Slots
from parenv.pool.arrival import Arrival
from parenv.pool.dispatch import CreditKey, Dispatch, Rounds
from parenv.pool.statistics import Tally
from parenv.pool.versions import Versions
from parenv.protocol.messages import Commit, Credit
from parenv.supervision.supervisor import Committed, Event, Lost, Supervisor
from parenv.supervision.workers import FOREVER_S

_log = logging.getLogger("parenv")


class Feed(Protocol):
    """Yields rollouts."""

    def next(self, deadline: float) -> Arrival | None:
        """The next rollout, or ``None`` if there is none until the deadline on the monotonic clock."""

    def publish(self) -> int:
        """Count a version; the new one."""

    def resume(self, version: int) -> None:
        """Go on counting from a version."""

    def under_way(self) -> Mapping[int, int]:
        """By worker, how many rollouts have been asked for and not yielded."""

    def versions_in_use(self) -> set[int]:
        """Versions by which rollouts are under way."""

    def listen(self) -> None:
        """Wait until a rollout comes in, which may free the version it was made by."""


class Slotted:
    """Rollouts in slots of shared memory: what both modes have in common.

    Args:
        spec: what a slot holds.
        slots: the slots.
        max_leases: how many of them the user may hold before rollouts are copied out.
        supervisor: the workers.
        versions: the versions they act by.
        tally: counts.
    """

    def __init__(
        self, spec: RolloutSpec, slots: Slots, max_leases: int, supervisor: Supervisor, versions: Versions, tally: Tally
    ) -> None:
        self.spec, self.slots, self.supervisor, self.workers = spec, slots, supervisor, supervisor.workers
        self.versions, self.tally = versions, tally
        self._max_leases = max_leases

    def give(self, key: CreditKey, slot: int, version: int) -> None:
        """Let a worker fill its part of a slot."""
        which = self.versions[version]
        self.supervisor.say(key.worker, Credit(key.sequence, slot, version, which.place, which.snapshot))

    def take(
        self,
        slot: int,
        layout: SlotLayout,
        heard: Sequence[tuple[CreditKey, Commit]],
        columns: Sequence[range],
        **about: Any,
    ) -> Arrival:
        """The rollout that a slot holds; over the slot itself, or a copy if the user holds too many.

        Args:
            slot: which.
            layout: its layout.
            heard: credits and their commits, in the order of their shares in the slot.
            columns: what each has written.
            **about: what :func:`~parenv.experience.assembly.assemble` wants to know.
        """
        shares = [
            Share(i, mine.start, mine.stop, commit.objects)
            for i, (mine, (_, commit)) in enumerate(zip(columns, heard, strict=True))
        ]
        lend = self.slots.leased < self._max_leases
        arrays = layout.arrays(self.slots.lease(slot) if lend else self.slots.peek(slot))
        extras = [extra.name for extra in self.spec.extras]
        rollout = assemble(self.spec, arrays, shares, extras=extras, **about)
        commits, gradients = arrays["commits", 0].copy(), arrays.get(("gradients", 0))
        self.tally.add_seconds(commits)
        replaced = [commit.replaced for _, commit in heard]
        self._tell([cause for causes in replaced for cause in causes])
        reports = [
            commit.report or [self.spec.rollout_length * len(mine), {}, None]
            for mine, (_, commit) in zip(columns, heard, strict=True)
        ]
        samples = [said for said, _, _ in reports]
        if self.spec.rollout_length == WHOLE_EPISODES:
            rollout = replace(
                rollout, episodes=EpisodeStatistics.joined([EpisodeStatistics.of(*r[2]) for r in reports])
            )
        norms = commits["gradient_norm"].tolist()
        if not lend:
            rollout, gradients = rollout.copy(), None if gradients is None else gradients.copy()
            self.slots.release(slot)
            self.tally.copied += 1
        self.tally.add(rollout, sum(samples))
        workers, metrics = [key.worker for key, _ in heard], [said for _, said, _ in reports]
        env_ids = [self.workers.env_ids(worker) for worker in workers]
        return Arrival(rollout, workers, env_ids, samples, gradients, norms, metrics, commits, replaced)

    def _tell(self, replaced: Sequence[Sequence[Any]]) -> None:
        for env_id, doing, error in replaced:
            _log.warning("env_id %s raised while %s and was replaced: %s", env_id, doing, error)
        self.tally.env_restarts += len(replaced)


class SyncFeed:
    """All workers fill one slot by one version; nobody runs ahead of the learner."""

    def __init__(self, slotted: Slotted) -> None:
        self._slotted = slotted
        workers = slotted.workers
        self._rounds = Rounds(len(workers.shares))
        self._layout = slot_layout(slotted.spec, sum(workers.shares), len(workers.shares))
        self._env_ids = np.arange(sum(workers.shares)) + workers.first_env_id
        stops = np.cumsum(workers.shares).tolist()
        self._columns = [range(stop - share, stop) for stop, share in zip(stops, workers.shares, strict=True)]
        self._slot = -1
        self._lost: set[int] = set()
        self._commits: dict[CreditKey, Commit] = {}

    def next(self, deadline: float) -> Arrival | None:
        """The next rollout, or ``None`` if there is none until the deadline on the monotonic clock."""
        if not self._rounds.under_way and not self._commits:
            self._note(self._slotted.supervisor.past_events())
            self._slot = self._slotted.slots.claim()
            for key in self._rounds.issue():
                # One that is lost gets its credit when it is back.
                if key.worker not in self._lost:
                    self._slotted.give(key, self._slot, self._rounds.version)
        while self._rounds.under_way:
            left = deadline - time.monotonic()
            self._hear(max(0.0, left))
            if left <= 0 and self._rounds.under_way:
                return None
        return self._take()

    def publish(self) -> int:
        """Count a version; the new one."""
        return self._rounds.publish()

    def resume(self, version: int) -> None:
        """Go on counting from a version."""
        self._rounds.version = version

    def under_way(self) -> Mapping[int, int]:
        """By worker, how many rollouts have been asked for and not yielded."""
        asked = self._rounds.under_way or self._commits
        return dict.fromkeys(range(len(self._slotted.workers.shares)), 1) if asked else {}

    def versions_in_use(self) -> set[int]:
        """Versions by which rollouts are under way."""
        return {self._rounds.round_version} if self._rounds.under_way else set()

    def listen(self) -> None:
        """Wait until a rollout comes in, which may free the version it was made by."""
        self._hear(FOREVER_S)

    def _hear(self, timeout_s: float) -> None:
        self._note(self._slotted.supervisor.events(timeout_s))

    def _note(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Committed):
                key = CreditKey(event.worker, event.commit.sequence)
                if self._rounds.commit(key):
                    self._commits[key] = event.commit
            elif isinstance(event, Lost):
                self._lost.add(event.worker)
            else:
                self._lost.remove(event.worker)
                for key in self._rounds.again(event.worker):
                    self._slotted.give(key, self._slot, self._rounds.round_version)

    def _take(self) -> Arrival:
        commits, self._commits = self._commits, {}
        return self._slotted.take(
            self._slot,
            self._layout,
            sorted(commits.items()),
            self._columns,
            env_ids=self._env_ids,
            worker=None,
            policy_version=self._rounds.round_version,
            policy_lag=self._rounds.version - self._rounds.round_version,
        )


class AsyncFeed:
    """Every worker fills slots of its own, by the newest version there was when it got the credit.

    Args:
        slotted: the slots.
        dispatch: decides.
        drop_lag: drop what is older than this at its turn, in publishes, or ``None``.
    """

    def __init__(self, slotted: Slotted, dispatch: Dispatch, drop_lag: int | None) -> None:
        self._slotted, self._dispatch, self._drop_lag = slotted, dispatch, drop_lag
        shares = slotted.workers.shares
        self._layouts = [slot_layout(slotted.spec, share, 1) for share in shares]
        self._env_ids = [np.array(slotted.workers.env_ids(worker)) for worker in range(len(shares))]
        self._slot_of: dict[CreditKey, int] = {}
        self._commits: dict[CreditKey, Commit] = {}
        self._done: list[CreditKey] = []

    def next(self, deadline: float) -> Arrival | None:
        """The next rollout, or ``None`` if there is none until the deadline on the monotonic clock."""
        while True:
            self._finish_last()
            self._note(self._slotted.supervisor.past_events())
            self._issue()
            chosen = self._wait(self._dispatch.patience(deadline))
            if chosen is None:
                self._dispatch.gave_up()
                return None
            self._done.append(chosen)
            lag = self._dispatch.version - self._dispatch.version_of(chosen)
            if self._drop_lag is None or lag <= self._drop_lag:
                return self._take(chosen, lag)
            self._slotted.slots.release(self._slot_of.pop(chosen))
            del self._commits[chosen]
            self._slotted.tally.dropped += 1

    def publish(self) -> int:
        """Count a version; the new one."""
        return self._dispatch.publish()

    def resume(self, version: int) -> None:
        """Go on counting from a version."""
        self._dispatch.version = version

    def under_way(self) -> Mapping[int, int]:
        """By worker, how many rollouts have been asked for and not yielded."""
        return self._dispatch.under_way()

    def versions_in_use(self) -> set[int]:
        """Versions by which rollouts are under way."""
        return self._dispatch.versions_in_use()

    def listen(self) -> None:
        """Wait until a rollout comes in, which may free the version it was made by."""
        self._hear(FOREVER_S)

    def _issue(self) -> None:
        for key in self._dispatch.issue():
            self._slot_of[key] = self._slotted.slots.claim()
            self._slotted.give(key, self._slot_of[key], self._dispatch.version)

    def _finish_last(self) -> None:
        for key in self._done:
            self._dispatch.done(key)
        self._done.clear()

    def _wait(self, deadline: float) -> CreditKey | None:
        while (chosen := self._dispatch.next()) is None:
            left = deadline - time.monotonic()
            self._hear(max(0.0, left))
            self._issue()
            if left <= 0:
                return self._dispatch.next()
        return chosen

    def _hear(self, timeout_s: float) -> None:
        self._note(self._slotted.supervisor.events(timeout_s))

    def _note(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Committed):
                key = CreditKey(event.worker, event.commit.sequence)
                if self._dispatch.commit(key):
                    self._commits[key] = event.commit
            elif isinstance(event, Lost):
                for key in self._dispatch.lose(event.worker):
                    self._slotted.slots.release(self._slot_of.pop(key))
            else:
                self._dispatch.regain(event.worker)

    def _take(self, key: CreditKey, lag: int) -> Arrival:
        return self._slotted.take(
            self._slot_of.pop(key),
            self._layouts[key.worker],
            [(key, self._commits.pop(key))],
            [range(len(self._env_ids[key.worker]))],
            env_ids=self._env_ids[key.worker],
            worker=key.worker,
            policy_version=self._dispatch.version_of(key),
            policy_lag=lag,
        )
