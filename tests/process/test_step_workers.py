"""Check ``step_workers``: one worker runs the policy, and other processes step its sub-environments."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from envs import Acting, kill_oneself, ledgers, slow, taken
from policies import lean, zeros

from parenv import AsyncWorkerPool, ConfigurationError, Policy, TorchPolicy, WorkerOptions
from parenv.policy.policy import Action

N = 5
pytestmark = pytest.mark.timeout(300)


class Agent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def act(self, observations: torch.Tensor) -> Any:
        logits = self.layer(observations)
        return logits.argmax(-1), logits


def test_a_network_acts_on_half_batches_and_one_worker_is_the_default() -> None:
    policy, options = TorchPolicy(Agent(), "act", ("actions", "logits")), WorkerOptions(step_workers=2)
    with AsyncWorkerPool("CartPole-v1", policy, num_envs=6, rollout_length=8, workers=options) as pool:
        assert pool.num_workers == 1
        rollout = next(pool.rollouts())
        assert (rollout.extras["logits"].argmax(-1) == rollout.actions).all()


@pytest.mark.usefixtures("warnings_are_expected")
def test_a_dead_step_worker_is_replaced_and_its_unfinished_step_is_not_valid(tmp_path: Path) -> None:
    asked = tmp_path / "die"
    makers = ledgers(N)
    makers[3] = functools.partial(Acting, 3, lambda env: taken(asked) and kill_oneself())
    options = WorkerOptions(step_workers=N)
    with AsyncWorkerPool(makers, zeros, num_workers=1, rollout_length=8, workers=options) as pool:
        rollouts, seen = pool.rollouts(), 0
        for number in range(40):
            if number == 3:
                asked.touch()
            rollout = next(rollouts)
            gone = np.argwhere(~rollout.valid)
            assert {column for _, column in gone.tolist()} <= {3}
            for row, column in gone.tolist():
                seen += 1
                assert rollout.truncated[row, column]
                assert rollout.rewards[row, column] == 0
                assert (rollout.next_observations()[row, column] == rollout.observations[row, column]).all()
            assert rollout.num_steps == rollout.valid.sum() == len(rollout.transitions())
            others = [column for column in range(N) if column != 3]
            numbers = rollout.observations[:, others, 2]
            ended = (rollout.terminated | rollout.truncated)[:, others]
            assert (np.where(ended[:-1], 0, numbers[:-1] + 1) == numbers[1:]).all()
        assert seen == 1
        assert pool.statistics().worker_restarts == pool.metrics()["workers/restarts"] == 1


@pytest.mark.usefixtures("warnings_are_expected")
def test_if_the_acting_worker_dies_it_and_its_step_workers_are_replaced() -> None:
    options = WorkerOptions(step_workers=2)
    with AsyncWorkerPool(ledgers(N), pids, num_workers=1, rollout_length=8, workers=options) as pool:
        rollouts = pool.rollouts()
        pid = int(next(rollouts).extras["pid"][0, 0])
        os.kill(pid, signal.SIGKILL)
        found = {int(next(rollouts).extras["pid"][0, 0]) for _ in range(10)}
        assert len(found - {pid}) == 1
        assert pool.statistics().worker_restarts == 1


@pytest.mark.more
def test_a_pool_that_is_closed_during_a_step_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    makers = [functools.partial(slow, i, 0.02) for i in range(2)]
    options = WorkerOptions(step_workers=2)
    with AsyncWorkerPool(makers, zeros, num_workers=1, rollout_length=8, workers=options) as pool:
        next(pool.rollouts())
    assert "pending" not in capfd.readouterr().err


class Pids(Policy):
    """Policy that returns its process id with each action."""

    def act(self, observations: Any, carry: Any) -> Action:
        return Action(zeros(observations), {"pid": np.full(len(observations), os.getpid())}, carry)


pids = Pids()


def test_invalid_options_are_refused_before_a_process_starts() -> None:
    with pytest.raises(
        ConfigurationError, match="must be at most the number of sub-environments of a worker, 2, got 4"
    ):
        AsyncWorkerPool("CartPole-v1", lean, num_envs=4, num_workers=2, workers=WorkerOptions(step_workers=4))
    with pytest.raises(ConfigurationError, match="num_workers must be at least 1 with step_workers=2"):
        AsyncWorkerPool("CartPole-v1", lean, num_envs=4, num_workers=0, workers=WorkerOptions(step_workers=2))
    with pytest.raises(ConfigurationError, match=r"step_workers must be an integer of at least 1, got 0"):
        WorkerOptions(step_workers=0)
    with pytest.raises(
        ConfigurationError, match=r"on_env_error=.restart_env. cannot be used with step_workers.* Use .restart_worker."
    ):
        WorkerOptions(step_workers=2, on_env_error="restart_env")


def test_get_attr_with_step_workers_is_refused() -> None:
    with (
        AsyncWorkerPool("CartPole-v1", lean, num_envs=2, num_workers=1, workers=WorkerOptions(step_workers=2)) as pool,
        pytest.raises(ConfigurationError, match="get_attr cannot be used with step_workers"),
    ):
        pool.get_attr("spec")


@pytest.mark.more
def test_a_step_that_hangs_is_aborted_and_the_acting_worker_continues(
    tmp_path: Path, warnings_are_expected: None
) -> None:
    hangs = functools.partial(Acting, 1, lambda env: taken(tmp_path / "hang") and signal.pause())
    makers = [*ledgers(1), hangs]
    options = WorkerOptions(step_workers=2, step_timeout_s=20.0)
    with AsyncWorkerPool(makers, zeros, num_workers=1, rollout_length=8, workers=options) as pool:
        rollouts = pool.rollouts()
        next(rollouts)
        (tmp_path / "hang").touch()
        lost = [int((~next(rollouts).valid).sum()) for _ in range(6)]
        assert sum(lost) == 1
        assert pool.statistics().worker_restarts == pool.metrics()["workers/restarts"] == 1
