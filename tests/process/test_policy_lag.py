"""Check the bound on the policy lag with a slow worker, and that runs with one seed are reproducible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from envs import ledgers, slow
from policies import zeros
from sampling import one_in

from parenv import Action, AsyncWorkerPool, Policy, Stop
from parenv.errors import PolicyLagError
from parenv.testing import LedgerEnv, check_ledger


def one_straggler(count: int) -> list[Any]:
    return [lambda: slow(0, 0.01), *ledgers(count)[1:]]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("max_policy_lag", "prefetch"), one_in(2, [0, 1, 2, 5], [0, 1, 3]))
def test_the_bound_on_the_lag_holds_with_a_straggler_and_nothing_is_dropped(max_policy_lag: int, prefetch: int) -> None:
    expected: dict[int, tuple[int, ...]] = {}
    with AsyncWorkerPool(
        one_straggler(3), zeros, num_workers=3, rollout_length=4, prefetch=prefetch, max_policy_lag=max_policy_lag
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=4 * 40)):
            check_ledger(rollout, expected)
            assert rollout.policy_lag == pool.policy_version - rollout.policy_version <= max_policy_lag
            pool.publish(zeros)
        statistics = pool.statistics()
    assert statistics.dropped_rollouts == 0
    assert max(statistics.policy_lag) <= max_policy_lag


def test_without_a_bound_other_workers_do_not_wait_for_the_straggler() -> None:
    with AsyncWorkerPool(one_straggler(3), zeros, num_workers=3, rollout_length=10) as pool:
        came_from = [rollout.worker for rollout in pool.rollouts(Stop(env_steps=10 * 60))]
    assert came_from.count(0) < 20


def test_dropping_is_a_choice_and_counted() -> None:
    with AsyncWorkerPool(
        one_straggler(3), zeros, num_workers=3, rollout_length=10, max_policy_lag=1, on_stale="drop"
    ) as pool:
        for delivered, rollout in enumerate(pool.rollouts(), 1):
            assert rollout.policy_lag <= 1
            assert pool.statistics().rollouts == delivered
            pool.publish(zeros)
            if delivered >= 60 and pool.statistics().dropped_rollouts:
                break


def test_publishing_past_the_bound_is_refused_and_changes_nothing() -> None:
    with AsyncWorkerPool([lambda: LedgerEnv(0)] * 2, zeros, num_workers=2, rollout_length=2, max_policy_lag=1) as pool:
        stream = pool.rollouts()
        next(stream)
        pool.publish(zeros)
        with pytest.raises(PolicyLagError, match="max_policy_lag=1"):
            pool.publish(zeros)
        assert pool.policy_version == 1
        assert next(stream).policy_lag <= 1


class Reporting(Policy):
    """Policy that returns its setting ``epsilon`` with each action."""

    def act(self, observations: Any, carry: Any) -> Action:
        epsilon = np.full(len(observations), self.settings.get("epsilon", 0.0))
        return Action(zeros(observations), {"epsilon": epsilon})


@pytest.mark.parametrize("named", [False, True])
def test_the_settings_of_a_refused_publish_are_not_those_of_the_next_one(named: bool) -> None:
    policy: Any = {"all": Reporting()} if named else Reporting()
    with AsyncWorkerPool("CartPole-v1", policy, num_workers=0, rollout_length=2, max_policy_lag=1) as pool:
        stream = pool.rollouts()
        next(stream)
        pool.publish(policy)
        with pytest.raises(PolicyLagError, match="max_policy_lag=1"):
            pool.publish(policy, epsilon=0.9)
        next(stream)
        newest = pool.publish(policy)
        rollout: Any = next(rollout for rollout in stream if rollout.policy_version == newest)
        assert (rollout["all"] if named else rollout).extras["epsilon"].tolist() == [[0.0], [0.0]]


def test_with_prefetch_0_a_worker_waits_for_the_learner_s_update() -> None:
    with AsyncWorkerPool([lambda: LedgerEnv(0)] * 2, zeros, num_workers=2, rollout_length=2, prefetch=0) as pool:
        last: dict[Any, int] = {}
        for rollout in pool.rollouts(Stop(env_steps=100)):
            assert rollout.policy_version >= last.get(rollout.worker, 0)
            last[rollout.worker] = pool.publish(zeros)


def noisy(observations: Any) -> Any:
    return np.random.randint(0, 2, len(observations))


def cartpole_rollouts(num_workers: int, policy: Any, seed: int) -> Any:
    with AsyncWorkerPool(
        "CartPole-v1", policy, num_envs=6, num_workers=num_workers, mode="sync", rollout_length=40, seed=seed
    ) as pool:
        rollouts = [rollout.copy() for rollout in pool.rollouts(Stop(env_steps=40 * 6 * 4))]
    names = ("observations", "actions", "rewards", "terminated", "truncated")
    return {name: np.concatenate([getattr(rollout, name) for rollout in rollouts]) for name in names}


def test_sync_runs_of_the_same_seed_and_layout_are_bitwise_identical() -> None:
    for num_workers in (0, 2):
        first, second, other = (cartpole_rollouts(num_workers, noisy, seed) for seed in (1, 1, 2))
        assert all(first[name].tobytes() == second[name].tobytes() for name in first)
        assert first["observations"].tobytes() != other["observations"].tobytes()


def test_the_stream_of_a_sub_environment_does_not_depend_on_the_number_of_workers() -> None:
    def upright(observations: Any) -> Any:
        return (observations[:, 2] + observations[:, 3] > 0).astype(np.int64)

    first, *others = (cartpole_rollouts(num_workers, upright, 7) for num_workers in (0, 1, 2, 4))
    for other in others:
        assert all(first[name].tobytes() == other[name].tobytes() for name in first)


def test_sub_environments_have_different_seeds_and_the_global_generator_is_unchanged() -> None:
    np.random.seed(0)
    before = np.random.get_state()[1].tobytes()  # type: ignore[index,union-attr]
    observations = cartpole_rollouts(0, noisy, 3)["observations"]
    assert len({observations[0, column].tobytes() for column in range(6)}) == 6
    assert np.random.get_state()[1].tobytes() == before  # type: ignore[index,union-attr]
