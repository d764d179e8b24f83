"""Running the user's ``loss_fn`` forward and backward on a worker."""

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
    """What came of it: the norm of the gradient before it was clipped, the user's metrics, and how long it took."""

    norm: float
    metrics: dict[str, float]
    seconds: float


NOTHING_LEARNED = Differentiated(0.0, {}, 0.0)


class Differentiator:
    """Writes the gradient of a worker's loss into shared memory.

    Args:
        job: the user's function, and what the driver expects of its gradient.
        policy: the worker's copy of what the user gave, also policies by name.

    Raises:
        ConfigurationError: the worker's policy has other parameters than the driver's.
    """

    def __init__(self, job: GradientJob, policy: Any) -> None:
        self._job, self._policy, self._layout = job, policy, job.layout
        self._parameters = job.layout.parameters(policy, "the policy in a worker")

    def run(self, rollout: Rollout | RolloutsByPolicy, row: Any) -> Differentiated:
        """Compute the loss and its gradient.

        Args:
            rollout: of tensors on the policy's device.
            row: uint8, where to write the flat gradient.

        Raises:
            GradientError: the loss has no gradient.
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
            got = f"one of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"{type(loss).__name__}"
            raise GradientError(
                f"loss_fn must return a scalar tensor, or one and a dict of metrics, but returned {got}"
            )
        if not loss.requires_grad:
            raise GradientError(_INDEPENDENT)


_INDEPENDENT = (
    "the loss that loss_fn returned does not depend on the policy's parameters: compute it from the policy that "
    "loss_fn is given, without detach() or no_grad(); Rollout.extras are what the policy said while acting, without "
    "a gradient"
)


def numbers_of(metrics: Any, of: str, kind: type[Exception] = GradientError) -> dict[str, float]:
    """What a function of the user's returned as metrics, as numbers; an error of this kind where they are none."""
    if not isinstance(metrics, Mapping):
        raise kind(f"the metrics of {of} must be a dict of numbers, got {type(metrics).__name__}")
    numbers = {}
    for name, value in metrics.items():
        try:
            numbers[str(name)] = float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise kind(f"the metric {name!r} of {of} must be a number, got {value!r}") from error
    return numbers
