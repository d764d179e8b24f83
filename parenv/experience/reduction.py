"""Reduction of several flat gradients to one, in one pass through the memory of each and without further memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parenv.errors import GradientError
from parenv.options import GradientOptions

CHUNK = 1 << 19
"""Numbers that are added at a time, so that a chunk of the sum stays in the cache."""


class Reducer:
    """Sum of gradients as they arrive, in the memory of the first.

    Args:
        options: Options of the user.
    """

    def __init__(self, options: GradientOptions) -> None:
        self._options = options
        self._weight = 0.0
        self._sum: Any = None
        self._kept: list[Any] = []
        self._weights: list[float] = []

    def add(self, gradients: Sequence[Any], samples: Sequence[int], lag: int) -> None:
        """Add gradients of the same lag.

        Args:
            gradients: Tensors ``[P]``. The first one of all is overwritten.
            samples: Number of env steps of each.
            lag: Lag of all of them, in publishes.
        """
        options = self._options
        by_lag = 1.0 if options.lag_weight is None else float(options.lag_weight(lag))
        weights = [by_lag * (1 if options.reduction in ("mean", "sum") else n) for n in samples]
        if callable(options.reduction):
            self._kept += gradients
            self._weights += weights
            return
        before, self._weight = self._weight, self._weight + sum(weights)
        if options.reduction == "sum":
            old, factors = 1.0, weights
        else:
            total = self._weight or 1.0  # All weights so far may be 0: so is their mean then.
            old, factors = before / total, [weight / total for weight in weights]
        gradients = list(gradients)
        if self._sum is None:
            self._sum, old, factors = gradients.pop(0), factors[0], factors[1:]
        add_up(self._sum, old, gradients, factors)

    def result(self) -> Any:
        """Return the reduced and clipped gradient."""
        import torch

        if callable(self._options.reduction):
            self._sum = self._options.reduction(
                torch.stack(self._kept), torch.tensor(self._weights, dtype=torch.float64)
            )
            if getattr(self._sum, "shape", None) != self._kept[0].shape:
                raise GradientError(
                    f"the reduction must return a tensor of shape {tuple(self._kept[0].shape)}, got "
                    f"{tuple(self._sum.shape) if hasattr(self._sum, 'shape') else self._sum!r}"
                )
        if self._options.max_norm is not None:
            clip(self._sum, self._options.max_norm)
        return self._sum


def add_up(total: Any, old: float, others: Sequence[Any], factors: Sequence[float]) -> None:
    """Compute ``total = old * total + sum(factor * other)`` in place.

    Args:
        total: Tensor ``[P]``.
        old: Factor of ``total``.
        others: Tensors ``[P]``.
        factors: Factors of the others.
    """
    if old == 1.0 and not others:
        return
    for begin in range(0, len(total), CHUNK):
        part = total[begin : begin + CHUNK]
        if old != 1.0:
            part.mul_(old)
        for other, factor in zip(others, factors, strict=True):
            part.add_(other[begin : begin + CHUNK], alpha=factor)


def clip(flat: Any, max_norm: float) -> float:
    """Scale a flat gradient down to a 2-norm, as ``torch.nn.utils.clip_grad_norm_``. Return its former norm."""
    import torch

    norm = float(torch.linalg.vector_norm(flat))
    if norm > max_norm:
        flat.mul_(max_norm / (norm + 1e-6))
    return norm
