"""The workers of a session pool, and what each of their environments does. One thread uses it, see ``service.py``."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import math
import reprlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from gymnasium.error import ResetNeeded

from parenv.crew.crew import Crew
from parenv.crew.events import Back, Event, Lost
from parenv.crew.failures import ended_by
from parenv.crew.launch import start_workers
from parenv.crew.open_call import OpenCall
from parenv.crew.stacks import without_stack
from parenv.crew.watchdog import Watchdog
from parenv.crew.workers import FOREVER_S
from parenv.envs.seeding import session_seed
from parenv.errors import ParenvError, SessionLostError
from parenv.memory.shared import SharedMemory
from parenv.memory.spaces import rebuild
from parenv.memory.status_slot import header_bytes
from parenv.memory.trays import Tray, tray_bytes
from parenv.process.user_code import dumps
from parenv.process.wake_up import WakeUp
from parenv.protocol.messages import Failure
from parenv.sessions.leases import Leases
from parenv.sessions.plan import SessionPlan
from parenv.sessions.statistics import SessionStatistics

_log = logging.getLogger("parenv")
LEASE_OVER, POOL_CLOSED = "lease_over", "pool_closed"


class Reply(Protocol):
    """Receiver of the answer to a request."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Event loop in whose thread it takes the answer, or ``None`` for any thread."""

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Take the answer."""


@dataclass(eq=False)
class Lease:
    """A session, as the thread of the workers sees it.

    Args:
        number: Number of the session.
        task: Object by which the user knows it.
        seed: Seed of the first reset, or ``None`` for the seed of the number.
        options: Options of the first reset, or ``None``.
        lease_s: Seconds for which it may have an environment, or ``None``.

    Attributes:
        env: Index of its environment, or ``None``.
        asked_s: Time at which it has asked.
        has_begun: Whether it has requested an operation.
        has_reset: Whether it has requested a reset.
        lost: Exception for every further request, or ``None``.
        is_over: Whether it has ended.
    """

    number: int
    task: Any
    seed: int | None
    options: Any
    lease_s: float | None
    env: int | None = None
    asked_s: float = 0.0
    has_begun: bool = False
    has_reset: bool = False
    lost: Exception | None = None
    is_over: bool = False
    reply: Reply | None = None


class Answer(NamedTuple):
    """An answer, who gets it, and the session that ends if its event loop is closed."""

    reply: Reply
    value: Any
    error: BaseException | None
    lease: Lease | None = None


class Asked(NamedTuple):
    """A request to an environment: the operation, its arguments, and who gets the answer."""

    operation: str
    arguments: tuple[Any, ...]
    reply: Reply


class ResetAhead:
    """A reset for a session that has not requested it yet, see :class:`Reply`.

    Args:
        seed: Seed of the reset.
        options: Options of the reset.

    Attributes:
        answer: Answer of the environment, or ``None`` before it.
        reply: Receiver of the answer, once a session has requested it.
    """

    loop = None

    def __init__(self, seed: int, options: Any) -> None:
        self._arguments = seed, options
        self.answer: tuple[Any, BaseException | None] | None = None
        self.reply: Reply | None = None

    def fits(self, seed: int, options: Any) -> bool:
        """Return whether it is the reset that a session requests now."""
        known, known_options = self._arguments
        if seed != known or (options is None) != (known_options is None):
            return False
        return options is None or dumps(options) == dumps(known_options)

    @property
    def has_failed(self) -> bool:
        """True if the environment has raised an exception."""
        return self.answer is not None and self.answer[1] is not None

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Take the answer of the environment, for the session that requests it later."""
        self.answer = value, error


@dataclass(eq=False)
class LeasableEnv:
    """An environment.

    Args:
        worker: Worker that has it.
        row: Its index there.
        heard: Function that notes that it has answered.
        tray: Memory for large arrays of its answers.

    Attributes:
        lease: Session that has it, or ``None``.
        asked: Requests to it. The first one is in progress.
        call: Call of the first one.
        began_s: Time at which the first one was sent.
        ahead: Reset for the next session, or ``None``.
        has_served: Whether its present process has done something for a session.
    """

    worker: int
    row: int
    heard: Callable[[], object]
    tray: Tray = field(default_factory=Tray)
    lease: Lease | None = None
    asked: deque[Asked] = field(default_factory=deque)
    call: OpenCall | None = None
    began_s: float = 0.0
    ahead: ResetAhead | None = None
    has_served: bool = False


