"""Supervisor of the workers, which replaces each one that dies, hangs or fails."""

from __future__ import annotations

import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

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
from parenv.memory.status_slot import WAITING_FOR_A_HOST
from parenv.options import WorkerOptions
from parenv.placement.base import Launch, drained
from parenv.process.restart_limit import RestartLimit
from parenv.protocol.data import pack
from parenv.protocol.messages import Message, Ready, StepReady
from parenv.supervision.failures import NOT_STARTED, at_memory_limit, failing_worker, not_started
from parenv.supervision.questions import NO_WEIGHTS, Questions
from parenv.supervision.stacks import shown_stack, timeout_error
from parenv.supervision.watch import KILLED, STARTING, Watch
from parenv.supervision.workers import FOREVER_S, Committed, Workers

_IN_ENVIRONMENT = {"step", "reset", "making the environment"}
_CRASHES = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS}
MAX_DEATHS_KEPT = 1000
_log = logging.getLogger("parenv")


class Lost(NamedTuple):
    """A worker has ended, and everything that it had not committed is lost."""

    worker: int
    reason: Exception


class Back(NamedTuple):
    """A new process has replaced a lost worker, and its sub-environments begin again.

    Args:
        worker: Worker.
        generation: Number of its restarts.
        unset: Names of attributes by env_id whose values could not be set again.
    """

    worker: int
    generation: int
    unset: Mapping[int, Sequence[str]] = MappingProxyType({})


Event = Committed | Lost | Back


class Product(NamedTuple):
    """Part of the supervision that differs between pools, vector envs and populations.

    Args:
        launch: Function of a worker that returns the launch of its new process, and of ``None`` the launch of all.
        briefing: Function of a worker that returns the messages for its new process.
        tell: Function that receives the event of a lost worker at once, also while it starts, and the event of its
            return after the briefing. If it returns ``True`` for a loss, the restart neither waits nor counts.
        asked: Function of a worker that returns a value that changes with every answer to a request by wake-up, or
            ``None`` if no answer is due.
        processes: Whether the workers are processes, which can be killed.
        await_hosts: Whether a worker that is restarted waits for a host without a limit.
    """

    launch: Callable[[int | None], Launch]
    briefing: Callable[[int], Iterable[Message]]
    tell: Callable[[Lost | Back], object] = lambda event: None
    asked: Callable[[int], object] = lambda worker: None
    processes: bool = True
    await_hosts: bool = True


