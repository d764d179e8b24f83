"""Check that a pool continues from its saved state, and that checkpoint files are complete or refused."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from inside import pid_of
from policies import zeros
from pool_places import Place, places

from parenv import AsyncWorkerPool, ConfigurationError, Policy, TorchPolicy, load_checkpoint, save_checkpoint
from parenv.errors import NotDataError
from parenv.policy.policy import Action
from parenv.testing import LedgerEnv, check_ledger

pytestmark = pytest.mark.usefixtures("warnings_are_expected")


class Walk(gym.Env[Any, Any]):
    """Random walk whose state contains everything except its generator, which the pool saves."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2)
        return self.place.copy(), {}

    def step(self, action: Any) -> Any:
        self.place += self.np_random.normal(size=2) * (1 + action)
        return self.place.copy(), float(self.place.sum()), bool(self.place[0] > 3), False, {}

    def get_state(self) -> Any:
        return {"place": self.place.copy()}

    def set_state(self, state: Any) -> None:
        self.place = np.array(state["place"])


def walk() -> Any:
    return gym.wrappers.TimeLimit(Walk(), 9)


class Recurrent(torch.nn.Module):
    """Recurrent policy whose samples depend on torch's generator, the weight and the carry."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), 0.1, dtype=torch.float64))

    def initial_carry(self, batch: int) -> Any:
        return torch.zeros(batch, dtype=torch.float64)

    def act(self, observations: Any, carry: Any) -> Any:
        carry = 0.9 * carry + observations.sum(-1)
        chance = torch.sigmoid(carry * self.weight.sum())
        actions = (torch.rand(len(chance), dtype=torch.float64) < chance).long()
        return actions, carry, carry


def recurrent(module: Any) -> TorchPolicy:
    return TorchPolicy(module, "act", ("actions", "seen", "carry"))


def bytes_of(rollout: Any) -> list[bytes]:
    values = (rollout.observations, rollout.actions, rollout.rewards, rollout.terminated, rollout.truncated)
    more = (rollout.extras["seen"], rollout.restarted, rollout.episodes.returns, rollout.episodes.lengths)
    return [np.ascontiguousarray(value).tobytes() for value in (*values, *more)]


def train(pool: AsyncWorkerPool, module: Any, rounds: int) -> list[Any]:
    stream, seen = pool.rollouts(), []
    for _ in range(rounds):
        rollout = next(stream)
        seen.append((rollout.policy_version, *bytes_of(rollout)))
        with torch.no_grad():
            module.weight += 0.01 * float(rollout.rewards.mean())
        pool.publish(module, epsilon=float(pool.policy_version))
    return seen


@pytest.mark.parametrize("pool_place", places("states"), indirect=True)
def test_a_resumed_sync_run_equals_an_uninterrupted_run(pool_place: Place, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"num_envs": 4, "mode": "sync", "rollout_length": 6, "seed": 3}
    module = Recurrent()
    with pool_place.pool(walk, recurrent(module), **arguments) as pool:
        whole = train(pool, module, 8)
        steps, evaluated = pool.statistics().env_steps, pool.evaluate(3, deterministic=False).returns.tolist()
    module = Recurrent()
    with pool_place.pool(walk, recurrent(module), **arguments) as pool:
        first = train(pool, module, 4)
        save_checkpoint(tmp_path / "run", {"pool": pool.state_dict(), "module": module.state_dict()})
    saved = load_checkpoint(tmp_path / "run")
    module = Recurrent()
    module.load_state_dict(saved["module"])
    with pool_place.pool(walk, recurrent(module), **arguments) as pool:
        assert pool.load_state_dict(saved["pool"]) == []
        assert pool.policy_version == 4
        second = train(pool, module, 4)
        statistics = pool.statistics()
        assert (statistics.env_steps, pool.evaluate(3, deterministic=False).returns.tolist()) == (steps, evaluated)
        assert 0 < statistics.env_steps_per_second < 1e7
    assert first + second == whole


@pytest.mark.more
def test_without_get_state_new_episodes_begin_with_new_seeds_and_are_reported() -> None:
    factories = [lambda env_id=env_id: LedgerEnv(env_id, pool_seed=5) for env_id in range(2)]
    arguments: dict[str, Any] = {"num_workers": 2, "mode": "sync", "rollout_length": 8, "seed": 5}
    with AsyncWorkerPool(factories, zeros, **arguments) as pool:
        check_ledger(next(pool.rollouts()), {})
        state = pool.state_dict()
    with AsyncWorkerPool(factories, zeros, **arguments) as pool:
        missing = pool.load_state_dict(state)
        assert [words.split(",")[0] for words in missing] == ["the episode of env_id 0", "the episode of env_id 1"]
        stream = pool.rollouts()
        rollout = next(stream)
        assert rollout.restarted.all()
        # Each new process resets its ledger when it starts (episode 0), and once more to continue the run.
        assert rollout.observations[0, :, 1:3].tolist() == [[1, 0], [1, 0]]
        assert rollout.observations[0, :, 3].tolist() == [1000, 1000]
        os.kill(pid_of(pool, 1), signal.SIGKILL)
        while not (rollout := next(stream)).restarted.any():
            pass
        assert rollout.observations[0, 1, 3] == 2000


def test_rollouts_in_progress_are_reported_and_leave_a_marked_gap() -> None:
    arguments: dict[str, Any] = {"num_workers": 2, "mode": "async", "rollout_length": 6, "seed": 3}
    with AsyncWorkerPool(walk, zeros, **arguments) as pool:
        next(pool.rollouts())
        state = pool.state_dict()
    with AsyncWorkerPool(walk, zeros, **arguments) as pool:
        missing = pool.load_state_dict(state)
        assert len(missing) == 2
        assert all("in progress or not yet delivered" in words for words in missing)
        assert next(pool.rollouts()).restarted.all()


def test_a_wrapper_without_get_state_is_reported() -> None:
    def wrapped() -> Any:
        return gym.wrappers.RecordEpisodeStatistics(walk())

    arguments: dict[str, Any] = {"num_workers": 0, "mode": "sync", "rollout_length": 6, "seed": 3}
    with AsyncWorkerPool(wrapped, zeros, **arguments) as pool:
        next(pool.rollouts())
        state = pool.state_dict()
    with AsyncWorkerPool(wrapped, zeros, **arguments) as pool:
        (words,) = pool.load_state_dict(state)
        assert "RecordEpisodeStatistics of env_id 0" in words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 4}, "seed must be 3"),
        ({"rollout_length": 7}, "rollout_length must be 6"),
        ({"num_envs": 3}, "sub-environments"),
    ],
)
def test_a_state_of_another_pool_is_refused(change: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"num_workers": 0, "num_envs": 2, "mode": "sync", "rollout_length": 6, "seed": 3}
    with AsyncWorkerPool(walk, zeros, **arguments) as pool:
        state = pool.state_dict()
    with AsyncWorkerPool(walk, zeros, **{**arguments, **change}) as pool:
        with pytest.raises(ConfigurationError, match=words):
            pool.load_state_dict(state)
        next(pool.rollouts())
    with AsyncWorkerPool(walk, zeros, **arguments) as pool:
        next(pool.rollouts())
        with pytest.raises(ConfigurationError, match="has not delivered a rollout"):
            pool.load_state_dict(state)


class Stateful(Policy):
    def act(self, observations: Any, carry: Any) -> Action:
        return Action(np.full(len(observations), self.settings.get("choice", 0)), {"seen": observations[:, 0].copy()})


def test_settings_and_counts_continue() -> None:
    arguments: dict[str, Any] = {"num_workers": 1, "mode": "sync", "rollout_length": 6, "seed": 3}
    with AsyncWorkerPool(walk, Stateful(), **arguments) as pool:
        pool.publish(Stateful(), choice=1)
        next(pool.rollouts())
        state = pool.state_dict()
    with AsyncWorkerPool(walk, Stateful(), **arguments) as pool:
        pool.load_state_dict(state)
        rollout = next(pool.rollouts())
        assert (rollout.actions == 1).all()
        assert rollout.policy_version == 1
        assert pool.statistics().rollouts == 2


def test_counts_under_their_former_names_continue() -> None:
    counts = {"env_steps": 24, "rollouts": 2, "episodes": 3, "copied": 1, "dropped": 2, "gradients": 7, "skipped": 4}
    counts |= {"skipped_publishes": 5, "env_restarts": 6, "lag": {0: 2}, "returns": [1.0, 3.0], "lengths": [2, 4]}
    seconds = {"environment_s": 1.0, "acting_s": 2.0, "learning_s": 0.25, "waiting_s": 0.5, "processor_s": 2.5}
    seconds |= {"sleeping_s": 0.75, "contended_s": 0.125, "commits": 2, "busy_s": 4.0, "squared_busy_s": 10.0}
    former = counts | seconds | {"driver_s": {"waiting": 1.5}, "driver_processor_s": {"waiting": 0.25}}
    with AsyncWorkerPool(walk, zeros, num_workers=0, seed=3) as pool:
        pool.load_state_dict(pool.state_dict() | {"statistics": former})
        found = pool.statistics()
        again = pool.state_dict()
    wanted = {
        "env_steps": 24,
        "rollouts": 2,
        "episodes": 3,
        "copied_rollouts": 1,
        "dropped_rollouts": 2,
        "gradients": 7,
    }
    wanted |= {"skipped_gradients": 4, "skipped_publishes": 5, "env_restarts": 6, "policy_lag": {0: 2}}
    wanted |= {"mean_return": 2.0, "mean_length": 3.0, "rollout_seconds": 2.0, "rollout_seconds_spread": 1.0}
    wanted |= {"environment_seconds": 1.0, "acting_seconds": 2.0, "learning_seconds": 0.25, "committing_seconds": 0.75}
    wanted |= {"waiting_seconds": 0.5, "processor_seconds": 2.5, "sleeping_seconds": 0.75, "contended_seconds": 0.125}
    assert {name: getattr(found, name) for name in wanted} == wanted
    assert (found.driver_seconds["waiting"], found.driver_processor_seconds["waiting"]) == (1.5, 0.25)
    with AsyncWorkerPool(walk, zeros, num_workers=0, seed=3) as pool:
        pool.load_state_dict(again)
        assert {name: getattr(pool.statistics(), name) for name in wanted} == wanted


def test_a_checkpoint_file_is_complete_or_refused_and_contains_no_pickle(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = {"a": np.arange(3), "b": [1, 2.5, None, "x", b"y"], "t": torch.ones(2, 2), "n": {"deep": (1, 2)}}
    save_checkpoint(path, data)
    loaded = load_checkpoint(path)
    assert loaded["a"].tolist() == [0, 1, 2]
    assert torch.equal(loaded["t"], data["t"])
    assert (loaded["b"], loaded["n"]) == (data["b"], data["n"])
    with pytest.raises(NotDataError, match=r"\['f'\]"):
        save_checkpoint(path, {"f": zeros})
    assert load_checkpoint(path)["b"] == data["b"]
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    whole = path.read_bytes()
    for damaged in (whole[:-1], b"x" + whole, whole[:25], b""):
        path.write_bytes(damaged)
        with pytest.raises(ConfigurationError, match="cannot be read as a checkpoint"):
            load_checkpoint(path)


@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.more)])
def test_a_flipped_bit_anywhere_in_a_checkpoint_is_an_error(stride: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_checkpoint(path, {"weights": torch.ones(3), "env_steps": 1024, "returns": np.arange(2.0)})
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), stride):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        reason = "the file was not written by" if bit < 8 * 20 else "the content does not match its digest"
        with pytest.raises(ConfigurationError, match=f"{path} cannot be read as a checkpoint: {reason}"):
            load_checkpoint(path)


def test_a_checkpoint_of_the_former_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_checkpoint(path, {"weights": torch.ones(3), "env_steps": 1024})
    content = path.read_bytes()
    path.write_bytes(content[:20].replace(b"2", b"1") + content[20:-8])
    assert load_checkpoint(path)["env_steps"] == 1024


def test_a_checkpoint_of_a_module_says_what_to_save_instead(tmp_path: Path) -> None:
    with pytest.raises(NotDataError) as caught:
        save_checkpoint(tmp_path / "file", {"agent": torch.nn.Linear(2, 2)})
    assert str(caught.value) == (
        "value['agent'] is a torch.nn.modules.linear.Linear, which is not plain data. Save its state_dict() instead."
    )


def test_a_missing_folder_is_made_for_a_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "missing" / "run" / "agent.ckpt", {"weights": 1.0})
    assert load_checkpoint(tmp_path / "missing" / "run" / "agent.ckpt") == {"weights": 1.0}
    with pytest.raises(ConfigurationError, match=r"the folder of .*agent\.ckpt/other cannot be made: File exists"):
        save_checkpoint(tmp_path / "missing" / "run" / "agent.ckpt" / "other", {"weights": 1.0})


def test_threads_that_save_to_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [np.full(50_000, number) for number in range(4)]
    save_checkpoint(path, contents[0])

    def save_often(content: Any) -> None:
        for _ in range(20):
            save_checkpoint(path, content)

    with ThreadPoolExecutor(len(contents)) as threads:
        saving = [threads.submit(save_often, content) for content in contents]
        while not all(one.done() for one in saving):
            found = load_checkpoint(path)
            assert np.array_equal(found, contents[found[0]])
        assert [one.exception() for one in saving] == [None] * 4
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_the_error_for_a_checkpoint_that_cannot_be_written_names_it(tmp_path: Path) -> None:
    path = tmp_path / "directory"
    path.mkdir()
    with pytest.raises(OSError, match=f"so the checkpoint was not written, and an older file is unchanged: .*{path}"):
        save_checkpoint(path, {"weights": 1.0})
    assert [each.name for each in tmp_path.iterdir()] == ["directory"]
