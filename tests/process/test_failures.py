"""Check errors before a process starts, exceptions in workers, and deaths and timeouts of workers."""

from __future__ import annotations

import linecache
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from audits import until
from envs import Acting, ledgers
from policies import zeros

from parenv import (
    Action,
    AsyncWorkerPool,
    ConfigurationError,
    ParallelVectorEnv,
    Policy,
    Stop,
    SubEnvironmentError,
    TorchPolicy,
    WorkerDiedError,
    WorkerError,
    WorkerOptions,
    WorkerTimeoutError,
)
from parenv.errors import NotPicklableError, ObservationError, PolicyOutputError, PoolBusyError, PoolClosedError
from parenv.process import launcher
from parenv.testing import LedgerEnv

SLEEP_S = 120.0


class SimulatorError(RuntimeError):
    """Exception whose constructor takes more arguments than its ``args`` contain."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Faulty(LedgerEnv):
    """Ledger that calls a function in its constructor, or in steps of its third episode."""

    def __init__(self, env_id: int, where: str, act: Any) -> None:
        super().__init__(env_id)
        self._where, self._act = where, act
        if where == "constructor":
            act()

    def step(self, action: Any) -> Any:
        if self._where == "step" and self._buffer[1] == 2:
            return self._act() or super().step(action)
        return super().step(action)


def one_faulty(where: str, act: Any) -> list[Any]:
    """Return factories of four ledgers, of which the one with env_id 2 is faulty."""
    good = ledgers(4)
    return [*good[:2], lambda: Faulty(2, where, act), good[3]]


def raise_simulator_error() -> None:
    raise SimulatorError("the motor is hot", 3)


class UnsayableError(RuntimeError):
    """Exception that cannot be converted to a string."""

    def __str__(self) -> str:
        raise ValueError("no words")


def raise_unsayable() -> None:
    raise UnsayableError


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exception_of_a_constructor_keeps_its_type_and_has_its_place_as_cause(num_workers: int) -> None:
    makers = one_faulty("constructor", raise_simulator_error)
    with pytest.raises(SimulatorError, match="the motor is hot") as raised:
        AsyncWorkerPool(makers, zeros, num_workers=num_workers)
    cause = raised.value.__cause__
    assert isinstance(cause, SubEnvironmentError)
    assert (cause.worker, cause.env_id, cause.doing) == (num_workers // 2, 2, "making the environment")
    if num_workers:
        assert "raise_simulator_error" in cause.remote_traceback
        assert "env_id 2" in str(cause)


SCRIPT = """import gymnasium as gym

class Faulty(gym.Wrapper):
    def step(self, action):
        raise ValueError("which line?")

def make():
    return Faulty(gym.make("CartPole-v1"))