class Supervisor:
    """Replaces workers that have ended, up to a limit. It kills workers that hang or fail, which are then replaced too.

    Args:
        workers: Workers, which are not started yet.
        options: Options of the workers, with their limits.
        product: Part that differs between pools, vector envs and populations.

    Attributes:
        next_s: Time on the monotonic clock at which :meth:`events` must be called even if nothing happens.
        restarts: Number of restarts.
        over: Whether a worker has ended or given up and will not be replaced.
    """

    def __init__(self, workers: Workers, options: WorkerOptions, product: Product) -> None:
        self.workers, self._options = workers, options
        self._product = product
        self._restart_limit = RestartLimit(options.restart, len(workers.shares))
        self._watch = Watch(workers, options, product.asked, self._changing, product.processes)
        self.next_s = self._watch.next_s
        self._events: deque[Event] = deque()
        self._killed: dict[int, Exception] = {}
        self._due: dict[int, float] = {}
        self._starting: set[int] = set()
        self._away: set[int] = set()
        self.questions = Questions(workers, self._away, keeps_values=options.restart is not None)
        self.deaths: list[deque[Exception]] = [deque(maxlen=MAX_DEATHS_KEPT) for _ in workers.shares]
        self.restarts = 0
        self.over = False

    def start(self, meanwhile: Callable[[], object] = lambda: None) -> list[Any]:
        """Start all workers, call a function meanwhile, wait for all, and return the message of each worker."""
        launch, timeout_s = self._product.launch(None), self._options.start_timeout_s
        try:
            self._ready = self.workers.start(launch, timeout_s, meanwhile)
        except WorkerTimeoutError as error:
            if not self._waits_for_a_host(error.worker):
                error.args = (f"{error} {shown_stack(self.workers, error.worker)}",)
            raise
        return self._ready

    def events(self, timeout_s: float) -> list[Event]:
        """Return the events, and wait for one up to the limit if there are none.

        Raises:
            RestartLimitError: A worker has died too often.
        """
        if not self._events:
            self._listen(timeout_s)
        return self.past_events()

    def past_events(self) -> list[Event]:
        """Return the events so far. The queue takes them before it gives a credit to a worker that may be lost."""
        return drained(self._events)

    def ask(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], weights: tuple[int, int] = NO_WEIGHTS
    ) -> dict[int, Any]:
        """Ask several workers a question, and wait for all answers. :attr:`questions` asks without waiting."""
        question = self.questions.begin(method, arguments, weights)
        try:
            while not self.questions.answered(question):
                self._listen(FOREVER_S)
        except BaseException:
            # After Ctrl-C the answers may still come, and must not be taken for answers to the next question.
            self.questions.forget(question)
            raise
        return self.questions.answers(question)

    def time_out(self, worker: int, limit: str) -> None:
        """Kill a worker that has not answered within a limit of the user."""
        if self._product.processes and worker not in self._away:
            self._kill(worker, timeout_error(self.workers, worker, limit))

    def close(self, timeout_s: float) -> None:
        """End all workers, by force after the limit. Idempotent."""
        if self.workers.closed:
            return
        try:
            self.workers.close(timeout_s)
        finally:
            # They refer to the session that has this, and would keep its memory until the next garbage collection.
            del self._product, self._watch

    def _listen(self, timeout_s: float) -> None:
        """Receive messages, start workers that are due, and kill workers that hang."""
        failure: Exception | None = None
        try:
            self.workers.listen(max(0.0, min(timeout_s, self.next_s - time.monotonic())))
        except Exception as error:
            failure = error
        except BaseException:
            # Ctrl-C may interrupt a worker in this process in the middle of a step, after which it cannot continue.
            self.over = self.over or not (self._product.processes or self.workers.placement.alive())
            raise
        finally:
            # Commits that came before an error are rollouts that the user must still get.
            self._take_commits()
        try:
            if failure is not None:
                self._failed(failure)
            now = time.monotonic()
            if self._due or self._starting:
                self._start_those_due(now)
            for worker, limit in self._watch.hung(now):
                self._late(worker, limit)
        finally:
            # Its traceback refers to this frame, and keeps the objects of all frames between.
            del failure
            self.next_s = min([self._watch.next_s, *self._due.values()])

    def _take_commits(self) -> None:
        commits = drained(self.workers.commits)
        self._events.extend(commits)

    def _failed(self, error: Exception) -> None:
        worker, operation = failing_worker(error)
        has_failed_again = worker in self._starting and operation == NOT_STARTED
        if isinstance(error, WorkerDiedError) or has_failed_again:
            # If this process has killed the worker, the reason of the kill explains more than SIGKILL.
            reason = self._killed.pop(worker, None)
            self._lost(worker, self._with_likely_cause(error) if reason is None else reason)
        elif self._product.processes and worker >= 0 and self._ends_only_its_worker(error, operation):
            self._kill(worker, error)
        else:
            gone = not self._product.processes and not self.workers.placement.alive()
            self.over = self.over or gone or (worker >= 0 and self.workers.is_done(worker))
            raise error

    def _ends_only_its_worker(self, error: Exception, operation: str) -> bool:
        """Return whether a restart of the worker can help, so that the user need not see the error."""
        if isinstance(error, ProtocolError | WorkerMemoryError):
            return True
        return self._options.on_env_error == "restart_worker" and operation in _IN_ENVIRONMENT

    def _with_likely_cause(self, error: Exception) -> Exception:
        limit = self._options.max_memory_bytes
        if limit is None or not isinstance(error, WorkerDiedError) or error.signal not in _CRASHES:
            return error
        return at_memory_limit(str(error), error.worker, error.pid, error.env_ids, error.doing, limit)

    def _kill(self, worker: int, reason: Exception) -> None:
        # The traceback is removed, because its frames would keep the memory of the pool. The first reason counts:
        # further errors of a worker that is being killed result from the kill.
        self._away.add(worker)
        self._killed.setdefault(worker, reason.with_traceback(None))
        self.workers.signal(worker, signal.SIGKILL, alone=False)

    def _lost(self, worker: int, error: Exception) -> None:
        lost = Lost(worker, error)
        is_excused = self._product.tell(lost) is True
        # Commits that arrived before the end are events before it.
        self._take_commits()
        # The loss of a host is not a fault of the worker, which waits for another host anyway.
        is_without_fault = (is_excused or isinstance(error, HostLostError)) and self._options.restart is not None
        wait_s = 0.0 if is_without_fault else self._restart_limit.died(worker, time.monotonic())
        deaths = self.deaths[worker]
        if wait_s is None:
            raise self._given_up(
                RestartLimitError(worker, self.workers.env_ids(worker), [*deaths, error]) if deaths else error
            )
        deaths.append(error.with_traceback(None))
        _log.warning("%s Worker %s is restarted.", str(error), worker)
        if worker not in self._starting:
            self._events.append(lost)
        self._starting.discard(worker)
        self._away.add(worker)
        self._due[worker] = time.monotonic() + wait_s
        self.questions.lost(worker, error)

    def _start_those_due(self, now: float) -> None:
        for worker in [worker for worker, due in self._due.items() if due <= now]:
            del self._due[worker]
            self._starting.add(worker)
            try:
                self.workers.restart(self._product.launch(worker), worker)
            except OSError as failure:
                # Processes, descriptors or memory are used up, which may change in a moment.
                self._lost(worker, not_started(worker, self.workers.env_ids(worker), str(failure)))
            except Exception as failure:
                raise self._given_up(self.deaths[worker].pop()) from failure
            else:
                self.restarts += 1
        for worker in list(self._starting):
            ready = self.workers.ready(worker)
            if ready is None or worker in self._killed:
                continue
            if not self.questions.is_restoring(worker):
                if not self._is_as_before(worker, ready):
                    continue
                for message in self._product.briefing(worker):
                    self.workers.say(worker, message)
            if (unset := self.questions.restored(worker)) is not None:
                self._starting.discard(worker)
                self._away.discard(worker)
                self._welcome(worker, unset)

    def _changing(self, worker: int) -> str:
        if worker in self._killed:
            return KILLED
        if worker not in self._starting or (self._product.await_hosts and self._waits_for_a_host(worker)):
            return ""
        return STARTING

    def _waits_for_a_host(self, worker: int) -> bool:
        return self.workers.doing(worker) == WAITING_FOR_A_HOST

    def _late(self, worker: int, limit: str) -> None:
        changing = self._changing(worker)
        if changing == KILLED:
            if not self.workers.expel(worker, f"it did not kill worker {worker}"):
                error = WorkerTimeoutError(
                    f"worker {worker} could not be killed, because the kernel did not end it. Kill it by hand.",
                    worker=worker,
                )
                raise self._given_up(error) from self._killed[worker]
        elif changing != STARTING:
            self.time_out(worker, limit)
        elif self._waits_for_a_host(worker):
            raise self._given_up(self._without_host(worker))
        else:
            self._kill(worker, timeout_error(self.workers, worker, limit))

    def _without_host(self, worker: int) -> WorkerTimeoutError:
        return WorkerTimeoutError(
            f"worker {worker} (env_ids {span(self.workers.env_ids(worker))}) must get a host within "
            f"start_timeout_s={self._options.start_timeout_s:g} s, but no host had room for it. Start another host, or "
            "raise WorkerOptions.start_timeout_s.",
            **self.workers.about(worker),
        )

    def _is_as_before(self, worker: int, ready: Ready | StepReady) -> bool:
        """Return whether a worker has the same spaces as before its restart. If not, end its host."""
        before = self._ready[worker]
        if pack([ready.spaces, ready.num_envs]) == pack([before.spaces, before.num_envs]):
            return True
        error = WorkerError(
            f"worker {worker} must have the same spaces after its restart, but its sub-environments have others. "
            "Make env_fn return the same spaces in each call.",
            worker=worker,
        )
        if not self.workers.expel(worker, f"worker {worker} has other spaces there than before", if_room=True):
            raise self._given_up(error)
        self._killed[worker] = error
        return False

    def _welcome(self, worker: int, unset: Mapping[int, Sequence[str]]) -> None:
        back = Back(worker, self.workers.generation(worker), unset)
        self._product.tell(back)
        self._events.append(back)
        self.questions.back(worker)

    def _given_up(self, error: Exception) -> Exception:
        self.over = True
        return error
