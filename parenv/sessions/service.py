"""The thread that owns the workers of a session pool, so that no event loop ever waits for them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import threading
import weakref
from collections.abc import Callable
from operator import methodcaller
from queue import Empty, SimpleQueue
from typing import Any

from gymnasium import Space

from parenv.crew.crew import Crew
from parenv.errors import PoolClosedError, shorten
from parenv.process.forks import Owner
from parenv.process.wake_up import WakeUp
from parenv.sessions.engine import Answer, Engine, Lease, Reply, settle
from parenv.sessions.plan import SessionPlan
from parenv.sessions.statistics import SessionStatistics

_log = logging.getLogger("parenv")
Command = Callable[[Any], object]
"""Request to an :class:`Engine`, or to :class:`_NotStarted`."""
EXIT_S = 70.0
"""Seconds that the thread may need to end all workers: a little longer than killing them may take."""


class _Line:
    """State that both sides of the thread share.

    Attributes:
        commands: Requests to the engine.
        started: Spaces of the environments, once all workers are ready, or the exception of the start.
        refusal: Exception for every further request, or ``None`` while the pool is open.
        crew: Crew of the workers, once it is made.
        finalizer: What closes the pool when it is garbage.
        statistics: Statistics of the engine, as of its last answers.
        is_notified: Whether the engine will look for requests without a further notification.
    """

    def __init__(self, plan: SessionPlan) -> None:
        # While a thread has the lock, garbage collection may end a session, and a signal handler may close the pool.
        self.lock = threading.RLock()
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self.wake_up = None if plan.inline else WakeUp()
        self.started: concurrent.futures.Future[tuple[Any, ...]] = concurrent.futures.Future()
        self.is_notified = False
        self.refusal: Exception | None = None
        self.crew: Crew | None = None
        self.finalizer: weakref.finalize[..., Any] | None = None
        self.statistics = SessionStatistics(num_envs=sum(plan.job.shares), free=sum(plan.job.shares))

    def submit(self, command: Command) -> bool:
        """Request something of the engine; return whether the pool is open."""
        with self.lock:
            if self.refusal is not None:
                return False
            self.commands.put(command)
            if self.wake_up is not None and not self.is_notified:
                self.wake_up.notify()
                # A signal handler may raise an exception here. It leaves one notification too many, and none too few.
                self.is_notified = True
            return True

    def take_notification(self) -> None:
        """Have the next request notify again. The caller looks for requests after this."""
        with self.lock:
            self.is_notified = False

    def take_crew(self, crew: Crew) -> None:
        """Note the crew, and end its start if the pool is closed already."""
        self.crew = crew
        if self.refusal is not None:
            crew.workers.stopped = _closed

    def fail(self, error: BaseException) -> None:
        """Pass the failure of the start on to the coroutines and threads that wait for the start."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.started.set_exception(error)

    def release(self) -> None:
        """Let go of everything, once the pool is closed. A session outlives the pool, and refers to this object."""
        with self.lock:
            self.crew, wake_up, self.wake_up = None, self.wake_up, None
            if wake_up is not None:
                wake_up.close()
        if self.finalizer is not None:
            # It keeps this object, whose refusal may refer to frames of the user, which may refer to the pool.
            self.finalizer.detach()

    def close(self, refusal: Exception) -> None:
        """Refuse further requests with an exception, and have the engine close the pool."""
        with self.lock:
            self.refusal = self.refusal or refusal
            if self.crew is not None:
                # A start in progress ends with the next look.
                self.crew.workers.stopped = _closed
            self.commands.put(lambda engine: None)
            if self.wake_up is not None:
                self.wake_up.notify()


