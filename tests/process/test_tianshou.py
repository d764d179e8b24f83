"""Check that ``ParallelVenv`` returns to Tianshou exactly what Tianshou's own ``DummyVectorEnv`` returns."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from late import Late

from parenv import ConfigurationError

tianshou, adapter = Late("tianshou.env"), Late("parenv.adapters.tianshou")
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("tianshou") is None, reason="needs pip install tianshou"),
    pytest.mark.more,
    # Tianshou and its dependencies emit warnings.
    pytest.mark.filterwarnings("ignore"),
]


class ActionInInfo(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper with an attribute, which returns the action in its infos."""

    level = 1

    def step(self, action: Any) -> Any:
        *rest, info = self.env.step(action)
        return (*rest, {**info, "acted": int(action)})


class Nested(gym.ObservationWrapper[Any, Any, Any]):
    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict(
            {"place": spaces.Box(-np.inf, np.inf, (2,)), "rest": spaces.Box(-9, 9, (2,))}
        )

    def observation(self, observation: Any) -> Any:
        return {"place": observation[:2], "rest": observation[2:]}


def make() -> Any:
    return ActionInInfo(gym.make("CartPole-v1", max_episode_steps=15))


def make_nested() -> Any:
    return Nested(gym.make("CartPole-v1"))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype == object:
        return len(one) == len(other) and all(map(equal, one, other))
    return one.shape == other.shape and bool((one == other).all())


@pytest.mark.parametrize("factory", [make, make_nested])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_traces_equal_those_of_tianshous_own_vector_env(factory: Any, num_workers: int) -> None:
    ours, theirs = adapter.ParallelVenv([factory] * 5, num_workers=num_workers), tianshou.DummyVectorEnv([factory] * 5)
    chance, ends = np.random.default_rng(0), 0
    try:
        ours.seed(7)
        theirs.seed(7)
        for _ in range(2):
            assert all(map(equal, ours.reset(), theirs.reset()))
        begun = [envs.reset([i], seed=i)[0] for envs in (ours, theirs) for i in range(5)]
        assert all(map(equal, begun[:5], begun[5:]))
        for _ in range(60):
            ids = chance.permutation(5)[: chance.integers(1, 6)]
            actions = chance.integers(0, 2, len(ids))
            mine, wanted = ours.step(actions, ids), theirs.step(actions, ids)
            assert all(map(equal, mine, wanted))
            ended = ids[mine[2] | mine[3]]
            ends += len(ended)
            if len(ended):
                assert all(map(equal, ours.reset(ended, seed=5), theirs.reset(ended, seed=5)))
        assert ends > 5
    finally:
        ours.close()
        theirs.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_environment_has_an_action_space_seeded_as_by_tianshou(num_workers: int) -> None:
    factories = [lambda: gym.make("Pendulum-v1")] * 3
    ours, theirs = adapter.ParallelVenv(factories, num_workers=num_workers), tianshou.DummyVectorEnv(factories)
    try:
        assert len({float(space.sample()[0]) for space in ours.action_space}) == 3
        for begin in (lambda envs: envs.seed(4), lambda envs: envs.reset([0, 2], seed=5)):
            drawn = []
            for envs in (ours, theirs):
                begin(envs)
                drawn.append([space.sample() for space in envs.action_space])
            assert equal(*drawn)
    finally:
        ours.close()
        theirs.close()


class Starts(gym.Env[Any, Any]):
    """Environment whose observation shows the options of its reset."""

    observation_space, action_space = spaces.Box(-9, 9, (1,)), spaces.Discrete(2)

    def reset(self, **given: Any) -> Any:
        options = given.get("options", {"state": 3})
        return np.array([-1 if options is None else options["state"]], np.float32), {}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_reset_has_only_the_arguments_that_it_was_given(num_workers: int) -> None:
    ours, theirs = adapter.ParallelVenv([Starts] * 2, num_workers=num_workers), tianshou.DummyVectorEnv([Starts] * 2)
    try:
        for given in ({}, {"options": None}, {"options": {"state": 5}}):
            mine, wanted = ours.reset([1], **given)[0], theirs.reset([1], **given)[0]
            assert equal(mine, wanted), given
    finally:
        ours.close()
        theirs.close()


