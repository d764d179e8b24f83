"""Check that a dataset contains each whole episode of a pool's rollouts once and can be loaded at any moment."""

from __future__ import annotations

import errno
import functools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from envs import Acting, Copied, OwnVectorEnv, kill_oneself, ledgers, once
from policies import lean, zeros

from parenv import (
    AsyncWorkerPool,
    ConfigurationError,
    Episode,
    ParallelVectorEnv,
    RestartPolicy,
    Stop,
    WorkerOptions,
    record_dataset,
)
from parenv.records import minari_writer
from parenv.testing import LedgerEnv
from parenv.testing.ledger import episode_length, ledger_reward

minari = pytest.importorskip("minari")
SEEDED: dict[str, Any] = {"episode_seeds": True}
OFTEN = WorkerOptions(restart=RestartPolicy(max_restarts=1000, backoff_s=1e-3, max_backoff_s=2e-3))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


def whole(observations: Any, rewards: Any, ended_by: str) -> tuple[int, int]:
    """Check that an episode of a ledger is complete, and return its env_id and its number."""
    env_id, episode = observations[0, :2].tolist()
    length = episode_length(env_id, episode, 7)
    assert observations[:, :3].tolist() == [[env_id, episode, step] for step in range(length + 1)]
    assert rewards.tolist() == [ledger_reward(env_id, episode, step + 1) for step in range(length)]
    assert ended_by == ("terminated", "truncated")[episode % 2]
    return env_id, episode


def loaded(dataset_id: str) -> list[tuple[Any, dict[str, Any]]]:
    """Load the episodes of a dataset with their metadata, and check that only their last steps are marked as ends."""
    dataset = minari.load_dataset(dataset_id)
    about = list(dataset.storage.get_episode_metadata(range(dataset.total_episodes)))
    found = list(zip(dataset, about, strict=True)) if about else []
    assert dataset.total_steps == sum(len(episode.rewards) for episode, _ in found)
    for episode, mine in found:
        ends = np.flatnonzero(episode.terminations), np.flatnonzero(episode.truncations)
        last = len(episode.rewards) - 1
        assert [part.tolist() for part in ends] == [
            [last] * (mine["ended_by"] == how) for how in ("terminated", "truncated")
        ]
    return found


def ledger_episodes(dataset_id: str) -> list[tuple[int, int]]:
    """Check that all episodes of a dataset of ledgers are complete, and return their env_ids and numbers."""
    found = loaded(dataset_id)
    assert all(about["env_id"] == episode.observations[0, 0] for episode, about in found)
    return [whole(episode.observations, episode.rewards, about["ended_by"]) for episode, about in found]


def ended_in(rollout: Any) -> list[tuple[int, int]]:
    """Return the env_ids and numbers of the ledger episodes that end in a rollout."""
    return [tuple(last[:2]) for last in rollout.final_observations.tolist()]


WAYS: dict[str, dict[str, Any]] = {
    "in process": {"num_workers": 0},
    "sync": {"num_workers": 2, "mode": "sync"},
    "async": {"num_workers": 2},
    "threads": {"num_workers": 1, "workers": WorkerOptions(step_threads=2)},
    "whole episodes": {"num_workers": 2, "rollout_length": "episode"},
    "step workers": {"num_workers": 1, "workers": WorkerOptions(step_workers=2)},
}


@pytest.mark.one_in(len(WAYS))
@pytest.mark.parametrize("way", WAYS)
def test_a_dataset_has_each_whole_episode_once_with_its_seed(way: str) -> None:
    ended: list[tuple[int, int]] = []
    factories = [functools.partial(Copied, one()) for one in ledgers(4)] if way == "step workers" else ledgers(4)
    with (
        AsyncWorkerPool(factories, zeros, episode_seeds=True, **{"rollout_length": 9, **WAYS[way]}) as pool,
        record_dataset(pool, "minari:me/ledger-v0") as recording,
    ):
        for rollout in pool.rollouts(Stop(env_steps=400)):
            ended += ended_in(rollout)
    assert recording.num_episodes == len(ended) > 20
    assert sorted(ledger_episodes("me/ledger-v0")) == sorted(ended)
    seeds = [about["seed"] for _, about in loaded("me/ledger-v0")]
    assert len(set(seeds)) == len(seeds)


def copied(factory: Any) -> Any:
    return Copied(factory())


def native() -> Any:
    return OwnVectorEnv(ledgers(2))


