"""Check ``caller_steps``, with which the caller of a vector env steps some of the sub-environments itself."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from comparison import assert_same
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parenv import ConfigurationError, ParallelVectorEnv, WorkerDiedError
from parenv.envs.step_cost import StepCost, native_package
from parenv.hosts import RayPlacement
from parenv.platform.futex import AVAILABLE
from parenv.vector.choice import Measured
from parenv.vector.first_worker import FirstWorker

N = 6


class PidEnv(gym.Env[Any, Any]):
    """Environment that observes its number, the step and its process id.

    Args:
        i: Number of the environment.
        raises: Exception that action 2 and the method ``fail`` raise. ``None``: none.
    """

    def __init__(self, i: int = 0, raises: type[Exception] | None = None) -> None:
        self.observation_space = gym.spaces.Box(-1e9, 1e9, (3,), np.float64)
        self.action_space = gym.spaces.Discrete(3)
        self._i, self._t, self._raises = i, 0, raises

    def _observe(self) -> Any:
        return np.array([self._i, self._t, os.getpid()], np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return self._observe(), {"begun": True}

    def step(self, action: Any) -> Any:
        self._t += 1
        if action == 2 and self._raises is not None:
            raise self._raises(f"at {self._i}")
        return self._observe(), float(action), self._t == 4 + self._i, False, {"t": self._t, "of": str(self._i)}

    def where(self) -> int:
        return os.getpid()

    def fail(self) -> None:
        if self._raises is not None:
            raise self._raises(f"called {self._i}")


def pid_envs(*raising: int, kinds: Callable[[int], type[Exception]] = lambda i: LookupError) -> list[Any]:
    """Return factories of environments, some of which can raise an exception."""
    return [lambda i=i: PidEnv(i, kinds(i) if i in raising else None) for i in range(N)]


def with_caller(makers: list[Any], **more: Any) -> Any:
    return contextlib.closing(ParallelVectorEnv(makers, caller_steps=True, **{"num_workers": 2, **more}))


@pytest.mark.usefixtures("a_step_takes_a_millisecond")
def test_the_caller_steps_the_last_rows_and_workers_the_others() -> None:
    with with_caller(pid_envs()) as envs:
        assert (envs.num_workers, envs.num_caller_envs) == (2, 2)
        observations, _ = envs.reset(seed=0)
        pids = observations[:, 2].astype(int).tolist()
        assert pids[4:] == [os.getpid()] * 2
        assert len({*pids[:4]}) == 2
        assert os.getpid() not in pids[:4]
        assert envs.call("where") == tuple(pids)


def test_actions_sent_by_message_reach_the_caller_and_workers() -> None:
    class Texts(PidEnv):
        def __init__(self, i: int) -> None:
            super().__init__(i)
            self.action_space = gym.spaces.Text(5)

        def step(self, action: Any) -> Any:
            return np.array([self._i, len(action), 0.0]), 0.0, False, False, {}

    makers = [lambda i=i: Texts(i) for i in range(N)]
    with with_caller(makers) as envs:
        envs.reset(seed=0)
        observations = envs.step(tuple("x" * (i % 3 + 1) for i in range(N)))[0]
        assert observations[:, 1].tolist() == [i % 3 + 1 for i in range(N)]


def test_the_death_of_a_worker_is_an_error_and_closes_the_vector_env() -> None:
    with with_caller(pid_envs()) as envs:
        envs.reset(seed=0)
        os.kill(int(envs.call("where")[0]), signal.SIGKILL)
        with pytest.raises(WorkerDiedError):
            envs.step(np.ones(N, np.int64))
        assert envs.closed


@pytest.mark.usefixtures("warnings_are_expected", "a_step_takes_a_millisecond")
def test_a_worker_is_restarted_and_the_rows_of_the_caller_continue() -> None:
    with with_caller(pid_envs(), on_worker_death="restart", autoreset_mode=AutoresetMode.SAME_STEP) as envs:
        envs.reset(seed=0)
        dead = int(envs.call("where")[0])
        os.kill(dead, signal.SIGKILL)
        flagged = np.zeros(N, bool)
        own = []
        while not flagged.any():
            observations, *_, infos = envs.step(np.ones(N, np.int64))
            flagged |= infos.get("worker_restarted", np.zeros(N, bool))
            own.append(observations[5, 1])
        assert flagged.tolist() == [True, True, False, False, False, False]
        assert own == [(t + 1) % 9 for t in range(len(own))]
        assert envs.statistics().worker_restarts == envs.metrics()["workers/restarts"] == 1
        assert dead not in envs.call("where")


def test_without_workers_or_with_one_env_the_caller_steps_all() -> None:
    for makers, more in (
        (pid_envs(), {"num_workers": 0}),
        (pid_envs()[:1], {"num_workers": "auto"}),
    ):
        with with_caller(makers, **more) as envs:
            assert (envs.num_workers, envs.num_caller_envs) == (0, 0)
            assert envs.reset(seed=0)[0][0, 2] == os.getpid()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"caller_steps": "yes"}, "caller_steps must be one of True, False, 'auto', None"),
        ({"caller_steps": True, "num_workers": N}, "must be less than num_envs=6 with caller_steps=True, got 6"),
        ({"caller_steps": True, "placement": RayPlacement(num_workers=2)}, "cannot be used with a placement"),
        ({"spin_us": -1}, "spin_us must be a number of at least 0 microseconds"),
        ({"spin_us": True}, "spin_us must be a number of at least 0 microseconds"),
        ({"spin_us": 1e9}, "must be at most 10000"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ParallelVectorEnv(pid_envs(), **arguments)


def test_packages_of_native_code_are_detected() -> None:
    pytest.importorskip("Box2D", reason="box2d has no wheel for Python 3.14")
    for env_id, package in (("CartPole-v1", ""), ("LunarLander-v3", "Box2D"), ("HalfCheetah-v5", "")):
        with contextlib.closing(gym.make(env_id)) as env:
            assert native_package(env) == package
    assert native_package(PidEnv()) == ""


def test_auto_leaves_environments_in_native_code_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parenv.vector.vector_plan.usable_cores", lambda: 8)
    found, cost = FirstWorker.measured, StepCost(1e-3, 0.0, 0.0, 0.0, 0.0)
    monkeypatch.setattr(
        FirstWorker, "measured", lambda self: replace(found(self) or Measured(0, "", 0, cost), cost=cost)
    )
    makers = {"CartPole-v1": True, "LunarLander-v3": False}
    for env_id, takes_some in makers.items():
        make = lambda env_id=env_id: gym.make(env_id)  # noqa: E731
        envs = ParallelVectorEnv([make] * 4, num_workers=1, caller_steps="auto")
        with contextlib.closing(envs):
            assert envs.num_workers == 1
            assert (envs.num_caller_envs > 0) is takes_some
            assert envs.reset(seed=0)[0].shape[0] == 4


@pytest.mark.parametrize("spin_us", [0, 50, "auto"])
def test_traces_do_not_depend_on_spin_us(spin_us: Any) -> None:
    makers = [lambda: gym.make("CartPole-v1")] * 5
    reference = SyncVectorEnv(makers)
    with with_caller(makers, spin_us=spin_us) as envs, contextlib.closing(reference):
        assert_same(envs.reset(seed=1), reference.reset(seed=1), ())
        reference.action_space.seed(1)
        for _ in range(100):
            actions = reference.action_space.sample()
            assert_same(envs.step(actions), reference.step(actions), ())
        figures = envs.statistics()
        if spin_us == 0:
            assert (figures.spinning_seconds, figures.workers_spinning_seconds) == (0, 0)
        elif spin_us == 50:
            assert (figures.workers_spinning_seconds > 0) == AVAILABLE
