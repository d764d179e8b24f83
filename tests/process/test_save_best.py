"""Check that ``SaveBest`` keeps the policy with the highest lower bound of its return, across runs and kills."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from parenv import AsyncWorkerPool, ConfigurationError, SaveBest, Stop, load_checkpoint, save_checkpoint
from parenv.errors import NotDataError
from parenv.records.save_best import lower_bound

PATIENCE_S = 120.0


class Paid(gym.Env[Any, Any]):
    """Environment with episodes of one step. The action is the mean and the standard deviation of the reward."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Box(-1000, 1000, (2,))

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=options.get("seed"))
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), float(action[0] + action[1] * self.np_random.normal()), True, False, {}


class Payer(torch.nn.Module):
    """Policy with a constant action: the mean and the standard deviation of its return."""

    def __init__(self) -> None:
        super().__init__()
        self.action = torch.nn.Parameter(torch.zeros(2))

    def forward(self, observations: Any) -> Any:
        return self.action.expand(len(observations), 2)

    def set(self, mean: float, luck: float = 0.0) -> None:
        with torch.no_grad():
            self.action[:] = torch.tensor([mean, luck])


def make_pool(agent: Any, **more: Any) -> AsyncWorkerPool:
    return AsyncWorkerPool(Paid, agent, num_envs=4, num_workers=2, rollout_length=8, seed=3, **more)


def evaluated(pool: AsyncWorkerPool, best: SaveBest, agent: Payer, mean: float, luck: float = 0.0) -> int:
    """Publish an agent and run a training loop until it is evaluated. Return its version."""
    agent.set(mean, luck)
    version, before = pool.publish(agent), pool.statistics().evaluations
    for _ in pool.rollouts(Stop(seconds=PATIENCE_S)):
        best.update(pool)
        found = pool.statistics()
        if found.evaluations > before and found.evaluation and found.evaluation.policy_version == version:
            break
    best.update(pool)
    return version


def test_the_file_has_the_policy_with_the_highest_lower_bound(tmp_path: Path) -> None:
    agent, path = Payer(), tmp_path / "best.ckpt"
    with make_pool(agent) as pool:
        best = SaveBest(path, episodes=20, every=1, arguments={"lr": 0.5, "layers": [64, 64]})
        assert not path.exists()
        assert best.lower_bound == -math.inf
        evaluated(pool, best, agent, 7)
        good = evaluated(pool, best, agent, 10)
        assert best.lower_bound == 10
        evaluated(pool, best, agent, -30, luck=-200)
        assert pool.statistics().evaluation.mean_return > 10, (
            "the mean return must be high by chance, so choose another seed"
        )  # type: ignore[union-attr]
        evaluated(pool, best, agent, 9)
    found = load_checkpoint(path)
    assert found["policy_version"] == good
    assert found["weights"]["action"].tolist() == [10, 0]
    assert found["returns"].tolist() == [10.0] * 20
    assert found["lower_bound"] == best.lower_bound == 10
    assert found["env_steps"] > 0
    assert found["arguments"] == {"lr": 0.5, "layers": [64, 64]}
    assert found["pool"]["seed"] == 3
    assert "4 sub-environments on 2 workers" in found["pool"]["about"]
    other = Payer()
    other.load_state_dict(found["weights"])
    assert other.action.tolist() == [10, 0]


def test_finish_evaluates_the_last_version(tmp_path: Path) -> None:
    agent, path = Payer(), tmp_path / "deep" / "er" / "best.ckpt"
    with make_pool(agent) as pool:
        best = SaveBest(path, episodes=5, every=10_000_000)
        for rollout in pool.rollouts(Stop(env_steps=320)):
            agent.set(rollout.policy_version + 1)
            pool.publish(agent)
            best.update(pool)
        best.finish(pool)
        assert load_checkpoint(path)["policy_version"] == pool.policy_version
        assert pool.statistics().evaluations == 2
        best.finish(pool)
        assert pool.statistics().evaluations == 2, "the newest version is already evaluated"


