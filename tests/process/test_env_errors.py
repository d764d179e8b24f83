"""Check ``on_env_error``, which decides what happens if a sub-environment raises an exception."""

from __future__ import annotations

import contextlib
import io
import os
import pdb
import subprocess
import sys
import traceback
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs import Acting
from gymnasium.vector import AutoresetMode
from policies import zeros
from sampling import one_in

from parenv import AsyncWorkerPool, ConfigurationError, ParallelVectorEnv, Policy, RestartPolicy, Stop, WorkerOptions
from parenv.errors import RestartLimitError
from parenv.policy.policy import Action
from parenv.testing import LedgerEnv, check_ledger

OFTEN = RestartPolicy(max_restarts=10_000, backoff_s=1e-3, max_backoff_s=2e-3)


pytestmark = pytest.mark.usefixtures("warnings_are_expected")


class SimulatorError(RuntimeError):
    """Exception that the main process can import too."""


class Flaky(LedgerEnv):
    """Ledger that raises an exception with a given probability in each step, and in each reset except the first."""

    def __init__(
        self, env_id: int, chance: float = 0.05, error: Any = SimulatorError, pool_seed: int | None = None
    ) -> None:
        super().__init__(env_id, pool_seed=pool_seed)
        self._random = np.random.default_rng([env_id, np.random.randint(1 << 30)])
        self._chance, self._error = chance, error

    def _maybe(self) -> None:
        if self._random.random() < self._chance:
            raise self._error("the motor is hot")

    def reset(self, **kwargs: Any) -> Any:
        if self._buffer[1] >= 0:
            self._maybe()
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self._maybe()
        return super().step(action)


def flaky(count: int, **how: Any) -> list[Any]:
    """Return factories of :class:`Flaky` with the numbers 0 to ``count - 1``."""
    return [lambda env_id=env_id: Flaky(env_id, **how) for env_id in range(count)]


class Remembers(Policy):
    """Policy whose carry counts the steps of an episode. It returns the count and the observed step."""

    def initial_carry(self, batch: int) -> Any:
        return np.zeros(batch, np.int64)

    def act(self, observations: Any, carry: Any) -> Action:
        extras = {"count": carry.copy(), "seen": observations[:, 2].copy()}
        return Action(np.zeros(len(observations), np.int64), extras, carry + 1)


@pytest.mark.parametrize(
    ("mode", "num_workers", "error"),
    one_in(3, ["sync", "async"], [0, 2], [SimulatorError, SystemExit]),
)
def test_a_replaced_environment_truncates_its_episode_and_every_row_is_real(
    mode: Any, num_workers: int, error: Any
) -> None:
    workers = WorkerOptions(restart=OFTEN, on_env_error="restart_env")
    expected: dict[int, tuple[int, ...]] = {}
    marked = 0
    with AsyncWorkerPool(
        flaky(6, error=error, pool_seed=5),
        Remembers(),
        num_workers=num_workers,
        mode=mode,
        rollout_length=5,
        workers=workers,
        seed=5,
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=6000)):
            check_ledger(rollout, expected)
            assert (rollout.extras["seen"] == rollout.observations[..., 2]).all()
            assert (rollout.extras["count"] == rollout.observations[..., 2]).all()
            assert (rollout.initial_carry == rollout.observations[0, :, 2]).all()
            marked += int(rollout.restarted.sum())
        statistics = pool.statistics()
    assert statistics.worker_restarts == 0
    assert statistics.env_restarts > 100
    assert marked > 10
    assert statistics.episodes > 1000


@pytest.mark.more
def test_returns_and_lengths_start_at_zero_after_a_replacement() -> None:
    workers = WorkerOptions(restart=OFTEN, on_env_error="restart_env")
    with AsyncWorkerPool(
        flaky(4, chance=0.2), zeros, num_workers=0, mode="sync", rollout_length=3, workers=workers, seed=5
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=3000)):
            steps, _ = rollout.final_index
            before = rollout.episodes.lengths[: len(rollout.episodes) - len(steps)]
            assert len(before) <= rollout.restarted.sum()
            assert rollout.episodes.lengths[len(before) :].tolist() == rollout.final_observations[:, 2].tolist()


