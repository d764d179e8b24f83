"""Program that uses the public API, so that mypy checks the types. No test runs it."""

from __future__ import annotations

from typing import Any, assert_type

import torch
from numpy.typing import NDArray

from parenv import AsyncWorkerPool, Rollout, SaveBest, TorchPolicy, resumable
from parenv.experience.agent_rollouts import AgentRollout, EpisodesByPolicy, RolloutsByPolicy
from parenv.pool.evaluation import PendingEvaluation
from parenv.statistics import EpisodeStatistics

module = torch.nn.Linear(4, 2)
one = AsyncWorkerPool("CartPole-v1", lambda observations: observations[:, 2] > 0)
several = AsyncWorkerPool(["CartPole-v1"] * 2, {"a": TorchPolicy(module), "b": module})

rollout = next(one.rollouts())
assert_type(rollout, Rollout)
assert_type(rollout.rewards, NDArray[Any])
assert_type(rollout.extras["log_prob"], NDArray[Any])
assert_type(rollout.valid, NDArray[Any])
assert_type(rollout.final_index, tuple[NDArray[Any], NDArray[Any]])
assert_type(rollout.copy(), Rollout)
assert_type(rollout.to("cpu").rewards, torch.Tensor)
assert_type(rollout.transitions().rewards, NDArray[Any])
assert_type(rollout.to("cpu").transitions().env_ids, torch.Tensor)
assert_type(next(one.rollouts(wait=lambda: True)), Rollout | None)
assert_type(one.evaluate(3), EpisodeStatistics)
assert_type(one.evaluate(3, wait=False), PendingEvaluation)
assert_type(next(several.rollouts()), RolloutsByPolicy)
assert_type(next(several.rollouts(wait=lambda: True)), RolloutsByPolicy | None)
assert_type(next(several.rollouts())["a"], AgentRollout)
assert_type(several.evaluate(3), EpisodesByPolicy)
assert_type(several.evaluate(3)["a"].mean_return, float)
assert_type(several.evaluate(3, wait=False), PendingEvaluation)


def of_one_policy(pool: AsyncWorkerPool) -> None:
    """Accept a pool without a type argument, which has one policy."""
    assert_type(next(pool.rollouts()), Rollout)


of_one_policy(one)
SaveBest("best.ckpt").update(one)
SaveBest("best.ckpt").update(several)
with resumable("run", pool=one, state={"module": module}) as run, resumable("other", pool=several):
    assert_type(run.steps, int)
    run.step()
AsyncWorkerPool(3, module)  # type: ignore[arg-type]
AsyncWorkerPool("CartPole-v1", "lean")  # type: ignore[type-var]