@pytest.mark.parametrize(("has_seeds", "seeds", "warnings"), [(False, None, 1), (False, False, 0), (True, None, 0)])
def test_a_pool_without_seeds_is_recorded_without_them_and_one_warning_names_the_option(
    has_seeds: bool, seeds: bool | None, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        AsyncWorkerPool(ledgers(2), zeros, num_workers=0, rollout_length=9, episode_seeds=has_seeds) as pool,
        record_dataset(pool, "minari:me/ledger-v0", seeds=seeds),
    ):
        for _ in pool.rollouts(Stop(env_steps=200)):
            pass
    assert len(ledger_episodes("me/ledger-v0")) > 5
    assert {"seed" in about for _, about in loaded("me/ledger-v0")} == {has_seeds}
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == warnings
    assert all("me/ledger-v0 has no seeds" in text and "Pass seeds=False to record_dataset" in text for text in said)


@pytest.mark.more
def test_reset_steps_of_a_vector_env_are_left_out() -> None:
    ended: list[tuple[int, int]] = []
    with (
        AsyncWorkerPool(native, zeros, num_workers=0, num_envs=2, rollout_length=5) as pool,
        record_dataset(pool, "minari:ledger-v0", seeds=False) as recording,
    ):
        for rollout in pool.rollouts(Stop(env_steps=200)):
            ended += ended_in(rollout)
    assert recording.num_episodes == len(ended) > 20
    assert ledger_episodes("ledger-v0") == ended
    assert all("seed" not in about for _, about in loaded("ledger-v0"))


