"""Check that learners and workers on a GPU have the same results as on the CPU. Skipped without a CUDA device."""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import signal
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from inside import pid_of
from members import learn, population
from test_gradients import Net, Plane, gru, loss_fn, mlp
from torch import nn

from parenv import (
    AsyncWorkerPool,
    ConfigurationError,
    RestartPolicy,
    Rollout,
    Stop,
    TorchPolicy,
    WorkerOptions,
    resumable,
)
from parenv.learning import prefetch
from parenv.memory.device_memory import allocated

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
ON_GPU = WorkerOptions(device="cuda")


@pytest.fixture(autouse=True, scope="module")
def cuda_is_initialized() -> None:
    """Initialize CUDA before the first test, because it opens descriptors that stay open."""
    torch.zeros(1).pin_memory().cuda()
    allocated("cuda", 1).tensor(0, 1).zero_()


def policies() -> dict[str, TorchPolicy]:
    """Return policies with the same parameters in each call. The initial carry of ``gru`` is always on the CPU."""
    torch.manual_seed(0)
    return {"mlp": mlp(), "gru": gru()}


def rollouts(policy: Any, workers: WorkerOptions, **more: Any) -> list[dict[str, Any]]:
    """Return copies of the arrays of a sync pool's rollouts."""
    with AsyncWorkerPool(
        Plane, policy, num_envs=4, num_workers=2, mode="sync", rollout_length=8, seed=3, workers=workers, **more
    ) as pool:
        return [
            {
                "observations": rollout.observations.copy(),
                "actions": rollout.actions.copy(),
                "next": rollout.next_observations().copy(),
                **{name: values.copy() for name, values in rollout.extras.items()},
            }
            for rollout in pool.rollouts(Stop(env_steps=200))
        ]


@pytest.mark.parametrize("name", ["mlp", "gru"])
def test_workers_on_a_gpu_act_as_on_the_cpu(name: str) -> None:
    on_cpu = rollouts(policies()[name], WorkerOptions())
    on_gpu = rollouts(policies()[name], ON_GPU)
    assert len(on_cpu) == len(on_gpu) > 3
    for one, other in zip(on_cpu, on_gpu, strict=True):
        assert one.keys() == other.keys()
        for field in one:
            np.testing.assert_array_equal(one[field], other[field], err_msg=field)


def test_a_module_of_the_learner_on_the_gpu_is_published_to_workers_on_either_device() -> None:
    torch.manual_seed(0)
    module = Net(nn.Sequential(nn.Linear(3, 8), nn.Tanh()), 8, torch.float64).cuda()
    policy = TorchPolicy(module, "act", ("actions",))
    for options in (WorkerOptions(), ON_GPU, WorkerOptions(device="cuda:0")):
        with AsyncWorkerPool(
            Plane, policy, num_envs=4, num_workers=2, mode="sync", rollout_length=4, workers=options
        ) as pool:
            for version, rollout in enumerate(pool.rollouts(Stop(env_steps=80))):
                expected = module.act(rollout.to("cuda").observations)[0].cpu().numpy()
                assert rollout.policy_version == version
                np.testing.assert_array_equal(rollout.actions, expected)
                with torch.no_grad():
                    module.head.weight.neg_()
                pool.publish(policy)
    assert next(module.parameters()).is_cuda


@pytest.mark.parametrize("ahead", [1, 3])
def test_prefetched_rollouts_equal_those_of_the_pool(ahead: int) -> None:
    def sums(moved: Any) -> list[float]:
        return [float(rollout.observations.sum()) for rollout in moved]

    def pool() -> AsyncWorkerPool:
        return AsyncWorkerPool(Plane, mlp(), num_envs=4, num_workers=2, mode="sync", rollout_length=16, seed=1)

    with pool() as plain, pool() as copied:
        expected = sums(plain.rollouts(Stop(env_steps=2000)))
        seen = sums(prefetch(copied.rollouts(Stop(env_steps=2000)), "cuda", ahead=ahead))
    np.testing.assert_allclose(seen, expected)


