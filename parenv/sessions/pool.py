"""SessionPool: environments in worker processes, which coroutines and threads borrow one at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from gymnasium import Space

from parenv.argument_checks import at_least, positive
from parenv.envs.factories import EnvFn
from parenv.errors import ConfigurationError
from parenv.options import Placing, WorkerOptions
from parenv.sessions.engine import Lease
from parenv.sessions.plan import SessionArguments, make_plan
from parenv.sessions.service import Service
from parenv.sessions.session import Session, SyncSession
from parenv.sessions.statistics import SessionStatistics


class SessionPool:
    """Environments in worker processes, of which coroutines and threads lease one at a time.

    It is for environments that wait, such as those of LLM agents: each episode is a coroutine with a loop of its own.
    However a session ends (return, exception, cancellation, time limit, death of a process), its environment is free
    again or replaced, and the pool keeps its size. A session that loses its environment gets a
    :class:`~parenv.errors.SessionLostError`. No call blocks the event loop.

    The workers start at once, in a thread. ``async with`` and ``with`` wait until all are ready.

    Args:
        env_fn: Factory of an environment, or an env id. ``step`` and ``reset`` may be coroutines.
        num_envs: Number of environments, and of sessions that can have one at the same time.
        envs_per_worker: Number of environments of each worker process. With several, each is used in a thread of its
            own, or all in one event loop if ``step`` and ``reset`` are coroutines. This saves memory if environments
            wait. A process that ends takes the environments of all its sessions with it. A ``RayPlacement`` has its own
            number of workers, among which the environments are divided. Default: 1.
        num_workers: ``0``: the environments are in a thread of this process, and are used one at a time, to debug them.
            Default: ``None``, as many processes as ``envs_per_worker`` needs.
        reset_ahead: Number of further environments, which are reset for the next sessions meanwhile. Default: 0.
        seed: Root of the seeds of sessions. Session number ``n`` has the same seed in every run. Default: drawn.
        workers: Options of the workers, such as ``step_timeout_s`` and ``reset_timeout_s``, which hold for each
            operation. Default: ``WorkerOptions()``.
        placement: Placement of the workers. Default: this machine.

    Raises:
        ConfigurationError: An argument is wrong.

    >>> import asyncio, gymnasium as gym, parenv
    >>> async def episode(pool, task):
    ...     async with pool.session(task) as env:
    ...         observation, info = await env.reset()
    ...         total, over = 0.0, False
    ...         while not over:
    ...             observation, reward, terminated, truncated, info = await env.step(int(observation[2] > 0))
    ...             total, over = total + reward, terminated or truncated
    ...         return total
    >>> async def main():
    ...     async with parenv.SessionPool("CartPole-v1", num_envs=2, seed=1) as pool:
    ...         return await asyncio.gather(*(episode(pool, task) for task in range(4)))
    >>> asyncio.run(main())
    [...]
    """

    def __init__(
        self,
        env_fn: EnvFn,
        *,
        num_envs: int,
        envs_per_worker: int = 1,
        num_workers: int | None = None,
        reset_ahead: int = 0,
        seed: int | None = None,
        workers: WorkerOptions | None = None,
        placement: Placing = None,
    ) -> None:
        plan = make_plan(
            SessionArguments(
                env_fn=env_fn,
                num_envs=num_envs,
                envs_per_worker=envs_per_worker,
                num_workers=num_workers,
                reset_ahead=reset_ahead,
                seed=seed,
                workers=workers,
                placement=placement,
            )
        )
        self._num_envs, self._numbers = plan.num_envs, itertools.count()
        self._service = Service(plan)

    def session(
        self,
        task: Any = None,
        *,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        lease_s: float | None = None,
    ) -> Session:
        """Return a session for ``async with``, which waits its turn, first come first served.

        Args:
            task: Object by which you know the session, for log messages. Default: ``None``.
            seed: Seed of the first reset. Default: a seed that depends on the number of the session only.
            options: Options of the first reset. With ``reset_ahead``, an environment may be reset with ``seed`` and
                ``options`` before the session has it. Default: ``None``.
            lease_s: Seconds after which the session loses its environment. Default: no limit.

        Raises:
            ConfigurationError: An argument is wrong.
        """
        return Session(self._service, self._lease(task, seed, options, lease_s))

    def session_sync(
        self,
        task: Any = None,
        *,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        lease_s: float | None = None,
    ) -> SyncSession:
        """Return a session for ``with`` in a thread. Arguments are those of :meth:`session`."""
        return SyncSession(self._service, self._lease(task, seed, options, lease_s))

    def statistics(self) -> SessionStatistics:
        """Return the sessions and environments by state, losses by reason, and seconds."""
        return self._service.statistics

    def metrics(self) -> dict[str, float]:
        """Return the statistics as a flat dict for a logger, see :meth:`parenv.AsyncWorkerPool.metrics`."""
        return self.statistics().metrics()

    @property
    def observation_space(self) -> Space[Any]:
        """Observation space of the environments. This waits until the workers are ready."""
        return self._service.observation_space

    @property
    def action_space(self) -> Space[Any]:
        """Action space of the environments. This waits until the workers are ready."""
        return self._service.action_space

    def close(self) -> None:
        """End all sessions and all workers. Idempotent, and allowed in any thread. ``async with`` does not block."""
        self._service.close()

    async def __aenter__(self) -> Self:
        try:
            await asyncio.wrap_future(self._service.started)
        except BaseException:
            self._service.close(wait=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._service.close(wait=False)
        await asyncio.get_running_loop().run_in_executor(None, self._service.close)

    def __enter__(self) -> Self:
        try:
            self._service.started.result()
        except BaseException:
            self._service.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._service.close()

    def __repr__(self) -> str:
        now = self.statistics()
        return (
            f"SessionPool(num_envs={self._num_envs}, leased={now.leased}, waiting={now.waiting}, "
            f"ended={now.ended}, lost={sum(now.lost.values())})"
        )

    def _lease(self, task: Any, seed: int | None, options: Mapping[str, Any] | None, lease_s: float | None) -> Lease:
        if seed is not None:
            at_least("seed", seed, 0)
        if options is not None and not isinstance(options, Mapping):
            raise ConfigurationError(f"options must be a mapping or None, got {options!r}")
        if lease_s is not None:
            positive("lease_s", lease_s, " seconds or None")
        return Lease(next(self._numbers), task, seed, None if options is None else dict(options), lease_s)