class Walk(gym.Env[Any, Any]):
    """Random walk that draws random numbers in resets and in steps."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2)
        return self.place.copy(), {"side": self.place > 0}

    def step(self, action: Any) -> Any:
        self.place += self.np_random.normal(size=2) + action
        far = bool(abs(self.place).max() > 3)
        info = {"side": self.place > 0} | ({"far": np.float32(self.place.max())} if far else {})
        return self.place.copy(), float(self.place.sum()), far, False, info


def walk() -> Any:
    return gym.wrappers.TimeLimit(Walk(), 9)


def by_side(observations: Any, side: Any) -> Any:
    """Draw random actions, which are 0 in the dimensions in which the info ``side`` is false."""
    return np.random.uniform(-1, 1, observations.shape).astype(np.float32) * side


def replayed(env: Any, episode: Any, seed: int) -> Any:
    """Return the observations of an environment that repeats the actions of an episode from its seed."""
    observations = [env.reset(seed=seed)[0]]
    return np.array([*observations, *(env.step(action)[0] for action in episode.actions)])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_replayed_actions_and_seeds_reproduce_the_observations(mode: Any) -> None:
    with (
        AsyncWorkerPool("CartPole-v1", lean, num_envs=3, num_workers=2, mode=mode, episode_seeds=True) as pool,
        record_dataset(pool, "minari:me/more/cartpole-v3", metadata={"author": {"me"}, "algorithm_name": "lean"}),
    ):
        for _ in pool.rollouts(Stop(env_steps=1500)):
            pass
    dataset = minari.load_dataset("me/more/cartpole-v3")
    assert dataset.storage.metadata["author"] == {"me"}
    assert "me/more/cartpole-v3" in minari.list_local_datasets(prefix="me")
    env = dataset.recover_environment()
    assert dataset.total_episodes > 10
    for episode, about in loaded("me/more/cartpole-v3"):
        assert np.array_equal(replayed(env, episode, about["seed"]), episode.observations)


@pytest.mark.more
def test_infos_are_stored_with_their_observations() -> None:
    infos = {"side": None, "far": np.float32(0)}
    with (
        AsyncWorkerPool(walk, by_side, num_envs=3, num_workers=0, infos=infos, episode_seeds=True) as pool,
        record_dataset(pool, "minari:walk-v0"),
    ):
        for _ in pool.rollouts(Stop(env_steps=1000)):
            pass
    found = loaded("walk-v0")
    assert {about["ended_by"] for _, about in found} == {"terminated", "truncated"}
    for episode, about in found:
        assert np.array_equal(replayed(walk(), episode, about["seed"]), episode.observations)
        assert episode.infos.keys() == {"side", "_side", "far", "_far"}
        assert np.array_equal(
            episode.infos["side"], episode.observations > 0
        )  # ``side`` is an argument of the policy, so resets have it too.
        assert episode.infos["_side"].all()
        far = about["ended_by"] == "terminated"
        assert episode.infos["_far"].tolist() == [False] * len(episode.rewards) + [far]
        assert episode.infos["far"][-1] == (np.float32(episode.observations[-1].max()) if far else 0)


@pytest.mark.one_in(3)
@pytest.mark.usefixtures("warnings_are_expected")
@pytest.mark.parametrize(("mode", "rollout_length"), [("sync", 5), ("async", 5), ("async", "episode")])
def test_no_episode_is_joined_across_a_restart(mode: Any, rollout_length: Any, tmp_path: Path) -> None:
    def kill_once(env: Any) -> None:
        for number in (3, 6, 9):
            if env.episode == number and env.steps == 1 and once(tmp_path / f"{env.env_id}-{number}"):
                kill_oneself()

    ended: list[tuple[int, int]] = []
    factories = [functools.partial(Acting, env_id, kill_once) for env_id in range(4)]
    with (
        AsyncWorkerPool(
            factories, zeros, num_workers=2, mode=mode, rollout_length=rollout_length, workers=OFTEN, **SEEDED
        ) as pool,
        record_dataset(pool, "minari:ledger-v0") as recording,
    ):
        for rollout in pool.rollouts(Stop(env_steps=800)):
            ended += ended_in(rollout)
        assert pool.statistics().worker_restarts > 3
    assert recording.num_episodes == len(ended)
    assert sorted(ledger_episodes("ledger-v0")) == sorted(ended)
    seeds = [about["seed"] for _, about in loaded("ledger-v0")]
    assert len(set(seeds)) == len(seeds)


def diverge(*_: object) -> None:
    raise RuntimeError("simulator diverged")


RESTART_ENV = WorkerOptions(on_env_error="restart_env")


@pytest.mark.one_in(4)
@pytest.mark.usefixtures("warnings_are_expected")
@pytest.mark.parametrize(
    ("fail", "options"),
    [
        (diverge, {"num_workers": 0, "workers": RESTART_ENV}),
        (diverge, {"num_workers": 2, "mode": "sync", "workers": RESTART_ENV}),
        (diverge, {"num_workers": 1, "workers": replace(RESTART_ENV, step_threads=2)}),
        (kill_oneself, {"num_workers": 1, "workers": replace(OFTEN, step_workers=2)}),
    ],
    ids=["in process", "sync", "threads", "step workers"],
)
def test_an_episode_that_is_cut_by_an_exception_or_a_dead_step_worker_is_left_out(
    fail: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    def fail_once(env: Any) -> None:
        for number in (3, 6, 9):
            if env.episode == number and env.steps == 1 and once(tmp_path / f"{env.env_id}-{number}"):
                fail()

    factories = [functools.partial(Acting, env_id, fail_once) for env_id in range(4)]
    if fail is kill_oneself:
        factories = [functools.partial(copied, factory) for factory in factories]
    finished, lost = 0, 0
    with (
        AsyncWorkerPool(factories, zeros, rollout_length=5, episode_seeds=True, **options) as pool,
        record_dataset(pool, "minari:ledger-v0") as recording,
    ):
        for rollout in pool.rollouts(Stop(env_steps=800)):
            finished += len(rollout.episodes.finished)
            lost += len(rollout.episodes.lost)
    assert lost > 3
    assert recording.num_episodes == finished
    assert len(ledger_episodes("ledger-v0")) == finished


@pytest.mark.more
def test_a_recording_has_the_episodes_that_begin_and_end_in_its_block() -> None:
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=0, rollout_length=4, episode_seeds=True) as pool:
        rollouts = pool.rollouts()
        before = [one for _ in range(5) for one in ended_in(next(rollouts))]
        with record_dataset(pool, "minari:ledger-v0"):
            inside = [one for _ in range(20) for one in ended_in(next(rollouts))]
        for _ in range(5):
            next(rollouts)
    firsts = {env_id: max(number for one, number in before if one == env_id) + 1 for env_id in range(2)}
    assert ledger_episodes("ledger-v0") == [one for one in inside if one[1] > firsts[one[0]]]


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_loading_a_state_in_the_block_leaves_no_partial_episodes() -> None:
    options: dict[str, Any] = {"num_workers": 0, "rollout_length": 4, "episode_seeds": True, "seed": 3}
    with AsyncWorkerPool([Stateful] * 2, zeros, **options) as pool:
        rollouts = pool.rollouts()
        for _ in range(5):
            next(rollouts)
        state = pool.state_dict()
        seeds = [seed for _ in range(9) for seed in next(rollouts).infos["episode_seed"][-1].tolist()]
    with AsyncWorkerPool([Stateful] * 2, zeros, **options) as pool, record_dataset(pool, "minari:stateful-v0"):
        pool.load_state_dict(state)
        rollouts = pool.rollouts()
        assert [seed for _ in range(9) for seed in next(rollouts).infos["episode_seed"][-1].tolist()] == seeds
    found = loaded("stateful-v0")
    assert len(found) > 5
    assert all(episode.observations[:, 0].tolist() == list(range(6)) for episode, _ in found)


class Stateful(gym.Env[Any, Any]):
    """Environment with episodes of five steps, whose state can be read and set."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = gym.spaces.Box(0, 9, (1,), np.int64), gym.spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.array([0]), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.array([self.steps]), 0.0, self.steps == 5, False, {}

    def get_state(self) -> Any:
        return {"steps": self.steps}

    def set_state(self, state: Any) -> None:
        self.steps = state["steps"]


