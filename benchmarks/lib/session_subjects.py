"""Environments that sessions borrow, and three ways to lend them: parenv, executors with a process each, Ray actors.

The executors and the actors are in an ``asyncio.Queue`` of those that are free, as many programs do it by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Protocol

import gymnasium as gym

from parenv import SessionPool, WorkerOptions

CONTINUE, KILL, HANG = range(3)


class Env(gym.Env[int, int]):
    """Environment that waits, and that ends its process or hangs if an action demands it.

    Args:
        step_s: Seconds of a step.
        reset_s: Seconds of a reset.
        has_child: Whether it starts a program, as an environment with a browser or a server does.
    """

    observation_space = action_space = gym.spaces.Discrete(3)

    def __init__(self, step_s: float = 0.0, reset_s: float = 0.0, has_child: bool = False) -> None:
        self._step_s, self._reset_s = step_s, reset_s
        self._child = subprocess.Popen(["sleep", "600"]) if has_child else None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        """Begin an episode, which never ends by itself."""
        if self._reset_s:
            time.sleep(self._reset_s)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Take a step, or obey the action."""
        if action == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == HANG:
            time.sleep(600.0)
        if self._step_s:
            time.sleep(self._step_s)
        return 0, 0.0, False, False, {}

    def close(self) -> None:
        """End the program."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()


class AsyncEnv(Env):
    """Environment whose ``step`` and ``reset`` are coroutines."""

    async def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        """Begin an episode."""
        await asyncio.sleep(self._reset_s)
        return 0, {}

    async def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        await asyncio.sleep(self._step_s)
        return 0, 0.0, False, False, {}


class Borrowed(Protocol):
    """Environment of a session."""

    async def reset(self) -> Any:
        """Begin an episode."""

    async def step(self, action: int) -> Any:
        """Take a step."""


class Subject(Protocol):
    """Environments that sessions borrow."""

    async def start(self) -> None:
        """Start all processes, and wait until each has answered."""

    def session(self) -> contextlib.AbstractAsyncContextManager[Any]:
        """Borrow an environment."""

    async def close(self) -> None:
        """End all processes."""


class Ours:
    """:class:`parenv.SessionPool`.

    Args:
        make_env: Factory of an environment.
        num_envs: Number of environments.
        **arguments: Further arguments of the pool.
    """

    def __init__(self, make_env: Callable[[], Any], num_envs: int, **arguments: Any) -> None:
        workers = WorkerOptions(step_timeout_s=1.0)
        self._make = lambda: SessionPool(make_env, num_envs=num_envs, workers=workers, seed=1, **arguments)

    async def start(self) -> None:
        """Start the pool."""
        self._pool = await self._make().__aenter__()

    def session(self) -> contextlib.AbstractAsyncContextManager[Any]:
        """Borrow an environment."""
        return self._pool.session()

    async def close(self) -> None:
        """Close the pool."""
        await self._pool.__aexit__(None, None, None)


class Queued:
    """Handles of environments in a queue. A session takes one, and puts it back however it ends."""

    def __init__(self) -> None:
        self.handles: list[Any] = []
        self._free: asyncio.Queue[Any] = asyncio.Queue()

    def add(self, handle: Any) -> None:
        """Add an environment."""
        self.handles.append(handle)
        self._free.put_nowait(handle)

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        """Borrow an environment."""
        handle = await self._free.get()
        try:
            yield handle
        finally:
            self._free.put_nowait(handle)


_env: Any = None


def _begin(make_env: Callable[[], Any]) -> None:
    global _env
    _env = make_env()


def _do(name: str, *arguments: Any) -> Any:
    return getattr(_env, name)(*arguments)


class InExecutor:
    """Environment in the only process of an executor."""

    def __init__(self, make_env: Callable[[], Any]) -> None:
        context = multiprocessing.get_context("forkserver")
        self.executor = ProcessPoolExecutor(1, context, initializer=_begin, initargs=(make_env,))

    async def reset(self) -> Any:
        """Begin an episode."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, _do, "reset")

    async def step(self, action: int) -> Any:
        """Take a step."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, _do, "step", action)


class Executors(Queued):
    """``loop.run_in_executor`` over a ``ProcessPoolExecutor`` for each environment.

    Args:
        make_env: Factory of an environment.
        num_envs: Number of environments.
    """

    def __init__(self, make_env: Callable[[], Any], num_envs: int) -> None:
        super().__init__()
        self._make_env, self._num_envs = make_env, num_envs

    async def start(self) -> None:
        """Start the processes."""
        for _ in range(self._num_envs):
            self.add(InExecutor(self._make_env))
        await asyncio.gather(*(handle.reset() for handle in self.handles))

    async def close(self) -> None:
        """Kill the processes, because one that hangs would never end."""
        for handle in self.handles:
            for process in list((handle.executor._processes or {}).values()):
                process.kill()
            handle.executor.shutdown(wait=True, cancel_futures=True)


class InActor:
    """Environment in an actor of Ray."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    async def reset(self) -> Any:
        """Begin an episode."""
        return await self.actor.do.remote("reset")

    async def step(self, action: int) -> Any:
        """Take a step."""
        return await self.actor.do.remote("step", action)


class RayActors(Queued):
    """An actor of Ray for each environment.

    Args:
        make_env: Factory of an environment.
        num_envs: Number of environments.
        max_restarts: Number of times that Ray replaces the process of an actor, or -1 for any number.
    """

    def __init__(self, make_env: Callable[[], Any], num_envs: int, max_restarts: int = 0) -> None:
        super().__init__()
        self._make_env, self._num_envs, self._max_restarts = make_env, num_envs, max_restarts

    async def start(self) -> None:
        """Start Ray and the actors."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Without a token in the environment, Ray would write one into the home directory, where it would stay.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        import ray

        self._folder = tempfile.mkdtemp(prefix="ray-")
        ray.init(
            "local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=100_000_000,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
            _temp_dir=self._folder,
        )

        @ray.remote(num_cpus=0, max_restarts=self._max_restarts)
        class Actor:
            def __init__(self, make_env: Callable[[], Any]) -> None:
                self._env = make_env()

            def do(self, name: str, *arguments: Any) -> Any:
                return getattr(self._env, name)(*arguments)

        for _ in range(self._num_envs):
            self.add(InActor(Actor.remote(self._make_env)))
        await asyncio.gather(*(handle.reset() for handle in self.handles))

    async def close(self) -> None:
        """End Ray, with all actors."""
        import ray

        self.handles.clear()
        ray.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)


SUBJECTS: dict[str, Callable[[Callable[[], Any], int], Subject]] = {
    "parenv SessionPool": Ours,
    "ProcessPoolExecutor": Executors,
    "Ray actors": RayActors,
}
