"""The workers of a pool, each of them replaced when it dies, hangs or fails."""

from __future__ import annotations

import logging
import math
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from parenv.errors import (
    HostLostError,
    ProtocolError,
    RestartLimitError,
    WorkerDiedError,
    WorkerError,
    WorkerMemoryError,
    WorkerTimeoutError,
    span,
)
from parenv.memory.progress import WAITING_FOR_A_HOST
from parenv.options import WorkerOptions
from parenv.placement.base import KILL_TIMEOUT_S, Launch
from parenv.process.restart_limit import RestartLimit
from parenv.protocol.data import pack
from parenv.protocol.messages import Commit, Layout, Message, Ready
from parenv.supervision.failures import culprit, deed
from parenv.supervision.stacks import shown_stack, timeout_error
from parenv.supervision.watchdog import Look, Watchdog
from parenv.supervision.workers import FOREVER_S, NO_WEIGHTS, Workers

_REPEATABLE = {"load", "evaluate"}
"""Calls that mean the pool, not the environments that are gone, and so are asked again."""
_IN_ENVIRONMENT = {"step", "reset", "making the environment"}
_CRASHES = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS}
MAX_DEATHS_KEPT = 1000
_log = logging.getLogger("parenv")


class Committed(NamedTuple):
    """A worker has produced the rollout of a credit."""

    worker: int
    commit: Commit


class Lost(NamedTuple):
    """A worker is gone with everything that it had not committed."""

    worker: int


class Back(NamedTuple):
    """There is another process in the place of a worker that was lost; its sub-environments begin anew."""

    worker: int


Event = Committed | Lost | Back


@dataclass
class _Asked:
    method: str
    arguments: Mapping[int, tuple[Any, ...]]
    weights: tuple[int, int]
    calls: dict[int, int] = field(default_factory=dict)


class _Condemned(NamedTuple):
    """A worker that has been killed, why, and until when that must have taken effect."""

    reason: Exception
    deadline: float


class Observer(Protocol):
    """Hears what becomes of workers."""

    def lost(self, worker: int, reason: Exception) -> None:
        """A worker is gone."""

    def back(self, worker: int, generation: int) -> None:
        """Another process is in its place."""