@pytest.mark.parametrize("how", ["restart_env", "restart_worker"])
def test_an_environment_that_always_raises_is_an_error_after_max_restarts(how: Any) -> None:
    def fail(env: Any) -> None:
        raise SimulatorError("the motor is off")

    policy = RestartPolicy(max_restarts=2, backoff_s=1e-3)
    workers = WorkerOptions(restart=policy, on_env_error=how)
    kind = SimulatorError if how == "restart_env" else RestartLimitError
    with AsyncWorkerPool(lambda: Acting(0, fail), zeros, num_workers=1, workers=workers) as pool:
        with pytest.raises(kind, match="the motor is off") as caught:
            next(pool.rollouts())
        assert pool.closed
    if isinstance(caught.value, RestartLimitError):
        assert [type(death) for death in caught.value.deaths] == [SimulatorError] * 3


def test_an_exception_of_the_policy_is_raised_with_any_on_env_error() -> None:
    class Wrong(Policy):
        def act(self, observations: Any, carry: Any) -> Action:
            if observations[0, 1] == 1:
                raise SimulatorError("mine")
            return Action(zeros(observations))

    for how in ("restart_env", "restart_worker"):
        workers = WorkerOptions(on_env_error=how)  # type: ignore[arg-type]
        with AsyncWorkerPool(lambda: LedgerEnv(0), Wrong(), num_workers=1, workers=workers) as pool:
            with pytest.raises(SimulatorError, match="mine"):
                next(pool.rollouts())
            assert pool.closed


def test_gradients_continue_with_replaced_environments() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(2))

        def forward(self, observations: Any) -> Any:
            return torch.zeros(len(observations), dtype=torch.int64)

    workers = WorkerOptions(restart=OFTEN, on_env_error="restart_env")
    with AsyncWorkerPool(
        flaky(4), Net(), num_workers=2, mode="sync", rollout_length=5, workers=workers,
        parallelism="gradient", loss_fn=lambda policy, rollout: policy.bias.sum() * rollout.rewards.mean(),
    ) as pool:  # fmt: skip
        for gradient in pool.gradients(Stop(env_steps=1000)):
            assert gradient.num_samples == 20
        assert pool.statistics().env_restarts > 10


def test_invalid_options_are_refused_before_anything_starts() -> None:
    with pytest.raises(
        ConfigurationError, match="on_env_error must be one of 'raise', 'restart_env', 'restart_worker'"
    ):
        WorkerOptions(on_env_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="needs a RestartPolicy"):
        WorkerOptions(on_env_error="restart_env", restart=None)
    with pytest.raises(ConfigurationError, match="needs worker processes"):
        AsyncWorkerPool("CartPole-v1", zeros, num_workers=0, workers=WorkerOptions(on_env_error="restart_worker"))


SEEN = np.zeros(2, np.float32)


class Older(gym.Env[Any, Any]):
    """Environment with a result in the format of gym, or another wrong result.

    Args:
        is_older: ``"reset"`` (returns no info), ``"step"`` (returns four values), ``"reward"`` (``step`` returns a
            list as reward) or ``"itself"`` (``step`` raises an exception).
    """

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, is_older: str) -> None:
        self.is_older = is_older

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return SEEN if self.is_older == "reset" else (SEEN, {})

    def step(self, action: Any) -> Any:
        if self.is_older == "itself":
            raise ValueError("no fuel")
        return (SEEN, 1.0, False, {}) if self.is_older == "step" else (SEEN, [1.0], False, False, {})


def first_step(envs: ParallelVectorEnv) -> None:
    envs.reset()
    envs.step(np.zeros(envs.num_envs, int))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("step_threads", [1, 2])
@pytest.mark.parametrize("is_older", ["reset", "step", "reward", "itself"])
def test_the_error_for_a_result_in_the_format_of_gym_names_the_right_format(
    is_older: str, step_threads: int, num_envs: int, num_workers: int
) -> None:
    workers = WorkerOptions(step_threads=step_threads)
    with (
        pytest.raises((TypeError, ValueError)) as pool_error,
        AsyncWorkerPool(
            lambda: Older(is_older), zeros, num_envs=num_envs, num_workers=num_workers, workers=workers
        ) as pool,
    ):
        next(pool.rollouts())
    with (
        contextlib.closing(ParallelVectorEnv([lambda: Older(is_older)] * num_envs, num_workers=num_workers)) as envs,
        pytest.raises((TypeError, ValueError)) as vector_error,
    ):
        first_step(envs)
    for error in (pool_error, vector_error):
        shown = "".join(traceback.format_exception(error.value))
        assert (f"{is_older.replace('reward', 'step')} must return (observation, " in shown) == (is_older != "itself")