"""


@pytest.mark.parametrize("is_notebook", [False, True])
def test_a_remote_traceback_of_a_script_or_a_notebook_shows_file_and_line(
    is_notebook: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, names = tmp_path / "script.py", {"__name__": "__main__"}
    if is_notebook:
        monkeypatch.setitem(
            linecache.cache, str(path), (len(SCRIPT), None, SCRIPT.splitlines(keepends=True), str(path))
        )
    else:
        path.write_text(SCRIPT)
    exec(compile(SCRIPT, path, "exec"), names)
    with (
        pytest.raises(ValueError, match=r"which line\?") as raised,
        AsyncWorkerPool(names["make"], zeros, num_envs=1, num_workers=1) as pool,
    ):
        next(pool.rollouts())
    cause = raised.value.__cause__
    assert isinstance(cause, SubEnvironmentError)
    shown = f'  File "{path}", line 5, in step\n    raise ValueError("which line?")\n'
    assert shown in cause.remote_traceback


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exception_without_a_string_is_raised_like_others(num_workers: int) -> None:
    with pytest.raises(RuntimeError) as raised:  # noqa: SIM117
        with AsyncWorkerPool(one_faulty("step", raise_unsayable), zeros, num_workers=num_workers) as pool:
            list(pool.rollouts())
    cause = raised.value.__cause__
    assert isinstance(cause, SubEnvironmentError)
    assert (cause.env_id, cause.doing) == (2, "step")
    if num_workers:
        assert "UnsayableError: <UnsayableError, which cannot say" in str(raised.value)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_after_a_failure_the_pool_is_closed(mode: Any) -> None:
    pool = AsyncWorkerPool(one_faulty("step", raise_simulator_error), zeros, num_workers=2, mode=mode)
    with pytest.raises(SimulatorError):
        list(pool.rollouts())
    assert pool.closed
    with pytest.raises(PoolClosedError):
        pool.publish(zeros)


def fork_and_exit(code: Any) -> None:
    """Fork a child that calls ``sys.exit``, and check that its exit code is 3."""
    pid = os.fork()
    if not pid:
        sys.exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 3:
        raise SimulatorError("the child ended otherwise", 0)


@pytest.mark.parametrize("product", ["pool", "vector env"])
def test_a_child_that_an_environment_forks_may_end_by_sys_exit(product: str) -> None:
    envs = one_faulty("step", lambda: fork_and_exit(3))
    if product == "pool":
        with AsyncWorkerPool(envs, zeros, num_workers=2, rollout_length=16) as pool:
            assert len(list(pool.rollouts(Stop(env_steps=256)))) >= 8
        return
    vector = ParallelVectorEnv(envs, num_workers=2)
    try:
        vector.reset(seed=0)
        for _ in range(32):
            vector.step(np.zeros(4, np.int64))
    finally:
        vector.close()


def segfault() -> None:
    import ctypes
    import faulthandler

    faulthandler.disable()
    ctypes.string_at(0)


DEATHS = {
    "exit": (lambda: os._exit(3), 3, None, "exited with code 3"),
    "exit 0": (lambda: os._exit(0), 0, None, "exited with code 0"),
    "kill": (lambda: os.kill(os.getpid(), signal.SIGKILL), None, signal.SIGKILL, "was killed by SIGKILL"),
    "abort": (os.abort, None, signal.SIGABRT, "was killed by SIGABRT"),
    "segfault": (segfault, None, signal.SIGSEGV, "was killed by SIGSEGV"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("death", DEATHS)
def test_the_error_for_a_dead_worker_names_the_worker_the_cause_and_the_operation(death: str) -> None:
    act, exit_code, signum, words = DEATHS[death]
    with pytest.raises(WorkerDiedError, match=words) as raised:  # noqa: SIM117
        with AsyncWorkerPool(
            one_faulty("step", act), zeros, num_workers=2, workers=WorkerOptions(restart=None)
        ) as pool:
            list(pool.rollouts())
    error = raised.value
    assert (error.worker, error.env_ids, error.exit_code, error.signal) == (1, (2, 3), exit_code, signum)
    assert error.pid > 0
    assert error.doing == "step of env_id 2"


def test_sys_exit_in_an_environment_does_not_end_the_main_process() -> None:
    with pytest.raises(WorkerError, match="SystemExit: 4"):  # noqa: SIM117
        with AsyncWorkerPool(one_faulty("step", lambda: sys.exit(4)), zeros, num_workers=2) as pool:
            list(pool.rollouts())


def wrong(observation: Any) -> Any:
    """Return a function that returns the result of a step with the given observation."""
    return lambda: (observation, 0.0, False, False, {})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("observation", "words"),
    [
        (np.zeros(4, np.int64), r"got \(4,\)"),
        (np.zeros(3, np.float64), "and float64"),
        (np.zeros((1, 3), np.int64), r"got \(1, 3\)"),
        ({"a": 1}, r"got \(\)"),
    ],
)
def test_a_wrong_observation_is_an_error_with_its_env_id_as_cause(
    observation: Any, words: str, num_workers: int
) -> None:
    with pytest.raises(ObservationError, match=words) as raised:  # noqa: SIM117
        with AsyncWorkerPool(one_faulty("step", wrong(observation)), zeros, num_workers=num_workers) as pool:
            list(pool.rollouts())
    cause = raised.value.__cause__
    assert isinstance(cause, SubEnvironmentError)
    assert cause.env_id == 2


@pytest.mark.more
def test_a_worker_that_does_not_get_ready_in_time_is_an_error_with_its_stack() -> None:
    # The time limit must not include the start of the fork server, which imports torch.
    AsyncWorkerPool(ledgers(2), zeros, num_workers=2).close()
    began = time.monotonic()
    words = r"(?s)worker 1 \(env_ids 2-3\) is at: making the environment of env_id 2.*Its stack:\n.*File "
    with pytest.raises(WorkerTimeoutError, match=words):
        AsyncWorkerPool(
            one_faulty("constructor", lambda: time.sleep(SLEEP_S)),
            zeros,
            num_workers=2,
            workers=WorkerOptions(start_timeout_s=5.0, close_timeout_s=0.5),
        )
    assert time.monotonic() - began < SLEEP_S


def test_a_worker_that_does_not_close_in_time_is_killed(tmp_path: Path) -> None:
    hanging = tmp_path / "hanging"
    pool = AsyncWorkerPool(
        one_faulty("step", lambda: hanging.touch() or time.sleep(SLEEP_S)),
        zeros,
        num_workers=2,
        workers=WorkerOptions(close_timeout_s=0.5),
    )
    stream = pool.rollouts()
    until(hanging.exists, lambda: next(stream))
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < SLEEP_S


@pytest.mark.more
def test_the_error_for_a_module_that_cannot_be_preloaded_names_it() -> None:
    with pytest.raises(WorkerError, match="could not be started") as raised:
        AsyncWorkerPool("CartPole-v1", zeros, num_workers=1, workers=WorkerOptions(preload=("no_such_module",)))
    assert "no_such_module" in str(raised.value.__cause__)
    spec = next(spec for spec in launcher._fork_servers if "no_such_module" in spec.preload)
    del launcher._fork_servers[spec]


@pytest.mark.more
def test_the_death_of_the_fork_server_ends_a_pool_without_restarts_with_an_error() -> None:
    options = WorkerOptions(environment={"OWN_FORK_SERVER": "1"}, restart=None)
    pool = AsyncWorkerPool([lambda: LedgerEnv(0)] * 2, zeros, num_workers=2, workers=options)
    spec = next(spec for spec in launcher._fork_servers if ("OWN_FORK_SERVER", "1") in spec.environment)
    os.kill(launcher._fork_servers[spec]._process.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError):
        list(pool.rollouts())
    with AsyncWorkerPool([lambda: LedgerEnv(0)] * 2, zeros, num_workers=2, workers=options) as another:
        next(another.rollouts())


lock = threading.Lock()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mode": "parallel"}, "'sync', 'async'"),
        ({"parallelism": "model"}, "'experience', 'gradient'"),
        ({"num_envs": -1}, "num_envs must be an integer of at least 1"),
        ({"num_workers": -1}, "num_workers must be an integer of at least 0"),
        ({"num_envs": 2, "num_workers": 3}, "Use num_workers=2 or num_envs=3"),
        ({"rollout_length": 0}, "rollout_length"),
        ({"prefetch": -1}, "prefetch"),
        ({"mode": "sync", "max_policy_lag": 1}, 'mode="async"'),
        ({"env_fn": "NoSuchEnv-v0"}, "NoSuchEnv"),
        ({"env_fn": lambda: lock}, "env_fn.*'lock'.*_thread.lock"),
        ({"policy": 3}, "policy must be"),
    ],
)
def test_bad_input_is_refused_before_any_process_starts(
    arguments: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "Launcher", None)
    monkeypatch.setattr("parenv.placement.local.Launcher", None)
    with pytest.raises(ConfigurationError, match=words):
        AsyncWorkerPool(**{"env_fn": "CartPole-v1", "policy": zeros, "num_workers": 1, **arguments})


def test_the_error_for_an_unpicklable_policy_names_the_attribute() -> None:
    class Holder:
        def __init__(self) -> None:
            self.inner = {"key": threading.Lock()}

        def __call__(self, observations: Any) -> Any:
            return zeros(observations)

    with pytest.raises(NotPicklableError, match=r"policy, attribute 'inner', \['key'\] \(_thread.lock\)"):
        AsyncWorkerPool("CartPole-v1", Holder(), num_workers=1)
    with AsyncWorkerPool("CartPole-v1", zeros, num_workers=0) as pool:
        next(pool.rollouts())


class Listed(Policy):
    """Policy whose carry contains a list."""

    def initial_carry(self, batch: int) -> Any:
        return {"h": [0.0] * batch}

    def act(self, observations: Any, carry: Any) -> Action:
        return Action(zeros(observations), {}, carry)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (lambda o: np.zeros(len(o)), "and dtype float64"),
        (lambda o: np.zeros((len(o), 2), int), r"shape \(2, 2\)"),
        (lambda o: np.full(len(o), 5), "must return actions in Discrete"),
        (torch.nn.Linear(4, 2), "TorchPolicy"),
        (TorchPolicy(torch.nn.Linear(4, 2), "forward", ("actions", "value")), r"shape \(2, 2\)"),
        (lambda o: (zeros(o), {"v": zeros(o)}), "must return an array of actions, got a tuple.*TorchPolicy"),
        (Listed(), r"carry\['h'\] must be .* got a list of shape \(2,\).*Return arrays or tensors"),
    ],
)
def test_a_policy_that_does_not_fit_the_action_space_is_refused_at_the_start(
    policy: Any, words: str, num_workers: int
) -> None:
    with pytest.raises(PolicyOutputError, match=words):
        AsyncWorkerPool("CartPole-v1", policy, num_workers=num_workers, num_envs=2)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_exception_of_a_policy_at_the_start_has_a_note_about_the_batch(num_workers: int) -> None:
    with pytest.raises(IndexError) as raised:
        AsyncWorkerPool("CartPole-v1", lambda o: int(o[3] > 0), num_workers=num_workers, num_envs=2)
    (note,) = raised.value.__notes__
    assert note == "The policy received a batch of observations of shape (2, 4), a row per sub-environment."


def test_different_spaces_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="same"):
        AsyncWorkerPool(["CartPole-v1", "MountainCar-v0"], zeros, num_workers=2)
    with pytest.raises(ConfigurationError, match="env_id 1"):
        AsyncWorkerPool(["CartPole-v1", "MountainCar-v0"], zeros, num_workers=1)


def test_publishing_another_policy_is_refused_and_changes_nothing() -> None:
    module = torch.nn.Linear(4, 2)

    class Net(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, width)

        def forward(self, observations: Any) -> Any:
            return self.inner(observations).argmax(-1)

    with AsyncWorkerPool("CartPole-v1", Net(2), num_workers=1, mode="sync") as pool:
        for bad, words in [
            (Net(3), "inner.weight"),
            (module, "missing"),
            ({"inner.weight": module.weight}, "inner.bias"),
            (zeros, "state dict"),
        ]:
            with pytest.raises(ConfigurationError, match=words):
                pool.publish(bad)
        assert pool.policy_version == 0
        next(pool.rollouts())


def test_a_call_from_another_thread_during_a_rollout_is_a_busy_error(tmp_path: Path) -> None:
    refused = tmp_path / "refused"
    with AsyncWorkerPool(
        lambda: Acting(0, lambda env: until(refused.exists)), zeros, num_workers=1, rollout_length=4
    ) as pool:
        stream = pool.rollouts()
        thread = threading.Thread(target=lambda: next(stream))
        thread.start()
        while not pool._one_thread.busy:
            pass
        with pytest.raises(PoolBusyError, match=r"MainThread cannot .*, because Thread-\d+ .* iterates"):
            pool.publish(zeros)
        refused.touch()
        thread.join()


def test_refused_calls_of_another_thread_do_not_disturb_the_iterating_one() -> None:
    with AsyncWorkerPool(lambda: LedgerEnv(0), zeros, num_workers=1, rollout_length=4) as pool:
        intruder = ThreadPoolExecutor(1)
        assert intruder.submit(pool.publish, zeros).result() == 1
        stream = pool.rollouts()
        next(stream)
        for trespass in (lambda: pool.publish(zeros), pool.synchronize, lambda: next(pool.rollouts())):
            with pytest.raises(PoolBusyError, match="because MainThread iterates over it"):
                intruder.submit(trespass).result()
            next(stream)
        assert pool.publish(zeros) == 2
        stream.close()
        assert intruder.submit(pool.publish, zeros).result() == 3
        intruder.shutdown()


def test_an_exception_of_a_factory_is_raised_unchanged() -> None:
    def make() -> Any:
        raise gym.error.DependencyNotInstalled("pip install nothing")

    with pytest.raises(gym.error.DependencyNotInstalled, match="pip install nothing"):
        AsyncWorkerPool(make, zeros, num_workers=1)
