"""Check that ``synchronize()`` makes all workers load the newest version, without messages to local workers."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from audits import until
from inside import pid_of

from parenv import Action, AsyncWorkerPool, Policy, RestartPolicy, TorchPolicy, WorkerOptions
from parenv.memory.pool_signals import WITHDRAWN
from parenv.testing import LedgerEnv

pytestmark = pytest.mark.usefixtures("warnings_are_expected")
AT_MOST_S = 60.0
SOON = RestartPolicy(backoff_s=0.01)


class Weighing(torch.nn.Module):
    """Module whose instance that acted last can be inspected in its worker."""

    newest: Any = None

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((1000,), float(value)))

    def act(self, observations: torch.Tensor) -> torch.Tensor:
        Weighing.newest = self
        return torch.zeros(len(observations), dtype=torch.int64)


class Scale(LedgerEnv):
    """Ledger that returns the weights of the policy in its worker."""

    def weight(self) -> list[float]:
        weight = Weighing.newest.weight
        return [float(weight[0]), float(weight[-1])]


def weighing(value: float) -> TorchPolicy:
    return TorchPolicy(Weighing(value), "act", ("actions",))


def opened(num_workers: int, **options: Any) -> AsyncWorkerPool:
    """Return a sync pool that has delivered a rollout."""
    factories = [lambda env_id=env_id: Scale(env_id) for env_id in range(num_workers)]
    pool = AsyncWorkerPool(
        factories,
        weighing(0.0),
        num_workers=num_workers,
        mode="sync",
        rollout_length=4,
        workers=WorkerOptions(restart=SOON, **options),
    )
    next(pool.rollouts())
    return pool


def held(pool: AsyncWorkerPool) -> set[float]:
    """Return the set of the weights in all workers."""
    return {value for values in pool.call("weight") for value in values}


def test_all_workers_load_the_newest_version_without_messages() -> None:
    with opened(3) as pool:
        for value in range(1, 8):
            version = pool.publish(weighing(value))
            before = pool.statistics().messages
            assert pool.synchronize() == version
            assert pool.statistics().messages == before
            assert held(pool) == {value}


def test_settings_are_sent_by_message() -> None:
    with opened(2) as pool:
        pool.publish(weighing(1.0), pace=3)
        before = pool.statistics().messages
        pool.synchronize()
        assert pool.statistics().messages == before + 4
        assert held(pool) == {1.0}
        next(pool.rollouts())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("end", ["killed", "hangs"])
def test_a_worker_that_replaces_one_with_a_pending_request_loads_the_version(end: str) -> None:
    with opened(2, step_timeout_s=AT_MOST_S if end == "killed" else 5.0) as pool:
        pool.publish(weighing(1.0))
        loading, stopped = pool._session._synchronization, pid_of(pool, 0)
        assert loading is not None
        os.kill(stopped, signal.SIGSTOP)
        thread = threading.Thread(target=pool.synchronize)
        thread.start()
        if end == "killed":
            # Before the thread has asked, no worker has a pending request.
            until(lambda: loading.asked(0) is not None and loading.asked(1) is None)
            os.kill(stopped, signal.SIGKILL)
        thread.join(AT_MOST_S)
        assert not thread.is_alive()
        assert pool.statistics().worker_restarts == 1
        pool.publish(weighing(2.0))
        pool.synchronize()
        next(pool.rollouts())
        assert held(pool) == {2.0}


def test_synchronize_works_after_it_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with opened(2) as pool:
        pool.publish(weighing(1.0))
        monkeypatch.setattr(pool._session._synchronization._requests, "all_have", lambda: False)
        monkeypatch.setattr(pool._session._queue, "listen", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.synchronize()
        monkeypatch.undo()
        assert pool._session._synchronization._requests.wanted()[0] == WITHDRAWN
        for value in (2.0, 3.0):
            pool.publish(weighing(value))
            pool.synchronize()
            assert held(pool) == {value}


@pytest.mark.more
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_synchronize_works_thousands_of_times_between_rollouts(mode: Any) -> None:
    factories = [lambda env_id=env_id: Scale(env_id) for env_id in range(3)]
    policy = weighing(0.0)
    with AsyncWorkerPool(factories, policy, num_workers=3, mode=mode, rollout_length=2) as pool:
        stream = pool.rollouts()
        next(stream)
        for value in range(1, 2000):
            policy.module.weight.data.fill_(value)
            pool.publish(policy)
            assert pool.synchronize() == value
            if value % 7 == 0:
                next(stream)
        # In async mode, rollouts that were requested with older versions may still arrive.
        ahead = {0, 1, 2} if mode == "async" else set()
        while ahead:
            rollout = next(stream)
            if rollout.policy_version == 1999:
                ahead.discard(rollout.worker)
            else:
                assert rollout.worker in ahead
        assert held(pool) == {1999.0}


class CannotBeLoaded:
    """Object that can be pickled, but raises an exception when a worker unpickles it."""

    def __reduce__(self) -> Any:
        return _raise, ()


def _raise() -> None:
    raise RuntimeError("cannot be unpickled here")


class Reporting(Policy):
    """Policy that returns its weight with each action."""

    takes_tensors = True

    def __init__(self, value: float) -> None:
        self.module = Weighing(value)

    def act(self, observations: torch.Tensor, carry: Any) -> Action:
        weight = self.module.weight[0].expand(len(observations))
        return Action(torch.zeros(len(observations), dtype=torch.int64), {"weight": weight})


def lean(*given: Any) -> Any:
    return np.zeros(len(given[-1]), np.int64)


def of(policy: Any, named: bool) -> Any:
    return {"all": policy} if named else policy


@pytest.mark.parametrize("named", [False, True])
def test_rollouts_after_a_failed_load_have_the_version_that_acted(named: bool) -> None:
    policy, options = of(Reporting(0.0), named), {"mode": "async", "rollout_length": 4, "prefetch": 1}
    with AsyncWorkerPool("CartPole-v1", policy, num_workers=0, **options) as pool:
        stream = pool.rollouts()
        next(stream)
        pool.publish(of(Reporting(5.0), named), flag=CannotBeLoaded())
        with pytest.raises(RuntimeError, match="cannot be unpickled here"):
            pool.synchronize()
        rollout = next(stream)  # This rollout was requested with version 0, before the publish.
        assert rollout.policy_version == 0
        assert (rollout["all"] if named else rollout).extras["weight"].tolist() == [[0.0]] * 4
        with pytest.raises(RuntimeError, match="cannot be unpickled here"):
            next(stream)


@pytest.mark.parametrize("named", [False, True])
def test_no_rollout_has_a_version_that_could_not_be_loaded(named: bool) -> None:
    with AsyncWorkerPool("CartPole-v1", of(lean, named), num_workers=0, mode="sync", rollout_length=4) as pool:
        next(pool.rollouts())
        pool.publish(of(partial(lean, CannotBeLoaded()), named))
        for ask in (pool.synchronize, lambda: next(pool.rollouts())):
            with pytest.raises(RuntimeError, match="cannot be unpickled here"):
                ask()