def make_algorithm() -> Any:
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    torch.manual_seed(0)
    one = gym.make("CartPole-v1")
    net = Net(state_shape=(4,), hidden_sizes=[16])
    policy = DiscreteActorPolicy(
        actor=DiscreteActor(preprocess_net=net, action_shape=2),
        action_space=one.action_space,
        observation_space=one.observation_space,
    )
    critic = DiscreteCritic(preprocess_net=net)
    return PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=1e-3))


def collected(envs: Any) -> tuple[Any, int]:
    from tianshou.data import Collector, VectorReplayBuffer

    try:
        collector = Collector(make_algorithm(), envs, VectorReplayBuffer(400, 4))
        collector.reset(gym_reset_kwargs={"seed": 3})
        found = collector.collect(n_step=200)
        return collector.buffer[:], found.n_collected_episodes
    finally:
        envs.close()


def test_a_collector_of_tianshou_collects_the_same() -> None:
    mine, episodes = collected(adapter.ParallelVenv([make] * 4, num_workers=2))
    wanted, wanted_episodes = collected(tianshou.DummyVectorEnv([make] * 4))
    assert episodes == wanted_episodes > 5
    for name in ("obs", "act", "rew", "terminated", "truncated", "obs_next"):
        assert equal(mine[name], wanted[name]), name


def test_an_algorithm_of_tianshou_trains_on_it() -> None:
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.trainer import OnPolicyTrainerParams

    envs, algorithm = adapter.ParallelVenv([make] * 4, num_workers=2), make_algorithm()
    before = [parameter.clone() for parameter in algorithm.policy.parameters()]
    try:
        arguments = OnPolicyTrainerParams(
            training_collector=Collector(algorithm, envs, VectorReplayBuffer(512, 4)),
            max_epochs=1,
            epoch_num_steps=512,
            collection_step_num_env_steps=256,
            batch_size=64,
            show_progress=False,
        )
        assert algorithm.run_training(arguments).train_step == 512
    finally:
        envs.close()
    assert not all(map(torch.equal, before, algorithm.policy.parameters()))


def test_attributes_are_those_of_the_environments() -> None:
    envs = adapter.ParallelVenv([make] * 3, num_workers=2)
    try:
        assert len(envs) == 3
        assert [space.n for space in envs.action_space] == [2, 2, 2]
        assert envs.get_env_attr("level") == [1, 1, 1]
        envs.set_env_attr("level", 5, [1])
        assert envs.get_env_attr("level", [1, 2]) == [5, 1]
        envs.set_env_attr("level", 6)
        assert envs.get_env_attr("level", 0) == [6]
        with pytest.raises(ValueError, match="actions must have one for each of 2 environments, got 1"):
            envs.step(np.zeros(1, int), [0, 1])
        with pytest.raises(ConfigurationError, match="keywords of reset must be seed and options, got speed"):
            envs.reset(speed=3)
    finally:
        envs.close()
    with pytest.raises(AssertionError, match="cannot be called after close"):
        envs.reset()


class InTuples(gym.Env[Any, Any]):
    observation_space = spaces.Tuple([spaces.Discrete(2)])
    action_space = spaces.Discrete(2)

    def reset(self, **options: Any) -> Any:
        return (0,), {}


def test_it_takes_at_most_one_worker_per_environment() -> None:
    envs = adapter.ParallelVenv([make] * 2, num_workers=3)
    assert envs._envs.num_workers == 2
    envs.close()


def test_tuple_observations_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="observations must not be a Tuple"):
        adapter.ParallelVenv([InTuples], num_workers=1)
