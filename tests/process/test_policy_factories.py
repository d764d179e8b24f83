"""Check policies that each worker makes itself, because they cannot be pickled."""

from __future__ import annotations

import functools
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from nets import Chooser, Locked, layer
from policies import lean
from scripted_agents import named_pool, opponents

from parenv import (
    AsyncWorkerPool,
    ConfigurationError,
    Policy,
    PolicyFactory,
    RestartPolicy,
    SaveBest,
    Stop,
    TorchPolicy,
    WorkerOptions,
    evaluate,
    export,
    load_checkpoint,
    save_checkpoint,
)
from parenv.errors import NotPicklableError
from parenv.policy.policy import Action
from parenv.population import Member

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


def cart_poles(policy: Any, num_workers: int, **options: Any) -> AsyncWorkerPool[Any]:
    more: dict[str, Any] = {"num_envs": 4, "rollout_length": 16, "mode": "sync", "seed": 1, **options}
    return AsyncWorkerPool("CartPole-v1", policy, num_workers=num_workers, **more)


def taken_by(module: Any, observations: Any) -> Any:
    with torch.no_grad():
        return module(torch.as_tensor(np.array(observations))).numpy()


def check_acting(module: Any, rollout: Any) -> None:
    """Check that a rollout has the actions that a module takes."""
    np.testing.assert_array_equal(rollout.actions, taken_by(module, rollout.observations))


def negated(module: Any) -> Any:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.neg_()
    return module


class Kept:
    """Factory that keeps the modules that it has made in this process, and gives each other weights."""

    def __init__(self) -> None:
        self.modules: list[Locked] = []

    def __call__(self) -> Locked:
        self.modules.append(Locked())
        return self.modules[-1]

    def __reduce__(self) -> Any:
        return Kept, ()


@WORKERS
@pytest.mark.parametrize("wrapped", [False, True], ids=["module", "TorchPolicy"])
def test_workers_act_with_the_weights_that_the_main_process_has_made_and_publishes(
    num_workers: int, wrapped: bool
) -> None:
    kept = Kept()
    make = functools.partial(as_torch_policy, kept) if wrapped else kept
    with cart_poles(PolicyFactory(make), num_workers) as pool:
        rollouts = pool.rollouts()
        check_acting(kept.modules[0], next(rollouts))
        other = Locked()
        pool.publish(other)
        check_acting(other, next(rollouts))
        pool.publish(negated(other).state_dict())
        check_acting(other, next(rollouts))
        episodes = pool.evaluate(3)
    assert len(episodes) == 3
    assert len(kept.modules) == 1 or num_workers == 0


def as_torch_policy(make: Kept) -> TorchPolicy:
    return TorchPolicy(make(), "forward", ("actions",))


def test_making_policies_on_workers_changes_no_random_state() -> None:
    found = []
    for make in (Sampling, functools.partial(PolicyFactory, Sampling)):
        torch.manual_seed(0)
        policy: Any = make()
        with cart_poles(policy, 2) as pool:
            pending = pool.evaluate(3, deterministic=False, wait=False)  # Its actor needs another policy.
            actions = [np.array(next(pool.rollouts()).actions) for _ in range(6)]
            found.append((actions, pending.result().episodes.returns))
    np.testing.assert_equal(found[0], found[1])


class Sampling(Chooser):
    """Module that draws its actions."""

    def __init__(self) -> None:
        super().__init__(layer())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Categorical(logits=self.layer(observations)).sample()


@WORKERS
def test_a_factory_can_make_named_policies_and_frozen_versions_of_them(num_workers: int) -> None:
    past: list[str] = []
    policies = {"hen": PolicyFactory(scorer), "fox": PolicyFactory(Unpicklable)}
    with named_pool(
        4, num_workers=num_workers, policy_of=opponents, max_frozen=99, rollout_length=6, **policies
    ) as pool:
        for number, rollout in enumerate(pool.rollouts(Stop(env_steps=600))):
            for name, rows in rollout.items():
                weights = rows.extras["weight"][rows.alive] if "weight" in rows.extras else np.zeros(0)
                if "@" in name:
                    assert (weights == int(name.split("@")[1])).all()
            if number % 4 == 0:
                past.append(pool.freeze("hen"))
            pool.publish({"hen": scorer(float(pool.policy_versions["hen"] + 1))}, past=past[-2:])
        assert len(past) > 2


