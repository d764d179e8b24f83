"""Which worker may produce a rollout, by which version, and which rollout comes next: two pure state machines.

:class:`Dispatch` is that of asynchronous pools, :class:`Rounds` that of synchronous ones; both are asked the same.

A *credit* lets one worker produce one rollout. It is outstanding from its issue until the learner is done with the
rollout, that is, until it asks for the next one. ``prefetch`` bounds the outstanding credits of a worker to
``1 + prefetch``.

``max_policy_lag`` is kept by two rules. At most ``1 + max_policy_lag`` credits are outstanding at once, so that with
one publish per rollout they can all be taken in time; and whenever the taking in time gets tight, only a rollout that
has to come now is yielded, even if others are there already.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import NamedTuple

from parenv.errors import PolicyLagError


class CreditKey(NamedTuple):
    """Names a credit: whose it is, and how many that worker had before it."""

    worker: int
    sequence: int


class Scheduler:
    """What every schedule does: it counts versions, and waits for as long as the user does."""

    version = 0

    def publish(self) -> int:
        """Count a version; the new one."""
        self.version += 1
        return self.version

    def patience(self, deadline: float) -> float:
        """Until when to wait for the next rollout, if the user waits until this deadline."""
        return deadline

    def gave_up(self) -> None:
        """There was no rollout until then."""


@dataclass
class _Credited:
    version: int
    committed: bool = False
    yielded: bool = False


class Dispatch(Scheduler):
    """The credits of an asynchronous pool.

    Args:
        num_workers: how many workers.
        prefetch: how many rollouts a worker may run ahead of the learner.
        max_policy_lag: bound on the lag of what is yielded, in publishes, or ``None``.
        pace: keep the bound by pacing; otherwise the one who yields drops what is too old.
    """

    def __init__(self, num_workers: int, prefetch: int, max_policy_lag: int | None = None, pace: bool = True) -> None:
        self._per_worker = 1 + prefetch
        self._max_lag = max_policy_lag if pace else None
        self._sequences = [0] * num_workers
        self._held = [0] * num_workers
        self._lost = [False] * num_workers
        # Whoever is there and holds fewer credits than it may: mostly the one whose rollout was just done with. To look
        # for it among all workers would make every rollout cost the more the more workers there are.
        self._short = set(range(num_workers))
        self._outstanding: dict[CreditKey, _Credited] = {}
        self._arrived: deque[CreditKey] = deque()
        self._turn = 0

    def under_way(self) -> Counter[int]:
        """By worker, how many rollouts have been asked for and not yielded."""
        return Counter(key.worker for key, credited in self._outstanding.items() if not credited.yielded)

    def rollout_of(self, key: CreditKey) -> CreditKey:
        """The credit that stands for the rollout: each is one of its own."""
        return key

    def version_of(self, key: CreditKey) -> int:
        """The version that a credit names."""
        return self._outstanding[key].version

    def versions_in_use(self) -> set[int]:
        """The versions that credits name whose rollouts have not been committed yet."""
        return {credited.version for credited in self._outstanding.values() if not credited.committed}

    def publish(self) -> int:
        """Count a version; the new one.

        Raises:
            PolicyLagError: rollouts that are not yielded yet would become older than the bound.
        """
        if self._max_lag is not None:
            late = [
                c for c in self._outstanding.values() if not c.yielded and self.version + 1 - c.version > self._max_lag
            ]
            if late:
                raise PolicyLagError(
                    f"publishing version {self.version + 1} now would make {len(late)} rollouts that are under "
                    f"way older than "
                    f"max_policy_lag={self._max_lag}. Publish at most once per rollout taken from the stream, raise "
                    'max_policy_lag, or pass on_stale="drop"'
                )
        return super().publish()

    def issue(self) -> list[CreditKey]:
        """Credits that may be given now, by the newest version; from here on they are outstanding."""
        issued: list[CreditKey] = []
        while self._short and self._may_issue():
            issued += [self.credit(worker) for worker in self._turns() if self._may_issue()]
        if issued:
            self._turn = issued[-1].worker + 1
        return issued

    def credit(self, worker: int) -> CreditKey:
        """Another credit for a worker, by the newest version."""
        key = CreditKey(worker, self._sequences[worker])
        self._sequences[worker] += 1
        self._held[worker] += 1
        if self._held[worker] == self._per_worker:
            self._short.discard(worker)
        self._outstanding[key] = _Credited(self.version)
        return key

    def commit(self, key: CreditKey) -> bool:
        """A rollout is complete; false if no such credit is outstanding, or it was committed before."""
        credited = self._outstanding.get(key)
        if credited is None or credited.committed:
            return False
        credited.committed = True
        self._arrived.append(key)
        return True

    def lose(self, worker: int) -> list[CreditKey]:
        """A worker is gone; the credits that are void. What it has committed is still yielded."""
        self._lost[worker] = True
        self._short.discard(worker)
        void = [key for key, credited in self._outstanding.items() if key.worker == worker and not credited.committed]
        for key in void:
            self.done(key)
        return void

    def regain(self, worker: int) -> list[CreditKey]:
        """There is another process in its place, which may have credits again; those that it has to have at once."""
        self._lost[worker] = False
        if self._held[worker] < self._per_worker:
            self._short.add(worker)
        return []

    def next(self) -> CreditKey | None:
        """The rollout to yield now, or ``None`` while it has to be waited for."""
        urgent = self._urgent_version()
        for key in self._arrived:
            if (urgent is None or self._outstanding[key].version <= urgent) and self.take(key):
                return key
        return None

    def take(self, key: CreditKey) -> bool:
        """Yield a rollout; false if it has not arrived."""
        if key not in self._arrived:
            return False
        self._arrived.remove(key)
        self._outstanding[key].yielded = True
        return True

    def done(self, key: CreditKey) -> None:
        """The learner is done with a rollout: its worker may have another credit."""
        del self._outstanding[key]
        self._held[key.worker] -= 1
        if not self._lost[key.worker]:
            self._short.add(key.worker)

    def _may_issue(self) -> bool:
        return self._max_lag is None or len(self._outstanding) <= self._max_lag

    def _turns(self) -> list[int]:
        """Every worker that may hold another credit, beginning behind the one that got a credit last."""
        count = len(self._sequences)
        return sorted(self._short, key=lambda worker: (worker - self._turn) % count)

    def _urgent_version(self) -> int | None:
        """The newest version such that everything by it or older has to be yielded from now on without a break."""
        if self._max_lag is None:
            return None
        waiting = sorted(c.version for c in self._outstanding.values() if not c.yielded)
        for count, version in enumerate(waiting, start=1):
            if count > version + self._max_lag - self.version:
                return version
        return None


class Rounds(Scheduler):
    """The credits of a synchronous pool: one round at a time, all by one version, and nobody ahead.

    All credits of a round are for one rollout, for which that of worker 0 stands.

    Args:
        num_workers: how many workers.
    """

    def __init__(self, num_workers: int) -> None:
        self._workers = range(num_workers)
        self._whole = CreditKey(0, -1)
        self._round_version = 0
        self._missing: set[int] = set()
        self._lost: set[int] = set()
        self._outstanding = self._yielded = False

    def under_way(self) -> dict[int, int]:
        """By worker, how many rollouts have been asked for and not yielded."""
        return dict.fromkeys(self._workers, 1) if self._outstanding and not self._yielded else {}

    def rollout_of(self, key: CreditKey) -> CreditKey:
        """The credit that stands for the rollout of a round."""
        return self._whole

    def version_of(self, key: CreditKey) -> int:
        """The version that a credit names."""
        return self._round_version

    def versions_in_use(self) -> set[int]:
        """The versions that credits name whose rollouts have not been committed yet."""
        return {self._round_version} if self._missing else set()

    def issue(self) -> list[CreditKey]:
        """Begin a round if there is none: a credit for everybody; who is lost gets it when it is back."""
        if self._outstanding:
            return []
        self._whole = CreditKey(0, self._whole.sequence + 1)
        self._round_version = self.version
        self._missing = set(self._workers)
        self._outstanding, self._yielded = True, False
        return [CreditKey(worker, self._whole.sequence) for worker in self._workers if worker not in self._lost]

    def commit(self, key: CreditKey) -> bool:
        """A worker's part is complete; false if it was not asked for."""
        if key.sequence != self._whole.sequence or key.worker not in self._missing:
            return False
        self._missing.remove(key.worker)
        return True

    def lose(self, worker: int) -> list[CreditKey]:
        """A worker is gone; no credit is void, since the others' parts of the round are there."""
        self._lost.add(worker)
        return []

    def regain(self, worker: int) -> list[CreditKey]:
        """There is another process in its place: it has to have the credit of this round, unless its part is there."""
        self._lost.remove(worker)
        return [CreditKey(worker, self._whole.sequence)] if worker in self._missing else []

    def next(self) -> CreditKey | None:
        """The rollout to yield now, or ``None`` while it has to be waited for."""
        if self._missing or self._yielded or not self._outstanding:
            return None
        self._yielded = True
        return self._whole

    def done(self, key: CreditKey) -> None:
        """The learner is done with a rollout: the next round may begin."""
        self._outstanding = False
