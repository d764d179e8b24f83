"""Modules of torch that many tests act with. Workers import this module for them, and not a module of tests."""

from __future__ import annotations

from typing import Any

import torch


class Biased(torch.nn.Module):
    """Has one parameter for a loss, and always takes action 0."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(()))

    def forward(self, observations: Any) -> Any:
        return torch.zeros(len(observations), dtype=torch.int64)
