"""Check that the pools of several learners together behave like the pool of a single learner."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from comparison import assert_same
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from policies import lean

import parenv.process.launcher
from parenv import AsyncWorkerPool, ConfigurationError, Rollout, Stop
from parenv.bench.timeline import find_traces, read_timeline
from parenv.progress import ProgressDisplay
from parenv.testing import LedgerEnv, check_ledger

NUM_ENVS, LENGTH, ROUNDS, WORLD = 7, 9, 12, 2
FIELDS = ("observations", "actions", "rewards", "terminated", "truncated")


class Identified(LedgerEnv):
    """Ledger that returns its env_id, the seed of its first reset and an attribute."""

    def __init__(self, env_id: int) -> None:
        super().__init__(env_id)
        self.me = env_id
        self.first_seed: int | None = None
        self.level = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.first_seed = self.first_seed or seed
        return super().reset(seed=seed, options=options)

    def who(self) -> Any:
        return [self.me, self.first_seed, self.level]


def ledgers() -> list[Any]:
    return [lambda env_id=env_id: Identified(env_id) for env_id in range(NUM_ENVS)]


ENVIRONMENTS = {"ledger": ledgers(), "cartpole": "CartPole-v1"}


def be_learner(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int = WORLD) -> None:
    """Set the environment variables that torchrun sets for a learner."""
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size), ("LOCAL_WORLD_SIZE", world_size)):
        monkeypatch.setenv(name, str(value))


def collected(env_fn: Any, num_workers: int, num_envs: int | None = NUM_ENVS) -> list[Rollout]:
    """Return copies of the rollouts of a sync pool with a seed."""
    with AsyncWorkerPool(
        env_fn, lean, num_envs=num_envs, num_workers=num_workers, mode="sync", rollout_length=LENGTH, seed=3
    ) as pool:
        steps = LENGTH * pool.num_envs * ROUNDS
        return [rollout.copy() for rollout in pool.rollouts(Stop(env_steps=steps))]


def joined(parts: Sequence[Rollout]) -> dict[str, Any]:
    """Return the arrays of rollouts of all learners, joined along their columns."""
    columns = {name: np.concatenate([getattr(part, name) for part in parts], axis=1) for name in FIELDS}
    following = np.concatenate([part.next_observations() for part in parts], axis=1)
    rows = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("last_observations", "env_ids")}
    return {**columns, "next_observations": following, **rows}


def episodes_of(parts: Sequence[Rollout]) -> list[tuple[Any, ...]]:
    """Return the env_id, return and length of each episode that ended in the rollouts."""
    episodes = [part.episodes for part in parts]
    rows = [zip(one.env_ids, one.returns, one.lengths, strict=True) for one in episodes]
    return [row for part in rows for row in part]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("environments", ENVIRONMENTS)
@pytest.mark.parametrize("num_workers", [0, 2, 4])
def test_two_learners_together_collect_the_same_rollouts_as_one(
    num_workers: int, environments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_fn = ENVIRONMENTS[environments]
    whole = collected(env_fn, num_workers)
    shares = []
    for rank in range(WORLD):
        be_learner(monkeypatch, rank)
        shares.append(collected(env_fn, num_workers))
    assert [len(rollouts) for rollouts in shares] == [ROUNDS] * WORLD == [len(whole)] * WORLD
    assert sum(len(rollout.episodes) for rollout in whole) > 0
    expected: dict[int, tuple[int, ...]] = {}
    for one, *parts in zip(whole, *shares, strict=True):
        assert one.env_ids.tolist() == list(range(NUM_ENVS))
        assert_same(joined(parts), joined([one]))
        for part in parts if environments == "ledger" else []:
            check_ledger(part, expected)
        assert sorted(episodes_of([one])) == sorted(episodes_of(parts))


def test_learners_share_the_vector_envs_of_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def three() -> Any:
        factory = lambda: gym.make("CartPole-v1")  # noqa: E731
        return SyncVectorEnv([factory] * 3, autoreset_mode=AutoresetMode.SAME_STEP)

    whole = collected(three, 4, None)
    shares = []
    for rank in range(WORLD):
        be_learner(monkeypatch, rank)
        shares.append(collected(three, 4, None))
    for one, *parts in zip(whole, *shares, strict=True):
        assert one.env_ids.tolist() == list(range(12))
        assert_same(joined(parts), joined([one]))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("num_workers", [0, 2, 4])
def test_env_ids_are_numbered_over_all_learners(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    size: dict[str, Any] = {"num_workers": num_workers, "rollout_length": 3, "seed": 3}
    with AsyncWorkerPool(ledgers(), lean, **size) as pool:
        whole = pool.call("who")
        assert [env_id for env_id, _, _ in whole] == list(range(NUM_ENVS))
    seen: list[int] = []
    for rank in range(WORLD):
        be_learner(monkeypatch, rank)
        with AsyncWorkerPool(ledgers(), lean, **size) as pool:
            mine = [env_id for env_id, _, _ in pool.call("who")]
            seen += mine
            assert mine == list(range(mine[0], mine[0] + pool.num_envs))
            assert pool.call("who") == whole[mine[0] : mine[-1] + 1]
            pool.set_attr("level", [10, 20], env_ids=[mine[-1], mine[0]])
            assert pool.call("who", env_ids=[mine[0], mine[-1]]) == (
                [*whole[mine[0]][:2], 20],
                [*whole[mine[-1]][:2], 10],
            )
            assert pool.get_attr("me", env_ids=mine[::-1]) == tuple(mine[::-1])
            others = sorted(set(range(NUM_ENVS)) - set(mine))
            message = f"env_ids must be between {mine[0]} and {mine[-1]}, got {others[0]}"
            with pytest.raises(ConfigurationError, match=message):
                pool.call("who", env_ids=[mine[0], others[0]])
    assert seen == list(range(NUM_ENVS))


@pytest.mark.parametrize(("num_envs", "num_workers"), [(8, 2), (2, None), (2, 0)])
def test_too_few_workers_for_the_learners_are_refused_before_anything_starts(
    num_envs: int, num_workers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was started")

    monkeypatch.setattr(parenv.process.launcher.subprocess, "Popen", started)
    monkeypatch.setattr(parenv.process.launcher, "_fork_servers", {})
    be_learner(monkeypatch, 2, world_size=3)
    message = f"at least 3, because each of 3 learners needs one, got {num_envs} and {num_workers}"
    with pytest.raises(ConfigurationError, match=message):
        AsyncWorkerPool(started, lean, num_envs=num_envs, num_workers=num_workers)


def test_a_malformed_rank_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    be_learner(monkeypatch, 0)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ConfigurationError, match="RANK must be a number, got 'first'"):
        AsyncWorkerPool([lambda: LedgerEnv(0), lambda: LedgerEnv(1)], lean)


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_learner_shows_progress(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    be_learner(monkeypatch, rank)
    shown = io.StringIO()
    with (
        AsyncWorkerPool([lambda: LedgerEnv(0), lambda: LedgerEnv(1)], lean, num_envs=2, num_workers=0) as pool,
        ProgressDisplay(pool, file=shown) as display,
    ):
        display.update()
    assert bool(shown.getvalue()) == (rank == 0)


def test_each_learner_records_and_replays_its_own_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(**how: Any) -> list[Any]:
        with AsyncWorkerPool(
            ENVIRONMENTS["cartpole"], lean, num_envs=WORLD, num_workers=0, rollout_length=5, **how
        ) as pool:
            return [rollout.copy() for rollout in pool.rollouts(Stop(env_steps=50))]

    recorded = []
    for rank in range(WORLD):
        be_learner(monkeypatch, rank)
        recorded.append(run(record=tmp_path / "run.jsonl", seed=3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-rank1.jsonl", "run.jsonl"]
    for rank in range(WORLD):
        be_learner(monkeypatch, rank)
        for before, again in zip(recorded[rank], run(replay=tmp_path / "run.jsonl", seed=3), strict=True):
            np.testing.assert_array_equal(before.observations, again.observations)
            np.testing.assert_array_equal(before.env_ids, again.env_ids)


def test_each_learner_writes_its_own_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for rank in range(WORLD):
        be_learner(monkeypatch, rank)
        with AsyncWorkerPool(ENVIRONMENTS["cartpole"], lean, num_envs=WORLD, num_workers=0, rollout_length=5) as pool:
            pool.trace(tmp_path / "run.json")
            next(pool.rollouts())
    traces = find_traces(tmp_path)
    assert [trace.name for trace in traces] == ["run-rank1.json", "run.json"]
    assert [read_timeline(trace).total_env_steps for trace in traces] == [5, 5]