@pytest.mark.parametrize("name", ["mlp", "gru"])
def test_gradients_of_workers_on_a_gpu_equal_those_of_the_cpu(name: str) -> None:
    found: dict[str, list[Any]] = {}
    for device in ("cpu", "cuda"):
        policy = policies()[name]
        policy.module.to(device)
        with AsyncWorkerPool(
            Plane, policy, num_envs=4, num_workers=2, mode="sync", parallelism="gradient", rollout_length=8, seed=3,
            loss_fn=loss_fn, workers=WorkerOptions(device=device),
        ) as pool:  # fmt: skip
            gradient = next(pool.gradients())
            gradient.assign_to(policy.module)
            found[device] = [p.grad.cpu() for p in policy.module.parameters() if p.grad is not None]
    assert len(found["cpu"]) == len(found["cuda"]) > 0
    for one, other in zip(found["cpu"], found["cuda"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_postprocess_and_evaluation_run_on_the_device_of_the_policy() -> None:
    def postprocess(policy: Any, rollout: Rollout) -> dict[str, Any]:
        assert rollout.rewards.is_cuda
        return {"doubled": rollout.rewards * 2}

    with AsyncWorkerPool(
        lambda: gym.make("CartPole-v1"), TorchPolicy(CartPoleNet(), "act", ("actions",)), num_envs=2, num_workers=1,
        rollout_length=8, postprocess=postprocess, workers=ON_GPU,
    ) as pool:  # fmt: skip
        rollout = next(pool.rollouts())
        np.testing.assert_array_equal(rollout.extras["doubled"], rollout.rewards * 2)
        assert pool.evaluate(3).returns.mean() > 0


def test_a_killed_worker_on_a_gpu_is_restarted() -> None:
    options = WorkerOptions(device="cuda", restart=RestartPolicy())
    with AsyncWorkerPool(Plane, gru(), num_envs=2, num_workers=2, rollout_length=8, workers=options) as pool:
        stream = pool.rollouts()
        killed = next(stream).worker
        os.kill(pid_of(pool, killed), signal.SIGKILL)
        for rollout in stream:
            if rollout.worker == killed and pool.statistics().worker_restarts == 1:
                break


def test_members_of_a_population_learn_on_gpus() -> None:
    def learn_there(member: Any, rollout: Rollout) -> dict[str, Any]:
        weight = member.policy.module.body.weight
        return {**learn(member, rollout), "gpu": weight.device.index, "mine": weight.device == rollout.rewards.device}

    gpus = tuple(f"cuda:{index}" for index in range(torch.cuda.device_count()))
    with population(learn=learn_there, workers=WorkerOptions(device=gpus), mode="async") as members:
        metrics = [report.metrics for report in members.reports(Stop(env_steps=32 * 24))]
        assert members.best is not None
        assert not next(members.member(members.best).policy.module.parameters()).is_cuda
    assert all(one is not None and one["mine"] for one in metrics)
    assert {one["gpu"] for one in metrics if one is not None} == set(range(min(2, len(gpus))))


class CartPoleNet(nn.Module):
    """Module with one layer that acts in CartPole."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.head(observations).argmax(-1),)


class Sliding(VectorEnv[Any, Any, Any]):
    """Vector env of tensors on a device. Observations grow with steps and actions, and episodes have 3 to 7 steps."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, device: str, shape: tuple[int, ...] = (5,), num_envs: int = 6) -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.single_observation_space = gym.spaces.Box(-(2**20), 2**20, shape, np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.lengths = 3 + torch.arange(num_envs, device=self.device) % 5
        self.where = torch.zeros(num_envs, device=self.device)
        self.steps = torch.zeros(num_envs, dtype=torch.int64, device=self.device)

    def reset(self, **options: Any) -> Any:
        self.where.zero_()
        self.steps.zero_()
        return self.shown(), {}

    def step(self, actions: Any) -> Any:
        assert actions.device.type == self.device.type
        self.where += 1 + actions
        self.steps += 1
        ended, final = self.steps == self.lengths, self.shown()
        self.where[ended] = -self.where[ended]
        self.steps[ended] = 0
        infos = {"final_obs": final, "_final_obs": ended} if bool(ended.any()) else {}
        return self.shown(), self.where.clone(), ended, torch.zeros_like(ended), infos

    def shown(self) -> Any:
        shape = (self.num_envs, *self.single_observation_space.shape)
        return self.where.reshape(-1, *[1] * (len(shape) - 1)).expand(shape).clone()


class Parity(nn.Module):
    """Module whose action is 1 if the observed position is odd."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        where = observations.flatten(1)[:, 0] * self.scale
        return (where % 2 > 0).long(), where * 3


def parity() -> TorchPolicy:
    return TorchPolicy(Parity(), "act", ("actions", "tripled"))


ROLLOUTS_ON_GPU = WorkerOptions(device="cuda", rollout_device="cuda")


def slid(device: str, workers: WorkerOptions, **options: Any) -> list[dict[str, Any]]:
    """Return the rollouts of a sync pool of :class:`Sliding` as tensors on the CPU."""
    about = {"mode": "sync", "rollout_length": 8, **options}
    with AsyncWorkerPool(functools.partial(Sliding, device), parity(), workers=workers, **about) as pool:
        found = []
        for rollout in pool.rollouts(Stop(env_steps=600)):
            rollout = rollout.to("cpu")
            names = ("observations", "actions", "rewards", "terminated", "last_observations")
            found.append({name: getattr(rollout, name).clone() for name in names})
            found[-1] |= {"next": rollout.next_observations().clone(), "tripled": rollout.extras["tripled"].clone()}
        return found


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_rollouts_on_a_gpu_equal_those_on_the_host(num_workers: int, device: str) -> None:
    on_host = slid("cpu", WorkerOptions(), num_workers=num_workers)
    on_gpu = slid(device, ROLLOUTS_ON_GPU, num_workers=num_workers)
    assert len(on_host) == len(on_gpu) > 3
    for one, other in zip(on_host, on_gpu, strict=True):
        for name in one:
            assert torch.equal(one[name], other[name]), name


def test_a_rollout_on_a_gpu_is_not_copied_and_does_not_change_while_it_is_held() -> None:
    make = functools.partial(Sliding, "cuda")
    with AsyncWorkerPool(make, parity(), num_workers=2, rollout_length=8, workers=ROLLOUTS_ON_GPU) as pool:
        stream = pool.rollouts()
        held = []
        for _ in range(12):
            rollout = next(stream)
            assert rollout.observations.is_cuda
            assert rollout.rewards.is_cuda
            assert rollout.to("cuda").observations.data_ptr() == rollout.observations.data_ptr()
            held.append((rollout.observations[1:3], rollout.observations[1:3].clone()))
        for _ in range(12):
            next(stream)
        assert all(torch.equal(rows, before) for rows, before in held)
        slots = pool._session._queue._slots
        del held, rollout
        next(stream)
        assert slots.leased <= 1
    pool.close()


def test_memory_of_a_gpu_is_released() -> None:
    free_before, _ = torch.cuda.mem_get_info()
    make = functools.partial(Sliding, "cuda", (1024,), 256)
    with AsyncWorkerPool(make, parity(), num_workers=1, rollout_length=64, workers=ROLLOUTS_ON_GPU) as pool:
        rollout = next(pool.rollouts())
        kept, before = rollout.observations[3], rollout.observations[3].clone()
        del rollout
    assert torch.equal(kept, before)
    assert torch.cuda.mem_get_info()[0] < free_before - (200 << 20)
    del kept
    gc.collect()
    deadline = time.monotonic() + 60.0
    # The GPU memory of a process may be released some time after the process has ended.
    while (free := torch.cuda.mem_get_info()[0]) <= free_before - (200 << 20) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert free > free_before - (200 << 20)


def test_a_restarted_worker_opens_the_gpu_memory_again() -> None:
    make = functools.partial(Sliding, "cuda")
    with AsyncWorkerPool(make, parity(), num_workers=2, rollout_length=8, workers=ROLLOUTS_ON_GPU) as pool:
        stream = pool.rollouts()
        killed = next(stream).worker
        os.kill(pid_of(pool, killed), signal.SIGKILL)
        for rollout in stream:
            if rollout.worker == killed and pool.statistics().worker_restarts == 1:
                break
        assert torch.equal(rollout.extras["tripled"], rollout.observations[..., 0] * 3)


def test_step_workers_fill_rollouts_on_a_gpu() -> None:
    options = dataclasses.replace(ROLLOUTS_ON_GPU, step_workers=2)
    with AsyncWorkerPool("CartPole-v1", parity(), num_envs=8, rollout_length=16, workers=options) as pool:
        for rollout in pool.rollouts(Stop(env_steps=1000)):
            assert rollout.observations.is_cuda
            assert torch.equal(rollout.extras["tripled"], rollout.observations[..., 0] * 3)
            continues = ~(rollout.terminated | rollout.truncated)[:-1]
            assert torch.equal(rollout.next_observations()[:-1][continues], rollout.observations[1:][continues])


def choose_gpu(worker: int) -> None:
    torch.cuda.set_device(worker % torch.cuda.device_count())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_workers_on_several_gpus_write_to_the_gpu_of_the_learner() -> None:
    options = dataclasses.replace(ROLLOUTS_ON_GPU, rollout_device="cuda:0", setup_fn=choose_gpu)
    on_host = slid("cpu", WorkerOptions(), num_workers=2)
    for one, other in zip(on_host, slid("cuda", options, num_workers=2), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_rollouts_that_do_not_fit_on_a_gpu_are_an_error_with_a_remedy() -> None:
    make = functools.partial(Sliding, "cuda", (1 << 20,), 8)
    with pytest.raises(ConfigurationError, match=r"rollouts cannot be stored on cuda:0: .*shorter rollout_length"):
        AsyncWorkerPool(make, parity(), num_workers=0, rollout_length=2048, workers=ROLLOUTS_ON_GPU)


def test_a_resumed_run_draws_the_same_numbers_on_the_gpu(tmp_path: Any) -> None:
    torch.cuda.manual_seed_all(1)
    torch.rand(3, device="cuda")
    agent = nn.Linear(4, 2).to("cuda")
    optimizer = torch.optim.Adam(agent.parameters())
    state = {"agent": agent, "optimizer": optimizer}

    def learn_on() -> list[float]:
        optimizer.zero_grad()
        agent(torch.rand(5, 4, device="cuda")).sum().backward()
        optimizer.step()
        return [part.item() for part in agent.weight.flatten()]

    learn_on()
    with resumable(tmp_path, state=state):
        pass
    expected = learn_on(), learn_on()
    with resumable(tmp_path, state=state):
        assert (learn_on(), learn_on()) == expected