def test_keep_selects_the_episodes_of_the_dataset() -> None:
    offered: list[Episode] = []

    def keep(episode: Episode) -> bool:
        offered.append(episode)
        return episode.length > 3

    with (
        AsyncWorkerPool(ledgers(2), zeros, num_workers=0, episode_seeds=True) as pool,
        record_dataset(pool, "minari:ledger-v0", keep=keep) as recording,
    ):
        next(pool.rollouts())
        shown = repr(offered[0])
    wanted = [episode for episode in offered if episode.length > 3]
    assert 0 < recording.num_episodes == len(wanted) < len(offered)
    assert recording.num_steps == sum(episode.length for episode in wanted)
    assert shown.startswith("Episode(env_id=0, length=1, total_return=")
    for episode, (found, about) in zip(wanted, loaded("ledger-v0"), strict=True):
        assert np.array_equal(episode.observations, found.observations)
        assert about["total_return"] == episode.total_return == found.rewards.sum(dtype=np.float64)
        assert (about["seed"], about["env_id"]) == (episode.seed, episode.env_id)


def test_a_keep_that_raises_loses_no_other_episode() -> None:
    def keep(episode: Episode) -> bool:
        if whole(episode.observations, episode.rewards, episode.ended_by) == (1, 2):
            raise ValueError("no reward")
        return True

    with AsyncWorkerPool(ledgers(2), zeros, num_workers=0, rollout_length=20, episode_seeds=True) as pool:
        with (
            pytest.raises(ValueError, match="no reward") as raised,
            record_dataset(pool, "minari:ledger-v0", keep=keep) as recording,
        ):
            for _ in pool.rollouts():
                pass
        assert len(list(pool.rollouts(Stop(env_steps=40)))) == 1
    (note,) = raised.value.__notes__
    assert note.startswith("keep= of record_dataset raised this for Episode(env_id=1, ")
    found = ledger_episodes("ledger-v0")
    assert recording.num_episodes == len(found) > 4
    assert (1, 2) not in found
    assert {(1, 1), (1, 3), (0, 2)} <= set(found)


@pytest.mark.more
def test_an_exception_in_the_block_leaves_the_episodes_so_far() -> None:
    def record() -> None:
        with (
            AsyncWorkerPool(ledgers(2), zeros, num_workers=0, episode_seeds=True) as pool,
            record_dataset(pool, "minari:ledger-v0"),
        ):
            next(pool.rollouts())
            raise RuntimeError("the learner diverged")

    with pytest.raises(RuntimeError, match="diverged"):
        record()
    assert len(ledger_episodes("ledger-v0")) > 20


def test_a_pool_that_is_closed_in_the_block_leaves_the_episodes_so_far() -> None:
    with (
        AsyncWorkerPool(ledgers(2), zeros, num_workers=0, episode_seeds=True) as pool,
        record_dataset(pool, "minari:ledger-v0") as recording,
    ):
        next(pool.rollouts())
        pool.close()
        assert len(ledger_episodes("ledger-v0")) == recording.num_episodes > 20


