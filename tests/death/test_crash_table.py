"""Check the reaction to every fault at every place where a worker can fail, while ledgers audit all transitions.

During a run, the driver orders a fault by a symbolic link. Worker 1 removes the link when it gets to the place, and
fails once.

For pools, every place is combined with every fault in one of the two modes, but only with one of the three hangs. For
vector envs, every place is combined with every fault, alternately with ``on_worker_death="raise"`` and ``"restart"``.
All other combinations are soak tests.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped,unused-ignore]
import pytest
import torch
from audits import VectorAudit
from envs import hold_the_gil, kill_oneself, segfault, sleep_long, stop_oneself
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode
from inside import deaths_of
from sampling import one_in

from parenv import (
    AsyncWorkerPool,
    GradientOptions,
    ParallelVectorEnv,
    RestartPolicy,
    SubEnvironmentError,
    TorchPolicy,
    WorkerDiedError,
    WorkerError,
    WorkerOptions,
    WorkerTimeoutError,
)
from parenv.errors import PoolClosedError, during
from parenv.testing import LedgerEnv, check_ledger
from parenv.worker.writing import RolloutWriter

STEP_S, RESET_S, START_S, CLOSE_S, ORDERLY_S, CLOSED_S = 2.0, 2.1, 5.0, 0.2, 3.0, 120.0
CULPRIT, CULPRITS_ENVS, FAULTY_ENV, N = 1, (2, 3), 3, 4


class SimulatorError(RuntimeError):
    """Exception of an environment on order."""


def fail() -> None:
    raise SimulatorError("the motor is hot")


FAULTS: dict[str, Callable[[], Any]] = {
    "raise": fail,
    "sys.exit": lambda: sys.exit(4),
    "os._exit(0)": lambda: os._exit(0),
    "os.abort": os.abort,
    "segfault": segfault,
    "SIGKILL": kill_oneself,
    "SIGSTOP": stop_oneself,
    "hold the GIL": hold_the_gil,
    "sleep": sleep_long,
}
RAISED: dict[str, tuple[type[Exception], str]] = {
    "raise": (SimulatorError, "the motor is hot"),
    "sys.exit": (WorkerError, "SystemExit: 4"),
}
DEATHS = {
    "os._exit(0)": "exited with code 0",
    "os.abort": "was killed by SIGABRT",
    "segfault": "was killed by SIGSEGV",
    "SIGKILL": "was killed by SIGKILL",
}
HANGS = {"SIGSTOP": "Its stack is not available", "hold the GIL": "in hold_the_gil", "sleep": "in sleep_long"}
FATAL = [*DEATHS, *HANGS]

DOING = {
    "constructor": "making the environment of env_id 3",
    "reset": "reset of env_id 3",
    "masked reset": "reset of env_id 3",
    "autoreset": "reset of env_id 3",
    "step": "step of env_id 3",
    "act": "act",
    "postprocess": "postprocess",
    "loss": "loss_fn",
    "half a commit": "commit",
    "commit": "commit",
    "publish": "loading the policy",
    "call": "call of env_id 3",
}
VECTOR_RUNNING = ["reset", "masked reset", "autoreset", "step", "call"]
RUNNING = ["reset", "step", "act", "postprocess", "loss", "half a commit", "commit", "publish"]

_orders: Path | None = None


def order(directory: Path, where: str, how: str) -> None:
    """Order worker 1 to fail when it next gets to a place."""
    os.symlink(how, directory / ("reset" if "reset" in where else where))


def obey(where: str) -> None:
    """Fail if this is worker 1 and there is an order for the place."""
    if _orders is None:
        return
    try:
        how = os.readlink(_orders / where)
        os.unlink(_orders / where)
    except FileNotFoundError:
        return
    FAULTS[how]()


def set_up(directory: Path, worker: int) -> None:
    """Make worker 1 take orders."""
    global _orders
    if worker == CULPRIT:
        _orders = directory
        RolloutWriter.stamp = stamp_obediently  # type: ignore[assignment]


def clean_up(directory: Path, worker: int) -> None:
    (directory / f"cleaned {worker}").touch()


stamp = RolloutWriter.stamp


def stamp_obediently(writer: RolloutWriter, **commit: float) -> None:
    fields = list(commit)
    stamp(writer, **{name: commit[name] for name in fields[:4]})
    obey("half a commit")
    stamp(writer, **{name: commit[name] for name in fields[4:]})
    obey("commit")


class Obedient(LedgerEnv):
    """LedgerEnv that fails on order if it is the last sub-environment."""

    def __init__(self, env_id: int) -> None:
        super().__init__(env_id)
        self._obey = obey if env_id == FAULTY_ENV else lambda where: None
        self._obey("constructor")

    def reset(self, **kwargs: Any) -> Any:
        self._obey("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self._obey("step")
        return super().step(action)

    def poke(self) -> int:
        self._obey("call")
        return int(self._buffer[0])

    def close(self) -> None:
        self._obey("close")


class Trap:
    """Setting of a policy that fails on order while a worker loads it."""

    def __getstate__(self) -> dict[str, int]:
        return {"anything": 1}

    def __setstate__(self, state: dict[str, int]) -> None:
        obey("publish")


class Agent(torch.nn.Module):
    """Module whose only weight is the number of its version."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.zeros(()))

    def act(self, observations: Any) -> Any:
        obey("act")
        batch = len(observations)
        return torch.zeros(batch, dtype=torch.int64), self.value.expand(batch)


