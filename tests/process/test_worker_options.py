"""Check that each field of ``WorkerOptions`` works the same in a pool and in a vector env, or is refused.

The function with the name of a field checks that field.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from parenv import (
    AsyncWorkerPool,
    ConfigurationError,
    ParallelVectorEnv,
    RestartPolicy,
    WorkerOptions,
    WorkerTimeoutError,
    entry_point,
)
from parenv.errors import ObservationError, RestartLimitError

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("warnings_are_expected")]
PRODUCTS = ["pool", "vector env"]


@pytest.fixture
def warnings_are_expected(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", logger="parenv")


class Probe(gym.Env[Any, Any]):
    """Environment that has properties of its worker as attributes and calls a function at a chosen place."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, where: str = "", act: Callable[[], Any] = bool) -> None:
        self.where, self.act, self.began = where, act, False
        self.variables = dict(os.environ)
        self.has_wave = "wave" in sys.modules
        self.command = " ".join(sys.orig_argv)
        self.has_memory_limit = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
        self.maybe("constructor")

    def maybe(self, where: str) -> Any:
        return self.act() if where == self.where else np.zeros(1, np.float32)

    def reset(self, **kwargs: Any) -> Any:
        if self.began:
            self.maybe("reset")
        self.began = True
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.maybe("step")
        return self.maybe("observation"), 0.0, True, False, {}

    def close(self) -> None:
        self.maybe("close")


def sleep() -> None:
    time.sleep(10_000)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise RuntimeError("out of order")


def of_float64() -> Any:
    return np.zeros(1)


def of_nan() -> Any:
    return np.full(1, np.nan, np.float32)


def say_hello(worker: int) -> None:
    os.environ["HELLO"] = str(worker)


def say_goodbye(directory: Path, worker: int) -> None:
    (directory / f"goodbye {worker}").touch()


def opened(product: str, options: WorkerOptions, where: str = "", act: Callable[[], Any] = bool) -> Any:
    env_fns = [functools.partial(Probe, where, act)] * 2
    if product == "pool":
        return AsyncWorkerPool(env_fns, lambda o: np.zeros(len(o), np.int64), num_workers=2, workers=options)
    return ParallelVectorEnv(env_fns, num_workers=2, on_worker_death="restart", workers=options)


def use(opened: Any) -> None:
    if isinstance(opened, AsyncWorkerPool):
        next(opened.rollouts())
    else:
        opened.reset()
        for _ in range(10):
            opened.step(np.zeros(2, np.int64))


def shown(product: str, options: WorkerOptions, name: str) -> Any:
    """Return an attribute of an environment in worker 1."""
    with contextlib.closing(opened(product, options)) as it:
        return it.get_attr(name)[1]


def raised(kind: type[Exception], match: str, product: str, options: WorkerOptions, where: str, act: Any) -> None:
    """Check that opening or using a pool or vector env raises an error."""
    with pytest.raises(kind, match=match), contextlib.closing(opened(product, options, where, act)) as it:
        use(it)


def device(product: str, directory: Path) -> None:
    assert shown(product, WorkerOptions(device="cpu"), "variables")["CUDA_VISIBLE_DEVICES"] == ""


def threads(product: str, directory: Path) -> None:
    assert shown(product, WorkerOptions(threads=3), "variables")["OMP_NUM_THREADS"] == "3"


def environment(product: str, directory: Path) -> None:
    assert shown(product, WorkerOptions(environment={"COLOUR": "red"}), "variables")["COLOUR"] == "red"


def preload(product: str, directory: Path) -> None:
    assert shown(product, WorkerOptions(preload=("wave",)), "has_wave")


def start_method(product: str, directory: Path) -> None:
    assert "run_entry" not in shown(product, WorkerOptions(start_method="fork"), "command")
    assert "run_entry" in shown(product, WorkerOptions(start_method="spawn"), "command")
    limit = RestartPolicy(max_restarts=1, backoff_s=0.01)
    raised(
        RestartLimitError, r"has died 2 times", product, WorkerOptions(start_method="spawn", restart=limit), "step", die
    )


def step_workers(product: str, directory: Path) -> None:
    if product == "pool":
        with contextlib.closing(opened(product, WorkerOptions(step_workers=1))) as it:
            assert next(it.rollouts()).truncated.sum() == 0
    else:
        raised(ConfigurationError, "step_workers needs a pool", product, WorkerOptions(step_workers=1), "", bool)


def setup_fn(product: str, directory: Path) -> None:
    assert shown(product, WorkerOptions(setup_fn=say_hello), "variables")["HELLO"] == "1"


def cleanup_fn(product: str, directory: Path) -> None:
    opened(product, WorkerOptions(cleanup_fn=functools.partial(say_goodbye, directory))).close()
    assert {path.name for path in directory.iterdir()} == {"goodbye 0", "goodbye 1"}


