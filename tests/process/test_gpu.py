"""Learners and workers on a GPU give what the CPU gives. Skipped where torch finds no CUDA device."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from members import learn, population
from test_gradients import Net, Plane, gru, loss_fn, mlp
from torch import nn

from parenv import AsyncWorkerPool, RestartPolicy, Rollout, Stop, TorchPolicy, WorkerOptions
from parenv.learning import prefetch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
ON_GPU = WorkerOptions(device="cuda")


@pytest.fixture(autouse=True, scope="module")
def what_cuda_opens_once_is_open() -> None:
    torch.zeros(1).pin_memory().cuda()


def policies() -> dict[str, TorchPolicy]:
    """The same ones at each call; the carry that ``gru`` makes is always on the CPU."""
    torch.manual_seed(0)
    return {"mlp": mlp(), "gru": gru()}


def rollouts(policy: Any, workers: WorkerOptions, **more: Any) -> list[dict[str, Any]]:
    """Plain copies of what a sync pool gives."""
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
def test_prefetched_rollouts_are_those_of_the_pool(ahead: int) -> None:
    def sums(moved: Any) -> list[float]:
        return [float(rollout.observations.sum()) for rollout in moved]

    def pool() -> AsyncWorkerPool:
        return AsyncWorkerPool(Plane, mlp(), num_envs=4, num_workers=2, mode="sync", rollout_length=16, seed=1)

    with pool() as plain, pool() as copied:
        expected = sums(plain.rollouts(Stop(env_steps=2000)))
        seen = sums(prefetch(copied.rollouts(Stop(env_steps=2000)), "cuda", ahead=ahead))
    np.testing.assert_allclose(seen, expected)


@pytest.mark.parametrize("name", ["mlp", "gru"])
def test_gradients_of_workers_on_a_gpu_are_those_of_the_cpu(name: str) -> None:
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


def test_postprocess_and_evaluation_run_where_the_policy_acts() -> None:
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


def test_a_worker_on_a_gpu_that_was_killed_is_made_good() -> None:
    options = WorkerOptions(device="cuda", restart=RestartPolicy())
    with AsyncWorkerPool(Plane, gru(), num_envs=2, num_workers=2, rollout_length=8, workers=options) as pool:
        stream = pool.rollouts()
        killed = next(stream).worker
        os.kill(pool._session.workers.pid(killed), signal.SIGKILL)
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
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.head(observations).argmax(-1),)
