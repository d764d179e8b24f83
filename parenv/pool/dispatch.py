"""Schedulers, which decide which worker may produce a rollout, with which version, and which rollout is yielded next.

They are pure state machines with the same methods. Asynchronous pools use :class:`Dispatch`, synchronous ones
:class:`Rounds`.

A *credit* lets one worker produce one rollout. It is outstanding from its issue until the learner requests the rollout
after it. ``prefetch`` bounds the outstanding credits of a worker to ``1 + prefetch``.

Two rules keep ``max_policy_lag``. First, at most ``1 + max_policy_lag`` credits are outstanding at once. With one
publish per rollout they can all be taken in time. Second, when a rollout has to be taken now to keep the bound, no
other one is yielded, even if others have arrived already.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import NamedTuple

from parenv.errors import PolicyLagError


class CreditKey(NamedTuple):
    """Key of a credit: its worker, and the number of credits that the worker had before it."""

    worker: int
    sequence: int


class Scheduler:
    """Base of the schedulers. It counts versions, and waits as long as the user does.

    Attributes:
        prefetch: Number of rollouts that a worker may run ahead now.
    """

    version = prefetch = 0

    def publish(self) -> int:
        """Count a version and return its number."""
        self.version += 1
        return self.version

    def resume(self, version: int) -> None:
        """Continue to count from the newest version of another pool, before the first credit."""
        self.version = version

    def patience(self, deadline: float) -> float:
        """Return the deadline for the next rollout, given the deadline of the user."""
        return deadline

    def gave_up(self) -> None:
        """Note that no rollout arrived until the deadline."""


@dataclass
class _Credited:
    version: int
    committed: bool = False
    yielded: bool = False


class Dispatch(Scheduler):
    """Credits of an asynchronous pool.

    Args:
        num_workers: Number of workers.
        prefetch: Number of rollouts that a worker may run ahead of the learner.
        max_policy_lag: Bound on the lag of rollouts that are yielded, in publishes, or ``None``.
        pace: Whether the scheduler keeps the bound. Otherwise the queue drops rollouts that are too old.
    """

    def __init__(self, num_workers: int, prefetch: int, max_policy_lag: int | None = None, pace: bool = True) -> None:
        self.prefetch = prefetch
        self._per_worker = 1 + prefetch
        self._max_lag = max_policy_lag if pace else None
        self._sequences = [0] * num_workers
        self._held = [0] * num_workers
        self._lost = [False] * num_workers
        # These running workers hold fewer credits than they may. It is mostly the one whose rollout was yielded last.
        # A search among all workers would make every rollout slower with each further worker.
        self._short = set(range(num_workers))
        self._outstanding: dict[CreditKey, _Credited] = {}
        self._arrived: deque[CreditKey] = deque()
        self._turn = 0

    def under_way(self) -> Counter[int]:
        """Return the number of rollouts that are requested and not yielded, by worker."""
        return Counter(key.worker for key, credited in self._outstanding.items() if not credited.yielded)

    def rollout_of(self, key: CreditKey) -> CreditKey:
        """Return the credit that represents the rollout, which is the same one."""
        return key

    def version_of(self, key: CreditKey) -> int:
        """Return the version of a credit."""
        return self._outstanding[key].version

    def versions_in_use(self) -> set[int]:
        """Return the versions of credits whose rollouts have not been committed."""
        return {credited.version for credited in self._outstanding.values() if not credited.committed}

    def publish(self) -> int:
        """Count a version and return its number.

        Raises:
            PolicyLagError: Rollouts that are not yielded would become older than the bound.
        """
        if self._max_lag is not None:
            late = [
                c for c in self._outstanding.values() if not c.yielded and self.version + 1 - c.version > self._max_lag
            ]
            if late:
                raise PolicyLagError(
                    f"version {self.version + 1} cannot be published now, because it would make rollouts in progress "
                    f"({len(late)}) older than max_policy_lag={self._max_lag}. Publish at most once per rollout taken "
                    'from the stream, raise max_policy_lag, or pass on_stale="drop".'
                )
        return super().publish()

    def issue(self) -> list[CreditKey]:
        """Issue the credits that are allowed now, with the newest version."""
        issued: list[CreditKey] = []
        while self._short and self._may_issue():
            issued += [self.credit(worker) for worker in self._turns() if self._may_issue()]
        if issued:
            self._turn = issued[-1].worker + 1
        return issued

    def credit(self, worker: int) -> CreditKey:
        """Issue a credit for a worker, with the newest version."""
        key = CreditKey(worker, self._sequences[worker])
        self._sequences[worker] += 1
        self._held[worker] += 1
        if self._held[worker] >= self._per_worker:
            self._short.discard(worker)
        self._outstanding[key] = _Credited(self.version)
        return key

    def commit(self, key: CreditKey) -> bool:
        """Note a complete rollout. Return ``False`` if the credit is not outstanding or was committed before."""
        credited = self._outstanding.get(key)
        if credited is None or credited.committed:
            return False
        credited.committed = True
        self._arrived.append(key)
        return True

    def lose(self, worker: int) -> list[CreditKey]:
        """Note the end of a worker, and return its void credits. Rollouts that it has committed are still yielded."""
        self._lost[worker] = True
        self._short.discard(worker)
        void = [key for key, credited in self._outstanding.items() if key.worker == worker and not credited.committed]
        for key in void:
            self.done(key)
        return void

    def regain(self, worker: int) -> list[CreditKey]:
        """Note a new process of a worker, and return the credits that it needs at once."""
        self._lost[worker] = False
        if self._held[worker] < self._per_worker:
            self._short.add(worker)
        return []

    @property
    def is_urgent(self) -> bool:
        """True if a rollout must be yielded now to keep the bound, whether it has arrived or not."""
        return self._urgent_version() is not None

    def next(self) -> CreditKey | None:
        """Return the rollout to yield now, or ``None`` if it has not arrived."""
        urgent = self._urgent_version()
        for key in self._arrived:
            if (urgent is None or self._outstanding[key].version <= urgent) and self.take(key):
                return key
        return None

    def take(self, key: CreditKey) -> bool:
        """Yield a rollout. Return ``False`` if it has not arrived."""
        if key not in self._arrived:
            return False
        self._arrived.remove(key)
        self._outstanding[key].yielded = True
        return True

    def done(self, key: CreditKey) -> None:
        """Note that the learner is done with a rollout, so that its worker may have another credit."""
        del self._outstanding[key]
        self._held[key.worker] -= 1
        if not self._lost[key.worker] and self._held[key.worker] < self._per_worker:
            self._short.add(key.worker)

    def run_ahead(self, prefetch: int) -> None:
        """Let workers run ahead by another number of rollouts. Credits that are outstanding stay."""
        self.prefetch, self._per_worker = prefetch, 1 + prefetch
        self._short = {
            worker for worker, held in enumerate(self._held) if held < self._per_worker and not self._lost[worker]
        }

    def _may_issue(self) -> bool:
        return self._max_lag is None or len(self._outstanding) <= self._max_lag

    def _turns(self) -> list[int]:
        """Return the workers that may hold another credit, from the successor of the last one with a credit on."""
        count = len(self._sequences)
        return sorted(self._short, key=lambda worker: (worker - self._turn) % count)

    def _urgent_version(self) -> int | None:
        """Return the newest version that is urgent: rollouts of it and of older ones must be yielded before others."""
        if self._max_lag is None:
            return None
        waiting = sorted(c.version for c in self._outstanding.values() if not c.yielded)
        for count, version in enumerate(waiting, start=1):
            if count > version + self._max_lag - self.version:
                return version
        return None


class Rounds(Scheduler):
    """Credits of a synchronous pool, in rounds: each worker has one credit, all with the same version.

    All credits of a round are for one rollout, which the credit of worker 0 represents.

    Args:
        num_workers: Number of workers.
    """

    def __init__(self, num_workers: int) -> None:
        self._workers = range(num_workers)
        self._whole = CreditKey(0, -1)
        self._round_version = 0
        self._missing: set[int] = set()
        self._lost: set[int] = set()
        self._outstanding = self._yielded = False

    def under_way(self) -> dict[int, int]:
        """Return the number of rollouts that are requested and not yielded, by worker."""
        return dict.fromkeys(self._workers, 1) if self._outstanding and not self._yielded else {}

    def rollout_of(self, key: CreditKey) -> CreditKey:
        """Return the credit that represents the rollout of a round."""
        return self._whole

    def version_of(self, key: CreditKey) -> int:
        """Return the version of a credit."""
        return self._round_version

    def versions_in_use(self) -> set[int]:
        """Return the versions of credits whose rollouts have not been committed."""
        return {self._round_version} if self._missing else set()

    def issue(self) -> list[CreditKey]:
        """Begin a round if there is none, and return its credits. A lost worker gets its credit when it is back."""
        if self._outstanding:
            return []
        self._whole = CreditKey(0, self._whole.sequence + 1)
        self._round_version = self.version
        self._missing = set(self._workers)
        self._outstanding, self._yielded = True, False
        return [CreditKey(worker, self._whole.sequence) for worker in self._workers if worker not in self._lost]

    def commit(self, key: CreditKey) -> bool:
        """Note the complete part of a worker. Return ``False`` if it was not requested."""
        if key.sequence != self._whole.sequence or key.worker not in self._missing:
            return False
        self._missing.remove(key.worker)
        return True

    def lose(self, worker: int) -> list[CreditKey]:
        """Note the end of a worker. No credit is void, because the other parts of the round are kept."""
        self._lost.add(worker)
        return []

    def regain(self, worker: int) -> list[CreditKey]:
        """Note a new process of a worker, and return its credit of this round, unless its part is complete."""
        self._lost.remove(worker)
        return [CreditKey(worker, self._whole.sequence)] if worker in self._missing else []

    def next(self) -> CreditKey | None:
        """Return the rollout to yield now, or ``None`` if it has not arrived."""
        if self._missing or self._yielded or not self._outstanding:
            return None
        self._yielded = True
        return self._whole

    def done(self, key: CreditKey) -> None:
        """Note that the learner is done with a rollout, so that the next round may begin."""
        self._outstanding = False