def restart(product: str, directory: Path) -> None:
    options = WorkerOptions(restart=RestartPolicy(max_restarts=2, backoff_s=0.01))
    raised(RestartLimitError, r"has died 3 times", product, options, "step", die)


def on_env_error(product: str, directory: Path) -> None:
    options = WorkerOptions(on_env_error="restart_env", restart=RestartPolicy(max_restarts=2, backoff_s=0.01))
    if product == "pool":
        raised(RuntimeError, r"out of order", product, options, "step", fail)
    else:
        raised(ConfigurationError, r"on_env_error needs a pool", product, options, "step", fail)


def step_timeout_s(product: str, directory: Path) -> None:
    options = WorkerOptions(step_timeout_s=0.5, restart=RestartPolicy(max_restarts=1, backoff_s=0.01))
    raised(RestartLimitError, r"did not answer within step_timeout_s=0\.5", product, options, "step", sleep)


def reset_timeout_s(product: str, directory: Path) -> None:
    options = WorkerOptions(reset_timeout_s=0.5, restart=RestartPolicy(max_restarts=1, backoff_s=0.01))
    raised(RestartLimitError, r"did not answer within reset_timeout_s=0\.5", product, options, "reset", sleep)


def start_timeout_s(product: str, directory: Path) -> None:
    options = WorkerOptions(start_timeout_s=3.0)
    raised(WorkerTimeoutError, r"not ready after 3 s", product, options, "constructor", sleep)


def close_timeout_s(product: str, directory: Path) -> None:
    with contextlib.closing(opened(product, WorkerOptions(close_timeout_s=0.1), "close", sleep)) as it:
        use(it)


def max_memory_bytes(product: str, directory: Path) -> None:
    assert shown(product, WorkerOptions(max_memory_bytes=1 << 30), "has_memory_limit")


def strict_dtype(product: str, directory: Path) -> None:
    raised(ObservationError, "float64", product, WorkerOptions(strict_dtype=True), "observation", of_float64)


def check_finite(product: str, directory: Path) -> None:
    raised(ObservationError, "nan|NaN", product, WorkerOptions(check_finite=True), "observation", of_nan)


def step_threads(product: str, directory: Path) -> None:
    options = WorkerOptions(step_threads=2)
    if product == "pool":
        with contextlib.closing(opened(product, options)) as it:
            use(it)
    else:
        raised(ConfigurationError, r"step_threads needs a pool", product, options, "step", fail)


def recycle_episodes(product: str, directory: Path) -> None:
    made = [0]

    class Counted(Probe):
        def __init__(self) -> None:
            super().__init__()
            made[0] += 1
            self.number = made[0]

    env_fns, options = [Counted] * 2, WorkerOptions(recycle_episodes=3)
    if product == "pool":
        it: Any = AsyncWorkerPool(env_fns, lambda o: np.zeros(len(o), np.int64), num_workers=2, workers=options)
    else:
        it = ParallelVectorEnv(env_fns, num_workers=2, workers=options)
    with contextlib.closing(it):
        if product == "pool":
            # A worker that has delivered nothing yet answers the call before it begins a rollout.
            delivered = set[int]()
            for rollout in it.rollouts():
                delivered.add(rollout.worker)
                if len(delivered) == 2:
                    break
        else:
            use(it)
        assert min(it.get_attr("number")) > 1


def python(product: str, directory: Path) -> None:
    options = WorkerOptions(python=sys.executable)
    raised(ConfigurationError, "must be named", product, options, "", bool)
    if product == "pool":
        with AsyncWorkerPool(entry_point("CartPole-v1"), lambda o: o[:, 2] > 0, num_envs=1, workers=options) as pool:
            assert next(pool.rollouts()).observations.shape[1:] == (1, 4)
    else:
        with ParallelVectorEnv([entry_point("CartPole-v1")], workers=options) as envs:
            assert envs.reset()[0].shape == (1, 4)


def rollout_device(product: str, directory: Path) -> None:
    reason = r"must be None \(shared memory\) or one of cuda" if product == "pool" else "rollout_device needs a pool"
    raised(ConfigurationError, reason, product, WorkerOptions(rollout_device="abacus"), "", bool)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(WorkerOptions)])
def test_each_field_works_the_same_in_pools_and_vector_envs(field: str, product: str, tmp_path: Path) -> None:
    globals()[field](product, tmp_path)


def test_a_vector_env_without_restarts_needs_no_restart_policy() -> None:
    options = WorkerOptions(restart=None)
    with pytest.raises(ConfigurationError, match="needs a RestartPolicy"):
        opened("vector env", options)
    ParallelVectorEnv([Probe], num_workers=1, workers=options).close()
