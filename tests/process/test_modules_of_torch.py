"""Check pools whose policies torch cannot pickle whole, or that only one side has compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from nets import Chooser, layer
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