@pytest.mark.more
def test_episodes_that_are_too_large_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with (
        AsyncWorkerPool(ledgers(2), zeros, num_workers=0, rollout_length=2, episode_seeds=True) as pool,
        record_dataset(pool, "minari:ledger-v0", max_episode_bytes=200) as recording,
    ):
        for _ in pool.rollouts(Stop(env_steps=400)):
            pass
    lengths = {len(episode.rewards) for episode, _ in loaded("ledger-v0")}
    assert {1, 2} <= lengths
    assert 7 not in lengths
    assert f"{recording.num_too_large} episodes are not in the dataset ledger-v0" in caplog.text


def spaces_of(name: str) -> gym.Space[Any]:
    box, image = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Box(0, 255, (32, 40, 3), np.uint8)
    return {
        "image": image,
        "dict": gym.spaces.Dict({"camera": image, "inner": gym.spaces.Tuple((box, gym.spaces.Discrete(3)))}),
        "text": gym.spaces.Text(5),
        "numbers": gym.spaces.Tuple((gym.spaces.MultiBinary(3), gym.spaces.MultiDiscrete([2, 3]))),
        "single": gym.spaces.Box(-1, 1, (), np.float64),
        "sequence": gym.spaces.Sequence(box),
    }[name]


class Sampled(gym.Env[Any, Any]):
    """Environment with episodes of five steps, whose observations are samples of a space."""

    def __init__(self, name: str) -> None:
        self.observation_space = self.action_space = spaces_of(name)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observation_space.sample(), 0.0, self.steps == 5, False, {}


def same(a: Any, b: Any) -> bool:
    """Return whether two nested values are equal and their arrays have the same dtypes."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b if isinstance(a, list) else bool(a.dtype == b.dtype and np.array_equal(a, b))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["image", "dict", "text", "numbers", "single"])
def test_values_of_spaces_that_minari_supports_are_stored_unchanged(name: str) -> None:
    kept: list[Episode] = []
    with (
        AsyncWorkerPool(
            functools.partial(Sampled, name), lambda observations: observations, num_workers=0, episode_seeds=True
        ) as pool,
        record_dataset(pool, "minari:sampled-v0", keep=lambda episode: not kept.append(episode)),
    ):
        next(pool.rollouts())
    found = loaded("sampled-v0")
    assert len(found) == len(kept) > 20
    for mine, (episode, _) in zip(kept, found, strict=True):
        assert same(mine.observations, episode.observations)
        assert same(mine.actions, episode.actions)


@pytest.mark.more
def test_a_space_that_minari_does_not_support_is_refused(folder: Path) -> None:
    env = functools.partial(Sampled, "sequence")
    with (
        AsyncWorkerPool(env, lambda observations: observations, num_workers=0, episode_seeds=True) as pool,
        pytest.raises(ConfigurationError, match=r"Minari cannot store the spaces of this pool: .*Sequence"),
        record_dataset(pool, "minari:sampled-v0"),
    ):
        pass
    assert list(folder.iterdir()) == []


def test_a_space_without_elements_is_refused_and_an_info_without_elements_is_stored(folder: Path) -> None:
    class Sized(LedgerEnv):
        def step(self, action: Any) -> Any:
            *found, info = super().step(action)
            return *found, {**info, "none": np.zeros((3, 0))}

    def empty() -> Any:
        space = gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (2, 0)))
        return gym.wrappers.TransformObservation(Sized(0), lambda _: {"a": np.zeros((2, 0), np.float32)}, space)

    options: dict[str, Any] = {"num_workers": 0, "episode_seeds": True, "infos": ("none",)}
    with AsyncWorkerPool(empty, lambda o: zeros(o["a"]), num_workers=0, episode_seeds=True) as pool:
        refused(pool, r"Minari cannot store the spaces of this pool: \['a'\] has the shape \(2, 0\)")
    assert not folder.exists()
    with AsyncWorkerPool(lambda: Sized(0), zeros, **options) as pool:
        with record_dataset(pool, "minari:sized-v0"):
            next(pool.rollouts())
        assert loaded("sized-v0")


def refused(pool: AsyncWorkerPool[Any], message: str, target: str = "minari:x-v0", **more: Any) -> None:
    """Check that ``record_dataset`` raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=message), record_dataset(pool, target, **more):
        pass