class Wrong(Older):
    """Environment whose second sub-environment returns a wrong reward or a wrong flag."""

    def __init__(self, env_id: int, **wrong: Any) -> None:
        super().__init__("neither")
        self._returned = {"reward": 1.0, "terminated": False, "truncated": False} | (wrong if env_id == 1 else {})

    def step(self, action: Any) -> Any:
        return SEEN, *self._returned.values(), {}


SEVERAL = np.array([1.0, -1.0])
MANY_REWARDS = "the reward of env_id 1 must be a number, got a sequence. For several objectives, .* LinearReward"
WRONG = {
    "array": ({"reward": SEVERAL}, MANY_REWARDS),
    "list": ({"reward": [1.0, -1.0]}, MANY_REWARDS),
    "tensor": ({"reward": torch.ones(2)}, MANY_REWARDS),
    "dict": ({"reward": {"a": 1.0}}, "the reward of env_id 1 must be a number, got a dict. For several objectives"),
    "one item": (
        {"reward": [1.0]},
        r"the reward of env_id 1 must be a number, got \[1.0\], a sequence of one. step must",
    ),
    "none": ({"reward": None}, "the reward of env_id 1 must be a number, got None. step must return"),
    "text": ({"reward": "much"}, "the reward of env_id 1 must be a number, got 'much'. step must return"),
    "complex": ({"reward": 1j}, "the reward of env_id 1 must be a number, got 1j. step must return"),
    "flags": (
        {"terminated": SEVERAL > 0},
        "terminated of env_id 1 must be a boolean, got array.* Return True or False",
    ),
    "flags of a tensor": ({"truncated": torch.ones(2) > 0}, "truncated of env_id 1 must be a boolean, got tensor"),
    "list of flags": ({"truncated": [False, False]}, r"truncated of env_id 1 must be a boolean, got \[False, False\]"),
    "text as a flag": ({"terminated": "no"}, "terminated of env_id 1 must be a boolean, got 'no'"),
}


def wrong(result: str) -> tuple[list[Any], str]:
    """Return factories of two environments, and the message about the second."""
    parts, message = WRONG[result]
    return [lambda env_id=env_id: Wrong(env_id, **parts) for env_id in range(2)], f"^{message}"


@pytest.mark.parametrize("result", WRONG)
def test_a_wrong_reward_or_flag_is_an_error_that_names_it_and_the_env_id(result: str) -> None:
    makers, message = wrong(result)
    for step_threads in (1, 2):
        workers = WorkerOptions(step_threads=step_threads)
        with (
            pytest.raises((TypeError, ValueError, RuntimeError), match=message),
            AsyncWorkerPool(makers, zeros, num_workers=0, workers=workers) as pool,
        ):
            next(pool.rollouts())
    for autoreset_mode in AutoresetMode:
        with (
            contextlib.closing(ParallelVectorEnv(makers, num_workers=0, autoreset_mode=autoreset_mode)) as envs,
            pytest.raises((TypeError, ValueError, RuntimeError), match=message),
        ):
            first_step(envs)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("result", WRONG)
def test_a_wrong_reward_or_flag_in_a_worker_is_an_error_that_names_it_and_the_env_id(result: str) -> None:
    makers, message = wrong(result)
    errors = (TypeError, ValueError, RuntimeError)
    # One sub-environment per worker has a loop of its own.
    for options in ({"num_workers": 2}, {"num_workers": 1, "workers": WorkerOptions(step_workers=1)}):
        with pytest.raises(errors, match=message), AsyncWorkerPool(makers, zeros, mode="sync", **options) as pool:
            next(pool.rollouts())
    for options in ({"num_workers": 1}, {"num_workers": 1, "caller_steps": True}):
        with contextlib.closing(ParallelVectorEnv(makers, **options)) as envs, pytest.raises(errors, match=message):
            first_step(envs)


