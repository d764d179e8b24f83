"""Check that observations and actions of every kind of space pass unchanged between processes."""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parenv import AsyncWorkerPool, ConfigurationError, Stop, WorkerOptions
from parenv.envs.seeding import environment_seed
from parenv.testing import LedgerEnv, check_ledger

SPACES = {
    "box": spaces.Box(-1, 1, (2, 3), np.float64),
    "pixels": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "discrete": spaces.Discrete(5, start=-2),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_binary": spaces.MultiBinary(6),
    "nested": spaces.Dict(
        z=spaces.Box(-1, 1, (2,), np.float16),
        a=spaces.Tuple([spaces.Discrete(3), spaces.Dict(b=spaces.MultiBinary(2))]),
    ),
    "text": spaces.Text(12),
    "sequence": spaces.Sequence(spaces.Box(-1, 1, (2,))),
    "graph": spaces.Graph(spaces.Box(-1, 1, (3,)), spaces.Discrete(4)),
    "mixed": spaces.Dict(word=spaces.Text(5), number=spaces.Discrete(7)),
    "no elements": spaces.Box(-1, 1, (2, 0, 3)),
    "parts without elements": spaces.Dict(a=spaces.Box(0, 1, (0, 2)), b=spaces.Tuple([spaces.Box(0, 1, (4, 0))])),
}