def scorer(value: float = 0.0) -> TorchPolicy:
    policy = TorchPolicy(Scorer(value), "act", ("actions", "weight"))
    policy.module.lock = threading.Lock()
    return policy


class Scorer(torch.nn.Module):
    """Module that returns its weight with each action."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((), value))

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch = len(observations)
        return torch.zeros(batch, dtype=torch.int64), self.weight.expand(batch)


class Unpicklable(Policy):
    """Policy without a module that returns a setting with each action."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def act(self, observations: Any, carry: Any) -> Action:
        return Action(np.zeros(len(observations), np.int64), {"level": np.full(len(observations), self.level)})

    @property
    def level(self) -> float:
        return float(self.settings.get("level", 0.0))


@WORKERS
def test_a_policy_without_a_module_is_published_as_a_factory(num_workers: int) -> None:
    with cart_poles(PolicyFactory(Unpicklable), num_workers, settings={"level": 1.0}) as pool:
        rollouts = pool.rollouts()
        assert (next(rollouts).extras["level"] == 1).all()
        pool.publish(PolicyFactory(Unpicklable), level=2.0)
        assert (next(rollouts).extras["level"] == 2).all()
        with pytest.raises(
            NotPicklableError, match=r"published policy .*lock.*Publish PolicyFactory\(make\), whose func"
        ):
            pool.publish(Unpicklable())
        assert (next(rollouts).extras["level"] == 2).all()


@WORKERS
def test_a_factory_makes_the_policy_of_gradients(num_workers: int) -> None:
    learner = Locked()
    options: dict[str, Any] = {"parallelism": "gradient", "loss_fn": squares}
    with cart_poles(PolicyFactory(Locked), num_workers, **options) as pool:
        gradients = pool.gradients()
        next(gradients)
        pool.publish(learner)
        next(gradients).assign_to(learner)
    for parameter in learner.parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, 2 * parameter)


def squares(policy: Any, rollout: Any) -> Any:
    return sum(parameter.square().sum() for parameter in policy.parameters())


@pytest.mark.more
def test_a_restarted_worker_and_step_workers_have_the_weights_too() -> None:
    restart = RestartPolicy(backoff_s=1e-3)
    for workers in (WorkerOptions(restart=restart), WorkerOptions(restart=restart, step_workers=2)):
        kept = Kept()
        num_workers = 1 if workers.step_workers else 2
        with cart_poles(PolicyFactory(kept), num_workers, workers=workers, mode="async") as pool:
            rollouts = pool.rollouts()
            next(rollouts)
            pool.publish(negated(kept.modules[0]))
            os.kill(pool._session.workers.pid(0), signal.SIGKILL)
            while not (rollout := next(rollouts)).restarted.any():
                pass
            assert rollout.policy_version == 1
            check_acting(kept.modules[0], rollout)


def test_an_evaluation_makes_the_policy_on_each_worker() -> None:
    kept, plain, found = Kept(), Chooser(layer()), []
    factory = PolicyFactory(kept)
    for options in ({"num_workers": 0}, {"num_workers": 2}, {"workers": WorkerOptions(step_workers=2)}):
        torch.manual_seed(3)
        found.append(evaluate(factory, "CartPole-v1", episodes=6, **options))  # type: ignore[arg-type]
    plain.load_state_dict(kept.modules[0].state_dict())
    wanted = evaluate(plain, "CartPole-v1", episodes=6, num_workers=1)
    for report in found:
        assert [one.episode_return for one in report.episodes] == [one.episode_return for one in wanted.episodes]


def test_checkpoints_and_the_best_policy_work_with_a_factory(tmp_path: Path) -> None:
    kept = Kept()
    with cart_poles(PolicyFactory(kept), 1) as pool:
        best = SaveBest(tmp_path / "best", episodes=5, every=1)
        next(pool.rollouts())
        pool.publish(negated(kept.modules[0]))
        next(pool.rollouts())
        best.update(pool)
        best.finish(pool)
        save_checkpoint(tmp_path / "pool", pool.state_dict())
    weights = load_checkpoint(tmp_path / "best")["weights"]
    assert torch.equal(weights["layer.weight"], kept.modules[0].layer.weight)  # type: ignore[arg-type]
    with cart_poles(PolicyFactory(functools.partial(with_weights, weights)), 1) as pool:
        pool.load_state_dict(load_checkpoint(tmp_path / "pool"))
        check_acting(kept.modules[0], next(pool.rollouts()))
    loaded = evaluate(PolicyFactory(Locked), "CartPole-v1", episodes=3, num_workers=1, checkpoint=tmp_path / "best")
    plain = Chooser(layer())
    plain.load_state_dict(weights)
    wanted = evaluate(plain, "CartPole-v1", episodes=3, num_workers=0)
    assert [one.episode_return for one in loaded.episodes] == [one.episode_return for one in wanted.episodes]


