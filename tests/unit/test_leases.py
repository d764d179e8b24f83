"""Check the leases of a session pool against a model that has the state of each environment in one dict."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from parenv.sessions.leases import Leases

chances = st.floats(0, 1, exclude_max=True)
FREE, BUSY, AWAY = "free", "busy", "away"


class LeasesAndDict(RuleBasedStateMachine):
    """State machine in which sessions ask, end at any point, and lose environments."""

    @initialize(num_leases=st.integers(1, 4), num_ahead=st.integers(0, 3))
    def begin(self, num_leases: int, num_ahead: int) -> None:
        self.num_leases, self.num_ahead = num_leases, num_ahead
        self.leases = Leases(num_leases, num_ahead)
        self.state: dict[int, str | int] = dict.fromkeys(range(num_leases + num_ahead), FREE)
        """State of each environment, or the number of the session that has it. One that is reset ahead is free."""
        self.ahead: dict[int, int] = {}
        """Session for which each environment was reset last, and has not been used since."""
        self.waiting: list[int] = []
        self.granted: list[int] = []
        self.ended: Counter[int] = Counter()
        self.number = 0

    def pick(self, chance: float, wanted: list[int]) -> int:
        return wanted[int(chance * len(wanted))]

    @property
    def leased(self) -> dict[int, int]:
        return {session: env for env, session in self.state.items() if isinstance(session, int)}

    @rule(skipped=st.integers(0, 2))
    def ask(self, skipped: int) -> None:
        self.number += skipped  # Sessions that never ask.
        self.leases.ask(self.number)
        self.waiting.append(self.number)
        self.number += 1

    @rule()
    def grant(self) -> None:
        before = list(self.waiting)
        for grant in self.leases.grants():
            assert grant.session == self.waiting.pop(0)
            assert self.state[grant.env] == FREE
            target = self.ahead.pop(grant.env, None)
            assert grant.is_ahead == (target == grant.session)
            assert grant.is_ahead or grant.session not in self.ahead.values()
            self.state[grant.env] = grant.session
            self.granted.append(grant.session)
        assert not self.waiting or len(self.leased) == self.num_leases or FREE not in self.state.values()
        assert self.granted == sorted(self.granted), before

    @rule()
    def reset_ahead(self) -> None:
        for env, session in self.leases.resets_ahead():
            assert self.state[env] == FREE
            assert session in self.waiting or session >= self.number
            self.ahead = {one: target for one, target in self.ahead.items() if target != session and one != env}
            self.ahead[env] = session
        assert self.leases.counts["ahead"] <= self.num_ahead
        if self.leases.counts["ahead"] < self.num_ahead:
            assert not self.leases.counts["free"]

    @precondition(lambda self: self.waiting or self.leased)
    @rule(chance=chances, is_busy=st.booleans())
    def end(self, chance: float, is_busy: bool) -> None:
        session = self.pick(chance, [*self.waiting, *self.leased])
        env = self.leases.end(session, is_busy)
        assert env == self.leased.get(session)
        self.ended[session] += 1
        if env is None:
            self.waiting.remove(session)
        else:
            self.state[env] = BUSY if is_busy else FREE
        assert self.leases.end(session, is_busy) is None

    @precondition(lambda self: BUSY in self.state.values())
    @rule(chance=chances)
    def idle(self, chance: float) -> None:
        env = self.pick(chance, [env for env, state in self.state.items() if state == BUSY])
        self.leases.idle(env)
        self.leases.idle(env)
        self.state[env] = FREE

    @rule(chance=chances)
    def lose(self, chance: float) -> None:
        env = self.pick(chance, list(self.state))
        session = self.leases.lost(env)
        assert session == (self.state[env] if isinstance(self.state[env], int) else None)
        if session is not None:
            self.ended[session] += 1
            assert self.leases.end(session, is_busy=False) is None
        self.ahead.pop(env, None)
        self.state[env] = AWAY

    @precondition(lambda self: AWAY in self.state.values())
    @rule(chance=chances)
    def back(self, chance: float) -> None:
        env = self.pick(chance, [env for env, state in self.state.items() if state == AWAY])
        self.leases.back(env)
        self.leases.back(env)
        self.state[env] = FREE

    @invariant()
    def every_environment_is_in_one_state(self) -> None:
        if not hasattr(self, "leases"):
            return
        counts, states = self.leases.counts, Counter(map(str, self.state.values()))
        assert counts["waiting"] == len(self.waiting)
        assert counts["free"] + counts["ahead"] == states[FREE]
        assert (counts["busy"], counts["away"]) == (states[BUSY], states[AWAY])
        assert counts["leased"] == len(self.leased) <= self.num_leases
        assert sum(counts.values()) - counts["waiting"] == self.num_leases + self.num_ahead

    @invariant()
    def every_session_is_in_one_place(self) -> None:
        if hasattr(self, "leases"):
            places = [*self.waiting, *self.leased, *self.ended]
            assert len(places) == len(set(places))
            assert max(self.ended.values(), default=1) == 1


def test_no_environment_and_no_session_is_lost() -> None:
    run_state_machine_as_test(LeasesAndDict, settings=settings(max_examples=200, stateful_step_count=60, deadline=None))
