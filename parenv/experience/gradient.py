"""Gradient that workers compute, as one flat vector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parenv.errors import ConfigurationError
from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.rollout import Rollout
from parenv.protocol.tensors import plain_name


@dataclass(frozen=True)
class GradientLayout:
    """The trainable parameters of a module, one after the other in the order of ``named_parameters()``.

    For named policies, it has the parameters of all of them, and each name begins with the name of the policy.

    Args:
        names: Names of the parameters.
        shapes: Shapes of the parameters.
        dtype: Torch dtype of all parameters, such as ``"float32"``.
        itemsize: Bytes of one number.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    itemsize: int

    @classmethod
    def of(cls, policy: Any) -> GradientLayout:
        """Return the layout of the gradient of a module, of a policy with a module, or of a mapping of these.

        Raises:
            ConfigurationError: There are no trainable parameters, or they have several dtypes.
        """
        named = _trainable(policy)
        dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in named.values()})
        if not named:
            raise ConfigurationError(
                "the policy has no parameters that require a gradient. Set requires_grad of the parameters to train."
            )
        if len(dtypes) > 1:
            raise ConfigurationError(
                f"the policy's trainable parameters must all have the same dtype, got {', '.join(dtypes)}. Convert the "
                "module to one dtype."
            )
        shapes = tuple(tuple(parameter.shape) for parameter in named.values())
        return cls(tuple(named), shapes, dtypes[0], next(iter(named.values())).element_size())

    @property
    def sizes(self) -> list[int]:
        """Number of elements of each parameter."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def nbytes(self) -> int:
        """Number of bytes of the flat gradient."""
        return sum(self.sizes) * self.itemsize

    def parameters(self, policy: Any, whose: str) -> list[Any]:
        """Return the trainable parameters of another module or policy.

        Raises:
            ConfigurationError: They are not the parameters of this layout.
        """
        named = _trainable(policy)
        wanted = list(zip(self.names, self.shapes, strict=True))
        found = [(name, tuple(parameter.shape)) for name, parameter in named.items()]
        if found != wanted:
            mine, theirs = set(wanted), set(found)
            raise ConfigurationError(
                f"{whose} has other trainable parameters than the pool's policy: missing {sorted(mine - theirs)}, "
                f"unexpected {sorted(theirs - mine)}"
            )
        return list(named.values())

    def tensor(self, rows: Any) -> Any:
        """Return gradients in shared memory as a tensor ``[..., P]`` over it.

        Args:
            rows: Gradients, uint8 ``[..., n]``, of which the first ``nbytes`` are used.
        """
        import torch

        return torch.from_numpy(rows)[..., : self.nbytes].view(getattr(torch, self.dtype))

    def views(self, flat: Any) -> list[Any]:
        """Return one view of a flat gradient per parameter."""
        return [part.view(shape) for part, shape in zip(flat.split(self.sizes), self.shapes, strict=True)]


@dataclass(frozen=True)
class Gradient:
    """The gradient of the loss, reduced over one or several workers.

    Args:
        flat: tensor ``[P]`` on the CPU: the gradient of all trainable parameters in the order of
            ``module.named_parameters()``. It is in shared memory and stays valid as long as a part of it is referenced.
        layout: Places of the parameters in it.
        metrics: Metrics of ``loss_fn`` and ``"loss"``, means weighted by samples.
        num_samples: Number of env steps that it was computed from.
        policy_version: Oldest version that computed a part of it.
        policy_lag: Version published when it was yielded minus ``policy_version``, in publishes.
        workers: Workers that computed the parts, in the order in which they were added.
        episodes: Episodes that ended in these samples.
        rollouts: One rollout per round (sync) or arrival (async) with ``keep_rollouts``; otherwise empty.

    >>> import torch
    >>> from parenv import AsyncWorkerPool, TorchPolicy
    >>> def loss_fn(policy, rollout):
    ...     return policy.module(rollout.observations).square().mean()
    >>> class Network(torch.nn.Linear):
    ...     def act(self, observations):
    ...         return self(observations).argmax(-1)
    >>> network = Network(4, 2)
    >>> policy, gradients = TorchPolicy(network, "act", ("actions",)), {"parallelism": "gradient", "loss_fn": loss_fn}
    >>> with AsyncWorkerPool("CartPole-v1", policy, num_workers=0, mode="sync", rollout_length=4, **gradients) as pool:
    ...     gradient = next(pool.gradients())
    >>> gradient.assign_to(network)
    >>> network.weight.grad.shape, gradient.num_samples, list(gradient.metrics)
    (torch.Size([2, 4]), 4, ['loss'])
    """

    flat: Any = field(repr=False)
    layout: GradientLayout = field(repr=False)
    metrics: Mapping[str, float]
    num_samples: int
    policy_version: int
    policy_lag: int
    workers: tuple[int, ...]
    episodes: EpisodeStatistics
    rollouts: Sequence[Rollout] = field(repr=False)

    def assign_to(self, module: Any) -> None:
        """Set ``.grad`` of a module's trainable parameters. On the CPU, these are views of the gradient.

        Two modules with the same gradient share its memory, so clipping one in place clips both.

        Args:
            module: Module of the learner, or the policy with this module. For named policies, a dict of all of them.

        Raises:
            ConfigurationError: The module does not have the trainable parameters of the pool's policy.
        """
        parameters = self.layout.parameters(module, "the module")
        flat = self.flat.to(parameters[0].device)
        for parameter, view in zip(parameters, self.layout.views(flat), strict=True):
            parameter.grad = view


def _trainable(policy: Any) -> dict[str, Any]:
    if isinstance(policy, Mapping):
        return {f"{of}.{name}": parameter for of, one in policy.items() for name, parameter in _trainable(one).items()}
    module = policy if hasattr(policy, "named_parameters") else getattr(policy, "module", None)
    named = () if module is None else module.named_parameters()
    return {plain_name(name): parameter for name, parameter in named if parameter.requires_grad}