def with_weights(weights: Any) -> Locked:
    module = Locked()
    module.load_state_dict(weights)
    return module


def test_min_kl_compares_with_the_policy_that_a_factory_made() -> None:
    with cart_poles(PolicyFactory(clean), 1) as pool:
        rollout = next(pool.rollouts())
        module = Clean()
        assert pool.publish(module, min_kl=1e9, on=rollout) == 0
        assert pool.publish(module, min_kl=1e-9, on=rollout) == 1


class Clean(torch.nn.Module):
    """Agent in the style of CleanRL."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.lock = layer(), threading.Lock()

    def get_action_and_value(self, observations: torch.Tensor, action: torch.Tensor | None = None) -> Any:
        distribution = torch.distributions.Categorical(logits=self.actor(observations))
        action = distribution.sample() if action is None else action
        return action, distribution.log_prob(action), None, torch.zeros(len(observations))


def clean() -> TorchPolicy:
    return TorchPolicy(Clean())


SHARED = Locked()


def shared() -> Locked:
    return SHARED


def other_shape() -> Any:
    sizes.append(len(sizes))
    return Chooser(torch.nn.Sequential(torch.nn.Linear(4, len(sizes)), torch.nn.Linear(len(sizes), 2)))


sizes: list[int] = []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (shared, "must make a new module in each call, got the same Locked twice. Make the module inside the function"),
        (other_shape, r"must make the same parameters and buffers in each call, but first made .*\(1, 4\).*\(2, 4\)"),
        (lambda: 3, r"the function of PolicyFactory did not return a policy: policy must be a Policy, .*, got 3"),
        (lambda: PolicyFactory(Locked), r"did not return a policy: .*got PolicyFactory\(.*\)\. Pass the policy itself"),
    ],
)
def test_a_factory_that_does_not_make_new_equal_policies_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        cart_poles(PolicyFactory(make), 0)


@pytest.mark.parametrize("make", [Locked(), lean(np.zeros((1, 4))), Unpicklable()])
def test_a_factory_must_be_a_function(make: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"PolicyFactory.make must be a function that returns a new policy, got"
    ):
        PolicyFactory(make)


@WORKERS
@pytest.mark.parametrize("named", [False, True])
def test_the_error_for_a_policy_that_cannot_be_sent_names_the_factory(num_workers: int, named: bool) -> None:
    way_out = r"PolicyFactory\(make\)"
    with pytest.raises(NotPicklableError, match=way_out):
        pool_of_locked(num_workers, named)


def pool_of_locked(num_workers: int, named: bool) -> AsyncWorkerPool[Any]:
    return named_pool(2, num_workers=num_workers, hen=scorer()) if named else cart_poles(Locked(), num_workers)


def test_the_error_for_an_evaluation_names_the_factory_too() -> None:
    for options in ({"num_workers": 1}, {"workers": WorkerOptions(step_workers=2)}):
        with pytest.raises(NotPicklableError, match=r"PolicyFactory\(make\)"):
            evaluate(Locked(), "CartPole-v1", episodes=1, **options)  # type: ignore[arg-type]


def test_what_the_function_of_a_factory_refers_to_is_named() -> None:
    lock = threading.Lock()
    factory = PolicyFactory(lambda: Locked() if lock else Chooser(layer()))
    with pytest.raises(
        NotPicklableError, match=r"policy, attribute 'make', variable 'lock' .*with a function that creates it"
    ):
        cart_poles(factory, 1)
    with cart_poles(factory, 0) as pool:
        next(pool.rollouts())


def test_where_a_factory_cannot_be_used_the_error_says_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Pass the policy itself"):
        Member(PolicyFactory(Locked))
    with pytest.raises(ConfigurationError, match=r"export needs a policy with a torch module .*, got PolicyFactory"):
        export(PolicyFactory(Locked), tmp_path / "policy.onnx", observation_space=Box(-1.0, 1.0, (4,)))
    with (
        cart_poles(PolicyFactory(Locked), 0) as pool,
        pytest.raises(ConfigurationError, match=r"publish must get a module, .* got PolicyFactory"),
    ):
        pool.publish(PolicyFactory(Locked))