class Supervisor:
    """Workers whose dead are replaced, up to a limit. One that hangs or fails is killed, and is then dead like others.

    Args:
        workers: the workers.
        launch: how they are started.
        options: how long they may take, and what becomes of them.
        processes: whether they are processes, which can be killed.
        observers: hear of losses as they happen; there may be others each time.
    """

    def __init__(
        self,
        workers: Workers,
        launch: Launch,
        options: WorkerOptions,
        processes: bool,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.workers, self._options = workers, options
        self._launch, self._processes = launch, processes
        self._restart_limit = RestartLimit(options.restart, len(workers.shares))
        limits = [limit for limit in (options.step_timeout_s, options.reset_timeout_s) if limit is not None]
        self._watchdog = Watchdog(len(workers.shares), min(limits, default=math.inf))
        self._next_look = -math.inf if processes else math.inf
        self._events: deque[Event] = deque()
        self._condemned: dict[int, _Condemned] = {}
        self._due: dict[int, float] = {}
        self._starting: dict[int, float] = {}
        self._asked: _Asked | None = None
        self.deaths: list[deque[Exception]] = [deque(maxlen=MAX_DEATHS_KEPT) for _ in workers.shares]
        self.restarts = 0
        self._observers = observers

    def start(self) -> list[Ready]:
        """Start all and wait until they are ready."""
        try:
            self._ready = self.workers.start(self._launch, self._options.start_timeout_s)
        except WorkerTimeoutError as error:
            error.args = (f"{error} {shown_stack(self.workers, error.worker)}",)
            raise
        return self._ready

    def lay_out(self, layouts: Sequence[Layout]) -> None:
        """Tell every worker where everything lies."""
        self._layouts = layouts
        for worker, layout in enumerate(layouts):
            self.workers.say(worker, layout)

    def say(self, worker: int, message: Message) -> None:
        """Send a message to a worker that is not lost."""
        self.workers.say(worker, message)

    def events(self, timeout_s: float) -> list[Event]:
        """What has happened; waits up to the limit if nothing has.

        Raises:
            RestartLimitError: a worker has died too often.
        """
        if not self._events:
            self._listen(timeout_s)
        return self.past_events()

    def past_events(self) -> list[Event]:
        """What has happened meanwhile. Before a credit is given it must be known who was lost and who is back."""
        events = list(self._events)
        self._events.clear()
        return events

    def ask(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], weights: tuple[int, int] = NO_WEIGHTS
    ) -> dict[int, Any]:
        """Call a method on several workers at once and wait for every answer; those that are lost are waited for.

        Args:
            method: as in :class:`~parenv.protocol.messages.Call`.
            arguments: by worker.
            weights: the version that the method uses, and where its weights lie.

        Raises:
            Exception: what a worker raised, after all have answered; an ``ExceptionGroup`` of several types.
            WorkerError: a worker died or hung that was to answer for environments that are gone with it.
        """
        while self._condemned or self._due or self._starting:
            self._listen(FOREVER_S)
        asked = self._asked = _Asked(method, arguments, weights)
        try:
            asked.calls = self.workers.begin(method, arguments, weights)
            while not self.workers.answered(asked.calls):
                self._listen(FOREVER_S)
        finally:
            self._asked = None
        return self.workers.answers(asked.calls)

    def close(self, timeout_s: float) -> None:
        """End all, by themselves within the limit or by force after it. Idempotent."""
        self.workers.close(timeout_s)

    def _listen(self, timeout_s: float) -> None:
        """Hear what there is, start who is due, and end who hangs."""
        now = time.monotonic()
        killed = [condemned.deadline for condemned in self._condemned.values()]
        next_s = min([self._next_look, *killed, *self._due.values(), *self._starting.values()])
        try:
            self.workers.listen(max(0.0, min(timeout_s, next_s - now)))
        except Exception as error:
            self._failed(error)
        finally:
            self._events.extend(Committed(*heard) for heard in self.workers.take_commits())
        now = time.monotonic()
        self._start_those_due(now)
        self._cut_the_late(now)

    def _failed(self, error: Exception) -> None:
        worker = culprit(error)
        if isinstance(error, WorkerDiedError):
            condemned = self._condemned.pop(worker, None)
            self._lost(worker, condemned.reason if condemned else self._with_likely_cause(error))
        elif self._processes and worker >= 0 and self._ends_only_its_worker(error):
            self._condemn(worker, self._with_likely_cause(error))
        else:
            raise error

    def _ends_only_its_worker(self, error: Exception) -> bool:
        """Whether what a worker said is its own trouble, and not the user's to mend before anything can go on."""
        if isinstance(error, ProtocolError) or (isinstance(error, MemoryError) and self._options.max_memory_bytes):
            return True
        return self._options.on_env_error == "restart_worker" and deed(error) in _IN_ENVIRONMENT

    def _with_likely_cause(self, error: Exception) -> Exception:
        limit, worker, workers = self._options.max_memory_bytes, culprit(error), self.workers
        crashed = isinstance(error, WorkerDiedError) and error.signal in _CRASHES
        if limit is None or not (crashed or isinstance(error, MemoryError)):
            return error
        return WorkerMemoryError(
            f"worker {worker} (env_ids {span(workers.env_ids(worker))}) is likely out of memory while {deed(error)}: "
            f"beyond what it began with it may allocate max_memory_bytes={limit:,}. {error}",
            worker=worker,
            env_ids=workers.env_ids(worker),
            pid=workers.pid(worker),
            doing=deed(error),
        )

    def _condemn(self, worker: int, reason: Exception) -> None:
        # Remembered without a traceback, whose frames would keep the pool's memory for as long. The first counts:
        # what a worker says while it is being killed comes of it.
        reason = reason.with_traceback(None)
        self._condemned.setdefault(worker, _Condemned(reason, time.monotonic() + KILL_TIMEOUT_S))
        self.workers.broken = False
        self.workers.signal(worker, signal.SIGKILL, alone=False)

    def _lost(self, worker: int, error: Exception) -> None:
        workers, deaths = self.workers, self.deaths[worker]
        for observer in self._observers:
            observer.lost(worker, error)
        # Commits that came before the end are events before it.
        self._events.extend(Committed(*heard) for heard in workers.take_commits())
        if isinstance(error, HostLostError) and self._options.restart is not None:
            wait_s: float | None = 0.0  # It is no fault of the worker's, and there must be a host first.
        else:
            wait_s = self._restart_limit.died(worker, time.monotonic())
        if wait_s is None:
            raise RestartLimitError(worker, workers.env_ids(worker), [*deaths, error]) if deaths else error
        deaths.append(error.with_traceback(None))
        _log.warning("%s Worker %s is restarted.", str(error), worker)
        was_ready = worker not in self._starting
        self._starting.pop(worker, None)
        self._due[worker] = time.monotonic() + wait_s
        workers.broken = False
        if was_ready:
            self._events.append(Lost(worker))
        asked = self._asked
        if asked is not None and asked.method not in _REPEATABLE and not workers.answered_by(asked.calls, worker):
            workers.fail(asked.calls[worker], error)

    def _start_those_due(self, now: float) -> None:
        for worker in [worker for worker, due in self._due.items() if due <= now]:
            del self._due[worker]
            try:
                self.workers.restart(self._launch, worker)
            except Exception as failure:
                self.workers.broken = True
                raise self.deaths[worker].pop() from failure
            self._starting[worker] = now + self._options.start_timeout_s
            self.restarts += 1
        for worker in [worker for worker in self._starting if self.workers.is_ready(worker)]:
            del self._starting[worker]
            self._welcome(worker)

    def _cut_the_late(self, now: float) -> None:
        for worker, condemned in self._condemned.items():
            if condemned.deadline <= now:
                self.workers.broken = True
                raise WorkerTimeoutError(f"worker {worker} could not be killed", worker=worker) from condemned.reason
        for worker, deadline in self._starting.items():
            if self.workers.doing(worker) == WAITING_FOR_A_HOST:
                self._starting[worker] = math.inf
            elif deadline == math.inf:  # Its time begins when it has a host.
                self._starting[worker] = now + self._options.start_timeout_s
            elif deadline <= now and worker not in self._condemned:
                self._cut(worker, f"start_timeout_s={self._options.start_timeout_s:g}")
        if now < self._next_look:
            return
        self._next_look = now + self._watchdog.interval_s
        for worker in range(len(self.workers.shares)):
            name, limit_s = self._limit_of(self.workers.busy_with(worker))
            hangs = self._watchdog.look(worker, now, Look(self.workers.liveness_token(worker), limit_s))
            if hangs and not (worker in self._condemned or worker in self._due or worker in self._starting):
                self._cut(worker, f"{name}={limit_s:g}")

    def _limit_of(self, doing: str) -> tuple[str, float]:
        name = "reset_timeout_s" if doing in ("reset", "making the environment") else "step_timeout_s"
        limit_s = getattr(self._options, name) if doing else None
        return name, math.inf if limit_s is None else limit_s

    def _cut(self, worker: int, limit: str) -> None:
        if self._processes:
            self._condemn(worker, timeout_error(self.workers, worker, limit))

    def _welcome(self, worker: int) -> None:
        workers, asked = self.workers, self._asked
        ready, before = workers.ready(worker), self._ready[worker]
        if pack([ready.spaces, ready.num_envs]) != pack([before.spaces, before.num_envs]):
            workers.broken = True
            raise WorkerError(f"worker {worker} was restarted and has other spaces than before", worker=worker)
        workers.say(worker, self._layouts[worker])
        self._events.append(Back(worker))
        for observer in self._observers:
            observer.back(worker, workers.generation(worker))
        if asked is not None and not workers.answered_by(asked.calls, worker):
            asked.calls |= workers.begin(asked.method, {worker: asked.arguments[worker]}, asked.weights)
