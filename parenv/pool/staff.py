"""The workers of a pool, each of them replaced when it is gone."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from parenv.crew.crew import FOREVER_S, Crew
from parenv.errors import RestartLimitError, WorkerDiedError, WorkerError
from parenv.options import RestartPolicy
from parenv.placement.base import Launch
from parenv.process.supervisor import Supervisor
from parenv.protocol.data import pack
from parenv.protocol.messages import Commit, Layout, Message, Ready

_REPEATABLE = {"load", "evaluate"}
"""Calls that mean the pool, not the environments that are gone, and so are asked again."""
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
    calls: dict[int, int] = field(default_factory=dict)


class Staff:
    """A crew whose dead are replaced, up to a limit.

    Args:
        crew: the workers.
        launch: how they were started.
        restart: how often and how soon they are started again, or ``None`` for never.
        start_timeout_s: seconds that another process may take until it is ready.
    """

    def __init__(self, crew: Crew, launch: Launch, restart: RestartPolicy | None, start_timeout_s: float) -> None:
        self.crew, self._launch, self._start_timeout_s = crew, launch, start_timeout_s
        self._supervisor = Supervisor(restart, len(crew.shares))
        self._events: deque[Event] = deque()
        self._due: dict[int, float] = {}
        self._starting: dict[int, float] = {}
        self._asked: _Asked | None = None
        self.deaths: list[WorkerError] = []
        self.restarts = 0

    def start(self) -> list[Ready]:
        """Start all and wait until they are ready."""
        self._ready = self.crew.start(self._launch, self._start_timeout_s)
        return self._ready

    def lay_out(self, layouts: Sequence[Layout]) -> None:
        """Tell every worker where everything lies."""
        self._layouts = layouts
        for worker, layout in enumerate(layouts):
            self.crew.say(worker, layout)

    def say(self, worker: int, message: Message) -> None:
        """Send a message to a worker that is not lost."""
        self.crew.say(worker, message)

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

    def ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call a method on several workers at once and wait for every answer; those that are lost are waited for.

        Raises:
            Exception: what a worker raised, after all have answered; an ``ExceptionGroup`` of several.
            WorkerDiedError: a worker died that was to answer for environments that are gone with it.
        """
        while self._due or self._starting:
            self._listen(FOREVER_S)
        asked = self._asked = _Asked(method, arguments)
        try:
            asked.calls = self.crew.begin(method, arguments)
            while not self.crew.answered(asked.calls):
                self._listen(FOREVER_S)
        finally:
            self._asked = None
        return self.crew.answers(asked.calls)

    def _listen(self, timeout_s: float) -> None:
        """Hear what there is, and start who is due."""
        now = time.monotonic()
        next_s = min([*self._due.values(), *self._starting.values()], default=now + timeout_s)
        try:
            self.crew.listen(max(0.0, min(timeout_s, next_s - now)))
        except WorkerDiedError as error:
            self._lost(error)
        finally:
            self._events.extend(Committed(*heard) for heard in self.crew.take_commits())
        self._start_those_due(time.monotonic())

    def _lost(self, error: WorkerError) -> None:
        worker, crew = error.worker, self.crew
        # Remembered without a traceback, whose frames would keep the pool's memory for as long.
        self.deaths.append(error.with_traceback(None))
        # Commits that came before the end are events before it.
        self._events.extend(Committed(*heard) for heard in crew.take_commits())
        wait_s = self._supervisor.died(worker, time.monotonic())
        if wait_s is None:
            mine = [death for death in self.deaths if death.worker == worker]
            self.deaths.pop()
            raise error if len(mine) == 1 else RestartLimitError(mine) from error
        _log.warning("%s It is restarted.", str(error))
        was_ready = worker not in self._starting
        self._starting.pop(worker, None)
        self._due[worker] = time.monotonic() + wait_s
        crew.broken = False
        if was_ready:
            self._events.append(Lost(worker))
        asked = self._asked
        if asked is not None and asked.method not in _REPEATABLE and not crew.answered_by(asked.calls, worker):
            crew.fail(asked.calls[worker], error)

    def _start_those_due(self, now: float) -> None:
        for worker in [worker for worker, due in self._due.items() if due <= now]:
            del self._due[worker]
            try:
                self.crew.restart(self._launch, worker)
            except Exception as failure:
                self.crew.broken = True
                raise self.deaths.pop() from failure
            self._starting[worker] = now + self._start_timeout_s
            self.restarts += 1
        for worker, deadline in list(self._starting.items()):
            if self.crew.is_ready(worker):
                del self._starting[worker]
                self._welcome(worker)
            elif deadline <= now:
                self.crew.broken = True
                raise self.crew.late(self._start_timeout_s)

    def _welcome(self, worker: int) -> None:
        crew, asked = self.crew, self._asked
        ready, before = crew.ready(worker), self._ready[worker]
        if pack([ready.spaces, ready.num_envs]) != pack([before.spaces, before.num_envs]):
            crew.broken = True
            raise WorkerError(f"worker {worker} was restarted and has other spaces than before", worker=worker)
        crew.say(worker, self._layouts[worker])
        self._events.append(Back(worker))
        if asked is not None and not crew.answered_by(asked.calls, worker):
            asked.calls |= crew.begin(asked.method, {worker: asked.arguments[worker]})