def postprocess(policy: Any, rollout: Any) -> dict[str, Any]:
    obey("postprocess")
    return {"doubled": 2 * rollout.rewards}


def loss_fn(policy: Any, rollout: Any) -> Any:
    obey("loss")
    return policy.module.value * rollout.rewards.mean()


FACTORIES = [functools.partial(Obedient, env_id) for env_id in range(N)]


def options(directory: Path, **changed: Any) -> WorkerOptions:
    given: dict[str, Any] = {
        "preload": (__name__,),
        "setup_fn": functools.partial(set_up, directory),
        "cleanup_fn": functools.partial(clean_up, directory),
        "restart": RestartPolicy(max_restarts=20, backoff_s=1e-3, max_backoff_s=1e-3),
        "step_timeout_s": STEP_S,
        "reset_timeout_s": RESET_S,
        "close_timeout_s": CLOSE_S,
    }
    return WorkerOptions(**{**given, **changed})


def make_pool(directory: Path, mode: Any = "sync", loss: bool = False, **changed: Any) -> AsyncWorkerPool:
    learning: dict[str, Any] = {
        "parallelism": "gradient",
        "loss_fn": loss_fn,
        "gradient": GradientOptions(keep_rollouts=True),
    }
    return AsyncWorkerPool(
        FACTORIES,
        TorchPolicy(Agent(), "act", ("actions", "value")),
        num_workers=2,
        mode=mode,
        rollout_length=6,
        postprocess=postprocess,
        workers=options(directory, **changed),
        **(learning if loss else {}),
    )


def deliveries(pool: AsyncWorkerPool, loss: bool = False) -> Iterator[Any]:
    """Yield rollouts after checking their ledgers, extras, restarted columns and gradients."""
    expected: dict[int, tuple[int, int]] = {}
    stream: Iterator[Any] = pool.gradients() if loss else pool.rollouts()
    for item in stream:
        (rollout,) = item.rollouts if loss else (item,)
        check_ledger(rollout, expected)
        assert (rollout.extras["value"] == rollout.policy_version).all()
        assert (rollout.extras["doubled"] == 2 * rollout.rewards).all()
        assert (rollout.restarted == (rollout.restarted.any() & (rollout.env_ids >= CULPRITS_ENVS[0]))).all()
        if loss:
            assert item.flat.tolist() == pytest.approx([rollout.rewards.mean()], rel=1e-5)
        yield rollout


def publish(pool: AsyncWorkerPool) -> int:
    agent = Agent()
    with torch.no_grad():
        agent.value.fill_(pool.policy_version + 1)
    return pool.publish(agent, trap=Trap())


def until_restarted(stream: Iterator[Any]) -> None:
    """Take rollouts until worker 1 is back."""
    while not next(stream).restarted.any():
        pass


def error_of(act: Callable[[], object]) -> Exception:
    """Return the exception that a function raises, without its frames, which would keep the shared memory alive."""
    try:
        act()
    except Exception as error:
        return error.with_traceback(None)
    pytest.fail("nothing was raised")


