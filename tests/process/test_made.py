"""Check that factories are refused that return one environment twice or other objects than environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from policies import zeros

from parenv import AsyncWorkerPool, ConfigurationError, ParallelVectorEnv


def sharing(wrapped: bool = False) -> Any:
    """Return a factory that returns the same environment in each call, optionally in a new wrapper."""
    env = gym.make("CartPole-v1")
    return (lambda: TimeLimit(env, 9)) if wrapped else lambda: env


def start(kind: str, make: Any, num_envs: int, num_workers: int) -> None:
    if kind == "pool":
        AsyncWorkerPool(make, zeros, num_envs=num_envs, num_workers=num_workers)
    else:
        ParallelVectorEnv([make] * num_envs, num_workers=num_workers)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("wrapped", [False, True], ids=["the same", "in other wrappers"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["pool", "vector"])
def test_one_environment_for_several_env_ids_is_refused(kind: str, num_workers: int, wrapped: bool) -> None:
    given = r"returned the environment of env_id [02] for env_id [13] too: .*CartPole"
    with pytest.raises(ConfigurationError, match=given):
        start(kind, sharing(wrapped), 4, num_workers)


def test_an_evaluation_in_the_environment_of_the_training_is_refused() -> None:
    with AsyncWorkerPool(sharing(), zeros, num_envs=1, num_workers=0) as pool:
        next(pool.rollouts())
        with pytest.raises(ConfigurationError, match="returned the environment of env_id 0 for env_id 0 too"):
            pool.evaluate(1)


def test_an_evaluation_in_the_vector_env_of_the_training_is_refused() -> None:
    vector_env = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with AsyncWorkerPool(lambda: vector_env, zeros, num_workers=0) as pool:
        next(pool.rollouts())
        with pytest.raises(ConfigurationError, match="returned the environment of env_id 0"):
            pool.evaluate(1)


class ParallelAgents:
    """Class with the interface of PettingZoo's ParallelEnv."""

    metadata = {"name": "tag_v3"}  # noqa: RUF012
    possible_agents = ("a", "b")

    def observation_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    action_space = observation_space


class AecAgents(ParallelAgents):
    """Class with the interface of PettingZoo's AECEnv."""

    metadata = {"name": "chess_v6"}  # noqa: RUF012

    def agent_iter(self) -> Any:
        return iter(())


class Else:
    """Class that is not an environment."""


class Vectors(Else):
    """Class like vector envs of other libraries."""

    num_envs = 4


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["pool", "vector"])
@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            ParallelAgents,
            r"got for env_id 0 tag_v3, a ParallelEnv of PettingZoo. Multi-agent .* AsyncWorkerPool",
        ),
        (
            AecAgents,
            r"chess_v6, an AECEnv of PettingZoo. Multi-agent .* AsyncWorkerPool",
        ),
        (Else, r"got for env_id 0 a .*Else, whose observation_space and action_space are not"),
        (
            Vectors,
            r"a .*Vectors, a vector env that is not a gymnasium.vector.VectorEnv. Pass factories of single",
        ),
        (lambda: None, "got for env_id 0 a builtins.NoneType"),
    ],
    ids=["parallel", "turns", "else", "vectors", "none"],
)
def test_objects_that_are_not_environments_of_gymnasium_are_refused(made: Any, message: str, kind: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        start(kind, made, 1, 1)
