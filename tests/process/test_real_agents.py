"""Check pools with real multi-agent environments of PettingZoo and MPE2."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from policies import zeros
from scripted_agents import species

from parenv import AsyncWorkerPool, ConfigurationError, ParallelVectorEnv, Policy, Stop
from parenv.policy.policy import Action


class Masked(Policy):
    """Policy that draws a legal action at random."""

    def act(self, observations: Any, carry: Any) -> Action:
        mask = observations["action_mask"]
        assert mask.any(1).all()
        return Action((np.random.random(mask.shape) * mask).argmax(1))


def maker(module: str, name: str, **how: Any) -> Any:
    return lambda: getattr(import_module(module), name)(**how)


SPREAD = maker("mpe2.simple_spread_v3", "parallel_env")
TAG = maker("mpe2.simple_tag_v3", "parallel_env")
FOUR = maker("pettingzoo.classic.connect_four_v3", "env")
TIC_TAC_TOE = maker("pettingzoo.classic.tictactoe_v3", "env")
KNIGHTS = maker("pettingzoo.butterfly.knights_archers_zombies_v11", "parallel_env")


@pytest.mark.more
def test_agents_with_other_spaces_have_policies_of_their_own() -> None:
    policies = {"adversary": zeros, "agent": zeros}
    with AsyncWorkerPool(TAG, policies, policy_of=species, num_envs=4, num_workers=2, rollout_length=30) as pool:
        for rollout in pool.rollouts(Stop(env_steps=480)):
            hunters, hunted = rollout["adversary"], rollout["agent"]  # type: ignore[index]
            assert (hunters.rewards.shape, hunted.rewards.shape) == ((30, 6), (30, 2))
            assert (hunters.observations.shape[2], hunted.observations.shape[2]) == (16, 14)
            assert hunters.agents == ["adversary_0", "adversary_1", "adversary_2"] * 2
            assert hunters.truncated.any(1).sum() in (1, 2)
            assert hunters.alive.all()


def test_the_global_state_is_stored_once_per_step_and_contains_each_observation() -> None:
    with AsyncWorkerPool(SPREAD, {"all": zeros}, num_envs=2, num_workers=0, rollout_length=60) as pool:
        rollout: Any = next(pool.rollouts())
    rows = rollout["all"]
    assert rollout.states.shape == (60, 2, 54)
    together = rows.observations.reshape(60, 2, 54)
    assert (together == rollout.states).all()
    assert (rows.next_observations().reshape(60, 2, 54) == rollout.next_states()).all()
    assert rollout.episodes.lengths.tolist() == [25] * 4


@pytest.mark.parametrize(("make", "begins"), [(FOUR, "player_0"), (TIC_TAC_TOE, "player_1")], ids=["four", "tictactoe"])
def test_board_games_are_played_in_turns_with_legal_moves(make: Any, begins: str) -> None:
    policies = {"first": Masked(), "second": Masked()}

    def side(agent: str, episode: Any) -> str:
        return "first" if agent == begins else "second"

    with AsyncWorkerPool(make, policies, policy_of=side, num_envs=6, num_workers=2, rollout_length=20) as pool:
        for rollout in pool.rollouts(Stop(env_steps=1500)):
            for rows in rollout.values():  # type: ignore[attr-defined]
                flat = rows.transitions()
                chosen = flat.observations["action_mask"][np.arange(len(flat)), flat.actions]
                assert (chosen == 1).all()
                assert set(np.unique(rows.rewards)) <= {-1.0, 0.0, 1.0}
                assert (np.abs(rows.episodes.returns) <= 1).all()
            if len(rollout.episodes):
                assert (rollout.episodes.returns == 0).all()
        result: Any = pool.evaluate(12)
        played = {(env_id, n): r for env_id, n, r in _results(result["first"])}
        assert {(env_id, n): -r for env_id, n, r in _results(result["second"])} == played
        assert len(played) == 12


def _results(episodes: Any) -> Any:
    return zip(episodes.env_ids.tolist(), episodes.numbers.tolist(), episodes.returns.tolist(), strict=True)


def test_an_agent_that_dies_early_is_not_alive() -> None:
    random = np.random.default_rng(7)

    def shoot(observations: Any) -> Any:
        return random.integers(0, 6, len(observations))

    with AsyncWorkerPool(KNIGHTS, {"all": shoot}, num_envs=2, num_workers=1, rollout_length=200, seed=7) as pool:
        dead = ended = 0
        rollouts: Any = pool.rollouts(Stop(env_steps=8000))
        for rollout in rollouts:
            rows = rollout["all"]
            ends = rows.terminated | rows.truncated
            assert not (ends & ~rows.alive).any()
            assert len(rows.transitions()) == rows.alive.sum()
            dead += int((~rows.alive).sum())
            ended += int(ends.sum())
            if dead and ended:
                return
    pytest.fail(f"{dead} rows of the dead and {ended} ends in 8,000 steps")


def test_multi_agent_environments_need_named_policies() -> None:
    for start in (
        lambda: AsyncWorkerPool(SPREAD, zeros, num_workers=1),
        lambda: ParallelVectorEnv([SPREAD], num_workers=1),
    ):
        with pytest.raises(
            ConfigurationError, match=r"a ParallelEnv of PettingZoo. .* AsyncWorkerPool with named policies"
        ):
            start()
