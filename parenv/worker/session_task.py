"""The task of a worker whose environments are leased by sessions.

An environment that computes is called in the main thread of a worker of its own. Several environments of one worker
have a thread each, and environments whose ``step`` is a coroutine share one event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from gymnasium.error import ResetNeeded

from parenv.envs.make import check_is_env
from parenv.envs.returned import NOTHING, check_flags, explain_step, reset_result
from parenv.memory.spaces import describe
from parenv.memory.status_slot import StatusSlot
from parenv.memory.trays import Tray
from parenv.placement.base import drained
from parenv.process.wake_up import WakeUp
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Layout, Ready
from parenv.protocol.plain import as_data, plain_info
from parenv.worker.failures import as_answer, failure_of
from parenv.worker.job import SessionJob
from parenv.worker.task import ENV_METHODS, Pending, PendingAnswers, Task, TaskOutput

CLOSE_TIMEOUT_S = 5.0
T = TypeVar("T")
_PLAIN = (str, bytes, int, float, bool, type(None))


class LeasedEnv:
    """One environment, and the operations that a session can request.

    Args:
        make: Function that makes the environment, and makes it again after it has raised.
        env_id: Index of the environment in the whole pool.
        status: Status slot of the worker.

    Attributes:
        tray: Memory for large arrays of answers.
    """

    def __init__(self, make: Callable[[], Any], env_id: int, status: StatusSlot) -> None:
        self._make, self._env_id, self._status = make, env_id, status
        self.tray = Tray()
        self._is_broken = False
        self.env = self._made()

    @property
    def has_coroutines(self) -> bool:
        """True if ``step`` and ``reset`` are coroutines, which an event loop must run."""
        env = self.env.unwrapped
        return inspect.iscoroutinefunction(env.step) and inspect.iscoroutinefunction(env.reset)

    async def do(self, operation: str, *arguments: Any) -> Any:
        """Do an operation; return a list as the answer, or a dict with the exception if the environment has raised one.

        An environment without coroutines never suspends this method, see :func:`finished`.
        """
        try:
            return await getattr(self, f"_{operation}")(*arguments)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            # The state after a failed step or reset is unknown, so the next reset gets a new environment.
            self._is_broken = self._is_broken or operation in ("reset", "step")
            doing = {"step": "step", "reset": "reset"}.get(operation, "call")
            return as_answer(failure_of(error, doing, self._env_id))

    async def close(self) -> None:
        """Close the environment, whose ``close`` may be a coroutine too."""
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await _awaited(self.env.close())

    async def _reset(self, seed: int | None, options: Any) -> list[Any]:
        if self._is_broken:
            await self.close()
            self.env, self._is_broken = self._made(), False
        self._status.begin("reset", self._env_id)
        more = {} if options is None else {"options": options}
        observation, info = reset_result(await _awaited(self.env.reset(seed=seed, **more)))
        return [*self._in_tray(observation), plain_info(info)[0]]

    async def _step(self, action: Any) -> list[Any]:
        if self._is_broken:
            raise ResetNeeded("the environment has raised an exception, so it must be reset before it can be stepped")
        self._status.begin("step", self._env_id)
        returned: Any = NOTHING
        try:
            returned = await _awaited(self.env.step(action))
            observation, reward, terminated, truncated, info = returned
            reward = float(reward)
            check_flags((terminated, truncated))
        except Exception as error:
            explain_step(error, returned, self._env_id)
            raise
        return [*self._in_tray(observation), reward, bool(terminated), bool(truncated), plain_info(info)[0]]

    async def _call(self, method: str, *arguments: Any) -> list[Any]:
        self._status.begin("call", self._env_id)
        return self._in_tray(await _awaited(ENV_METHODS[method](self.env, 0, *arguments)))

    def _in_tray(self, value: Any) -> list[Any]:
        """Return where the large arrays of a value are, and the rest of it as plain data."""
        # Arrays that go in the tray are not encoded, so this comes first.
        rest, placed = self.tray.put(value)
        return [placed, _plain(rest)]

    def _made(self) -> Any:
        self._status.begin("making the environment", self._env_id)
        env = self._make()
        check_is_env(env, self._env_id)
        return env


class Lane(Protocol):
    """A way to run the operations of an environment, one after another."""

    def begin(self, operation: str, arguments: tuple[Any, ...]) -> Any:
        """Begin an operation; return its answer, or a :class:`Pending` whose answer comes later."""

    def close(self) -> None:
        """Close the environment."""


class SameThread:
    """Makes and uses an environment in the thread that asks.

    Args:
        make: Function that makes the leased environment.
    """

    def __init__(self, make: Callable[[], LeasedEnv]) -> None:
        self._leased = make()

    def leased(self) -> LeasedEnv:
        """Return the environment."""
        return self._leased

    def begin(self, operation: str, arguments: tuple[Any, ...]) -> Any:
        """Do the operation, and return its answer."""
        return finished(self._leased.do(operation, *arguments))

    def close(self) -> None:
        """Close the environment."""
        finished(self._leased.close())

    def end(self) -> None:
        """Do nothing, because there is no thread to end."""


class OwnThread:
    """Makes, uses and closes an environment in a thread of its own, because a client may belong to its thread.

    Args:
        make: Function that makes the leased environment.
        done: Function that takes an answer that is complete.
    """

    def __init__(self, make: Callable[[], LeasedEnv], done: Callable[[Pending, Any], object]) -> None:
        self._done, self._made = done, SimpleQueue[Any]()
        self._leased: LeasedEnv
        self._tasks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        # numpy keeps the reaction to floating-point errors for each thread.
        self._thread = threading.Thread(target=_serve, args=(self._tasks, np.geterr()), daemon=True)
        self._thread.start()
        self._tasks.put(lambda: self._made.put(_outcome(make)))

    def leased(self) -> LeasedEnv:
        """Wait until the environment is made, and return it."""
        self._leased, error = self._made.get()
        if error is not None:
            raise error
        return self._leased

    def begin(self, operation: str, arguments: tuple[Any, ...]) -> Pending:
        """Begin the operation in the thread."""
        pending = Pending()
        self._tasks.put(lambda: self._done(pending, finished(self._leased.do(operation, *arguments))))
        return pending

    def close(self) -> None:
        """Close the environment in its thread. An environment that does not return ends with the process."""
        self._tasks.put(lambda: finished(self._leased.close()))
        self.end()

    def end(self) -> None:
        """End the thread. Idempotent."""
        self._tasks.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)


class EventLoop:
    """An event loop in a thread, for all environments of the worker whose methods are coroutines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._submitted: deque[Coroutine[Any, Any, object]] = deque()
        self._has_notified = False
        self._tasks: set[asyncio.Task[object]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, Any], done: Callable[[Any], object]) -> None:
        """Run a coroutine, and pass its result on in the thread of the loop."""
        self._submitted.append(_then(coroutine, done))
        # The loop is woken up through a pipe, which takes longer than the rest, so several coroutines share a wake-up.
        if not self._has_notified:
            self._has_notified = True
            self._loop.call_soon_threadsafe(self._begin_submitted)

    def result(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine, and wait for its result.

        Raises:
            TimeoutError: The time is over.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.submit(coroutine, future.set_result)
        return future.result(timeout_s)

    def close(self) -> None:
        """End the loop. Coroutines that have not ended then are dropped."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)
        if not self._loop.is_running():
            self._loop.close()

    def _begin_submitted(self) -> None:
        # What is added after this line has the loop notified again, and the next line sees everything before.
        self._has_notified = False
        while self._submitted:
            # The loop refers to its tasks weakly.
            task = self._loop.create_task(self._submitted.popleft())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class InLoop:
    """Uses an environment in an event loop.

    Args:
        leased: Environment.
        loop: Event loop.
        done: Function that takes an answer that is complete. ``None``: :meth:`begin` waits for the answer.
    """

    def __init__(self, leased: LeasedEnv, loop: EventLoop, done: Callable[[Pending, Any], object] | None) -> None:
        self._leased, self._loop, self._done = leased, loop, done

    def begin(self, operation: str, arguments: tuple[Any, ...]) -> Any:
        """Do the operation in the loop, or begin it."""
        coroutine = self._leased.do(operation, *arguments)
        if self._done is None:
            return self._loop.result(coroutine)
        pending = Pending()
        self._loop.submit(coroutine, partial(self._done, pending))
        return pending

    def close(self) -> None:
        """Close the environment in the loop."""
        with contextlib.suppress(TimeoutError):
            self._loop.result(self._leased.close(), CLOSE_TIMEOUT_S)


class SessionTask(Task):
    """Environments that sessions lease.

    Args:
        job: Job of the workers.
        sender: Identity of this worker.
        status: Status slot of this worker.
        output: Output for warnings.

    Attributes:
        completed: Wake-up that is notified when a pending answer is complete. ``None``: no answer is pending.
    """

    def __init__(self, job: SessionJob, sender: Sender, status: StatusSlot, output: TaskOutput) -> None:
        env_ids = job.env_ids(sender.worker)
        self.completed = WakeUp() if job.at_once and len(env_ids) > 1 else None
        self._answers: deque[tuple[Pending, Any]] = deque()
        self._lock = threading.Lock()
        with contextlib.ExitStack() as stack:
            if self.completed is not None:
                stack.callback(self.completed.close)
            makers = [partial(LeasedEnv, partial(job.factories.make, one), one, status) for one in env_ids]
            self._lanes = self._made(stack, makers)
            self._closing = stack.pop_all()

    def ready(self) -> Ready:
        """Return the spaces of the first environment."""
        return Ready(self._spaces, len(self._lanes), [], [])

    def lay_out(self, layout: Layout, mapping: Any) -> Self:
        """Take the trays of the environments, if there are any."""
        if size := layout.slot_bytes:
            for index, leased in enumerate(self._leased, layout.first_env_id):
                leased.tray = Tray(memoryview(mapping)[layout.slots_offset + index * size :][:size])
        return self

    def answer(self, method: str, row: int, operation: str, *arguments: Any) -> Any:
        """Begin an operation of an environment. There is no other call."""
        return {"session": self._lanes[row].begin}[method](operation, arguments)

    def play_for(self, seconds: float) -> PendingAnswers:
        """Return the answers that are complete."""
        with self._lock:
            if self.completed is not None and self._answers:
                self.completed.take()
            return drained(self._answers)

    def close(self) -> None:
        """Close all environments."""
        self._closing.close()

    def _made(self, stack: contextlib.ExitStack, makers: Sequence[Callable[[], LeasedEnv]]) -> Sequence[Lane]:
        """Make all environments: at the same time if they have threads, because they may wait in their constructors."""
        lanes: list[SameThread | OwnThread] = []
        for make in makers:
            lanes.append(SameThread(make) if self.completed is None else OwnThread(make, self._done))
            stack.callback(lanes[-1].end)
        leased = self._leased = [lane.leased() for lane in lanes]
        self._spaces = [describe(getattr(leased[0].env, f"{kind}_space")) for kind in ("observation", "action")]
        used: Sequence[Lane] = lanes
        if leased[0].has_coroutines:
            loop = EventLoop()
            stack.callback(loop.close)
            used = [InLoop(one, loop, None if self.completed is None else self._done) for one in leased]
            for lane in lanes:
                lane.end()
        for one in used:
            stack.callback(one.close)
        return used

    def _done(self, pending: Pending, answer: Any) -> None:
        """Take an answer in the thread that has it."""
        # Without the lock, threads could notify after all answers are taken, and the worker would wake up for ever.
        with self._lock:
            if self.completed is not None and not self._answers:
                self.completed.notify()
            self._answers.append((pending, answer))


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that does not wait for anything, and return its result.

    >>> async def add(a, b):
    ...     return a + b
    >>> finished(add(1, 2))
    3
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("step and reset must both be coroutines, or neither")


async def _then(coroutine: Coroutine[Any, Any, T], done: Callable[[T], object]) -> None:
    done(await coroutine)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _plain(value: Any) -> Any:
    """Return a value as plain data. An array of numbers is sent as it is, without a trial encoding."""
    if type(value) in _PLAIN or (type(value) is np.ndarray and value.dtype.kind in "biuf"):
        return value
    return as_data(value)


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:
        return None, error


def _serve(tasks: SimpleQueue[Callable[[], object] | None], numpy_errors: Any) -> None:
    np.seterr(**numpy_errors)
    while (task := tasks.get()) is not None:
        task()
        del task