class Engine:
    """Starts the workers, leases their environments to sessions, and passes requests and answers on.

    Args:
        plan: Plan of the pool.
        wake_up: Wake-up that ends a wait, or ``None`` if the environments are in this process.
        made: Function that gets the crew before any worker starts.

    Attributes:
        spaces: Observation and action space.
    """

    def __init__(self, plan: SessionPlan, wake_up: WakeUp | None, made: Callable[[Crew], object]) -> None:
        self._plan, job = plan, plan.job
        self._leases = Leases(plan.num_envs, plan.reset_ahead)
        self._answered: deque[int] = deque()
        places = [(worker, row) for worker, share in enumerate(job.shares) for row in range(share)]
        self._envs = [
            LeasableEnv(worker, row, partial(self._answered.append, i)) for i, (worker, row) in enumerate(places)
        ]
        self._deadlines: list[tuple[float, int]] = []
        self._outbox: list[Answer] = []
        self._known: dict[int, Lease] = {}
        limits = plan.options.step_timeout_s, plan.options.reset_timeout_s
        self._watchdog = Watchdog(len(self._envs), min([FOREVER_S, *(limit for limit in limits if limit)]))
        self._next_look_s = -math.inf
        self._counts: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._seconds = {"waiting": 0.0, "reset": 0.0, "step": 0.0}
        is_shared, head_bytes = plan.placement is None and not plan.inline, header_bytes(len(job.shares))
        with contextlib.ExitStack() as stack:
            memory = SharedMemory(head_bytes)
            stack.callback(memory.close)

            def prepare(crew: Crew) -> None:
                if wake_up is not None:
                    crew.workers.placement.notified_by(wake_up)
                made(crew)

            self._crew = start_workers(
                stack,
                job,
                {"env_fn": job.factories},
                memory,
                inline=plan.inline,
                placement=plan.placement,
                hear=self._hear,
                made=prepare,
                # The memory of a host, or of this process, is not shared.
                tray_bytes=lambda ready: tray_bytes(rebuild(ready.spaces[0])) if is_shared else 0,
            )
            self._closing = stack.pop_all()
        if size := (memory.size - head_bytes) // len(self._envs):
            trays = memoryview(memory.map())[head_bytes:]
            for index, env in enumerate(self._envs):
                env.tray = Tray(trays[index * size :][:size])
        ready: Any = self._crew.workers.ready(0)
        self.spaces = tuple(map(rebuild, ready.spaces))

    @property
    def patience_s(self) -> float:
        """Seconds until the next time limit, or 0 if work is left. It is for environments in this process."""
        if self._outbox or any(env.asked for env in self._envs):
            return 0.0
        return max(0.0, self._deadlines[0][0] - time.monotonic()) if self._deadlines else FOREVER_S

    def join(self, lease: Lease, reply: Reply) -> None:
        """Put a session at the end of the queue. The reply is settled when it has an environment."""
        if lease.is_over or lease.lost is not None or lease.number in self._known:
            self._tell(reply, None, ParenvError(f"session {lease.number} has begun before. Make another one."))
            return
        lease.reply, lease.asked_s = reply, time.monotonic()
        self._known[lease.number] = lease
        self._counts["begun"] += 1
        self._leases.ask(lease.number)

    def ask(self, lease: Lease, operation: str, arguments: tuple[Any, ...], reply: Reply) -> None:
        """Request an operation of the environment of a session."""
        if lease.env is None or lease.lost is not None:
            self._tell(reply, None, lease.lost or _without_env(lease))
            return
        env, is_first, lease.has_begun = self._envs[lease.env], not lease.has_begun, True
        if operation == "reset":
            arguments = self._reset_arguments(lease, *arguments)
            lease.has_reset = True
        elif operation == "step" and not lease.has_reset:
            self._tell(reply, None, ResetNeeded("a session must reset its environment before it steps it"))
            return
        ahead, env.ahead = env.ahead, None
        if ahead is not None:
            if is_first and operation == "reset" and ahead.fits(*arguments):
                self._counts["resets_ahead"] += 1
                lease.has_reset = not ahead.has_failed
                ahead.reply = reply
                if ahead.answer is not None:
                    self._tell(reply, *ahead.answer, lease)
                return
            self._counts["wasted_resets"] += 1
        self._put(lease.env, Asked(operation, arguments, reply))

    def end(self, lease: Lease, reply: Reply | None = None) -> None:
        """End a session, however it ends. Its environment is free when it has finished what it does. Idempotent."""
        if reply is not None:
            self._tell(reply, None, None)
        if lease.is_over:
            return
        lease.is_over, lease.reply = True, None
        if self._known.pop(lease.number, None) is not None:
            self._counts["ended"] += 1
            self._release(lease)

    def deliver(self) -> None:
        """Pass all answers on, in their order. The statistics count what they tell already."""
        while self._outbox:
            answers, self._outbox = self._outbox, []
            for answer in settle(answers):
                if answer.lease is not None:
                    # The event loop of the session is closed, so the session cannot end itself.
                    self.end(answer.lease)

    def listen(self) -> None:
        """Wait for workers, for a request of another thread or for a time limit, and handle what has happened.

        Raises:
            Exception: A worker has ended and is not replaced, so the pool cannot continue.
        """
        next_s = min(self._next_look_s, self._deadlines[0][0] if self._deadlines else math.inf)
        if not self._answered:
            self._crew.listen(max(0.0, min(FOREVER_S, next_s - time.monotonic())))
        # Before the answers: in this process, nothing but the answer ends the wait for a step.
        self._check_times(time.monotonic())
        while self._answered:
            self._take(self._answered.popleft())

    def statistics(self) -> SessionStatistics:
        """Return the statistics so far."""
        states, counts = self._leases.counts, self._counts
        return SessionStatistics(
            num_envs=len(self._envs),
            **states,
            **{name: counts[name] for name in ("begun", "ended", "resets_ahead", "wasted_resets", "operations")},
            lost=dict(self._lost),
            worker_restarts=self._crew.restarts,
            waiting_seconds=self._seconds["waiting"],
            reset_seconds=self._seconds["reset"],
            step_seconds=self._seconds["step"],
        )

    def end_all(self, refusal: Exception) -> None:
        """End all sessions.

        Args:
            refusal: Exception for sessions that wait. Its cause is the error after which the pool cannot continue.
        """
        for lease in list(self._known.values()):
            if lease.env is None:
                if lease.reply is not None:
                    self._tell(lease.reply, None, refusal)
                self._lost[POOL_CLOSED] += 1
                self._leases.end(lease.number, is_busy=False)
                del self._known[lease.number]
            else:
                self._lose(lease, POOL_CLOSED, str(refusal), refusal.__cause__)

    def close(self) -> None:
        """End all workers."""
        self._closing.close()

    def _tell(self, reply: Reply, value: Any, error: BaseException | None, lease: Lease | None = None) -> None:
        """Have an answer delivered, to a session that ends if its event loop is closed."""
        if isinstance(reply, ResetAhead):
            reply.settle(value, error)
            if reply.reply is None:
                return
            reply = reply.reply
        self._outbox.append(Answer(reply, value, error, lease))

    def _reset_arguments(self, lease: Lease, seed: int | None, options: Any) -> tuple[Any, Any]:
        if not lease.has_reset:
            # The defaults of a session are for its first reset. Later ones continue the random numbers of the first.
            seed = self._seed_of(lease.number) if seed is None else seed
            options = lease.options if options is None else options
        return seed, options

    def _seed_of(self, number: int) -> int:
        lease = self._known.get(number)
        if lease is not None and lease.seed is not None:
            return lease.seed
        return session_seed(self._plan.job.seed, number)

    def assign(self) -> None:
        """Give environments to the sessions that wait, and reset others ahead."""
        for number, env, _ in self._leases.grants():
            lease, now = self._known[number], time.monotonic()
            lease.env, self._envs[env].lease = env, lease
            self._seconds["waiting"] += now - lease.asked_s
            if lease.lease_s is not None:
                heapq.heappush(self._deadlines, (now + lease.lease_s, number))
            if lease.reply is not None:
                self._tell(lease.reply, None, None, lease)
        if not self._plan.reset_ahead:
            return
        for env, number in self._leases.resets_ahead():
            known = self._known.get(number)
            seed, options = self._seed_of(number), None if known is None else known.options
            if self._envs[env].ahead is not None:
                self._counts["wasted_resets"] += 1
            ahead = self._envs[env].ahead = ResetAhead(seed, options)
            self._put(env, Asked("reset", (seed, options), ahead))

    def _put(self, index: int, asked: Asked) -> None:
        env = self._envs[index]
        env.asked.append(asked)
        if len(env.asked) == 1:
            self._send(index)

    def _send(self, index: int) -> None:
        """Send the first request of an environment that can be sent."""
        env = self._envs[index]
        while env.asked:
            asked = env.asked[0]
            try:
                arguments = env.row, asked.operation, *asked.arguments
                env.call = self._crew.calls.begin("session", {env.worker: arguments}, heard=env.heard)
            except Exception as error:  # The arguments cannot be pickled.
                env.asked.popleft()
                self._tell(asked.reply, None, error)
            else:
                env.began_s = time.monotonic()
                return

    def _take(self, index: int) -> None:
        """Take the answer of an environment, and go on with its next request."""
        env = self._envs[index]
        if env.call is None or not env.call.is_answered:
            return
        call, env.call, asked = env.call, None, env.asked.popleft()
        value, error = self._answer_to(call, env)
        self._counts["operations"] += 1
        if asked.operation in self._seconds:
            self._seconds[asked.operation] += time.monotonic() - env.began_s
        if error is not None and asked.operation == "reset" and env.lease is not None:
            # The environment must be reset again, with the seed of the first reset.
            env.lease.has_reset = False
        env.has_served = env.has_served or env.lease is not None
        self._tell(asked.reply, value, error, env.lease)
        self._send(index)
        if not env.asked:
            self._leases.idle(index)

    def _answer_to(self, call: OpenCall, env: LeasableEnv) -> tuple[Any, BaseException | None]:
        try:
            answer = self._crew.calls.take(call)[env.worker]
        except Exception as error:  # The worker could not read the arguments, for example.
            return None, error
        if isinstance(answer, Mapping):
            return None, self._crew.workers.error_of(Failure(*answer["failure"]), env.worker)
        placed, value, *rest = answer
        return [env.tray.take(value, placed), *rest], None

    def _release(self, lease: Lease) -> None:
        """Take the environment of a session back, with the requests that are not sent yet."""
        env = None if lease.env is None else self._envs[lease.env]
        if env is not None:
            while len(env.asked) > 1:
                # A thread may still wait for the answer to a request of a session that another thread has ended.
                self._tell(env.asked.pop().reply, None, _without_env(lease))
            if env.ahead is not None:
                self._counts["wasted_resets"] += 1
            env.lease = env.ahead = None
        self._leases.end(lease.number, is_busy=env is not None and bool(env.asked))
        lease.env = None

    def _lose(self, lease: Lease, reason: str, why: str, cause: BaseException | None = None) -> None:
        """Tell a session that it has lost its environment."""
        named = "" if lease.task is None else f" (task {reprlib.repr(lease.task)})"
        error = SessionLostError(f"session {lease.number}{named} has lost its environment: {why}")
        error.session, error.reason, error.__cause__ = lease.number, reason, cause
        lease.lost = error
        del self._known[lease.number]
        self._lost[reason] += 1
        if reason != POOL_CLOSED:
            # The crew logs the stack of a process that hangs, once for all its sessions.
            _log.warning("%s", without_stack(str(error)))
        for asked in () if lease.env is None else self._envs[lease.env].asked:
            self._tell(asked.reply, None, error)
        self._release(lease)

    def _hear(self, event: Event) -> bool:
        """Note the environments that are lost with a worker or are back; return whether the loss is excused.

        It is excused if a session has used the process, because a pool must survive what its sessions do. A process
        that dies before that dies in a circle.
        """
        assert isinstance(event, Lost | Back)
        mine = self._crew.workers.env_ids(event.worker)
        if isinstance(event, Back):
            for index in mine:
                self._leases.back(index)
            return False
        is_excused = False
        for index in mine:
            env = self._envs[index]
            is_excused, env.has_served = is_excused or env.has_served or env.lease is not None, False
            if env.call is not None:
                self._crew.calls.forget(env.call)
                env.call = None
            self._leases.lost(index)
            if env.lease is not None:
                self._lose(env.lease, ended_by(event.reason), str(event.reason), event.reason)
            env.asked.clear()
            env.ahead = env.lease = None
        return is_excused

    def _check_times(self, now: float) -> None:
        """End leases that are over, and kill workers whose environment exceeds a time limit."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            lease = self._known.get(number)
            if lease is not None:
                self._lose(lease, LEASE_OVER, f"lease_s={lease.lease_s:g} s are over")
        if now < self._next_look_s:
            return
        self._next_look_s = now + self._watchdog.interval_s
        for index, env in enumerate(self._envs):
            is_reset = bool(env.asked) and env.asked[0].operation == "reset"
            limit_s = self._plan.options.reset_timeout_s if is_reset else self._plan.options.step_timeout_s
            limit_s = math.inf if limit_s is None or env.call is None else limit_s
            if self._watchdog.look(index, now, env.call, limit_s):
                self._crew.time_out(env.worker, f"{'reset' if is_reset else 'step'}_timeout_s={limit_s:g}")


def settle(answers: Iterable[Answer]) -> Sequence[Answer]:
    """Pass answers on in their order, from any thread; return those whose event loop is closed."""
    # An event loop is woken up through a pipe. That takes longer than an answer does, so it gets all of them at once.
    of_loops: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
    for answer in answers:
        if answer.reply.loop is None:
            answer.reply.settle(answer.value, answer.error)
        else:
            of_loops.setdefault(answer.reply.loop, []).append(answer)
    not_settled: list[Answer] = []
    for loop, its_answers in of_loops.items():
        try:
            loop.call_soon_threadsafe(_settle_here, its_answers)
        except RuntimeError:  # The event loop is closed.
            not_settled += its_answers
    return not_settled


def _settle_here(answers: Iterable[Answer]) -> None:
    for answer in answers:
        answer.reply.settle(answer.value, answer.error)


def _without_env(lease: Lease) -> ParenvError:
    if lease.is_over:
        return ParenvError(f"session {lease.number} has ended. Begin another one.")
    return ParenvError(f"session {lease.number} has no environment yet. Use it in a with block.")