def check_death(death: Exception, where: str, how: str, limit: str) -> None:
    """Check the type, attributes and message of the error about the death of a worker."""
    assert type(death) is (WorkerDiedError if how in DEATHS else WorkerTimeoutError)
    assert isinstance(death, WorkerError)
    assert (death.worker, tuple(death.env_ids), death.doing) == (CULPRIT, CULPRITS_ENVS, DOING[where])
    assert not psutil.pid_exists(death.pid)
    check_words(str(death), where, how, limit)


def check_words(said: str, where: str, how: str, limit: str) -> None:
    ended = DEATHS.get(how, f"did not answer within {limit} s")
    assert f"worker {CULPRIT} " in said
    assert f"env_ids {CULPRITS_ENVS[0]}-{CULPRITS_ENVS[-1]}) {ended} {during(DOING[where])}" in said
    assert HANGS.get(how, "") in said


def check_raised(error: BaseException, where: str, how: str) -> None:
    """Check the type, message and cause of an exception that was raised in a worker."""
    assert type(error) is RAISED[how][0]
    assert RAISED[how][1] in str(error)
    cause = error.__cause__
    assert isinstance(cause, SubEnvironmentError)
    doing = DOING[where]
    env_id = FAULTY_ENV if "env_id" in doing else None
    assert (cause.worker, cause.env_id, cause.doing) == (CULPRIT, env_id, doing.removesuffix(" of env_id 3"))
    assert how != "raise" or "in fail" in cause.remote_traceback


def limit_of(where: str) -> str:
    return f"reset_timeout_s={RESET_S:g}" if where == "reset" else f"step_timeout_s={STEP_S:g}"


@pytest.fixture(autouse=True)
def _expected_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING, logger="parenv"):
        yield


