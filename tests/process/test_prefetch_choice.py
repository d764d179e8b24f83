"""Check that ``prefetch="auto"`` changes the number after its measurements and loses no transition."""

from __future__ import annotations

from typing import Any

import pytest
from envs import ledgers
from policies import zeros

from parenv import AsyncWorkerPool, ConfigurationError, Stop
from parenv.pool import prefetch_choice
from parenv.pool.dispatch import Dispatch
from parenv.testing import check_ledger

ROLLOUTS = prefetch_choice.SKIPPED + prefetch_choice.MEASURED


@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_the_number_changes_after_the_measured_rollouts_and_every_transition_arrives(
    monkeypatch: pytest.MonkeyPatch, chosen: int
) -> None:
    monkeypatch.setattr(prefetch_choice, "best_prefetch", lambda *_: chosen)
    expected: dict[int, tuple[int, ...]] = {}
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=2, rollout_length=5, prefetch="auto") as pool:
        for number, rollout in enumerate(pool.rollouts(Stop(env_steps=5 * 4 * ROLLOUTS)), start=1):
            check_ledger(rollout, expected)
            assert pool.prefetch == (chosen if number >= 2 * ROLLOUTS else 1)
            assert max(pool._session.under_way().values()) <= 1 + max(chosen, 1)


def test_a_worker_gets_as_many_credits_as_it_may_run_ahead() -> None:
    dispatch = Dispatch(2, prefetch=1)
    keys = dispatch.issue()
    assert len(keys) == 4
    dispatch.run_ahead(2)
    keys += dispatch.issue()
    assert len(keys) == 6
    dispatch.run_ahead(0)
    for key in keys[:4]:
        dispatch.commit(key)
        assert dispatch.take(key)
        dispatch.done(key)
    left = [sum(key.worker == worker for key in keys[4:]) for worker in range(2)]
    assert len(dispatch.issue()) == 2 - sum(map(bool, left))


def test_a_lost_worker_gets_no_credit_when_the_number_changes() -> None:
    dispatch = Dispatch(2, prefetch=1)
    dispatch.issue()
    dispatch.lose(1)
    dispatch.run_ahead(2)
    assert {key.worker for key in dispatch.issue()} == {0}
    dispatch.regain(1)
    assert len([key for key in dispatch.issue() if key.worker == 1]) == 3


@pytest.mark.parametrize("options", [{"mode": "sync"}, {"num_workers": 0}])
def test_without_workers_that_run_ahead_the_pool_works_as_usual(options: dict[str, Any]) -> None:
    with AsyncWorkerPool(ledgers(2), zeros, **{"num_workers": 2, **options}, rollout_length=2, prefetch="auto") as pool:
        assert len(list(pool.rollouts(Stop(env_steps=4 * 30)))) == 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefetch": "all"}, "prefetch must be an integer of at least 0 or \"auto\", got 'all'. Pass one of these"),
        ({"prefetch": "auto", "record": "run"}, 'prefetch="auto" cannot be combined with record or replay'),
    ],
)
def test_invalid_combinations_with_auto_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AsyncWorkerPool("CartPole-v1", zeros, num_workers=0, **options)
