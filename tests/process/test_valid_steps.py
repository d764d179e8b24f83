"""Check that a pool of vector envs returns the same transitions in every autoreset mode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs import Copied, OwnVectorEnv
from gymnasium.vector import AutoresetMode
from policies import Counter, zeros

from parenv import AsyncWorkerPool, ConfigurationError, Stop, WorkerOptions
from parenv.testing import LedgerEnv, check_ledger

B = 3


def ledgers(mode: AutoresetMode) -> Any:
    return OwnVectorEnv([lambda i=i: Copied(LedgerEnv(i)) for i in range(B)], autoreset_mode=mode)


def by_env_id(autoreset_mode: AutoresetMode, **options: Any) -> dict[int, list[Any]]:
    """Return the first 30 transitions of each sub-environment."""
    found: dict[int, list[Any]] = {i: [] for i in range(B)}
    with AsyncWorkerPool(lambda: ledgers(autoreset_mode), zeros, rollout_length=7, **options) as pool:
        for rollout in pool.rollouts(Stop(env_steps=40 * B)):
            flat = rollout.transitions()
            assert len(flat) == rollout.num_steps
            columns = (flat.observations, flat.next_observations, flat.rewards, flat.terminated, flat.truncated)
            for env_id, *row in zip(flat.env_ids.tolist(), *(part.tolist() for part in columns), strict=True):
                found[env_id].append(row)
    return {env_id: rows[:30] for env_id, rows in found.items()}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("pool_mode", ["sync", "async"])
def test_the_transitions_are_the_same_in_every_mode(pool_mode: Any, num_workers: int) -> None:
    first, *others = (by_env_id(mode, mode=pool_mode, num_workers=num_workers) for mode in AutoresetMode)
    assert all(len(rows) == 30 for rows in first.values())
    assert others == [first, first]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("pool_mode", ["sync", "async"])
def test_counts_and_episodes_leave_out_reset_steps(pool_mode: Any, mode: AutoresetMode) -> None:
    returned: list[float] = []
    with AsyncWorkerPool(lambda: ledgers(mode), zeros, num_workers=2, mode=pool_mode, rollout_length=9) as pool:
        env_steps, episodes = 0, 0
        for rollout in pool.rollouts(Stop(env_steps=600)):
            env_steps, episodes = env_steps + int(rollout.valid.sum()), episodes + len(rollout.episodes)
            returned += rollout.episodes.returns.tolist()
            ended = rollout.terminated | rollout.truncated
            assert len(rollout.episodes) == ended.sum()
            if mode is AutoresetMode.NEXT_STEP:
                assert (~rollout.valid[1:] == ended[:-1]).all()
                assert not rollout.rewards[~rollout.valid].any()
            else:
                assert rollout.valid.all()
        statistics = pool.statistics()
        assert (statistics.env_steps, statistics.episodes) == (env_steps, episodes)
        assert 600 <= env_steps < 600 + 9 * B * 2
        wanted = {summed(i, episode) for i in range(B) for episode in range(60)}
        assert set(returned) <= wanted


def summed(env_id: int, episode: int) -> float:
    """Return the return of an episode of a ledger."""
    env, total, ended = LedgerEnv(env_id), 0.0, False
    for _ in range(episode + 1):
        env.reset()
    while not ended:
        _, reward, terminated, truncated, _ = env.step(0)
        total, ended = total + reward, terminated or truncated
    return total


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_carry_is_reset_with_each_episode_in_every_mode(mode: AutoresetMode) -> None:
    with AsyncWorkerPool(lambda: ledgers(mode), Counter(), num_workers=1, rollout_length=5) as pool:
        for rollout in pool.rollouts(Stop(env_steps=150)):
            expected = 10 + rollout.observations[..., 2]
            assert (rollout.extras["steps"] == expected)[rollout.valid].all()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_evaluations_play_whole_episodes_in_every_mode(mode: AutoresetMode) -> None:
    with AsyncWorkerPool(lambda: ledgers(mode), zeros, num_workers=1) as pool:
        played = pool.evaluate(7)
        wanted = [(env_id, summed(env_id, episode)) for episode in range(3) for env_id in range(B)]
        assert set(zip(played.env_ids.tolist(), played.returns.tolist(), strict=True)) <= set(wanted)
        assert len(played) == 7


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, observations: Any) -> Any:
        return self.layer(observations.float()).argmax(-1)


def counted(policy: Any, rollout: Any) -> Any:
    kept = rollout.transitions()
    loss = policy.layer(kept.observations.float() / 1e6).sum()
    return loss, {"kept": float(len(kept)), "all": float(rollout.rewards.numel())}


@pytest.mark.parametrize("pool_mode", ["sync", "async"])
def test_gradients_count_transitions_only(pool_mode: Any) -> None:
    with AsyncWorkerPool(
        lambda: ledgers(AutoresetMode.NEXT_STEP),
        Linear(),
        num_workers=2,
        mode=pool_mode,
        parallelism="gradient",
        rollout_length=8,
        loss_fn=counted,
    ) as pool:
        gradient = next(pool.gradients())
        per_worker = gradient.num_samples / len(gradient.workers)
        assert gradient.metrics["kept"] == per_worker < gradient.metrics["all"] == 8 * B


def test_gradients_of_rollouts_that_may_contain_only_reset_steps_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="rollout_length must be at least 2 with gradients"):
        AsyncWorkerPool(
            lambda: ledgers(AutoresetMode.NEXT_STEP),
            Linear(),
            num_workers=1,
            parallelism="gradient",
            rollout_length=1,
            loss_fn=counted,
        )


@pytest.mark.parametrize("mode", AutoresetMode)
def test_whole_episodes_are_whole_in_every_mode(mode: AutoresetMode) -> None:
    with AsyncWorkerPool(
        lambda: ledgers(mode),
        Linear(),
        num_workers=1,
        mode="sync",
        parallelism="gradient",
        rollout_length="episode",
        loss_fn=counted,
    ) as pool:
        for _, gradient in zip(range(3), pool.gradients(), strict=False):
            assert gradient.metrics["kept"] == gradient.metrics["all"] == gradient.num_samples
            assert gradient.episodes.lengths.sum() == gradient.num_samples


class Forgetful(OwnVectorEnv):
    """Vector env that does not return final observations, like many JAX environments."""

    def step(self, actions: Any) -> Any:
        *stepped, infos = super().step(actions)
        return *stepped, {name: value for name, value in infos.items() if "final" not in name}


def test_unknown_final_observations_of_whole_episodes_are_marked_as_unknown() -> None:
    known: list[Any] = []

    def loss(policy: Any, rollout: Any) -> Any:
        known.append((rollout.next_known, rollout.terminated | rollout.truncated))
        return policy.layer(rollout.observations.flatten(0, 1).float()).mean()

    makers = [lambda i=i: Copied(LedgerEnv(i)) for i in range(B)]
    with (
        AsyncWorkerPool(
            lambda: Forgetful(makers, autoreset_mode=AutoresetMode.SAME_STEP),
            Linear(),
            num_workers=0,
            mode="sync",
            parallelism="gradient",
            rollout_length="episode",
            loss_fn=loss,
        ) as pool,
        pytest.warns(UserWarning, match="next_known is False at these steps"),
    ):
        next(pool.gradients())
    ((next_known, ended),) = known
    assert int(ended.sum()) == B
    assert torch.equal(next_known, ~ended)


def native(num_envs: int = 8) -> Any:
    return gym.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pool_takes_gymnasiums_vectorized_cartpole(num_workers: int) -> None:
    def lean(observations: Any) -> Any:
        return (observations[:, 2] > 0).astype(np.int64)

    with AsyncWorkerPool(native, lean, num_workers=num_workers, mode="sync", rollout_length=64) as pool:
        for rollout in pool.rollouts(Stop(episodes=30)):
            assert (rollout.rewards == rollout.valid).all()
            # The next observation of a terminated step is the final observation, which is outside the limits.
            finals = rollout.next_observations()[rollout.terminated]
            assert ((abs(finals[:, 2]) > 0.2) | (abs(finals[:, 0]) > 2.3)).all()
            assert (abs(rollout.observations[rollout.valid][:, 2]) < 0.21).all()
            episodes = rollout.episodes
            assert (episodes.returns == episodes.lengths).all()
        assert pool.statistics().mean_length > 8


def test_a_worker_that_dies_loses_only_the_rollout_in_progress(warnings_are_expected: None) -> None:
    class Dying(OwnVectorEnv):
        steps = 0

        def step(self, actions: Any) -> Any:
            self.steps += 1
            if self.steps == 30:
                raise RuntimeError("no more")
            return super().step(actions)

    def make() -> Any:
        return Dying([lambda i=i: Copied(LedgerEnv(i)) for i in range(B)])

    expected: dict[int, tuple[int, ...]] = {}
    options = WorkerOptions(on_env_error="restart_worker")
    with AsyncWorkerPool(make, zeros, num_workers=1, rollout_length=8, workers=options) as pool:
        seen = 0
        for rollout in pool.rollouts(Stop(env_steps=150)):
            check_ledger(rollout, expected)
            seen += int(rollout.restarted.sum())
        assert seen >= B
