"""Check rollouts in device memory without a GPU: a file replaces the memory of the device."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import gc
import mmap
import os
import signal
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs import Copied, OwnVectorEnv
from gymnasium.vector import AutoresetMode, VectorEnv
from inside import pid_of
from policies import zeros
from test_state_dict import Walk

from parenv import AsyncWorkerPool, ConfigurationError, Policy, Rollout, Stop, TorchPolicy, WorkerOptions
from parenv.memory import device_memory
from parenv.policy.policy import Action
from parenv.testing import LedgerEnv, check_ledger

pytestmark = pytest.mark.timeout(300)
B = 3


class FileMemory:
    """File that every process maps, in place of device memory. Its handle is the path of the file."""

    def __init__(self, device: str, nbytes: int, handle: bytes | None = None) -> None:
        self.device = device
        if handle is None:
            fd, path = tempfile.mkstemp()
            os.ftruncate(fd, nbytes)
            os.close(fd)
            weakref.finalize(self, os.unlink, path)
        self.handle = handle or os.fsencode(path)
        with open(os.fsdecode(self.handle), "r+b") as file:
            self.memory: mmap.mmap | None = mmap.mmap(file.fileno(), 0)
        self.awaited = 0

    def tensor(self, offset: int, nbytes: int, keep: Any = None) -> Any:
        assert self.memory is not None
        part: Any = (ctypes.c_char * nbytes).from_buffer(self.memory, offset)
        part.holds = keep
        return torch.frombuffer(part, dtype=torch.uint8)

    def finish(self) -> None:
        """Do nothing, because nothing is queued."""

    def queued(self) -> Callable[[], None]:
        def wait() -> None:
            self.awaited += 1

        return wait

    def close(self) -> None:
        self.memory = None


def stand_in(worker: int = 0) -> None:
    """Make this process use :class:`FileMemory` for rollouts on the device ``cpu``."""
    device_memory.KINDS["cpu"] = FileMemory


@pytest.fixture(autouse=True)
def file_in_place_of_device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device_memory.KINDS, "cpu", FileMemory)


ON_DEVICE = WorkerOptions(rollout_device="cpu", setup_fn=stand_in)


class Tensors(VectorEnv[Any, Any, Any]):
    """Vector env that wraps another one and uses tensors, as simulators on a GPU do."""

    def __init__(self, envs: Any) -> None:
        self.inner, self.num_envs, self.metadata = envs, envs.num_envs, envs.metadata
        for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
            setattr(self, name, getattr(envs, name))

    def reset(self, **options: Any) -> Any:
        observations, infos = self.inner.reset(**options)
        return torch.from_numpy(observations.copy()), infos

    def step(self, actions: Any) -> Any:
        assert type(actions) is torch.Tensor
        *arrays, infos = self.inner.step(actions.numpy())
        if "final_obs" in infos:
            given = [arrays[0][0] if final is None else final for final in infos["final_obs"]]
            infos["final_obs"] = torch.from_numpy(np.stack(given))
        return *(torch.from_numpy(array.copy()) for array in arrays), infos


def ledgers(mode: AutoresetMode = AutoresetMode.SAME_STEP, tensors: bool = True) -> Any:
    envs = OwnVectorEnv([lambda i=i: Copied(LedgerEnv(i)) for i in range(B)], autoreset_mode=mode)
    return Tensors(envs) if tensors else envs


class Counter(Policy):
    """Policy for tensors whose carry counts the steps of each episode from 10 on."""

    takes_tensors = True

    def initial_carry(self, batch: int) -> Any:
        return torch.full((batch,), 10)

    def act(self, observations: Any, carry: Any) -> Action:
        assert type(observations) is torch.Tensor
        actions = torch.zeros(len(observations), dtype=torch.int64)
        return Action(actions, {"steps": carry.clone(), "first": observations[:, 0]}, carry + 1)


def plain(rollout: Rollout) -> Any:
    """Return a copy of a rollout with arrays in place of tensors."""
    return rollout._with_each(lambda value: np.asarray(value).copy() if value is not None else None, rollout.ends)


def collected(make: Any, policy: Any, workers: WorkerOptions, steps: int = 90 * B, **options: Any) -> list[Any]:
    about = {"mode": "sync", "rollout_length": 7, "seed": 3, **options}
    with AsyncWorkerPool(make, policy, workers=workers, **about) as pool:
        found = []
        for rollout in pool.rollouts(Stop(env_steps=steps)):
            found.append(plain(rollout))
            pool.publish(policy)
        return found


def assert_equal(some: list[Any], others: list[Any]) -> None:
    assert len(some) == len(others) > 3
    for one, other in zip(some, others, strict=True):
        for name in ("observations", "actions", "rewards", "terminated", "truncated", "last_observations", "valid"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        np.testing.assert_array_equal(one.next_observations(), other.next_observations())
        assert one.extras.keys() == other.extras.keys()
        for name in one.extras:
            np.testing.assert_array_equal(one.extras[name], other.extras[name], err_msg=name)
        assert (one.policy_version, one.num_steps) == (other.policy_version, other.num_steps)
        assert one.episodes.lengths.tolist() == other.episodes.lengths.tolist()


@pytest.mark.more
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=pytest.mark.more), 2])
def test_rollouts_on_a_device_are_those_on_the_host(num_workers: int, mode: AutoresetMode) -> None:
    make = functools.partial(ledgers, mode)
    on_host = collected(make, Counter(), WorkerOptions(), num_workers=num_workers)
    assert_equal(on_host, collected(make, Counter(), ON_DEVICE, num_workers=num_workers))


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "arrays": (functools.partial(ledgers, tensors=False), {}),
    "single environments": ([functools.partial(LedgerEnv, i) for i in range(B)], {}),
    "step workers": ([functools.partial(LedgerEnv, i) for i in range(B)], {"step_workers": 2}),
}


@pytest.mark.more
@pytest.mark.parametrize("kind", KINDS)
def test_environments_of_any_kind_are_written_to_the_device(kind: str) -> None:
    make, more = KINDS[kind]
    on_host = collected(make, Counter(), WorkerOptions(**more), num_workers=1)
    assert_equal(on_host, collected(make, Counter(), dataclasses.replace(ON_DEVICE, **more), num_workers=1))


def lean(observations: Any) -> Any:
    assert type(observations) is np.ndarray
    return (observations[:, 2] > 0).astype(np.int64)


def test_a_policy_of_arrays_gets_arrays() -> None:
    cartpoles = [functools.partial(gym.make, "CartPole-v1")] * B
    on_host = collected(cartpoles, lean, WorkerOptions(), num_workers=0)
    assert_equal(on_host, collected(cartpoles, lean, ON_DEVICE, num_workers=0))


def test_each_transition_is_delivered_once_and_to_its_device_copies_nothing() -> None:
    expected: dict[int, tuple[int, ...]] = {}
    with AsyncWorkerPool(ledgers, Counter(), num_workers=1, rollout_length=9, workers=ON_DEVICE) as pool:
        for rollout in pool.rollouts(Stop(env_steps=9 * B * 12)):
            assert type(rollout.observations) is type(rollout.rewards) is torch.Tensor
            moved = rollout.to("cpu")
            assert moved.observations.data_ptr() == rollout.observations.data_ptr()
            assert moved.extras["steps"].data_ptr() == rollout.extras["steps"].data_ptr()
            check_ledger(plain(rollout), expected)
        assert len(pool.evaluate(4)) == 4


def test_memory_of_a_rollout_is_reused_only_when_no_tensor_refers_to_it() -> None:
    with AsyncWorkerPool(ledgers, Counter(), num_workers=1, rollout_length=9, workers=ON_DEVICE) as pool:
        stream = pool.rollouts()
        held = [next(stream).observations[2:4] for _ in range(8)]
        before = [rows.clone() for rows in held]
        assert pool.statistics().copied_rollouts > 0
        for _ in range(8):
            next(stream)
        assert all(map(torch.equal, held, before))
        slots = pool._session._queue._slots
        del held
        next(stream)
        assert slots.leased <= 1
        assert slots.device is not None
        assert slots.device.awaited > 8  # type: ignore[attr-defined]


def test_tensors_outlive_the_pool() -> None:
    with AsyncWorkerPool(ledgers, Counter(), num_workers=1, rollout_length=9, workers=ON_DEVICE) as pool:
        rollout = next(pool.rollouts())
        before = rollout.observations.clone()
    assert torch.equal(rollout.observations, before)


def test_memory_of_a_closed_pool_is_given_back_with_the_last_tensor() -> None:
    with AsyncWorkerPool(ledgers, Counter(), num_workers=1, rollout_length=9, workers=ON_DEVICE) as pool:
        kept = next(pool.rollouts()).observations[3]
        slots: Any = pool._session._queue._slots
        memory = weakref.ref(slots.device.memory)
        del slots
    assert kept.shape[0] == B
    assert memory() is not None
    del kept
    gc.collect()
    assert memory() is None


@pytest.mark.usefixtures("warnings_are_expected")
def test_the_replacement_of_a_killed_worker_opens_the_memory() -> None:
    with AsyncWorkerPool(ledgers, Counter(), num_workers=2, rollout_length=9, workers=ON_DEVICE) as pool:
        stream = pool.rollouts()
        killed = next(stream).worker
        os.kill(pid_of(pool, killed), signal.SIGKILL)
        for rollout in stream:
            if rollout.worker == killed and pool.statistics().worker_restarts == 1:
                break
        assert (rollout.extras["steps"] == 10 + rollout.observations[..., 2]).all()


def test_postprocess_gets_and_returns_tensors_on_the_device() -> None:
    def doubled(policy: Any, rollout: Rollout) -> dict[str, Any]:
        return {"doubled": rollout.observations[..., 0] * 2}

    with AsyncWorkerPool(
        ledgers, Counter(), num_workers=1, rollout_length=9, postprocess=doubled, workers=ON_DEVICE
    ) as pool:
        rollout = next(pool.rollouts())
        assert torch.equal(rollout.extras["doubled"], rollout.observations[..., 0] * 2)


def test_a_run_continues_from_its_state() -> None:
    options: dict[str, Any] = {"num_workers": 1, "mode": "sync", "rollout_length": 9, "seed": 1, "workers": ON_DEVICE}
    with AsyncWorkerPool([Walk] * B, zeros, **options) as pool:
        next(pool.rollouts())
        state = pool.state_dict()
        expected = next(pool.rollouts()).observations.clone()
    with AsyncWorkerPool([Walk] * B, zeros, **options) as pool:
        pool.load_state_dict(state)
        assert torch.equal(next(pool.rollouts()).observations, expected)


def test_a_run_is_recorded_and_repeated(tmp_path: Path) -> None:
    for about in ({"record": tmp_path / "run"}, {"replay": tmp_path / "run"}):
        with AsyncWorkerPool(
            ledgers, Counter(), num_workers=2, rollout_length=5, seed=1, workers=ON_DEVICE, **about
        ) as pool:  # type: ignore[call-overload,unused-ignore]
            for rollout in pool.rollouts(Stop(env_steps=300)):
                assert len(rollout.rewards) == 5


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "gradients": ({"parallelism": "gradient", "loss_fn": len}, {}, "needs parallelism"),
    "policies by name": ({"policy": {"one": lean}}, {}, "rollout_device cannot be used with named policies"),
    "replacing": ({}, {"on_env_error": "restart_env"}, "restart_worker"),
    "mps": ({}, {"rollout_device": "mps"}, "or one of cuda"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_options_that_exclude_rollouts_on_a_device_are_refused(what: str) -> None:
    more, options, match = REFUSED[what]
    workers = WorkerOptions(**{"rollout_device": "cpu", **options})
    policy = TorchPolicy(torch.nn.Linear(4, 2), "forward", ("actions",))
    with pytest.raises(ConfigurationError, match=match):
        AsyncWorkerPool("CartPole-v1", **{"policy": policy, "num_workers": 1, "workers": workers, **more})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"WorkerOptions.rollout_device must name .*, got 'cuda', but it finds 0"
    ):
        AsyncWorkerPool("CartPole-v1", lean, workers=WorkerOptions(rollout_device="cuda"))