def test_wrong_arguments_are_refused_before_a_file_is_created(folder: Path) -> None:
    with AsyncWorkerPool(ledgers(1), zeros, num_workers=0, episode_seeds=True) as pool:
        refused(pool, "target must begin with \"minari:\", got 'lerobot:x'", "lerobot:x")
        refused(pool, "target must begin", "x-v0")
        for wrong in ("minari:x", "minari:", "minari:../x-v0", "minari:a b-v0"):
            refused(pool, "the id of a Minari dataset must be like", wrong)
        refused(pool, "keep must be a callable", keep=7)
        refused(pool, "env must be an env whose spec can be stored", env="NoSuchEnv-v0")
        refused(pool, "metadata must be plain data", metadata={"author": object()})
        refused(pool, "metadata must be plain data", metadata={"description": {1, 2}})
        refused(pool, "flush_bytes must be", flush_bytes=0)
    with ParallelVectorEnv(ledgers(1), num_workers=0) as envs:
        refused(envs, "pool must be an AsyncWorkerPool, got ")  # type: ignore[arg-type]
    with AsyncWorkerPool(ledgers(1), zeros, num_workers=0) as pool:
        refused(pool, r"record_dataset\(seeds=True\) needs .*episode_seeds=True", seeds=True)
    drops: dict[str, Any] = {"max_policy_lag": 1, "on_stale": "drop"}
    with AsyncWorkerPool(ledgers(1), zeros, num_workers=0, episode_seeds=True, **drops) as pool:
        refused(pool, 'on_stale="drop"')
    assert not folder.exists() or list(folder.iterdir()) == []


def test_an_env_that_cannot_be_described_is_left_out_or_refused() -> None:
    gym.register("Stateful-v0", entry_point=Stateful)
    try:
        with AsyncWorkerPool("Stateful-v0", zeros, num_workers=0, episode_seeds=True) as pool:
            refused(pool, "env must be an env whose spec can be stored", env="Stateful-v0")
            with record_dataset(pool, "minari:stateful-v0"):
                pass
            with record_dataset(pool, "minari:stateful-v1", env=gym.spec("CartPole-v1")):
                pass
        assert minari.load_dataset("stateful-v0").spec.env_spec is None
        assert minari.load_dataset("stateful-v1").spec.env_spec.id == "CartPole-v1"
    finally:
        del gym.registry["Stateful-v0"]


@pytest.mark.more
def test_pools_without_rollouts_of_one_agent_are_refused() -> None:
    import torch

    class Agent(torch.nn.Linear):
        def forward(self, observations: Any) -> Any:
            return super().forward(observations).argmax(-1)

    agent = Agent(4, 2)
    loss: dict[str, Any] = {"parallelism": "gradient", "loss_fn": lambda policy, rollout: policy.weight.sum()}
    with AsyncWorkerPool("CartPole-v1", agent, num_workers=0, episode_seeds=True, **loss) as pool:
        refused(pool, 'parallelism="experience"')
    with pytest.raises(ConfigurationError, match=r"episode_seeds=True cannot be used with named policies"):
        AsyncWorkerPool("CartPole-v1", {"runner": lean}, num_workers=0, episode_seeds=True)
    with AsyncWorkerPool("CartPole-v1", {"runner": lean}, num_workers=0) as pool:
        refused(pool, "named policies", seeds=False)
    with pytest.raises(ConfigurationError, match="single Gymnasium environments, got a OwnVectorEnv"):
        AsyncWorkerPool(native, zeros, num_workers=0, num_envs=2, episode_seeds=True)


def test_a_dataset_that_exists_is_not_touched() -> None:
    with AsyncWorkerPool(ledgers(1), zeros, num_workers=0, episode_seeds=True) as pool:
        with record_dataset(pool, "minari:me/ledger-v0"):
            next(pool.rollouts())
        before = ledger_episodes("me/ledger-v0")
        refused(pool, "the dataset me/ledger-v0 exists already", "minari:me/ledger-v0")
        with record_dataset(pool, "minari:me/ledger-v1"):
            refused(pool, "the dataset me/ledger-v1 exists already", "minari:me/ledger-v1")
    assert ledger_episodes("me/ledger-v0") == before
    assert ledger_episodes("me/ledger-v1") == []


