"""Check that gradients of many workers equal the gradients that one process computes."""

from __future__ import annotations

import copy
import math
import os
import signal
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs import ledgers
from sampling import one_in
from scripted_agents import Scripted, ScriptedTurns
from torch import nn

from parenv import (
    AsyncWorkerPool,
    ConfigurationError,
    GradientOptions,
    Rollout,
    Stop,
    TorchPolicy,
    WorkerDiedError,
    WorkerOptions,
)
from parenv.errors import GradientError


class Plane(gym.Env[Any, Any]):
    """Environment of noise, with random lengths of episodes and with rewards that depend on the action."""

    def __init__(self, shape: tuple[int, ...] = (3,), mean_length: float = 7.0) -> None:
        self.observation_space = gym.spaces.Box(-10, 10, shape, np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self._end = 1.0 / mean_length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.normal(size=self.observation_space.shape), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation = self.np_random.normal(size=self.observation_space.shape)
        return observation, float(observation.sum()) * (1 + int(action)), self.np_random.random() < self._end, False, {}


class Net(nn.Module):
    """Network with deterministic actions, so that observations do not depend on the number of workers."""

    def __init__(self, body: nn.Module, features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(features, 2)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.to(dtype)

    def logits(self, observations: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(observations.to(self.head.weight.dtype)))

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.logits(observations).argmax(-1),)


class Recurrent(Net):
    """Network with a GRU and its state as carry."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(nn.GRUCell(3, 5), 5, dtype)

    def initial_carry(self, batch: int) -> Any:
        return {"hidden": torch.zeros(batch, 5, dtype=self.head.weight.dtype)}

    def act(self, observations: torch.Tensor, carry: Any) -> Any:  # type: ignore[override]
        hidden = self.body(observations.to(self.head.weight.dtype), carry["hidden"])
        return self.head(hidden).argmax(-1), {"hidden": hidden}


def mlp(dtype: torch.dtype = torch.float64) -> TorchPolicy:
    return TorchPolicy(Net(nn.Sequential(nn.Linear(3, 8), nn.Tanh()), 8, dtype), "act", ("actions",))


def conv(dtype: torch.dtype = torch.float64) -> TorchPolicy:
    body = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten())
    return TorchPolicy(Net(body, 36, dtype), "act", ("actions",))


def gru(dtype: torch.dtype = torch.float64) -> TorchPolicy:
    return TorchPolicy(Recurrent(dtype), "act", ("actions", "carry"))


def loss_fn(policy: Any, rollout: Rollout) -> Any:
    """Return a policy-gradient loss and metrics, for networks with and without a recurrent state."""
    module = policy.module
    if isinstance(module, Recurrent):
        hidden, logits = rollout.initial_carry["hidden"], []
        ended = rollout.terminated | rollout.truncated
        for step, observations in enumerate(rollout.observations):
            hidden = module.body(observations.to(hidden.dtype), hidden)
            logits.append(module.head(hidden))
            hidden = torch.where(ended[step][:, None], torch.zeros_like(hidden), hidden)
        scores = torch.stack(logits)
    else:
        scores = module.logits(rollout.observations.flatten(0, 1)).unflatten(0, rollout.rewards.shape)
    log_prob = torch.distributions.Categorical(logits=scores).log_prob(rollout.actions)
    loss = -(log_prob * rollout.rewards.to(log_prob.dtype)).mean()
    return loss, {"rows": len(rollout.rewards), "mean_reward": rollout.rewards.mean()}


def learning(
    policy: Any, num_envs: int, num_workers: int, *, env_fn: Any = Plane, mode: Any = "sync", loss_fn: Any = loss_fn,
    **options: Any,
) -> AsyncWorkerPool:  # fmt: skip
    """Return a pool whose workers compute gradients."""
    how: Any = {"mode": mode, "parallelism": "gradient", "loss_fn": loss_fn, **options}
    return AsyncWorkerPool(env_fn, policy, num_envs=num_envs, num_workers=num_workers, **how)


def joined(rollouts: Any) -> Rollout:
    """Return the only rollout of a gradient as tensors."""
    (rollout,) = rollouts
    return rollout.to("cpu")


def gradient_of(policy: Any, rollout: Rollout) -> torch.Tensor:
    """Return the flat gradient of ``loss_fn`` for a rollout, computed in this process."""
    policy.module.zero_grad()
    loss_fn(policy, rollout)[0].backward()
    return torch.cat([p.grad.flatten() for p in policy.module.parameters() if p.requires_grad])


NETS: dict[str, Any] = {"mlp": (mlp, (3,)), "conv": (conv, (1, 8, 8)), "gru": (gru, (3,))}
PRECISIONS = {"double": (torch.float64, 1e-10), "single": (torch.float32, 1e-5)}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("workers", "net", "reduction", "precision"), one_in(4, [1, 2, 3], NETS, ["mean", "default"], PRECISIONS)
)
def test_the_reduced_gradient_equals_the_gradient_of_the_whole_batch(
    workers: int, net: str, reduction: Any, precision: str
) -> None:
    make, shape = NETS[net]
    dtype, tolerance = PRECISIONS[precision]
    policy = make(dtype)
    # Workers with unequal shares agree with the whole batch only if they are weighted by their samples.
    num_envs = 5 if reduction == "default" else 6
    how: dict[str, Any] = {} if reduction == "default" else {"reduction": reduction}
    with learning(
        policy,
        num_envs,
        workers,
        env_fn=lambda: Plane(shape),
        rollout_length=9,
        seed=3,
        gradient=GradientOptions(**how, keep_rollouts=True),
    ) as pool:
        for round_, gradient in enumerate(pool.gradients(Stop(env_steps=9 * num_envs * 3))):
            expected = gradient_of(policy, joined(gradient.rollouts))
            assert gradient.flat.dtype == dtype
            torch.testing.assert_close(gradient.flat, expected, rtol=tolerance, atol=tolerance)
            assert gradient.num_samples == 9 * num_envs
            assert gradient.policy_version == round_
            assert gradient.metrics["rows"] == 9
            gradient.assign_to(policy.module)
            torch.optim.SGD([p for p in policy.module.parameters() if p.requires_grad], 0.05).step()
            pool.publish(policy)
    assert round_ == 2


@pytest.mark.one_in(2)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_gradients_of_a_virtual_batch_do_not_depend_on_the_number_of_workers(workers: int) -> None:
    torch.manual_seed(0)
    policy = mlp()
    found = []
    with learning(policy, 6, workers, rollout_length=5, seed=11, gradient=GradientOptions(batch_size=60)) as pool:
        for gradient in pool.gradients(Stop(env_steps=180)):
            assert gradient.num_samples == 60
            found.append(gradient.flat.clone())
            gradient.assign_to(policy.module)
            torch.optim.SGD([p for p in policy.module.parameters() if p.requires_grad], 0.05).step()
            pool.publish(policy)
    assert len(found) == 3
    expected = _VIRTUAL.setdefault("gradients", found)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


_VIRTUAL: dict[str, list[torch.Tensor]] = {}


def test_async_gradients_are_yielded_one_per_arrival_with_their_lag() -> None:
    policy = mlp()
    with learning(
        policy, 4, 2, mode="async", rollout_length=8, prefetch=0, gradient=GradientOptions(keep_rollouts=True)
    ) as pool:
        for i, gradient in enumerate(pool.gradients(Stop(env_steps=16 * 20))):
            assert len(gradient.workers) == 1
            assert gradient.policy_lag == i - gradient.policy_version
            expected = gradient_of(policy, joined(gradient.rollouts))
            torch.testing.assert_close(gradient.flat, expected, rtol=1e-10, atol=1e-10)
            pool.publish(policy)
        statistics = pool.statistics()
        assert statistics.gradients == 20
        assert statistics.learning_seconds > 0
        assert sum(statistics.policy_lag.values()) == 20
    assert 0 in statistics.policy_lag


def test_async_gradients_are_reduced_over_the_next_arrivals() -> None:
    with learning(
        mlp(),
        2,
        2,
        mode="async",
        rollout_length=8,
        gradient=GradientOptions(reduction="sum", num_arrivals=3, keep_rollouts=True),
    ) as pool:
        for gradient in pool.gradients(Stop(env_steps=8 * 12)):
            assert len(gradient.workers) == len(gradient.rollouts) == 3
            assert gradient.num_samples == 24


def test_a_custom_reduction_gets_all_gradients_and_their_weights() -> None:
    seen = []

    def median(gradients: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        seen.append((gradients.shape, weights.tolist()))
        return gradients.median(0).values

    with learning(
        mlp(),
        5,
        3,
        rollout_length=4,
        gradient=GradientOptions(reduction=median, lag_weight=lambda lag: 0.5 ** (1 + lag)),
    ) as pool:
        gradient = next(pool.gradients())
    assert seen == [((3, gradient.flat.numel()), [4.0, 4.0, 2.0])]


def test_gradients_are_clipped_in_the_worker_and_in_the_main_process() -> None:
    options = GradientOptions(reduction="sum", worker_max_norm=1e-3, max_norm=1.5e-3)
    with learning(mlp(), 2, 2, gradient=options) as pool:
        first = next(pool.gradients())
        assert float(first.flat.norm()) <= 1.5e-3
    with learning(mlp(), 1, 1, gradient=options) as pool:
        assert float(next(pool.gradients()).flat.norm()) == pytest.approx(1e-3, rel=1e-3)


def test_grad_is_assigned_without_a_copy_and_stays_valid_while_it_is_held() -> None:
    policy = mlp()
    with learning(policy, 2, 2, mode="async", rollout_length=3) as pool:
        stream = pool.gradients()
        gradient = next(stream)
        gradient.assign_to(policy.module)
        weight = policy.module.body[0].weight
        assert weight.grad.data_ptr() == gradient.flat.data_ptr()
        kept = weight.grad.clone()
        del gradient
        for _ in range(30):
            next(stream)
        assert torch.equal(weight.grad, kept)
        assert pool.statistics().copied_rollouts == 0
        assert policy.module.frozen.grad is None


def nan_once(policy: Any, rollout: Rollout) -> Any:
    loss = loss_fn(policy, rollout)[0]
    return loss * math.nan if (rollout.env_ids == 1).any() else loss


def test_a_gradient_that_is_not_finite_is_an_error_with_worker_and_version() -> None:
    with learning(mlp(), 2, 2, loss_fn=nan_once) as pool:
        with pytest.raises(GradientError, match=r"worker 1 \(env_ids 1, policy version 0\) must be finite"):
            next(pool.gradients())
        assert not pool.closed


def test_gradients_that_are_not_finite_are_skipped_and_counted_if_wanted() -> None:
    policy = mlp()
    with learning(policy, 2, 2, loss_fn=nan_once, gradient=GradientOptions(on_nonfinite="skip")) as pool:
        gradient = next(pool.gradients())
        assert gradient.workers == (0,)
        assert torch.isfinite(gradient.flat).all()
        assert pool.statistics().skipped_gradients == 1


def test_many_skipped_gradients_in_a_row_are_an_error() -> None:
    with (
        learning(
            mlp(),
            1,
            1,
            rollout_length=1,
            loss_fn=lambda policy, rollout: loss_fn(policy, rollout)[0] * math.nan,
            gradient=GradientOptions(on_nonfinite="skip"),
        ) as pool,
        pytest.raises(GradientError, match="100 gradients in a row are not finite"),
    ):
        next(pool.gradients())


def no_scalar(policy: Any, rollout: Rollout) -> Any:
    return rollout.rewards


def no_tensor(policy: Any, rollout: Rollout) -> Any:
    return 1.0


def detached(policy: Any, rollout: Rollout) -> Any:
    return loss_fn(policy, rollout)[0].detach()


def another_parameter(policy: Any, rollout: Rollout) -> Any:
    return nn.Parameter(torch.zeros(())) * 2


def bad_metrics(policy: Any, rollout: Rollout) -> Any:
    return loss_fn(policy, rollout)[0], {"curve": torch.zeros(3)}


def raising(policy: Any, rollout: Rollout) -> Any:
    raise KeyError("my own")


def attribute_of_the_policy(policy: Any, rollout: Rollout) -> Any:
    return policy.head(rollout.observations).mean()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (no_scalar, GradientError, r"loss_fn must return a scalar tensor.* shape \(128, [12]\)"),
        (no_tensor, GradientError, r"loss_fn must return a scalar tensor.* float"),
        (detached, GradientError, "must depend on the policy's parameters"),
        (another_parameter, GradientError, "must depend on the policy's parameters"),
        (bad_metrics, GradientError, r"the metric 'curve' .* a number"),
        (raising, KeyError, "my own"),
        (attribute_of_the_policy, AttributeError, "'TorchPolicy' .* 'head'. Use policy.module.head"),
    ],
)
def test_the_error_for_a_wrong_loss_fn_names_the_reason(function: Any, kind: Any, message: str, workers: int) -> None:
    with learning(mlp(), 2, workers, loss_fn=function) as pool, pytest.raises(kind, match=message):
        next(pool.gradients())


class Forgetful(Net):
    """Network with fewer trainable parameters after it is unpickled."""

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self.head.requires_grad_(False)


def test_other_parameters_in_a_worker_are_an_error_in_the_first_round() -> None:
    policy = TorchPolicy(Forgetful(nn.Linear(3, 8), 8, torch.float64), "act", ("actions",))
    with (
        learning(policy, 1, 1) as pool,
        pytest.raises(ConfigurationError, match=r"worker has other trainable parameters .* missing .*head.bias"),
    ):
        next(pool.gradients())


def test_assigning_to_another_module_is_an_error() -> None:
    with learning(mlp(), 1, 1) as pool, pytest.raises(ConfigurationError, match=r"other trainable parameters"):
        next(pool.gradients()).assign_to(conv().module)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"loss_fn": None}, "needs loss_fn"),
    ({"loss_fn": 3}, "loss_fn must be a callable"),
    ({"policy": lambda o: o}, "needs a policy with a torch module"),
    ({"policy": TorchPolicy(mlp().module.requires_grad_(False), "act", ("actions",))}, "no parameters that require"),
    ({"rollout_length": "episode", "mode": "async"}, 'Monte-Carlo.*mode="sync"'),
    ({"rollout_length": "episode", "postprocess": print}, "postprocess"),
    ({"rollout_length": "episodes"}, "rollout_length must be"),
    ({"parallelism": "experience"}, 'loss_fn needs parallelism="gradient"'),
    ({"parallelism": "experience", "loss_fn": None, "gradient": GradientOptions()}, "gradient options need"),
    ({"parallelism": "experience", "loss_fn": None, "rollout_length": "episode"}, 'must have mode="async"'),
    ({"gradient": GradientOptions(num_arrivals=2)}, "num_arrivals"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_arguments_are_refused_before_anything_starts(wrong: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "policy": mlp(), "num_envs": 1, "num_workers": 1, "mode": "sync", "parallelism": "gradient", "loss_fn": loss_fn
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match=message):
        AsyncWorkerPool(Plane, **{**arguments, **wrong})


def test_gradients_and_rollouts_need_the_right_parallelism() -> None:
    with (
        AsyncWorkerPool(Plane, mlp(), num_envs=1, num_workers=0) as pool,
        pytest.raises(ConfigurationError, match='parallelism="gradient"'),
    ):
        pool.gradients()
    with (
        learning(mlp(), 1, 0, mode="async") as pool,
        pytest.raises(ConfigurationError, match='got "gradient"'),
    ):
        pool.rollouts()


def episode_loss(policy: Any, rollout: Rollout) -> Any:
    """Return a loss of a ledger, and check that the rollout consists of whole episodes in one column."""
    ended = rollout.terminated | rollout.truncated
    assert rollout.rewards.shape[1] == 1
    assert bool(ended[-1, 0])
    steps = rollout.observations[:, 0, 2]
    begins = torch.cat([torch.tensor([True]), ended[:-1, 0]])
    assert (steps[begins] == 0).all()
    assert (steps[1:][~begins[1:]] == steps[:-1][~begins[1:]] + 1).all()
    assert torch.equal(rollout.next_observations()[:, 0, 2], steps + 1)
    assert len(rollout.episodes) == int(ended.sum())
    logits = policy.module.logits(rollout.observations.flatten(0, 1))
    return logits.mean(), {"steps": len(steps), "episodes": len(rollout.episodes)}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("num_envs", "num_workers"), [(1, 0), (1, 1), (2, 2), (7, 2)])
def test_a_rollout_of_whole_episodes_has_one_of_each_sub_environment(num_envs: int, num_workers: int) -> None:
    counted: list[int] = []
    how: Any = {"rollout_length": "episode", "gradient": GradientOptions(reduction="sum"), "loss_fn": episode_loss}
    with learning(mlp(), num_envs, num_workers, env_fn=ledgers(num_envs, max_length=40), **how) as pool:
        for gradient in pool.gradients(Stop(episodes=num_envs * 5)):
            assert sorted(gradient.episodes.env_ids.tolist()) == list(range(num_envs))
            assert gradient.num_samples == gradient.episodes.lengths.sum()
            assert gradient.rollouts == ()
            counted.append(gradient.num_samples)
        statistics = pool.statistics()
    assert len(counted) == 5
    assert statistics.env_steps == sum(counted)
    assert statistics.episodes == 5 * num_envs


def test_whole_episodes_of_one_sub_environment_lose_no_step() -> None:
    from parenv.testing import LedgerEnv
    from parenv.testing.ledger import episode_length

    with AsyncWorkerPool(
        [lambda: LedgerEnv(3, 200)], mlp(), num_workers=1, mode="sync", parallelism="gradient", loss_fn=episode_loss,
        rollout_length="episode",
    ) as pool:  # fmt: skip
        lengths = [int(gradient.episodes.lengths[0]) for gradient in pool.gradients(Stop(episodes=30))]
    assert lengths == [episode_length(3, episode, 200) for episode in range(30)]


def killing(policy: Any, rollout: Rollout) -> Any:
    if (rollout.env_ids == 1).any():
        os.kill(os.getpid(), signal.SIGKILL)
    return loss_fn(policy, rollout)


def test_the_error_for_a_worker_that_dies_in_loss_fn_names_loss_fn() -> None:
    with (
        learning(mlp(), 2, 2, loss_fn=killing, workers=WorkerOptions(restart=None)) as pool,
        pytest.raises(WorkerDiedError, match=r"worker 1 .*SIGKILL in loss_fn"),
    ):
        next(pool.gradients())


def test_held_gradients_are_copied_and_do_not_change() -> None:
    policy = mlp()
    with learning(policy, 1, 1, mode="async", rollout_length=5, gradient=GradientOptions(keep_rollouts=True)) as pool:
        stream = pool.gradients()
        kept = [next(stream) for _ in range(12)]
        assert pool.statistics().copied_rollouts > 0
        for gradient in kept:
            expected = gradient_of(policy, joined(gradient.rollouts))
            torch.testing.assert_close(gradient.flat, expected, rtol=1e-10, atol=1e-10)


def test_a_policy_lag_bound_holds_for_gradients() -> None:
    policy = mlp()
    with learning(policy, 3, 3, mode="async", rollout_length=4, max_policy_lag=1) as pool:
        for gradient in pool.gradients(Stop(env_steps=4 * 40)):
            assert gradient.policy_lag <= 1
            pool.publish(policy)


def test_stale_gradients_are_dropped_and_counted_if_wanted() -> None:
    policy = mlp()
    with learning(policy, 3, 3, mode="async", rollout_length=4, max_policy_lag=0, on_stale="drop") as pool:
        for gradient in pool.gradients(Stop(env_steps=4 * 20)):
            assert gradient.policy_lag == 0
            pool.publish(policy)
        assert pool.statistics().dropped_rollouts > 0


class Scorer(nn.Module):
    """Module that scores observations and always takes action 3."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 1).double()

    def act(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.full((len(observations),), 3)


def loss_of_all(policies: Any, rollout: Any) -> Any:
    """Return a common loss of the named policies, and the number of their transitions."""

    def square(name: str) -> Any:
        rows = rollout[name]
        seen = rows.observations[rows.alive].double() / 100
        return (policies[name].module.head(seen).squeeze(-1) - rows.rewards[rows.alive] / 1000).square().sum()

    total = square("hen") * 2 + square("fox")
    return total / rollout.num_steps, {"alive": sum(rows.num_steps for rows in rollout.values())}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", [Scripted, ScriptedTurns])
@pytest.mark.parametrize(("mode", "num_workers"), [("sync", 0), ("sync", 2), ("async", 2)])
def test_named_policies_have_one_gradient_of_a_common_loss(mode: Any, num_workers: int, kind: Any) -> None:
    torch.manual_seed(0)
    policies: dict[str, Any] = {name: TorchPolicy(Scorer(width), "act", ("actions",)) for name, width in WIDTHS.items()}
    optimizer = torch.optim.SGD([p for one in policies.values() for p in one.module.parameters()], lr=0.01)
    makers, versions = [lambda i=i: kind(i) for i in range(3)], []
    with AsyncWorkerPool(
        makers,
        {**policies, "idle": lambda observations: np.zeros(len(observations), np.int64)},
        policy_of=lambda agent, _: agent[:3],
        num_workers=num_workers,
        mode=mode,
        rollout_length=5,
        parallelism="gradient",
        loss_fn=loss_of_all,
        gradient=GradientOptions(reduction="weighted_mean", keep_rollouts=True),
    ) as pool:
        for gradient in pool.gradients(Stop(env_steps=500)):
            versions.append({name: copy.deepcopy(one.module) for name, one in policies.items()})
            (rollout,) = gradient.rollouts
            acted = versions[gradient.policy_version]
            then = {name: TorchPolicy(copy.deepcopy(one), "act", ("actions",)) for name, one in acted.items()}
            loss, metrics = loss_of_all(then, rollout.to("cpu"))
            loss.backward()
            gradient.assign_to(policies)
            for name, policy in policies.items():
                for mine, wanted in zip(policy.module.parameters(), then[name].module.parameters(), strict=True):
                    torch.testing.assert_close(mine.grad, wanted.grad)
            assert gradient.metrics["loss"] == pytest.approx(loss.item())
            assert gradient.num_samples == rollout.num_steps
            assert metrics["alive"] > 0
            optimizer.step()
            assert pool.publish(policies) == len(versions)
    assert len(versions) > 5


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_gradient_of_named_policies_must_be_assigned_to_all_of_them(num_workers: int) -> None:
    policies = {name: TorchPolicy(Scorer(width), "act", ("actions",)) for name, width in WIDTHS.items()}
    with AsyncWorkerPool(
        [lambda: Scripted(0)],
        policies,
        policy_of=lambda agent, _: agent[:3],
        num_workers=num_workers,
        parallelism="gradient",
        loss_fn=loss_of_all,
    ) as pool:
        gradient = next(pool.gradients())
        with pytest.raises(ConfigurationError, match=r"the module has other trainable .* missing .*'fox.head.bias'"):
            gradient.assign_to({"hen": policies["hen"]})
        gradient.assign_to({name: policy.module for name, policy in policies.items()})
        assert policies["fox"].module.head.weight.grad is not None


WIDTHS = {"hen": 4, "fox": 5}
