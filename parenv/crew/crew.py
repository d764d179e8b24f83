"""The crew: workers of which each one that dies, hangs or fails is replaced."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from parenv.crew.calls import Calls
from parenv.crew.events import Back, Event
from parenv.crew.failures import NOT_STARTED, at_memory_limit, failing_worker, not_started
from parenv.crew.open_call import NO_WEIGHTS
from parenv.crew.restarts import Restarts
from parenv.crew.stacks import shown_stack, timeout_error
from parenv.crew.watch import KILLED, STARTING, Watch
from parenv.crew.workers import FOREVER_S, Workers
from parenv.errors import (
    HostLostError,
    ProtocolError,
    WorkerDiedError,
    WorkerError,
    WorkerMemoryError,
    WorkerTimeoutError,
    signal_name,
    span,
)
from parenv.memory.status_slot import WAITING_FOR_A_HOST
from parenv.options import WorkerOptions
from parenv.placement.base import Launch
from parenv.platform import system
from parenv.protocol.data import pack
from parenv.protocol.messages import Message, Ready, StepReady

_CRASHES = {"SIGABRT", "SIGBUS", "SIGSEGV"}
_IN_ENVIRONMENT = {"step", "reset", "making the environment"}
_log = logging.getLogger("parenv")


class Product(NamedTuple):
    """Part of the supervision that differs between pools, vector envs, populations and evaluations.

    Args:
        briefing: Function of a worker that returns the first messages for its process.
        hear: Function that receives every event at once, in the order of the events. It receives a loss before the next
            process starts, and a return after the briefing. If it returns ``True`` for a loss, the restart neither
            waits nor counts.
        asked: Function of a worker that returns a value that changes with every answer to a request by wake-up, or
            ``None`` if no answer is due.
    """

    briefing: Callable[[int], Iterable[Message]]
    hear: Callable[[Event], object]
    asked: Callable[[int], object] = lambda worker: None


_NOT_SERVING = Product(lambda worker: (), lambda event: None)


class Crew:
    """Starts workers, and replaces each that has ended, up to a limit. It kills workers that hang or fail.

    Args:
        workers: Workers, which are not started yet.
        options: Options of the workers, with their limits.
        launch: Function of a worker that returns the launch of its new process, and of ``None`` the launch of all.
        processes: Whether the workers are processes, which can be killed.
        await_hosts: Whether a worker that is restarted waits for a host without a limit.

    Attributes:
        calls: Calls to workers.
        next_s: Time on the monotonic clock at which :meth:`listen` must be called even if nothing happens.
        restarts: Number of restarts.
        over: Whether a worker has ended or given up and will not be replaced.
    """

    def __init__(
        self,
        workers: Workers,
        options: WorkerOptions,
        launch: Callable[[int | None], Launch],
        *,
        processes: bool = True,
        await_hosts: bool = True,
    ) -> None:
        self.workers, self._options, self._launch = workers, options, launch
        self._processes, self._await_hosts = processes, await_hosts
        self._product = _NOT_SERVING
        self._restarts = Restarts(options.restart, len(workers.shares))
        self._watch = Watch(workers, options, processes)
        self.next_s = self._watch.next_s
        self.calls = Calls(workers, self._restarts.away, keeps_values=options.restart is not None)
        self.restarts = 0
        self.over = False

    def start(self, meanwhile: Callable[[], object] = lambda: None) -> list[Any]:
        """Start all workers, call a function meanwhile, wait for all, and return the message of each worker."""
        launch, timeout_s = self._launch(None), self._options.start_timeout_s
        try:
            self._ready = self.workers.start(launch, timeout_s, meanwhile)
        except WorkerTimeoutError as error:
            if not self._waits_for_a_host(error.worker):
                error.args = (f"{error} {shown_stack(self.workers, error.worker)}",)
            raise
        return self._ready

    def serve(self, product: Product) -> None:
        """Brief the workers, which have started, and replace from now on those that are lost."""
        self._product = product
        for worker in range(len(self.workers.shares)):
            self._brief(worker)

    def ask(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], weights: tuple[int, int] = NO_WEIGHTS
    ) -> dict[int, Any]:
        """Call a method of several workers, and wait for all answers. :attr:`calls` calls without waiting."""
        call = self.calls.begin(method, arguments, weights)
        try:
            while not call.is_answered:
                self.listen(FOREVER_S)
        except BaseException:
            # After Ctrl-C the answers may still come, and must not be taken for answers to the next call.
            self.calls.forget(call)
            raise
        return self.calls.take(call)

    def listen(self, timeout_s: float) -> None:
        """Receive messages, and wait for one up to the limit. Start workers that are due, kill workers that hang.

        Raises:
            RestartLimitError: A worker has died too often.
        """
        failure: Exception | None = None
        try:
            self.workers.listen(max(0.0, min(timeout_s, self.next_s - time.monotonic())), self._product.hear)
        except Exception as error:
            failure = error
        except BaseException:
            # Ctrl-C may interrupt a worker in this process in the middle of a step, after which it cannot continue.
            self.over = self.over or not (self._processes or self.workers.placement.alive())
            raise
        try:
            if failure is not None:
                self._failed(failure)
            now = time.monotonic()
            if self._restarts.away:
                self._start_those_due(now)
            for worker, limit in self._watch.hung(now, self._product.asked, self._changing):
                self._late(worker, limit)
        finally:
            # Its traceback refers to this frame, and keeps the objects of all frames between.
            del failure
            self.next_s = self._watch.next_s
            if self._restarts.away:
                self.next_s = min(self.next_s, self._restarts.next_s)

    def time_out(self, worker: int, limit: str) -> None:
        """Kill a worker that has not answered within a limit of the user."""
        if self._processes and worker not in self._restarts.away:
            self._kill(worker, timeout_error(self.workers, worker, limit))

    def close(self, timeout_s: float) -> None:
        """End all workers, by force after the limit. Idempotent."""
        if self.workers.closed:
            return
        try:
            self.workers.close(timeout_s)
        finally:
            # They refer to the session that has this, and would keep its memory until the next garbage collection.
            self._product = _NOT_SERVING
            del self._launch

    def _brief(self, worker: int) -> None:
        for message in self._product.briefing(worker):
            self.workers.say(worker, message)

    def _failed(self, error: Exception) -> None:
        worker, operation = failing_worker(error)
        has_failed_again = worker in self._restarts.starting and operation == NOT_STARTED
        if isinstance(error, WorkerDiedError) or has_failed_again:
            self._lost(worker, self._with_likely_cause(error))
        elif self._processes and worker >= 0 and self._ends_only_its_worker(error, operation):
            # It counts as lost only when its process has ended: until then, it could still write into its slot.
            self._kill(worker, error)
        else:
            gone = not self._processes and not self.workers.placement.alive()
            self.over = self.over or gone or (worker >= 0 and self.workers.is_done(worker))
            raise error

    def _ends_only_its_worker(self, error: Exception, operation: str) -> bool:
        """Return whether a restart of the worker can help, so that the user need not see the error."""
        if isinstance(error, ProtocolError | WorkerMemoryError):
            return True
        return self._options.on_env_error == "restart_worker" and operation in _IN_ENVIRONMENT

    def _with_likely_cause(self, error: Exception) -> Exception:
        limit = self._options.max_memory_bytes
        if limit is None or not isinstance(error, WorkerDiedError) or error.signal is None:
            return error
        if signal_name(error.signal) not in _CRASHES:
            return error
        return at_memory_limit(str(error), error.worker, error.pid, error.env_ids, error.doing, limit)

    def _kill(self, worker: int, reason: Exception) -> None:
        self._restarts.kill(worker, reason)
        self.workers.signal(worker, system.KILL_SIGNAL, alone=False)

    def _lost(self, worker: int, error: Exception) -> None:
        lost = self._restarts.ended(worker, error)
        # The product may read the status slot of the worker, which names the environment at work. The next process
        # overwrites it, so the product hears of the loss before a start is possible.
        is_excused = self._product.hear(lost) is True
        # The loss of a host is not a fault of the worker, which waits for another host anyway.
        is_excused = is_excused or isinstance(lost.reason, HostLostError)
        refusal = self._restarts.replace(lost, time.monotonic(), is_excused, self.workers.env_ids(worker))
        if refusal is not None:
            raise self._given_up(refusal)
        _log.warning("%s Worker %s is restarted.", str(lost.reason), worker)
        self.calls.lost(worker, lost.reason)

    def _start_those_due(self, now: float) -> None:
        for worker in self._restarts.begin_due(now):
            try:
                self.workers.restart(self._launch(worker), worker)
            except OSError as failure:
                # Processes, descriptors or memory are used up, which may change in a moment.
                self._lost(worker, not_started(worker, self.workers.env_ids(worker), str(failure)))
            except Exception as failure:
                raise self._given_up(self._restarts.deaths[worker].pop()) from failure
            else:
                self.restarts += 1
        for worker in list(self._restarts.starting):
            ready = self.workers.ready(worker)
            if ready is None or worker in self._restarts.killed:
                continue
            if not self.calls.is_restoring(worker):
                # A worker refuses calls before its layout, so the briefing comes before the values that it had.
                if not self._is_as_before(worker, ready):
                    continue
                self._brief(worker)
            if (unset := self.calls.restored(worker)) is not None:
                self._restarts.back(worker)
                # A vector env prepares the rows of the worker first, because the answer to a repeated reset writes the
                # same numbers. If the call went first, the worker could answer before the rows are prepared.
                self._product.hear(Back(worker, self.workers.generation(worker), unset))
                self.calls.back(worker)

    def _changing(self, worker: int) -> str:
        if worker in self._restarts.killed:
            return KILLED
        is_starting = worker in self._restarts.starting
        if not is_starting or (self._await_hosts and self._waits_for_a_host(worker)):
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
                raise self._given_up(error) from self._restarts.killed[worker]
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
        self._restarts.kill(worker, error)
        return False

    def _given_up(self, error: Exception) -> Exception:
        self.over = True
        return error
