"""Compute gradients of the user's ``loss_fn`` in a worker."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from parenv.errors import GradientError
from parenv.experience.agent_rollouts import RolloutsByPolicy
from parenv.experience.reduction import clip
from parenv.experience.rollout import Rollout
from parenv.worker.job import GradientJob


class Differentiated(NamedTuple):
    """The norm of the gradient before clipping, the user's metrics, and the duration in seconds."""

    norm: float
    metrics: dict[str, float]
    seconds: float


NOTHING_LEARNED = Differentiated(0.0, {}, 0.0)


class Differentiator:
    """Writes the gradient of a worker's loss into shared memory.

    Args:
        job: Function of the user, and layout of the gradient.
        policy: The worker's copy of the policy, or of the policies by name.

    Raises:
        ConfigurationError: The worker's policy has other parameters than the driver's.
    """

    def __init__(self, job: GradientJob, policy: Any) -> None:
        self._job, self._policy, self._layout = job, policy, job.layout
        self._parameters = job.layout.parameters(policy, "the policy in a worker")

    def run(self, rollout: Rollout | RolloutsByPolicy, row: Any) -> Differentiated:
        """Compute the loss and its gradient.

        Raises:
            GradientError: The loss has no gradient.
        """
        import torch

        began = time.perf_counter()
        with torch.enable_grad():
            returned = self._job.loss_fn(self._policy, rollout)
            loss, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
            self._check(loss)
            loss.backward()
        if all(parameter.grad is None for parameter in self._parameters):
            raise GradientError(_INDEPENDENT)
        flat = self._layout.tensor(row)
        for parameter, view in zip(self._parameters, self._layout.views(flat), strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
                parameter.grad = None
        norm = clip(flat, math.inf if self._job.max_norm is None else self._job.max_norm)
        return Differentiated(
            norm, {"loss": float(loss.detach()), **numbers_of(metrics, "loss_fn")}, time.perf_counter() - began
        )

    def _check(self, loss: Any) -> None:
        import torch

        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"type {type(loss).__name__}"
            raise GradientError(f"loss_fn must return a scalar tensor, or (loss, metrics), got a loss of {got}")
        if not loss.requires_grad:
            raise GradientError(_INDEPENDENT)


_INDEPENDENT = (
    "the loss of loss_fn must depend on the policy's parameters. Compute it from the policy that loss_fn receives, "
    "without detach() or no_grad(). Rollout.extras are outputs of the acting policy and have no gradient."
)


def numbers_of(metrics: Any, of: str, kind: type[Exception] = GradientError) -> dict[str, float]:
    """Convert metrics that the function ``of`` of the user returned to numbers, or raise an error of this kind."""
    if not isinstance(metrics, Mapping):
        raise kind(f"the metrics of {of} must be a dict of numbers, got {type(metrics).__name__}")
    numbers = {}
    for name, value in metrics.items():
        try:
            numbers[str(name)] = float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise kind(f"the metric {name!r} of {of} must be a number, got {value!r}") from error
    return numbers
