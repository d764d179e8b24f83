"""Check that recycled environments lose no transition and get seeds that follow from the episode number."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from faults import (
    AGENTS,
    Chooses,
    Fault,
    FaultyAgents,
    FaultyEnv,
    FaultyTurns,
    Ledger,
    audit,
    choose,
    write_down,
)
from gymnasium.vector import AutoresetMode
from inside import kill
from policies import lean, zeros

import parenv
from parenv import AsyncWorkerPool, ConfigurationError, ParallelVectorEnv, RestartPolicy, Stop, WorkerOptions
from parenv.envs.seeding import environment_seed, reset_seed

EPISODES = 3
WAYS = {
    "single": (FaultyEnv, {}, {}),
    "alone": (FaultyEnv, {}, {"num_envs": 1, "num_workers": 1}),
    "inline": (FaultyEnv, {}, {"num_workers": 0}),
    "threads": (FaultyEnv, {"step_threads": 2}, {}),
    "step workers": (FaultyEnv, {"step_workers": 2}, {}),
    "replacing": (FaultyEnv, {"on_env_error": "restart_env"}, {}),
    "parallel agents": (FaultyAgents, {}, {}),
    "AEC agents": (FaultyTurns, {}, {}),
}


def never(folder: Path) -> Fault:
    """Return a fault at a place that these tests never reach."""
    return Fault("load", False, folder)


def lives_of(ledger: Ledger) -> dict[int, list[tuple[int, int]]]:
    """Return ``(life, number of episodes)`` of each environment instance in order, by env_id."""
    found: dict[int, list[tuple[int, int]]] = {}
    for (env_id, _), lived in ledger.items():
        episodes = [key for key, _ in groupby(lived, lambda one: tuple(one.observation[1:3]))]
        found[env_id] = [(life, len(list(group))) for life, group in groupby(episodes, lambda key: key[0])]
    return found


@pytest.mark.one_in(8)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("way", WAYS)
def test_no_transition_is_lost_when_an_environment_is_made_again(way: str, mode: Any, tmp_path: Path) -> None:
    kind, options, how = WAYS[way]
    fault, ledger, named = Fault("reset", False, tmp_path), Ledger(), "agents" in way
    num_envs = how.get("num_envs", 4)
    (tmp_path / "happened").touch()
    policy: Any = Chooses(0, fault)
    with AsyncWorkerPool(
        [functools.partial(kind, env_id, fault) for env_id in range(num_envs)],
        {agent[:3]: policy for agent in AGENTS} if named else policy,
        policy_of=(lambda agent, episode: agent[:3]) if named else None,
        mode=mode, rollout_length=5, seed=5, workers=WorkerOptions(recycle_episodes=EPISODES, **options),
        **({"num_workers": 2 if way != "step workers" else 1} | how | {"num_envs": num_envs}),
    ) as pool:  # fmt: skip
        for delivered in pool.rollouts():
            assert not len(delivered.episodes.lost)
            for rollout in delivered.values() if named else [delivered]:
                assert not rollout.restarted.any()
                write_down(rollout, ledger)
            if len(ledger) == num_envs * (2 if named else 1) and all(len(lived) > 60 for lived in ledger.values()):
                break
    assert audit(ledger) == set(range(num_envs))
    for lives in lives_of(ledger).values():
        assert len(lives) > 3
        assert all(count == EPISODES for _, count in lives[:-1])
        assert lives == sorted(lives, key=lambda one: one[0])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("autoreset_mode", list(AutoresetMode))
@pytest.mark.parametrize(
    "how", [{"num_workers": 2}, {"num_workers": 0}, {"num_workers": 1, "caller_steps": True}], ids=str
)
def test_a_vector_env_makes_its_environments_again_in_every_mode(
    how: dict[str, Any], autoreset_mode: Any, tmp_path: Path
) -> None:
    fault, seen = never(tmp_path), defaultdict[int, list[list[int]]](list)
    make = [functools.partial(FaultyEnv, env_id, fault) for env_id in range(4)]
    with ParallelVectorEnv(
        make, autoreset_mode=autoreset_mode, workers=WorkerOptions(recycle_episodes=EPISODES), **how
    ) as envs:
        observations, _ = envs.reset(seed=5)
        for _ in range(60):
            for env_id in range(4):
                seen[env_id].append(observations[env_id].tolist())
            observations, _, terminated, truncated, _ = envs.step(choose(observations))
            if autoreset_mode is AutoresetMode.DISABLED and (ended := terminated | truncated).any():
                observations, _ = envs.reset(options={"reset_mask": ended})
    for env_id in range(4):
        episodes = [key for key, _ in groupby(seen[env_id], lambda state: tuple(state[1:3]))]
        counts = [len(list(group)) for _, group in groupby(episodes, lambda key: key[0])]
        assert len(counts) > 3
        assert set(counts[:-1]) == {EPISODES}
        for episode in episodes[:-1]:
            steps = [state[3] for state in seen[env_id] if tuple(state[1:3]) == episode]
            assert steps == list(range(len(steps)))


class Labelled:
    """Mixin for an environment with an attribute ``label``, which may raise an exception in its seventh step."""

    label, breaks = 0, False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.token, self.steps = uuid.uuid4().hex, 0

    def step(self, action: Any) -> Any:
        self.steps += action is not None
        if self.breaks and self.steps == 7:
            raise RuntimeError("the motor is hot")
        return super().step(action)  # type: ignore[misc]


CAUSES: dict[str, Any] = {
    "recycled": {"recycle_episodes": 2},
    "exception": {"on_env_error": "restart_env", "restart": RestartPolicy(10_000, backoff_s=1e-3)},
    "killed": {},
}


@pytest.mark.one_in(3)
@pytest.mark.usefixtures("warnings_are_expected")
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("way", ["single", "parallel agents", "AEC agents"])
def test_values_of_set_attr_go_to_the_environment_that_replaces_another(way: str, cause: str, tmp_path: Path) -> None:
    fault, named = never(tmp_path), "agents" in way
    (tmp_path / "happened").touch()
    kind: Any = type("LabelledEnv", (Labelled, WAYS[way][0]), {"breaks": cause == "exception"})
    policy: Any = Chooses(0, fault)
    with AsyncWorkerPool(
        [functools.partial(kind, env_id, fault) for env_id in range(2)],
        {agent[:3]: policy for agent in AGENTS} if named else policy,
        policy_of=(lambda agent, episode: agent[:3]) if named else None,
        num_workers=2, rollout_length=5, workers=WorkerOptions(**CAUSES[cause]),
    ) as pool:  # fmt: skip
        pool.set_attr("label", 5)
        pool.set_attr("label", [3, 4])
        before = pool.get_attr("token")
        if cause == "killed":
            assert kill(pool, 0)
        for delivered in pool.rollouts():
            is_killed = any(rollout.restarted.any() for rollout in (delivered.values() if named else [delivered]))
            if is_killed or (cause != "killed" and not set(before) & set(pool.get_attr("token"))):
                break
        assert pool.get_attr("label") == (3, 4)
        assert pool.get_attr("token") != before


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_vector_env_sets_values_again_in_the_environments_that_it_makes_again(num_workers: int) -> None:
    class Shown(Seeded):
        level = 0

        def reset(self, **options: Any) -> Any:
            self.shown = np.array([self.level])
            return self.shown, {}

    with ParallelVectorEnv([Shown] * 2, num_workers=num_workers, workers=WorkerOptions(recycle_episodes=2)) as envs:
        envs.reset()
        envs.set_attr("level", [5, 6])
        for _ in range(10):
            observations, *_ = envs.step(np.zeros(2, np.int64))
        assert observations[:, 0].tolist() == [5, 6]


class Seeded(gym.Env[Any, Any]):
    """Environment with episodes of one step, whose observation is the seed that was passed to ``reset``, or -1."""

    observation_space = gym.spaces.Box(-1, 1 << 33, (1,), np.int64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.shown = np.array([-1 if seed is None else seed])
        return self.shown, {}

    def step(self, action: Any) -> Any:
        return self.shown, 1.0, True, False, {}


def seeds_shown(num_workers: int, recycle_episodes: int | None, **more: Any) -> list[list[int]]:
    """Return the seeds of the resets of two environments in a rollout of 8 steps."""
    options = WorkerOptions(recycle_episodes=recycle_episodes)
    with AsyncWorkerPool(
        Seeded,
        zeros,
        num_envs=2,
        num_workers=num_workers,
        mode="sync",
        rollout_length=8,
        seed=3,
        workers=options,
        **more,
    ) as pool:
        return next(pool.rollouts()).observations[..., 0].T.tolist()


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_the_seed_of_a_new_environment_follows_from_the_first_seed_and_the_number_of_episodes(num_workers: int) -> None:
    shown = seeds_shown(num_workers, 3)
    firsts = [environment_seed(3, env_id) for env_id in range(2)]
    assert shown == [[a, -1, -1, reset_seed(a, 3), -1, -1, reset_seed(a, 6), -1] for a in firsts]
    assert seeds_shown(num_workers, None) == [[a, *[-1] * 7] for a in firsts]


def test_seeds_that_resets_are_given_stay_the_same() -> None:
    assert seeds_shown(1, 2, episode_seeds=True) == seeds_shown(1, None, episode_seeds=True)


@pytest.mark.more
def test_an_evaluation_has_the_same_results() -> None:
    returns = []
    for workers in (None, WorkerOptions(recycle_episodes=2)):
        report = parenv.evaluate(lean, "CartPole-v1", episodes=5, num_workers=0, workers=workers)
        returns.append([one.episode_return for one in report.episodes])
    assert returns[0] == returns[1]


def cartpole_from_one_state() -> Any:
    class Same(gym.Wrapper[Any, Any, Any, Any]):
        def reset(self, **options: Any) -> Any:
            return self.env.reset(seed=7)

    return Same(gym.make("CartPole-v1"))


def test_the_trace_is_the_same_if_the_state_depends_on_the_seed_of_the_reset_only() -> None:
    found = []
    for options in (WorkerOptions(), WorkerOptions(recycle_episodes=2)):
        with AsyncWorkerPool(
            cartpole_from_one_state, lean, num_envs=2, num_workers=1, mode="sync", seed=1, workers=options
        ) as pool:
            found.append([rollout.copy() for rollout in pool.rollouts(Stop(env_steps=2000))])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.observations, other.observations)
        np.testing.assert_array_equal(one.terminated, other.terminated)


def test_statistics_of_normalization_go_to_the_new_environment() -> None:
    class Normalized(gym.wrappers.NormalizeObservation):
        @property
        def num_seen(self) -> float:
            return float(self.obs_rms.count)

    with AsyncWorkerPool(
        lambda: Normalized(gym.make("CartPole-v1")), lean, num_workers=0, rollout_length=64,
        workers=WorkerOptions(recycle_episodes=1),
    ) as pool:  # fmt: skip
        ended = sum(len(rollout.episodes) for rollout in pool.rollouts(Stop(env_steps=640)))
        (num_seen,) = pool.get_attr("num_seen")
    assert ended > 1
    assert num_seen > 640


def test_a_run_that_continues_makes_environments_again_at_the_same_episodes(tmp_path: Path) -> None:
    class Lasting(FaultyEnv):
        def get_state(self) -> list[int]:
            return self.state.tolist()

        def set_state(self, state: list[int]) -> None:
            self.state[:] = state

    how: dict[str, Any] = {"num_workers": 1, "mode": "sync", "rollout_length": 7, "seed": 1}
    makers = [functools.partial(Lasting, env_id, never(tmp_path)) for env_id in range(2)]

    def episodes(rollout: Any) -> Any:
        return rollout.observations[..., 2].copy()

    with AsyncWorkerPool(makers, zeros, workers=WorkerOptions(recycle_episodes=EPISODES), **how) as pool:
        stream = pool.rollouts()
        next(stream)
        state = pool.state_dict()
        wanted = [episodes(next(stream)) for _ in range(4)]
    with AsyncWorkerPool(makers, zeros, workers=WorkerOptions(recycle_episodes=EPISODES), **how) as pool:
        pool.load_state_dict(state)
        stream = pool.rollouts()
        for one in wanted:
            np.testing.assert_array_equal(episodes(next(stream)), one)


def native() -> Any:
    return gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env_fn": native}, "recycle_episodes=2 cannot be used with a factory of vector envs"),
        (
            {"env_fn": lambda: gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)},
            "got a SyncVectorEnv. Pass a factory of single environments",
        ),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_recycling_of_native_vector_envs_is_refused(num_workers: int, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AsyncWorkerPool(policy=lean, num_workers=num_workers, workers=WorkerOptions(recycle_episodes=2), **arguments)


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"WorkerOptions.recycle_episodes must be .*got 0"):
        WorkerOptions(recycle_episodes=0)


def test_other_spaces_are_refused() -> None:
    highs = iter(range(9, 20))

    def make() -> Any:
        env = Seeded()
        env.observation_space = gym.spaces.Box(-1, next(highs) << 30, (1,), np.int64)
        return env

    envs = ParallelVectorEnv([make], num_workers=0, workers=WorkerOptions(recycle_episodes=1))
    with contextlib.closing(envs):
        envs.reset()
        with pytest.raises(ConfigurationError, match="must have the observation_space of the first one"):
            step_until_reset(envs)


def step_until_reset(envs: Any) -> None:
    for _ in range(3):
        envs.step(np.zeros(1, np.int64))
