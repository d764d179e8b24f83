"""Decides which session has which environment. It is pure: it knows neither processes nor time."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple


class Grant(NamedTuple):
    """A session gets an environment.

    Args:
        session: Number of the session.
        env: Index of the environment.
        is_ahead: Whether the environment was reset for this session, or the reset has begun.
    """

    session: int
    env: int
    is_ahead: bool


class Leases:
    """Leases environments to sessions in the order in which they ask.

    An environment is free, reset ahead for a session, leased, busy with the last operation of a session that has
    ended, or away because its process is being replaced. It is in one of these states at any time, so that none is
    ever lost.

    Args:
        num_leases: Number of environments that may be leased at the same time.
        num_ahead: Number of further environments, which are reset for the next sessions meanwhile.

    >>> leases = Leases(num_leases=1, num_ahead=0)
    >>> leases.ask(0), leases.ask(1), leases.grants()
    (None, None, [Grant(session=0, env=0, is_ahead=False)])
    >>> leases.end(0, is_busy=False), leases.grants()
    (0, [Grant(session=1, env=0, is_ahead=False)])
    """

    def __init__(self, num_leases: int, num_ahead: int) -> None:
        self._num_leases, self._num_ahead = num_leases, num_ahead
        self._waiting: dict[int, None] = {}
        self._free: deque[int] = deque(range(num_leases + num_ahead))
        self._ahead: dict[int, int] = {}
        self._leased: dict[int, int] = {}
        self._busy: set[int] = set()
        self._away: set[int] = set()
        self._next = 0

    @property
    def counts(self) -> dict[str, int]:
        """Number of sessions that wait, and of environments in each state."""
        return {
            "waiting": len(self._waiting),
            "free": len(self._free),
            "ahead": len(self._ahead),
            "leased": len(self._leased),
            "busy": len(self._busy),
            "away": len(self._away),
        }

    def ask(self, session: int) -> None:
        """Put a session at the end of the queue. Numbers of sessions are used once."""
        self._waiting[session] = None
        self._next = max(self._next, session + 1)

    def end(self, session: int, is_busy: bool) -> int | None:
        """End a session, which waits or has an environment; return the environment.

        Args:
            session: Number of the session.
            is_busy: Whether the environment still does something for it.
        """
        if session in self._waiting:
            del self._waiting[session]
            return None
        env = self._leased.pop(session, None)
        if env is not None:
            self._busy.add(env)
            if not is_busy:
                self.idle(env)
        return env

    def idle(self, env: int) -> None:
        """Note that an environment has finished the last operation of a session that has ended."""
        if env in self._busy:
            self._busy.remove(env)
            self._free.append(env)

    def lost(self, env: int) -> int | None:
        """Note that the process of an environment has ended; return the session that had it."""
        session = next((one for one, leased in self._leased.items() if leased == env), None)
        if session is not None:
            del self._leased[session]
        elif env in self._free:
            self._free.remove(env)
        self._ahead.pop(env, None)
        self._busy.discard(env)
        self._away.add(env)
        return session

    def back(self, env: int) -> None:
        """Note that a new process has the environment."""
        if env in self._away:
            self._away.remove(env)
            self._free.append(env)

    def grants(self) -> list[Grant]:
        """Lease environments to the sessions that have waited longest."""
        found = []
        while self._waiting and len(self._leased) < self._num_leases and (self._free or self._ahead):
            session = next(iter(self._waiting))
            del self._waiting[session]
            env = next((env for env, target in self._ahead.items() if target == session), None)
            is_ahead = env is not None
            if env is None:
                # An environment that was reset for a later session is better than none.
                env = self._free.popleft() if self._free else max(self._ahead, key=lambda one: self._ahead[one])
            self._ahead.pop(env, None)
            self._leased[session] = env
            found.append(Grant(session, env, is_ahead))
        return found

    def resets_ahead(self) -> list[tuple[int, int]]:
        """Return the environments to reset now, each with the session that is expected to get it.

        Sessions that wait come first. The next numbers follow, of sessions that have not asked yet.
        """
        for env, session in list(self._ahead.items()):
            if session < self._next and session not in self._waiting:
                # The session for which it was reset has another environment, or will never ask.
                del self._ahead[env]
                self._free.append(env)
        found = []
        expected = [*islice(self._waiting, self._num_ahead), *range(self._next, self._next + self._num_ahead)]
        taken = set(self._ahead.values())
        for session in expected[: self._num_ahead]:
            if self._free and session not in taken and len(self._ahead) < self._num_ahead:
                env = self._free.popleft()
                self._ahead[env] = session
                found.append((env, session))
        return found