def test_an_error_of_one_environment_is_not_explained_by_the_result_of_another() -> None:
    makers = [lambda: Wrong(1, terminated=SEVERAL > 0), lambda: Older("itself")]
    with (
        contextlib.closing(ParallelVectorEnv(makers, num_workers=0)) as envs,
        pytest.raises(ValueError, match=r"^terminated of env_id 0 must be a boolean") as caught,
    ):
        first_step(envs)
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert [str(error) for error in caught.value.__cause__.exceptions][1] == "no fuel"


def test_the_error_for_a_result_in_the_format_of_gym_survives_episode_seeds() -> None:
    with (
        pytest.raises((TypeError, ValueError), match=r"step must return \(observation, .* got 4 values"),
        AsyncWorkerPool(lambda: Older("step"), zeros, num_workers=0, episode_seeds=True) as pool,
    ):
        next(pool.rollouts())


class OlderLater(Older):
    """Environment whose resets have a wrong result after its first step."""

    def __init__(self) -> None:
        super().__init__("neither")

    def step(self, action: Any) -> Any:
        self.is_older = "reset"
        return SEEN, 1.0, True, False, {}


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("workers", [WorkerOptions(), WorkerOptions(step_threads=2)], ids=["in turn", "in threads"])
def test_a_wrong_result_of_a_later_reset_is_an_error(workers: WorkerOptions, num_envs: int) -> None:
    with (
        pytest.raises(TypeError, match=r"reset must return \(observation, info\)"),
        AsyncWorkerPool(OlderLater, zeros, num_envs=num_envs, num_workers=1, workers=workers) as pool,
    ):
        next(pool.rollouts())


def stop_in_pdb() -> None:
    pdb.set_trace()


def stop_in_pdb_of_its_own() -> None:
    debugger = pdb.Pdb(stdin=io.StringIO("c\n"), stdout=io.StringIO())
    debugger.set_trace()


class Debugged(Older):
    """Environment whose steps call a function that starts a debugger."""

    def __init__(self, debug: Any) -> None:
        super().__init__("neither")
        self._debug = debug

    def step(self, action: Any) -> Any:
        self._debug()
        return SEEN, 1.0, False, False, {}


NO_DEBUGGER = r"^breakpoint\(\) and pdb.set_trace\(\) cannot be used in a worker, .* Use num_workers=0"


@pytest.mark.parametrize("debug", [breakpoint, stop_in_pdb])
def test_a_debugger_in_a_worker_is_refused_with_the_remedy(debug: Any) -> None:
    def debugged(observations: Any) -> Any:
        debug()
        return zeros(observations)

    for env_fn, policy in ((lambda: Debugged(debug), zeros), (lambda: Debugged(int), debugged)):
        with (
            pytest.raises(ConfigurationError, match=NO_DEBUGGER),
            AsyncWorkerPool(env_fn, policy, num_workers=1) as pool,
        ):
            next(pool.rollouts())
    with (
        contextlib.closing(ParallelVectorEnv([lambda: Debugged(debug)] * 2, num_workers=1)) as envs,
        pytest.raises(ConfigurationError, match=NO_DEBUGGER),
    ):
        first_step(envs)


def test_a_debugger_with_an_input_of_its_own_works_in_a_worker() -> None:
    with contextlib.closing(ParallelVectorEnv([lambda: Debugged(stop_in_pdb_of_its_own)], num_workers=1)) as envs:
        first_step(envs)


@pytest.mark.more
def test_a_debugger_works_without_workers_and_in_the_share_of_the_caller() -> None:
    program = """
import sys
import numpy as np
from parenv import AsyncWorkerPool, ParallelVectorEnv
from test_env_errors import Debugged
import contextlib, functools
for options in ({"num_workers": 0}, {"num_workers": 1, "caller_steps": True}):
    makers = [functools.partial(Debugged, int), functools.partial(Debugged, breakpoint)]
    with contextlib.closing(ParallelVectorEnv(makers, **options)) as envs:
        envs.reset()
        envs.step(np.zeros(2, int))
with AsyncWorkerPool(
    functools.partial(Debugged, breakpoint), lambda o: np.zeros(len(o), int), num_workers=0, rollout_length=1
) as pool:
    next(pool.rollouts())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    answers = "p 'stopped in', type(self).__name__\nc\n" * 3
    ended = subprocess.run(
        [sys.executable, "-c", program], input=answers, capture_output=True, text=True, timeout=120, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("('stopped in', 'Debugged')") == 3