@pytest.mark.more
def test_evaluations_have_the_given_distance_and_no_version_is_evaluated_twice(tmp_path: Path) -> None:
    agent = Payer()
    with make_pool(agent, mode="sync") as pool:
        best = SaveBest(tmp_path / "best.ckpt", episodes=5, every=320)
        began = set()
        for _ in pool.rollouts(Stop(env_steps=3200)):
            pool.publish(agent)
            best.update(pool)
            pool.evaluate(1, wait=False).result()  # Wait for the evaluation in progress.
            began |= {pool.statistics().evaluation.env_steps}  # type: ignore[union-attr]
        first = pool.statistics().evaluations
        for _ in pool.rollouts(Stop(env_steps=3200)):
            best.update(pool)
        best.finish(pool)
        assert pool.statistics().evaluations <= first + 1


def test_a_stream_stops_at_the_evaluation_return(tmp_path: Path) -> None:
    agent = Payer()
    with make_pool(agent) as pool:
        best = SaveBest(tmp_path / "best.ckpt", episodes=5, every=64)
        for rollout in pool.rollouts(Stop(evaluation_return=30, seconds=PATIENCE_S)):
            agent.set(rollout.policy_version + 1)
            pool.publish(agent)
            best.update(pool)
        assert pool.statistics().seconds < PATIENCE_S
        assert best.lower_bound >= 30
    assert load_checkpoint(tmp_path / "best.ckpt")["weights"]["action"][0] >= 30


@pytest.mark.more
def test_the_next_run_replaces_a_file_only_by_a_better_one(tmp_path: Path) -> None:
    agent, path = Payer(), tmp_path / "best.ckpt"
    for mean, kept in ((10, 10), (5, 10), (11, 11)):
        with make_pool(agent) as pool:
            best = SaveBest(path, episodes=5)
            agent.set(mean)
            pool.publish(agent)
            best.finish(pool)
            assert best.lower_bound == kept
    assert load_checkpoint(path)["weights"]["action"][0] == 11


TRAINING = """
import sys
sys.path.insert(0, {tests!r})
from test_save_best import Paid, Payer, make_pool
from parenv import SaveBest
agent = Payer()
with make_pool(agent) as pool:
    best = SaveBest({path!r}, episodes=5, every=1)
    first = max(0, best.lower_bound)
    for rollout in pool.rollouts():
        agent.set(first + rollout.policy_version + 1)
        pool.publish(agent)
        best.update(pool)
"""