@pytest.fixture(autouse=True, scope="module")
def _started_helpers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start the fork servers, so that their start does not count towards the time limits of a test."""
    directory = tmp_path_factory.mktemp("warm")
    make_pool(directory).close()
    ParallelVectorEnv(FACTORIES, num_workers=2, workers=options(directory)).close()


MODES = ["sync", "async"]
HALVES = [pytest.param(0, id="half"), pytest.param(1, id="other half", marks=pytest.mark.soak)]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("where", "mode"), one_in(2, RUNNING, MODES))
def test_a_worker_of_a_pool_that_dies_is_replaced(where: str, mode: str, tmp_path: Path) -> None:
    with make_pool(tmp_path, mode, where == "loss", step_timeout_s=None, reset_timeout_s=None) as pool:
        check_recoveries(pool, where, DEATHS, tmp_path)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("soaked", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("where", "mode"), one_in(2, RUNNING, MODES))
def test_a_worker_of_a_pool_that_hangs_is_cut_and_replaced(where: str, mode: str, soaked: bool, tmp_path: Path) -> None:
    tried = list(HANGS)[RUNNING.index(where) % len(HANGS)]
    with make_pool(tmp_path, mode, where == "loss") as pool:
        check_recoveries(pool, where, [how for how in HANGS if (how != tried) == soaked], tmp_path)


def check_recoveries(pool: AsyncWorkerPool, where: str, faults: Iterable[str], directory: Path) -> None:
    stream = deliveries(pool, where == "loss")
    for number, how in enumerate(faults, 1):
        next(stream)
        order(directory, where, how)
        if where == "publish":
            publish(pool)
        until_restarted(stream)
        check_death(deaths_of(pool, CULPRIT)[-1], where, how, limit_of(where))
        assert [len(deaths_of(pool, worker)) for worker in range(2)] == [0, number]
    for _ in range(4):
        next(stream)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("how", RAISED)
@pytest.mark.parametrize(("where", "mode"), one_in(2, RUNNING, MODES))
def test_an_exception_in_a_worker_ends_the_pool_with_its_own_type(
    where: str, mode: str, how: str, tmp_path: Path
) -> None:
    loss = where == "loss"
    with make_pool(tmp_path, mode, loss) as pool:
        stream = deliveries(pool, loss)
        next(stream)
        order(tmp_path, where, how)
        if where == "publish":
            publish(pool)
        check_raised(error_of(lambda: deque(stream, 0)), where, how)
        assert pool.closed
        with pytest.raises(PoolClosedError):
            publish(pool)


@pytest.mark.more
@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_fails_is_an_error_and_the_pool_continues(mode: str, tmp_path: Path) -> None:
    with make_pool(tmp_path, mode) as pool:
        stream = deliveries(pool)
        for how in list(FAULTS)[:-1] if mode == "sync" else [*RAISED, "sleep"]:
            next(stream)
            order(tmp_path, "call", how)
            error = error_of(lambda: pool.call("poke"))
            if how in RAISED:
                check_raised(error, "call", how)
            else:
                check_death(error, "call", how, limit_of("call"))
                until_restarted(stream)
            assert pool.call("poke") == tuple(range(N))
            next(stream)


def start_limit(how: str) -> dict[str, Any]:
    return {"start_timeout_s": START_S} if how in HANGS else {}


def check_not_started(error: Exception, how: str) -> None:
    if how in RAISED:
        check_raised(error, "constructor", how)
    elif how in DEATHS:
        check_death(error, "constructor", how, "")
    else:
        words = rf"not ready after {START_S:g} s.*worker 1 \(env_ids 2-3\) is at: {DOING['constructor']}"
        assert type(error) is WorkerTimeoutError
        assert re.search(words, str(error))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "how",
    [pytest.param(how, marks=pytest.mark.soak if how in ("SIGSTOP", "hold the GIL") else ()) for how in FAULTS],
)
def test_a_pool_does_not_start_if_a_constructor_fails(how: str, tmp_path: Path) -> None:
    order(tmp_path, "constructor", how)
    check_not_started(error_of(lambda: make_pool(tmp_path, **start_limit(how))), how)


@pytest.mark.more
@pytest.mark.parametrize("half", HALVES)
def test_a_replacement_whose_constructor_fails_is_replaced_too(half: int, tmp_path: Path) -> None:
    with make_pool(tmp_path, start_timeout_s=START_S) as pool:
        stream = deliveries(pool)
        for how in FATAL[1 - half :: 2]:
            next(stream)
            order(tmp_path, "constructor", how)
            order(tmp_path, "step", "segfault")
            until_restarted(stream)
            first, second = list(deaths_of(pool, CULPRIT))[-2:]
            check_death(first, "step", "segfault", "")
            check_death(second, "constructor", how, f"start_timeout_s={START_S:g}")


@pytest.mark.parametrize("how", RAISED)
def test_a_replacement_whose_constructor_raises_ends_the_pool(how: str, tmp_path: Path) -> None:
    with make_pool(tmp_path) as pool:
        stream = deliveries(pool)
        next(stream)
        order(tmp_path, "constructor", how)
        order(tmp_path, "step", "SIGKILL")
        check_raised(error_of(lambda: deque(stream, 0)), "constructor", how)
        assert pool.closed


@pytest.mark.one_in(5)
@pytest.mark.parametrize("system", ["pool", "vector env"])
@pytest.mark.parametrize("how", FAULTS)
def test_close_returns_in_time_with_every_fault(how: str, system: str, tmp_path: Path) -> None:
    closed: Any
    if system == "pool":
        closed = make_pool(tmp_path, close_timeout_s=ORDERLY_S)
        next(deliveries(closed))
    else:
        closed = make_vector_env(tmp_path, close_timeout_s=ORDERLY_S)
        closed.reset()
    order(tmp_path, "close", how)
    began = time.monotonic()
    closed.close()
    assert time.monotonic() - began < CLOSED_S
    assert closed.closed
    assert not (tmp_path / "close").is_symlink()
    assert [(tmp_path / f"cleaned {worker}").exists() for worker in (0, CULPRIT)] == [True, how in RAISED]


def make_vector_env(directory: Path, on_worker_death: Any = "raise", **changed: Any) -> ParallelVectorEnv:
    return ParallelVectorEnv(
        FACTORIES,
        num_workers=2,
        autoreset_mode=AutoresetMode.SAME_STEP,
        step_timeout_s=STEP_S,
        on_worker_death=on_worker_death,
        workers=options(directory, **changed),
    )


def run_into(audit: VectorAudit, directory: Path, where: str, how: str, restarted: bool = False) -> list[int]:
    """Order a fault and make worker 1 get to its place; return the env_ids that steps flag as restarted."""
    order(directory, where, how)
    if where == "call":
        audit.envs.call("poke")
    elif where in ("reset", "masked reset"):
        audit.reset(where == "masked reset", CULPRITS_ENVS if restarted else ())
    else:
        return [env_id for _ in range(7) for env_id in audit.step()]
    return []


def vector_limit_of(where: str) -> str:
    resets = ("reset", "masked reset", "autoreset")
    return f"reset_timeout_s={RESET_S:g}" if where in resets else f"step_timeout_s={STEP_S:g}"


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("where", "how"), one_in(2, VECTOR_RUNNING, FATAL))
def test_a_vector_env_ends_with_its_worker(where: str, how: str, tmp_path: Path) -> None:
    with contextlib.closing(make_vector_env(tmp_path)) as envs:
        audit = VectorAudit(envs)
        audit.step()
        error = error_of(lambda: run_into(audit, tmp_path, where, how))
        check_death(error, where, how, vector_limit_of(where))
        assert type(error_of(envs.reset)) is ClosedEnvironmentError


@pytest.mark.one_in(6)
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("where", VECTOR_RUNNING)
def test_a_vector_env_restarts_a_worker_wherever_and_however_it_ends(
    where: str, half: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(make_vector_env(tmp_path, "restart")) as envs:
        audit = VectorAudit(envs)
        for number, how in enumerate(FATAL[(VECTOR_RUNNING.index(where) + 1 - half) % 2 :: 2], 1):
            assert audit.step() == []
            if where == "call":
                error = error_of(lambda how=how: run_into(audit, tmp_path, where, how))  # type: ignore[misc]
                assert type(error) is (WorkerDiedError if how in DEATHS else WorkerTimeoutError)
                flagged = audit.step()
            else:
                flagged = run_into(audit, tmp_path, where, how, restarted=True)
            assert flagged == ([] if where in ("reset", "masked reset") else list(CULPRITS_ENVS))
            assert len(caplog.messages) == number
            check_words(caplog.messages[-1], where, how, vector_limit_of(where))


@pytest.mark.parametrize("where", VECTOR_RUNNING)
def test_an_exception_keeps_its_type_and_the_vector_env_continues(where: str, tmp_path: Path) -> None:
    with contextlib.closing(make_vector_env(tmp_path)) as envs:
        audit = VectorAudit(envs)
        for how in RAISED:
            audit.last, _ = envs.reset()
            assert audit.step() == []
            check_raised(error_of(lambda how=how: run_into(audit, tmp_path, where, how)), where, how)  # type: ignore[misc]
        audit.last, _ = envs.reset()
        assert audit.last[:, [0, 2]].tolist() == [[i, 0] for i in range(N)]
        assert [audit.step() for _ in range(8)] == [[]] * 8


@pytest.mark.one_in(8)
@pytest.mark.parametrize(("how", "on_worker_death"), one_in(2, [*RAISED, *DEATHS, "sleep"], ["raise", "restart"]))
def test_a_vector_env_does_not_start_if_a_constructor_fails(how: str, on_worker_death: str, tmp_path: Path) -> None:
    order(tmp_path, "constructor", how)
    check_not_started(error_of(lambda: make_vector_env(tmp_path, on_worker_death, **start_limit(how))), how)


@pytest.mark.more
def test_a_replacement_in_a_vector_env_whose_constructor_dies_or_hangs_is_replaced_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(make_vector_env(tmp_path, "restart", start_timeout_s=START_S)) as envs:
        audit = VectorAudit(envs)
        for how in FATAL:
            audit.step()
            order(tmp_path, "constructor", how)
            order(tmp_path, "step", "SIGKILL")
            assert audit.step() == list(CULPRITS_ENVS)
            first, second = caplog.messages[-2:]
            check_words(first, "step", "SIGKILL", "")
            check_words(second, "constructor", how, f"start_timeout_s={START_S:g}")


@pytest.mark.parametrize("how", RAISED)
def test_a_replacement_in_a_vector_env_whose_constructor_raises_ends_it(how: str, tmp_path: Path) -> None:
    envs = make_vector_env(tmp_path, "restart")
    audit = VectorAudit(envs)
    order(tmp_path, "constructor", how)
    order(tmp_path, "step", "SIGKILL")
    check_not_started(error_of(audit.step), how)
    assert type(error_of(envs.reset)) is ClosedEnvironmentError