def test_the_later_of_two_runs_that_create_one_dataset_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    new_storage, is_first = minari_writer.MinariWriter._new_storage, [True]

    def meanwhile(self: Any, path: Path) -> Any:
        if is_first.pop() if is_first else False:
            with record_dataset(pool, "minari:ledger-v0"):
                next(pool.rollouts())
        return new_storage(self, path)

    monkeypatch.setattr(minari_writer.MinariWriter, "_new_storage", meanwhile)
    with AsyncWorkerPool(ledgers(1), zeros, num_workers=0, episode_seeds=True) as pool:
        refused(pool, "the dataset ledger-v0 exists already", "minari:ledger-v0")
    assert len(ledger_episodes("ledger-v0")) > 10


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "file" / "datasets"))
    with AsyncWorkerPool(ledgers(1), zeros, num_workers=0, episode_seeds=True) as pool:
        refused(pool, r"the dataset x-v0 cannot be made: .*Set MINARI_DATASETS_PATH to a folder")


def test_the_error_without_minari_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with AsyncWorkerPool(ledgers(1), zeros, num_workers=0, episode_seeds=True) as pool:
        refused(pool, r"\.\[datasets\]")


@pytest.mark.more
def test_each_learner_has_its_own_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with (
        AsyncWorkerPool(ledgers(2), zeros, num_workers=0, episode_seeds=True) as pool,
        record_dataset(pool, "minari:me/ledger-v2") as recording,
    ):
        next(pool.rollouts())
    assert recording.dataset_id == "me/ledger-rank1-v2"
    assert {env_id for env_id, _ in ledger_episodes("me/ledger-rank1-v2")} == {1}


def test_a_full_disk_ends_the_recording_and_keeps_the_written_episodes() -> None:
    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=0, rollout_length=20, episode_seeds=True) as pool:
        rollouts = pool.rollouts()
        try:
            with record_dataset(pool, "minari:ledger-v0", flush_bytes=1) as recording:
                next(rollouts)
                written = recording.num_episodes
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
                with pytest.raises(OSError, match="the recording is over; the dataset keeps its written episodes"):
                    next(rollouts)
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
                assert len(ledger_episodes("ledger-v0")) == written > 3
                for _ in pool.rollouts(Stop(env_steps=100)):
                    pass
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, before)
    # The episodes that did not fit on the disk are written at the end of the block, when there is space again.
    assert len(ledger_episodes("ledger-v0")) == recording.num_episodes > written


def test_episodes_whose_commit_failed_are_written_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=0, rollout_length=20, episode_seeds=True) as pool:
        rollouts = pool.rollouts()
        with record_dataset(pool, "minari:ledger-v0", flush_bytes=1) as recording:
            with monkeypatch.context() as patched:
                # The folders of the episodes are at their places, but are not counted.
                patched.setattr(minari_writer, "replace", full_disk)
                with pytest.raises(OSError, match="the recording is over; the dataset keeps its written episodes"):
                    next(rollouts)
            assert len(ledger_episodes("ledger-v0")) == 0
    assert len(ledger_episodes("ledger-v0")) == recording.num_episodes > 0