@pytest.mark.more
def test_the_file_is_complete_whenever_the_run_is_killed(tmp_path: Path) -> None:
    path, bounds = tmp_path / "best.ckpt", []
    script = TRAINING.format(tests=str(Path(__file__).parent), path=str(path))
    for delay_s in (0.0, 0.017):
        before = path.stat().st_mtime_ns if path.exists() else 0
        run = subprocess.Popen([sys.executable, "-c", script])
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not path.exists() or path.stat().st_mtime_ns == before:
                assert run.poll() is None
                assert time.monotonic() < deadline
            time.sleep(delay_s)  # Each run is killed at a different moment.
        finally:
            run.send_signal(signal.SIGKILL)
            run.wait()
        found = load_checkpoint(path)
        assert found["weights"]["action"][0] == found["lower_bound"] == found["returns"].mean()
        bounds.append(found["lower_bound"])
    assert bounds == sorted(bounds)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"episodes": 4}, ConfigurationError, "episodes must be"),
        ({"every": 0}, ConfigurationError, "every must be"),
        ({"confidence": 1.0}, ConfigurationError, "confidence must be"),
        ({"arguments": {"env": object()}}, NotDataError, "env"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: Any, error: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        SaveBest(tmp_path / "best.ckpt", **arguments)


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some text")
    save_checkpoint(tmp_path / "checkpoint", {"weights": 3})
    for name in ("text", "checkpoint", "."):
        with pytest.raises(ConfigurationError):
            SaveBest(tmp_path / name)
    with pytest.raises(ConfigurationError, match="cannot be read or written"):
        SaveBest(tmp_path / "text" / "best.ckpt")
    agent, path = Payer(), tmp_path / "best.ckpt"
    with make_pool(agent) as pool:
        SaveBest(path, episodes=5).finish(pool)
    kept = path.read_bytes()

    class Other(Payer):
        def __init__(self) -> None:
            super().__init__()
            self.more = torch.nn.Parameter(torch.zeros(1))

    other = Other()
    other.set(5)
    with (
        make_pool(other) as pool,
        pytest.raises(ConfigurationError, match="must contain the same agent, but it differs in more"),
    ):
        SaveBest(path, episodes=5).finish(pool)
    assert path.read_bytes() == kept


def test_a_policy_without_weights_is_refused_before_anything_is_evaluated(tmp_path: Path) -> None:
    with AsyncWorkerPool("CartPole-v1", lambda o: o[:, 2] > 0, num_workers=0) as pool:
        with pytest.raises(ConfigurationError, match="whose policy has a torch module"):
            SaveBest(tmp_path / "best.ckpt").update(pool)
        assert pool.statistics().evaluations == 0


class Rivals:
    """Multi-agent environment with episodes of one step, whose rewards are the actions, doubled for ``a_1``."""

    possible_agents = ("a_0", "a_1", "b_0")

    def __init__(self) -> None:
        self.unwrapped, self.agents = self, []  # type: ignore[var-annotated]

    def observation_space(self, agent: str) -> Any:
        return Paid.observation_space

    def action_space(self, agent: str) -> Any:
        return Paid.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        rewards = {agent: float(action[0]) * (1 + (agent == "a_1")) for agent, action in actions.items()}
        self.agents = []
        seen = {agent: np.zeros(1, np.float32) for agent in actions}
        return seen, rewards, dict.fromkeys(actions, True), dict.fromkeys(actions, False), {a: {} for a in actions}

    def close(self) -> None:
        pass


def by_name(**more: Any) -> AsyncWorkerPool:
    policies = {"a": Payer(), "b": Payer(), "c": lambda observations: np.zeros((len(observations), 2), np.float32)}
    return AsyncWorkerPool(
        Rivals, policies, policy_of=lambda agent, episode: agent[0], num_envs=2, num_workers=0, rollout_length=8, **more
    )


def test_only_the_chosen_one_of_several_policies_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "best.ckpt"
    with by_name() as pool:
        best, agent = SaveBest(path, episodes=5, every=1, policy="a"), Payer()
        for name, mean, kept in (("a", 3, 4.5), ("b", 50, 4.5), ("a", 2, 4.5), ("a", 4, 6)):
            agent.set(mean)
            pool.publish({name: agent})
            best.finish(pool)
            assert best.lower_bound == kept
    found = load_checkpoint(path)
    assert found["weights"]["action"].tolist() == [4, 0]
    assert found["returns"].tolist() == [6.0] * 5, "the return of an episode is the mean of the agents"
    assert found["policy_version"] == 4


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (None, r"one of the pool's policies \['a', 'b', 'c'\], got None. Pass SaveBest\(path, policy='a'\)"),
        ("z", r"one of the pool's policies \['a', 'b', 'c'\], got 'z'"),
        ("c", "whose policy has a torch module"),
    ],
)
def test_one_of_several_policies_must_be_chosen(named: Any, message: str, tmp_path: Path) -> None:
    with by_name() as pool:
        with pytest.raises(ConfigurationError, match=message):
            SaveBest(tmp_path / "best.ckpt", policy=named).update(pool)
        assert pool.statistics().evaluations == 0


def test_a_policy_without_episodes_cannot_be_evaluated(tmp_path: Path) -> None:
    policies = {"a": Payer(), "b": Payer()}
    with (
        AsyncWorkerPool(Rivals, policies, policy_of=lambda agent, episode: "a", num_workers=0) as pool,
        pytest.raises(ConfigurationError, match=r"policy 'b' must act in at least .* but acted in 0 of 5"),
    ):
        SaveBest(tmp_path / "best.ckpt", episodes=5, policy="b").finish(pool)


def test_a_policy_without_a_name_needs_none(tmp_path: Path) -> None:
    with (
        make_pool(Payer()) as pool,
        pytest.raises(ConfigurationError, match=r"whose policy has no name, got 'a'. Leave it out"),
    ):
        SaveBest(tmp_path / "best.ckpt", policy="a").update(pool)


@pytest.mark.parametrize(
    ("count", "confidence", "quantile"), [(5, 0.95, 2.131847), (20, 0.95, 1.729133), (5, 0.99, 3.746947), (9, 0.5, 0.0)]
)
def test_the_lower_bound_uses_students_t(count: int, confidence: float, quantile: float) -> None:
    returns = np.random.default_rng(0).normal(3, 2, count)
    wanted = returns.mean() - quantile * returns.std(ddof=1) / math.sqrt(count)
    assert lower_bound(returns.tolist(), confidence) == pytest.approx(wanted, abs=1e-5)
