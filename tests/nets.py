"""Torch modules of many tests, in a module that workers import instead of a test module."""

from __future__ import annotations

import threading
from typing import Any

import torch
from faults import choose


class Biased(torch.nn.Module):
    """Module with one parameter for a loss, which always takes action 0."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(()))

    def forward(self, observations: Any) -> Any:
        return torch.zeros(len(observations), dtype=torch.int64)


class ChoosingNet(torch.nn.Module):
    """Module that acts like :class:`faults.Chooses` and has a parameter for gradients."""

    number: torch.Tensor

    def __init__(self, number: int) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("number", torch.tensor(number))

    def act(self, observations: torch.Tensor) -> Any:
        return torch.as_tensor(choose(observations.numpy())), self.number.expand(len(observations))


class Chooser(torch.nn.Module):
    """Module that takes the action with the highest output of a layer."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(observations)
        return outputs.argmax(-1)


def layer() -> torch.nn.Linear:
    return torch.nn.Linear(4, 2)


class Wrapped(torch.nn.Module):
    """Module that names its tensors as ``torch.compile`` does, which takes seconds to import."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._orig_mod = module

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        actions: torch.Tensor = self._orig_mod(observations)
        return actions


class Locked(Chooser):
    """Module that can neither be pickled nor copied."""

    def __init__(self) -> None:
        super().__init__(layer())
        self.lock = threading.Lock()