def full_disk(draft: Path, path: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


KILLED = """
import os, sys, pathlib, functools
import numpy as np
from parenv import AsyncWorkerPool, record_dataset
from parenv.testing import LedgerEnv

calls, fatal = 0, int(sys.argv[1])
def counted(function):
    def call(*arguments, **more):
        global calls
        calls += 1
        if calls == fatal:
            os.kill(os.getpid(), 9)
        return function(*arguments, **more)
    return call
for name in ("rename", "replace", "write_text", "mkdir"):
    setattr(pathlib.Path, name, counted(getattr(pathlib.Path, name)))
makers = [functools.partial(LedgerEnv, env_id) for env_id in range(2)]
policy = lambda observations: np.zeros(len(observations), np.int64)
with AsyncWorkerPool(makers, policy, num_workers=0, rollout_length=9, episode_seeds=True) as pool:
    with record_dataset(pool, "minari:me/ledger-v0", flush_bytes=1):
        for number, _ in zip(range(6), pool.rollouts()):
            pass
print(calls)
"""


def record_until(fatal: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Record a dataset in a process that kills itself at the file operation with the number ``fatal``."""
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(fatal)],
        env={**os.environ, "MINARI_DATASETS_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=250,
    )


@pytest.mark.more
def test_a_process_that_is_killed_at_any_moment_leaves_a_dataset_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = record_until(-1, tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "whole"))
    everything, total = ledger_episodes("me/ledger-v0"), int(done.stdout)
    counts = []
    for fatal in [*range(1, 12), *range(12, total + 1, max(1, total // 8)), total]:
        assert record_until(fatal, tmp_path / str(fatal)).returncode == -signal.SIGKILL
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / str(fatal)))
        if (tmp_path / str(fatal) / "me" / "ledger-v0").exists():
            counts.append(len(found := ledger_episodes("me/ledger-v0")))
            assert found == everything[: len(found)]
    assert counts == sorted(counts)
    assert 0 == counts[0] < counts[-1]


def hidden(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.exists()]


@pytest.mark.more
def test_the_next_recording_removes_the_drafts_of_processes_that_were_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, left = tmp_path / "left", 0
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    with AsyncWorkerPool(ledgers(1), zeros, num_workers=0, **SEEDED) as pool:
        for fatal in range(1, 25):
            assert record_until(fatal, folder).returncode == -signal.SIGKILL
            left += bool(hidden(folder))
            with record_dataset(pool, f"minari:me/other-v{fatal}"):
                pass
            assert hidden(folder) == []
            shutil.rmtree(folder / "me" / "ledger-v0", ignore_errors=True)
    assert left > 12


@pytest.mark.more
def test_an_episode_of_the_maximum_length_is_stored_and_a_longer_one_is_not() -> None:
    limit = minari_writer.MAX_STEPS
    with (
        AsyncWorkerPool(functools.partial(Long, limit), zeros, num_workers=0, rollout_length=5000, **SEEDED) as pool,
        record_dataset(pool, "minari:long-v0") as recording,
    ):
        for _ in pool.rollouts(Stop(env_steps=2 * limit + 10_000)):
            pass
    ((episode, _),) = loaded("long-v0")
    assert episode.observations[:, 0].tolist() == list(range(limit + 1))
    assert recording.num_too_large == 1


class Long(gym.Env[Any, Any]):
    """Environment whose first episode has ``limit`` steps. Each further episode has one step more."""

    def __init__(self, limit: int) -> None:
        self.observation_space, self.action_space = gym.spaces.Box(0, 1e9, (1,), np.int64), gym.spaces.Discrete(2)
        self.limit, self.steps, self.episode = limit, 0, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.episode = 0, self.episode + 1
        return np.array([0]), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.array([self.steps]), 0.0, self.steps == self.limit + self.episode, False, {}


def metadata_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "data" / "metadata.json").read_text())
    return found


@pytest.mark.more
def test_no_temporary_files_are_left(folder: Path) -> None:
    with (
        AsyncWorkerPool(ledgers(2), zeros, num_workers=0, episode_seeds=True) as pool,
        record_dataset(pool, "minari:ledger-v0", flush_bytes=1) as recording,
    ):
        next(pool.rollouts())
    assert [path.name for path in (folder / "ledger-v0").iterdir()] == ["data"]
    assert metadata_of(folder / "ledger-v0")["total_episodes"] == recording.num_episodes
    assert {path.name for path in folder.iterdir()} == {"ledger-v0"}


@pytest.mark.more
def test_an_evaluation_in_the_training_environments_cuts_the_episodes_in_progress() -> None:
    ended: list[tuple[int, int]] = []
    with (
        AsyncWorkerPool(ledgers(2), zeros, num_workers=0, mode="sync", rollout_length=5, episode_seeds=True) as pool,
        record_dataset(pool, "minari:ledger-v0"),
    ):
        for number, rollout in enumerate(pool.rollouts(Stop(env_steps=300))):
            ended += ended_in(rollout)
            if number % 4 == 3:
                pool.evaluate(2, in_place=True)
    assert ledger_episodes("ledger-v0") == ended


@pytest.mark.more
def test_a_replayed_run_gives_the_same_dataset(tmp_path: Path) -> None:
    found = []
    for version, run in enumerate(({"record": tmp_path / "run"}, {"replay": tmp_path / "run"})):
        options: dict[str, Any] = {"num_envs": 4, "num_workers": 2, "rollout_length": 16, "episode_seeds": True, **run}
        with (
            AsyncWorkerPool("CartPole-v1", lean, **options) as pool,
            record_dataset(pool, f"minari:run-v{version}"),
        ):
            for _ in pool.rollouts(Stop(env_steps=1000)):
                pass
        found.append(loaded(f"run-v{version}"))
    assert len(found[0]) == len(found[1]) > 10
    for (one, about), (other, same_about) in zip(*found, strict=True):
        assert about == same_about
        assert np.array_equal(one.observations, other.observations)
        assert np.array_equal(one.actions, other.actions)