class Service:
    """Passes requests of any thread to the engine in its own thread.

    Args:
        plan: Plan of the pool.
    """

    def __init__(self, plan: SessionPlan) -> None:
        self._owner, self._line = Owner("the pool"), _Line(plan)
        self._thread = threading.Thread(target=_serve, args=(plan, self._line), name="parenv sessions", daemon=True)
        # The thread knows neither this object nor the pool, so both can become garbage while it runs.
        self._line.finalizer = weakref.finalize(self, _end, self._owner, self._line, self._thread)
        self._thread.start()

    @property
    def started(self) -> concurrent.futures.Future[tuple[Any, ...]]:
        """Spaces of the environments, once all workers are ready, or the exception of the start."""
        return self._line.started

    @property
    def observation_space(self) -> Space[Any]:
        """Observation space of the environments. This waits until the workers are ready."""
        space: Space[Any] = self.started.result()[0]
        return space

    @property
    def action_space(self) -> Space[Any]:
        """Action space of the environments. This waits until the workers are ready."""
        space: Space[Any] = self.started.result()[1]
        return space

    @property
    def statistics(self) -> SessionStatistics:
        """Statistics, with everything that a session has been told."""
        return self._line.statistics

    def join(self, lease: Lease, reply: Reply) -> None:
        """Put a session at the end of the queue."""
        self._request(methodcaller("join", lease, reply))

    def ask(self, lease: Lease, operation: str, arguments: tuple[Any, ...], reply: Reply) -> None:
        """Request an operation of the environment of a session."""
        if lease.lost is not None:
            reply.settle(None, lease.lost)
            return
        # A closure would be six objects for the garbage collector, whose time grows with the sessions that wait.
        self._request(methodcaller("ask", lease, operation, arguments, reply))

    def end(self, lease: Lease, reply: Reply | None = None) -> bool:
        """End a session; return whether the reply will be settled. This never waits and never raises."""
        return self._owner.is_here and self._line.submit(methodcaller("end", lease, reply))

    def close(self, wait: bool = True) -> None:
        """Close the pool; with ``wait``, return when all workers have ended. Idempotent."""
        if wait:
            _end(self._owner, self._line, self._thread)
        elif self._owner.is_here:
            self._line.close(_closed())

    def _request(self, command: Command) -> None:
        if refusal := self._owner.refusal:
            raise PoolClosedError(refusal)
        if not self._line.submit(command):
            assert self._line.refusal is not None
            raise PoolClosedError(str(self._line.refusal)) from self._line.refusal.__cause__


def _closed() -> PoolClosedError:
    return PoolClosedError("the pool is closed")


def _end(owner: Owner, line: _Line, thread: threading.Thread) -> None:
    """Close a pool, and wait until all workers have ended."""
    if owner.is_here:
        line.close(_closed())
        # If a signal handler interrupts this thread while it has the lock, the thread of the pool cannot end before the
        # handler does. The next close waits. An RLock stores its thread in the same step that takes it.
        if threading.current_thread() is not thread and not line.lock._is_owned():  # type: ignore[attr-defined]
            thread.join(EXIT_S)


def _serve(plan: SessionPlan, line: _Line) -> None:
    """Run the engine until the pool is closed, or until it cannot continue."""
    try:
        engine = Engine(plan, line.wake_up, line.take_crew)
    except BaseException as error:
        shorten(error)
        line.close(_broken(error))
        line.release()
        line.fail(error)
        _run_commands(_NotStarted(line), line)
        return
    try:
        # A task that waited for the start may have been cancelled, which cancels the future.
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            line.started.set_result(engine.spaces)
        while line.refusal is None:
            _run_commands(engine, line)
            engine.assign()
            line.statistics = engine.statistics()
            engine.deliver()
            engine.listen()
    except Exception as error:
        if line.refusal is None:
            shorten(error)
            _log.error("the session pool cannot continue: %s", str(error))
            line.close(_broken(error))
    finally:
        line.close(_closed())
        # Sessions that were ended before the close count as ended.
        _run_commands(engine, line)
        engine.end_all(line.refusal or _closed())
        line.statistics = engine.statistics()
        engine.deliver()
        engine.close()
        line.statistics = engine.statistics()
        line.release()


class _NotStarted:
    """Refuses the requests that came before the start failed.

    Args:
        line: State that both sides of the thread share.
    """

    patience_s = 0.0

    def __init__(self, line: _Line) -> None:
        self._line = line

    def join(self, lease: Lease, reply: Reply) -> None:
        """Refuse a session."""
        settle([Answer(reply, None, self._line.refusal)])

    def ask(self, lease: Lease, operation: str, arguments: tuple[Any, ...], reply: Reply) -> None:
        """Refuse an operation."""
        settle([Answer(reply, None, self._line.refusal)])

    def end(self, lease: Lease, reply: Reply | None = None) -> None:
        """Only answer, because no session has an environment."""
        if reply is not None:
            settle([Answer(reply, None, None)])


def _run_commands(engine: Engine | _NotStarted, line: _Line) -> None:
    """Do what other threads have requested; wait for a request if the environments are in this process and idle."""
    patience_s = 0.0 if line.wake_up is not None or line.refusal is not None else engine.patience_s
    line.take_notification()
    try:
        line.commands.get(timeout=patience_s)(engine) if patience_s else None
        while True:
            line.commands.get_nowait()(engine)
    except Empty:
        pass


def _broken(error: BaseException) -> PoolClosedError:
    closed = PoolClosedError(f"the pool is closed, because it could not continue: {error}")
    closed.__cause__ = error
    return closed
