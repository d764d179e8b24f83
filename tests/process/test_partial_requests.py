"""Check that requests to any mix of sub-environments are each served once, with the actions of that request."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from inside import workers_of

from parenv import ParallelVectorEnv
from parenv.platform import system

N = 8
pytestmark = pytest.mark.timeout(300)


class Echo(gym.Env[Any, Any]):
    """Environment that observes its number, its episode, its env step in the episode, and its last action."""

    def __init__(self, i: int) -> None:
        self.observation_space = gym.spaces.Box(-1, 1 << 40, (4,), np.int64)
        self.action_space = gym.spaces.Discrete(1 << 30)
        self._observation = np.array([i, -1, 0, -1], np.int64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._observation[1:] = self._observation[1] + 1, 0, -1
        return self._observation, {}

    def step(self, action: Any) -> Any:
        self._observation[2:] = self._observation[2] + 1, action
        return self._observation, 0.0, False, False, {}


class Expected:
    """A vector env of :class:`Echo`, and the observation that each row must have next."""

    def __init__(self, envs: ParallelVectorEnv, seed: int) -> None:
        self._envs, self._rng = envs, np.random.default_rng(seed)
        self._rows = np.array([[i, -1, 0, -1] for i in range(N)])
        self._stepping: set[int] = set()
        self._all: Any = range(N)
        self.reset()

    def _actions(self, ids: Any) -> Any:
        actions = self._rng.integers(1 << 30, size=len(ids))
        self._rows[ids, 2] += 1
        self._rows[ids, 3] = actions
        return actions

    def send(self) -> None:
        """Send actions to some idle rows, in any order."""
        idle = [i for i in self._all if i not in self._stepping]
        if idle:
            ids = self._rng.permutation(idle)[: self._rng.integers(1, len(idle) + 1)]
            self._envs.send(self._actions(ids), ids)
            self._stepping |= set(ids.tolist())

    def recv(self) -> None:
        """Receive some rows."""
        if self._stepping:
            size = int(self._rng.integers(1, len(self._stepping) + 1))
            observations, _, _, _, infos = self._envs.recv(timeout=120, batch_size=size)
            ids = infos["env_id"]
            assert (observations == self._rows[ids]).all()
            assert len(set(ids.tolist())) == size
            self._stepping -= set(ids.tolist())

    def step(self) -> None:
        """Step all rows."""
        assert (self._envs.step(self._actions(self._all))[0] == self._rows).all()

    def reset(self) -> None:
        """Begin an episode in some rows, with or without a message."""
        mask = self._rng.random(N) < 0.5 if self._rows[0, 1] >= 0 else np.ones(N, bool)
        mask[self._rng.integers(N)] = True
        self._rows[mask, 1] += 1
        self._rows[mask, 2:] = 0, -1
        seed = None if self._rng.random() < 0.5 else int(self._rng.integers(100))
        assert (self._envs.reset(seed=seed, options={"reset_mask": mask})[0] == self._rows).all()

    def run(self, rounds: int) -> None:
        """Send and receive for some rounds, and then finish everything."""
        for _ in range(rounds):
            self.send() if self._rng.random() < 0.5 else self.recv()
        while self._stepping:
            self.recv()


REPEATS = [10, pytest.param(300, marks=pytest.mark.more)]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("repeats", REPEATS)
@pytest.mark.parametrize("on_one_core", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("batch_size", [1, N])
def test_each_request_is_served_once_with_its_actions(
    batch_size: int, num_workers: int, on_one_core: bool, repeats: int
) -> None:
    everywhere = set(system.usable_core_numbers())
    system.pin({max(everywhere)} if on_one_core else everywhere)
    try:
        makers: Any = [lambda i=i: Echo(i) for i in range(N)]
        options: Any = {"num_workers": num_workers, "batch_size": batch_size, "autoreset_mode": AutoresetMode.DISABLED}
        with contextlib.closing(ParallelVectorEnv(makers, **options)) as envs:
            expected = Expected(envs, repeats)
            for _ in range(repeats):
                expected.run(30)
                expected.step()
                expected.reset()
                expected.step()
    finally:
        system.pin(everywhere)


@pytest.mark.parametrize("batch_size", [1, N])
def test_requests_in_progress_survive_the_death_of_a_worker_at_any_time(batch_size: int) -> None:
    makers: Any = [lambda i=i: Echo(i) for i in range(N)]
    rng = np.random.default_rng(0)
    envs = ParallelVectorEnv(makers, num_workers=2, batch_size=batch_size, on_worker_death="restart")
    with contextlib.closing(envs):
        envs.reset(seed=0)
        last = np.zeros(N, np.int64)
        for death in range(6):
            envs.send(np.full(N, death))
            steps, restarts = 0, envs.statistics().worker_restarts
            kill_at = int(rng.integers(0, 20))
            while steps < 100 or envs.statistics().worker_restarts == restarts:
                if steps == kill_at:
                    os.kill(workers_of(envs).pid(int(rng.integers(2))), signal.SIGKILL)
                observations, _, _, truncated, infos = envs.recv(timeout=120)
                ids, steps = infos["env_id"], steps + 1
                for row, env_id in enumerate(ids.tolist()):
                    # After a restart, the environment counts from the begin, and its first result is the loss.
                    is_next = observations[row, 2] == last[env_id] + 1
                    assert is_next or truncated[row] or observations[row, 2] == 0, (observations[row], last[env_id])
                    last[env_id] = observations[row, 2]
                envs.send(np.zeros(len(ids), np.int64), ids)
            received = 0
            while received < N:
                infos = envs.recv(timeout=120)[4]
                last[infos["env_id"]] = -2
                received += len(infos["env_id"])
            last[:] = envs.step(np.zeros(N, np.int64))[0][:, 2]
