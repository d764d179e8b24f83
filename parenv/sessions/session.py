"""Sessions: environments that a coroutine or a thread has for some time."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from gymnasium import Space

from parenv.sessions.engine import Lease
from parenv.sessions.service import Service


class _Session:
    """Base of both kinds of sessions.

    Args:
        service: Thread of the workers.
        lease: State of the session.
    """

    def __init__(self, service: Service, lease: Lease) -> None:
        self._service, self._lease = service, lease

    @property
    def number(self) -> int:
        """Number of the session, in the order of the calls of ``pool.session()``."""
        return self._lease.number

    @property
    def task(self) -> Any:
        """Object that was given to ``pool.session()``."""
        return self._lease.task

    @property
    def env_id(self) -> int:
        """Index of the environment in the pool, or -1 without one."""
        return -1 if self._lease.env is None else self._lease.env

    @property
    def observation_space(self) -> Space[Any]:
        """Observation space of the environments."""
        return self._service.observation_space

    @property
    def action_space(self) -> Space[Any]:
        """Action space of the environments."""
        return self._service.action_space

    def __repr__(self) -> str:
        return f"<session {self.number} with env_id {self.env_id}>"

    def __del__(self) -> None:
        # The session may have been begun without a with block.
        self._service.end(self._lease)


class Session(_Session):
    """An environment that a coroutine has, see :meth:`parenv.SessionPool.session`.

    All methods return or raise as the environment does. After the loss of the environment, all raise
    :class:`~parenv.errors.SessionLostError`.
    """

    async def __aenter__(self) -> Self:
        reply = _LoopReply(loop=asyncio.get_running_loop())
        try:
            self._service.join(self._lease, reply)
            _value(await reply)
        except BaseException:
            # A task may be cancelled at the moment in which it gets the environment.
            self._service.end(self._lease)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, Exception):
            # A coroutine that is cancelled or closed must not wait.
            self._service.end(self._lease)
            return
        # A cancellation of this wait keeps nothing, because the request is made already.
        reply = _LoopReply(loop=asyncio.get_running_loop())
        if self._service.end(self._lease, reply):
            _value(await reply)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; return the observation and the info.

        Args:
            seed: Seed. Default: of the first reset, the seed of the session; later, none.
            options: Options. Default: of the first reset, the options of the session; later, none.
        """
        observation, info = _value(await self._ask("reset", (seed, options)))
        return observation, info

    async def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step; return observation, reward, terminated, truncated and info."""
        observation, reward, terminated, truncated, info = _value(await self._ask("step", (action,)))
        return observation, reward, terminated, truncated, info

    async def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the environment, or return an attribute that is not callable."""
        (value,) = _value(await self._ask("call", ("call", name, args, kwargs)))
        return value

    async def get_attr(self, name: str) -> Any:
        """Return an attribute of the environment, as plain data."""
        (value,) = _value(await self._ask("call", ("get_attr", name)))
        return value

    async def set_attr(self, name: str, value: Any) -> None:
        """Set an attribute of the environment. It stays when the session ends, unless the environment is replaced."""
        _value(await self._ask("call", ("set_attr", [value], name)))

    async def render(self) -> Any:
        """Render the environment; return what it returns."""
        return await self.call("render")

    def _ask(self, operation: str, arguments: tuple[Any, ...]) -> _LoopReply:
        # The caller awaits it. Each coroutine on the way would be one more object for the garbage collector.
        reply = _LoopReply(loop=asyncio.get_running_loop())
        self._service.ask(self._lease, operation, arguments, reply)
        return reply


class SyncSession(_Session):
    """An environment that a thread has, see :meth:`parenv.SessionPool.session_sync`. Its methods wait."""

    def __enter__(self) -> Self:
        reply = _ThreadReply()
        try:
            self._service.join(self._lease, reply)
            reply.result()
        except BaseException:
            self._service.end(self._lease)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        reply = _ThreadReply()
        if self._service.end(self._lease, reply):
            reply.result()

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, see :meth:`Session.reset`."""
        observation, info = self._answer("reset", (seed, options))
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step; return observation, reward, terminated, truncated and info."""
        observation, reward, terminated, truncated, info = self._answer("step", (action,))
        return observation, reward, terminated, truncated, info

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the environment, or return an attribute that is not callable."""
        (value,) = self._answer("call", ("call", name, args, kwargs))
        return value

    def get_attr(self, name: str) -> Any:
        """Return an attribute of the environment, as plain data."""
        (value,) = self._answer("call", ("get_attr", name))
        return value

    def set_attr(self, name: str, value: Any) -> None:
        """Set an attribute of the environment, see :meth:`Session.set_attr`."""
        self._answer("call", ("set_attr", [value], name))

    def render(self) -> Any:
        """Render the environment; return what it returns."""
        return self.call("render")

    def _answer(self, operation: str, arguments: tuple[Any, ...]) -> Any:
        reply = _ThreadReply()
        self._service.ask(self._lease, operation, arguments, reply)
        return reply.result()


class _LoopReply(asyncio.Future[tuple[Any, BaseException | None]]):
    """Answer for a coroutine, with the exception that it raises."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.get_loop()

    def settle(self, value: Any, error: BaseException | None) -> None:
        # The task may have been cancelled, or the session may have been lost before.
        if not self.done():
            self.set_result((value, error))


def _value(answer: tuple[Any, BaseException | None]) -> Any:
    value, error = answer
    if error is not None:
        raise error
    return value


class _ThreadReply(concurrent.futures.Future[Any]):
    """Answer for a thread."""

    loop = None

    def settle(self, value: Any, error: BaseException | None) -> None:
        if self.done():
            return
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)
