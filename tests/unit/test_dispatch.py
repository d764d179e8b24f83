"""Check which worker may collect a rollout and which rollout is yielded next, for events in any order."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from parenv.errors import PolicyLagError
from parenv.pool.dispatch import CreditKey, Dispatch, Rounds


class AsyncPool(RuleBasedStateMachine):
    """State machine of a pool in async mode. Each worker collects in the order of its credits.

    The learner publishes at most once per rollout, before it requests the next one. Workers are lost and restarted.
    """

    @initialize(
        workers=st.integers(1, 4),
        prefetch=st.integers(0, 3),
        bound=st.none() | st.integers(0, 6),
        pace=st.sampled_from([True, True, True, False]),
    )
    def start(self, workers: int, prefetch: int, bound: int | None, pace: bool) -> None:
        self.per_worker, self.bound = 1 + prefetch, bound if pace else None
        self.dispatch = Dispatch(workers, prefetch, bound, pace)
        self.producing: list[deque[CreditKey]] = [deque() for _ in range(workers)]
        self.issued: dict[CreditKey, int] = {}
        self.committed: set[CreditKey] = set()
        self.void: set[CreditKey] = set()
        self.lost: set[int] = set()
        self.yielded: list[CreditKey] = []
        self.in_hand: CreditKey | None = None
        self.may_publish = False

    @rule()
    def ask_for_the_next_rollout(self) -> None:
        if self.in_hand is not None:
            self.dispatch.done(self.in_hand)
            self.in_hand, self.may_publish = None, False
        for key in self.dispatch.issue():
            assert key not in self.issued
            assert key.worker not in self.lost
            assert key.sequence == sum(one.worker == key.worker for one in self.issued)
            self.issued[key] = self.dispatch.version
            self.producing[key.worker].append(key)
        everybody_is_lost = len(self.lost) == len(self.producing)
        assert everybody_is_lost or len(self.issued) > len(self.yielded) + len(self.void)
        chosen = self.dispatch.next()
        if chosen is None:
            assert everybody_is_lost or any(self.producing), "all rollouts are committed, but none can be yielded"
            return
        assert chosen in self.committed
        assert chosen not in self.yielded
        assert chosen.sequence == sum(key.worker == chosen.worker for key in self.yielded) + sum(
            key.worker == chosen.worker and key < chosen for key in self.void
        )
        lag = self.dispatch.version - self.issued[chosen]
        assert self.bound is None or lag <= self.bound
        assert self.dispatch.version_of(chosen) == self.issued[chosen]
        self.yielded.append(chosen)
        self.in_hand, self.may_publish = chosen, True

    @precondition(lambda self: any(self.producing))
    @rule(data=st.data())
    def commit(self, data: Any) -> None:
        key = data.draw(st.sampled_from([queue for queue in self.producing if queue])).popleft()
        assert self.dispatch.commit(key)
        self.committed.add(key)

    @precondition(lambda self: self.committed)
    @rule(data=st.data())
    def commit_again(self, data: Any) -> None:
        assert not self.dispatch.commit(data.draw(st.sampled_from(sorted(self.committed))))

    @rule(worker=st.integers(0, 9), ahead=st.integers(0, 3))
    def commit_an_unknown_credit(self, worker: int, ahead: int) -> None:
        issued = sum(key.worker == worker for key in self.issued)
        assert not self.dispatch.commit(CreditKey(worker, issued + ahead))

    @precondition(lambda self: len(self.lost) < len(self.producing))
    @rule(data=st.data())
    def lose(self, data: Any) -> None:
        worker = data.draw(st.sampled_from(sorted(set(range(len(self.producing))) - self.lost)))
        void = self.dispatch.lose(worker)
        assert void == list(self.producing[worker])
        self.producing[worker].clear()
        self.void |= set(void)
        self.lost.add(worker)

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def regain(self, data: Any) -> None:
        worker = data.draw(st.sampled_from(sorted(self.lost)))
        self.dispatch.regain(worker)
        self.lost.remove(worker)

    @precondition(lambda self: self.void)
    @rule(data=st.data())
    def commit_a_lost_credit(self, data: Any) -> None:
        assert not self.dispatch.commit(data.draw(st.sampled_from(sorted(self.void))))

    @precondition(lambda self: self.may_publish)
    @rule()
    def publish(self) -> None:
        before = self.dispatch.version
        assert self.dispatch.publish() == self.dispatch.version == before + 1
        self.may_publish = False

    @invariant()
    def credits_are_bounded_and_counted(self) -> None:
        outstanding = [
            key for key in self.issued if key not in self.void and (key not in self.yielded or key == self.in_hand)
        ]
        assert len(self.dispatch._outstanding) == len(outstanding)
        assert max(Counter(key.worker for key in outstanding).values(), default=0) <= self.per_worker
        assert self.bound is None or len(outstanding) <= 1 + self.bound
        under_way = {self.issued[key] for key in outstanding if key not in self.committed}
        assert self.dispatch.versions_in_use() == under_way

    def teardown(self) -> None:
        """Check that all committed rollouts are yielded if the workers continue to collect."""
        committed = set(self.committed)
        while not committed <= set(self.yielded):
            before = len(self.yielded)
            for queue in self.producing:
                while queue:
                    self.committed.add(key := queue.popleft())
                    assert self.dispatch.commit(key)
            self.ask_for_the_next_rollout()
            assert len(self.yielded) > before


def test_every_credit_is_yielded_once_in_order_or_lost_with_its_worker_without_a_deadlock() -> None:
    run_state_machine_as_test(AsyncPool, settings=settings(max_examples=80, stateful_step_count=40))


def take(dispatch: Dispatch) -> CreditKey:
    """Issue credits, commit all of their rollouts, and take one of them."""
    for issued in dispatch.issue():
        dispatch.commit(issued)
    key = dispatch.next()
    assert key is not None
    return key


@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 6))
@settings(max_examples=50)
def test_one_publish_too_many_is_refused_and_leaves_the_version(workers: int, prefetch: int, bound: int) -> None:
    dispatch = Dispatch(workers, prefetch, bound)
    dispatch.issue()
    for version in range(1, bound + 1):
        assert dispatch.publish() == version
    for _ in range(2):
        wanted = f"version {bound + 1} cannot be published now.*max_policy_lag={bound}.*drop"
        with pytest.raises(PolicyLagError, match=wanted):
            dispatch.publish()
        assert dispatch.version == bound


def test_two_publishes_for_one_rollout_are_refused_at_the_second() -> None:
    dispatch = Dispatch(2, 0, max_policy_lag=1)
    first = take(dispatch)
    assert dispatch.publish() == 1
    with pytest.raises(PolicyLagError, match=r"would make rollouts in progress \(1\) older"):
        dispatch.publish()
    assert dispatch.version == 1
    dispatch.done(first)
    assert take(dispatch).worker != first.worker
    assert dispatch.publish() == 2


def test_without_pacing_publish_is_never_refused_and_all_credits_are_issued() -> None:
    dispatch = Dispatch(3, 1, max_policy_lag=0, pace=False)
    assert len(dispatch.issue()) == 6
    assert [dispatch.publish() for _ in range(5)] == [1, 2, 3, 4, 5]


def test_a_rollout_that_becomes_too_old_is_yielded_before_newer_ones() -> None:
    dispatch = Dispatch(2, 1, max_policy_lag=2)
    slow, fast, _ = dispatch.issue()
    dispatch.commit(fast)
    assert dispatch.next() == fast
    assert dispatch.publish() == 1
    dispatch.done(fast)
    (newer,) = dispatch.issue()
    dispatch.commit(newer)
    assert dispatch.next() is None
    dispatch.commit(slow)
    assert dispatch.next() == slow


def test_a_rollout_is_urgent_if_a_publish_before_it_would_be_refused() -> None:
    dispatch = Dispatch(2, 0, max_policy_lag=1)
    assert not dispatch.is_urgent
    first, second = dispatch.issue()
    dispatch.commit(first)
    assert dispatch.next() == first
    assert not dispatch.is_urgent
    dispatch.publish()
    assert dispatch.is_urgent
    dispatch.commit(second)
    assert dispatch.next() == second
    assert not dispatch.is_urgent


def test_rollouts_come_in_the_order_of_arrival_while_nothing_is_urgent() -> None:
    dispatch = Dispatch(3, 0)
    keys = dispatch.issue()
    for key in reversed(keys):
        dispatch.commit(key)
    assert [dispatch.next(), dispatch.next(), dispatch.next(), dispatch.next()] == [*reversed(keys), None]


def test_each_worker_gets_its_first_credit_before_any_gets_a_second() -> None:
    keys = Dispatch(3, 2).issue()
    assert [key.sequence for key in keys] == [0] * 3 + [1] * 3 + [2] * 3
    assert len(set(keys)) == 9


def test_all_workers_get_credits_if_the_bound_allows_fewer_than_workers() -> None:
    dispatch, taken = Dispatch(3, 0, max_policy_lag=0), Counter[int]()
    for _ in range(30):
        key = take(dispatch)
        taken[key.worker] += 1
        dispatch.publish()
        dispatch.done(key)
    assert taken == {0: 10, 1: 10, 2: 10}


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 5), st.integers(-2, 2)), max_size=60), st.randoms())
@settings(max_examples=60)
def test_a_round_is_complete_when_each_worker_has_committed_once(
    workers: int, events: list[tuple[int, int]], chance: Any
) -> None:
    rounds, number, missing = Rounds(workers), -1, set[int]()
    for worker, offset in events:
        if not missing:
            number, missing = number + 1, set(range(workers))
            keys = [CreditKey(one, number) for one in range(workers)]
            assert rounds.issue() == keys
            assert len({rounds.rollout_of(key) for key in keys}) == 1
            version = rounds.version
        if chance.random() < 0.3:
            assert rounds.publish() == rounds.version > version
        assert rounds.next() is None
        assert rounds.commit(CreditKey(worker, number + offset)) == (offset == 0 and worker in missing)
        missing -= {worker} if offset == 0 else set()
        assert rounds.issue() == []
        assert rounds.under_way() == dict.fromkeys(range(workers), 1)
        assert rounds.versions_in_use() == ({version} if missing else set())
        assert rounds.version_of(keys[0]) == version
        if not missing:
            assert rounds.next() == rounds.rollout_of(keys[0])
            assert (rounds.next(), rounds.under_way(), rounds.issue()) == (None, {}, [])
            rounds.done(keys[0])


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from(["commit", "lose"]), st.integers(0, 3)), max_size=60))
@settings(max_examples=60)
def test_a_restarted_worker_gets_its_credit_of_the_round_again_unless_it_has_committed(
    workers: int, events: list[tuple[str, int]]
) -> None:
    rounds, number, missing, lost = Rounds(workers), -1, set[int](), set[int]()
    for what, worker in [(what, worker % workers) for what, worker in events]:
        if not missing:
            number, missing = number + 1, set(range(workers))
            assert rounds.issue() == [CreditKey(one, number) for one in range(workers) if one not in lost]
        if worker in lost:
            lost.remove(worker)
            assert rounds.regain(worker) == ([CreditKey(worker, number)] if worker in missing else [])
        elif what == "lose":
            lost.add(worker)
            assert rounds.lose(worker) == []
        else:
            assert rounds.commit(CreditKey(worker, number)) == (worker in missing)
            missing -= {worker}
        if not missing:
            whole = rounds.next()
            assert whole is not None
            rounds.done(whole)
        assert rounds.next() is None
