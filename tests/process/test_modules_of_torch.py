"""Check pools whose policies torch cannot pickle whole, or that only one side has compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from nets import Chooser, Wrapped, layer
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from parenv import AsyncWorkerPool

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

KINDS: dict[str, Callable[[], Any]] = {
    "spectral_norm": lambda: Chooser(spectral_norm(layer())).eval(),
    "orthogonal": lambda: Chooser(orthogonal(layer())),
    "weight_norm": lambda: Chooser(weight_norm(layer())),
    "script": lambda: torch.jit.script(Chooser(layer())),
    "trace": lambda: torch.jit.trace(Chooser(layer()), torch.zeros(3, 4)),
    "TorchScript as a child": lambda: Chooser(torch.jit.script(layer())),
}


def cart_poles(policy: Any, num_workers: int, **options: Any) -> AsyncWorkerPool[Any]:
    more: dict[str, Any] = {"num_envs": 4, "rollout_length": 16, "mode": "sync", "seed": 1, **options}
    return AsyncWorkerPool("CartPole-v1", policy, num_workers=num_workers, **more)


def check_acting(module: Any, rollout: Any) -> None:
    """Check that a rollout has the actions that a module takes."""
    with torch.no_grad():
        actions = module(torch.as_tensor(np.array(rollout.observations)))
    np.testing.assert_array_equal(rollout.actions, actions.numpy())


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_module_that_torch_does_not_pickle_acts_and_is_published(kind: str, num_workers: int) -> None:
    module = KINDS[kind]()
    with cart_poles(module, num_workers) as pool:
        rollouts = pool.rollouts()
        first = next(rollouts)
        check_acting(module, first)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.neg_()
        pool.publish(module)
        second = next(rollouts)
        check_acting(module, second)
    assert 0 < np.mean(first.actions) + np.mean(second.actions) < 2


@pytest.mark.more
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("of_pool", [True, False], ids=["compiled pool", "plain pool"])
def test_a_module_can_be_published_whether_it_is_compiled_or_not(of_pool: bool, num_workers: int) -> None:
    pair = [Chooser(layer()), torch.compile(Chooser(layer()), backend="eager")]
    with cart_poles(pair[of_pool], num_workers) as pool:
        check_acting(pair[of_pool], next(pool.rollouts()))
        pool.publish(pair[not of_pool])
        check_acting(pair[not of_pool], next(pool.rollouts()))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_gradients_of_a_compiled_policy_fit_the_plain_module(num_workers: int) -> None:
    plain = Chooser(layer())
    options: dict[str, Any] = {"parallelism": "gradient", "loss_fn": squares}
    with cart_poles(Wrapped(plain), num_workers, **options) as pool:
        gradient = next(pool.gradients())
        gradient.assign_to(plain)
        pool.publish(plain)
    assert all(parameter.grad is not None for parameter in plain.parameters())


def squares(policy: Any, rollout: Any) -> Any:
    return sum(parameter.square().sum() for parameter in policy.parameters())
