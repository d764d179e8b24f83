"""Check the device of a policy's module, and copies on other devices, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from parenv import TorchPolicy
from parenv.memory.spaces import leaves
from parenv.policy.devices import device_of, on_device
from parenv.worker.actor import Actor


class OnAnotherDevice:
    """Stand-in for a module with a parameter on another device."""

    def __init__(self, device: str = "cuda") -> None:
        self.device = device

    def named_parameters(self) -> Any:
        return [("weight", SimpleNamespace(device=torch.device(self.device)))]

    def named_buffers(self) -> Any:
        return []

    def to(self, device: str) -> None:
        self.device = device


def test_a_policy_for_another_device_is_copied_and_the_original_is_not_moved() -> None:
    policy = SimpleNamespace(module=OnAnotherDevice(), settings={"epsilon": 1})
    copied = on_device(policy, "cpu")
    assert (copied.module.device, copied.settings) == ("cpu", {"epsilon": 1})
    assert policy.module.device == "cuda"
    assert on_device(copied, "cpu") is copied
    assert on_device(policy, "cuda") is policy
    assert on_device(len, "cuda") is len


def test_the_device_of_a_policy_is_that_of_its_module() -> None:
    assert device_of(SimpleNamespace(module=OnAnotherDevice("cuda:1"))) == "cuda"
    assert device_of(nn.Linear(1, 1)) == "cpu"
    assert device_of(nn.Identity()) == "cpu"
    assert device_of(len) == "cpu"


def test_an_actor_moves_its_policy_to_the_device_before_the_first_action() -> None:
    module = nn.Linear(3, 2)
    policy = TorchPolicy(module, "forward", ("actions",))
    policy.initial_carry = lambda batch: {"hidden": torch.zeros(batch, 5)}  # type: ignore[method-assign]
    space = gym.spaces.Box(-1, 1, (3,))
    actor = Actor(policy, leaves(space), leaves(space), "meta")
    assert {tensor.device.type for tensor in module.parameters()} == {"meta"}
    assert actor.initial_carry(4)["hidden"].device.type == "meta"