class Sampler(gym.Env[Any, Any]):
    """Environment that samples its observations and stores them in ``seen``."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = copy.deepcopy(observation_space), action_space
        self.seen: list[Any] = []
        self.length = 0

    def _sample(self) -> Any:
        value = self.observation_space.sample()
        self.seen.append(value)
        return value

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if seed is not None:
            self.observation_space.seed(seed)
        self.length = 0
        return self._sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.length += 1
        return self._sample(), 1.0, self.length == 3, False, {}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if left is None or right is None:
        return left is right
    return bool(np.array_equal(left, right)) and np.asarray(left).dtype == np.asarray(right).dtype


def at(tree: Any, row: int, column: int) -> Any:
    if isinstance(tree, dict):
        return {key: at(part, row, column) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(at(part, row, column) for part in tree)
    return tree[row][column]


def zeros(observations: Any) -> Any:
    while isinstance(observations, dict | tuple):
        observations = next(iter(observations.values() if isinstance(observations, dict) else observations))
    return np.zeros(len(observations), int)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("mode", "step_workers"), [("sync", None), ("async", None), ("sync", 2)])
@pytest.mark.parametrize("name", SPACES)
def test_observations_of_every_space_arrive_unchanged(name: str, mode: Any, step_workers: int | None) -> None:
    space = SPACES[name]
    with AsyncWorkerPool(
        lambda: Sampler(space, spaces.Discrete(2)),
        zeros,
        num_workers=1 if step_workers else 2,
        num_envs=4,
        mode=mode,
        rollout_length=5,
        seed=3,
        workers=WorkerOptions(step_workers=step_workers),
    ) as pool:
        rollouts = list(pool.rollouts(Stop(env_steps=60)))
        assert pool.single_observation_space == space
    replicas = {}
    for env_id in range(4):
        replicas[env_id] = Sampler(space, spaces.Discrete(2))
        replicas[env_id].reset(seed=environment_seed(3, env_id))
    rows = dict.fromkeys(replicas, 0)
    for rollout in rollouts:
        following = rollout.next_observations()
        for column, env_id in enumerate(rollout.env_ids.tolist()):
            replica = replicas[env_id]
            for row in range(5):
                assert same(at(rollout.observations, row, column), replica.seen[-1])
                observation, _, ended, _, _ = replica.step(0)
                assert same(at(following, row, column), observation)
                if ended:
                    replica.reset()
            rows[env_id] += 5
    assert sum(rows.values()) == 60


@pytest.mark.one_in(5)
@pytest.mark.parametrize("step_workers", [None, 2])
@pytest.mark.parametrize("name", [name for name in SPACES if name != "pixels"])
def test_actions_of_every_space_reach_the_environment(name: str, step_workers: int | None) -> None:
    space = SPACES[name]

    def policy(observations: Any) -> Any:
        samples = [space.sample() for _ in range(len(observations))]
        return (
            gym.vector.utils.concatenate(space, samples, gym.vector.utils.create_empty_array(space, n=len(samples)))
            if name not in ("text", "sequence", "graph", "mixed")
            else stacked(samples)
        )

    def stacked(samples: list[Any]) -> Any:
        if isinstance(samples[0], dict):
            return {
                key: [s[key] for s in samples]
                if isinstance(samples[0][key], str)
                else np.array([s[key] for s in samples])
                for key in samples[0]
            }
        return samples

    with AsyncWorkerPool(
        lambda: Sampler(spaces.Box(-1, 1, (1,)), space),
        policy,
        num_workers=1,
        num_envs=3,
        rollout_length=4,
        workers=WorkerOptions(step_workers=step_workers),
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=24)):
            for row in range(4):
                assert space.contains(as_single(space, at(rollout.actions, row, 0)))


@pytest.mark.skipif(importlib.util.find_spec("tensordict") is None, reason="needs parenv[torchrl]")
@pytest.mark.parametrize("rollout_length", [4, "episode"])
@pytest.mark.parametrize("name", ["no elements", "parts without elements"])
def test_rollouts_of_spaces_without_elements_can_be_flattened_and_moved(name: str, rollout_length: Any) -> None:
    space = SPACES[name]
    batch = gym.vector.utils.batch_space(space, 2)

    def policy(observations: Any) -> Any:
        return batch.sample()

    with AsyncWorkerPool(
        lambda: Sampler(space, space), policy, num_workers=0, num_envs=2, rollout_length=rollout_length
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=24)):
            T, B = rollout.rewards.shape
            for each, axes in ((rollout.transitions(), (T * B,)), (rollout.to("cpu").transitions(), (T * B,))):
                for tree in (each.observations, each.actions, each.next_observations):
                    assert [shape[: len(axes)] for shape in shapes(tree)] == [axes] * len(shapes(tree))
                    assert [shape[len(axes) :] for shape in shapes(tree)] == shapes(space.sample())
            assert rollout.to_tensordict().batch_size == (B, T)
        assert pool.evaluate(2).lengths.tolist() == [3, 3]


def shapes(tree: Any) -> list[tuple[int, ...]]:
    if isinstance(tree, dict | tuple):
        return [shape for part in (tree.values() if isinstance(tree, dict) else tree) for shape in shapes(part)]
    return [tuple(tree.shape)]


TUPLES = {"equal lengths": lambda i: (1, 2), "different lengths": lambda i: tuple(range(i % 3))}


@pytest.mark.parametrize("batch", [tuple, list])
@pytest.mark.parametrize("action_of", TUPLES.values(), ids=TUPLES)
def test_a_batch_of_sequences_may_be_a_tuple_or_a_list(action_of: Any, batch: Any) -> None:
    space = spaces.Sequence(spaces.Discrete(3))
    with AsyncWorkerPool(
        lambda: Sampler(spaces.Box(-1, 1, (1,)), space),
        lambda observations: batch(map(action_of, range(len(observations)))),
        num_workers=0,
        num_envs=3,
        rollout_length=4,
    ) as pool:
        assert next(pool.rollouts()).actions == [[action_of(i) for i in range(3)]] * 4


def as_single(space: Any, value: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: as_single(space[key], part) for key, part in value.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(as_single(s, part) for s, part in zip(space.spaces, value, strict=True))
    return value


NEXT_STEP = AutoresetMode.NEXT_STEP


class BatchedLedgers(gym.vector.VectorEnv[Any, Any, Any]):
    """Custom VectorEnv that returns the same array of observations in every step."""

    def __init__(self, first: int, count: int, mode: AutoresetMode) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.num_envs = count
        self.envs = [LedgerEnv(first + i) for i in range(count)]
        self.single_observation_space, self.single_action_space = self.envs[0].observation_space, spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, count)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, count)
        self.rows = np.zeros((count, 3), np.int64)
        self.ended = np.zeros(count, bool)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        for i in np.flatnonzero(mask):
            self.rows[i] = self.envs[i].reset()[0]
        self.ended[:] = False
        return self.rows, {}

    def step(self, actions: Any) -> Any:
        rewards, terminated, truncated = (
            np.zeros(self.num_envs),
            np.zeros(self.num_envs, bool),
            np.zeros(self.num_envs, bool),
        )
        finals = np.full(self.num_envs, None, object)
        for i, env in enumerate(self.envs):
            if self.ended[i]:
                self.rows[i], self.ended[i] = env.reset()[0], False
                rewards[i] = 7.0  # Some vector envs compute a reward for the step that only resets.
                continue
            self.rows[i], rewards[i], terminated[i], truncated[i], _ = env.step(actions[i])
            if (terminated[i] or truncated[i]) and self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP:
                finals[i] = self.rows[i].copy()
                self.rows[i] = env.reset()[0]
            self.ended[i] = (terminated[i] or truncated[i]) and self.metadata["autoreset_mode"] is NEXT_STEP
        in_infos = self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        return self.rows, rewards, terminated, truncated, {"final_obs": finals} if in_infos else {}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_factory_of_vector_envs_gives_real_transitions_only(mode: AutoresetMode) -> None:
    expected: dict[int, tuple[int, ...]] = {}
    with AsyncWorkerPool(lambda: BatchedLedgers(0, 3, mode), zeros, num_workers=1, rollout_length=8) as pool:
        assert pool.num_envs == 3
        for rollout in pool.rollouts(Stop(env_steps=200)):
            check_ledger(rollout, expected)


def test_sub_environments_of_a_plain_sync_vector_env_are_stepped_one_by_one() -> None:
    expected: dict[int, tuple[int, ...]] = {}

    def make() -> Any:
        return SyncVectorEnv([lambda i=i: LedgerEnv(i) for i in range(3)])

    with AsyncWorkerPool(make, zeros, num_workers=1, num_envs=3, rollout_length=8) as pool:
        for rollout in pool.rollouts(Stop(env_steps=200)):
            check_ledger(rollout, expected)


def test_every_worker_has_a_vector_env_of_its_own() -> None:
    with AsyncWorkerPool(
        lambda: SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3), zeros, num_workers=2, mode="sync"
    ) as pool:
        assert pool.num_envs == 6
        assert next(pool.rollouts()).rewards.shape == (128, 6)


def test_a_vector_env_without_an_autoreset_mode_is_refused() -> None:
    def make() -> Any:
        env = BatchedLedgers(0, 2, NEXT_STEP)
        env.metadata = {}
        return env

    with pytest.raises(ConfigurationError, match=r"must declare metadata\[.*got None"):
        AsyncWorkerPool(make, zeros, num_workers=1)


def test_the_error_for_a_vector_env_of_another_size_names_the_right_sizes() -> None:
    with pytest.raises(ConfigurationError, match="Leave num_envs out, or pass 3 for each worker"):
        AsyncWorkerPool(lambda: SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3), zeros, num_workers=2, num_envs=8)
