"""How acting and learning get cheaper with larger batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from parenv.cli.environment import Environment
from parenv.cli.subjects import acting, random_rows, seconds_each, with_one_thread
from parenv.errors import GradientError
from parenv.memory.spaces import leaves, unflatten
from parenv.policy.policy import as_policy
from parenv.policy.snapshots import module_of

ACTING_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MINI_BATCHES = (32, 128, 512, 2048)


def acting_seconds(environment: Environment, policy: Any, seconds: float) -> Mapping[int, float]:
    """Seconds for acting once on the CPU with one thread, by batch.

    Args:
        environment: whose observations.
        policy: as :class:`~parenv.AsyncWorkerPool` takes it.
        seconds: that all of it takes, roughly.
    """
    each = seconds / len(ACTING_BATCHES)

    def measured(batch: int) -> float:
        act = acting(environment, policy, batch)
        return with_one_thread(lambda: seconds_each(act, each))

    return {batch: measured(batch) for batch in ACTING_BATCHES}


def learning_seconds(environment: Environment, policy: Any, seconds: float) -> Mapping[str, Mapping[int, float]]:
    """Seconds per sample of forward and backward by mini-batch, on the CPU and on a GPU if there is one.

    What is differentiated is the sum of all that the module's layers return, since a loss is not known here.

    Args:
        environment: whose observations.
        policy: as :class:`~parenv.AsyncWorkerPool` takes it; empty for one without a module.
        seconds: that all of it takes, roughly.

    Raises:
        GradientError: the policy acts without gradients.
        Exception: what else it raises where it is given tensors and gradients are on.
    """
    if module_of(policy) is None:
        return {}
    import torch

    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    each = seconds / len(MINI_BATCHES) / len(devices)
    return {
        device: {
            batch: seconds_each(_learning(environment, deepcopy(policy), batch, device), each) / batch
            for batch in MINI_BATCHES
        }
        for device in devices
    }


def _learning(environment: Environment, policy: Any, batch: int, device: str) -> Callable[[], None]:
    import torch

    module, acts = module_of(policy).to(device), as_policy(policy)
    of = leaves(environment.observation_space)
    rows = [torch.as_tensor(values).to(device) for values in random_rows(environment.observation_space, batch)]
    observations, carry = unflatten(of, rows), acts.initial_carry(batch)
    outputs: list[Any] = []
    for layer in module.modules():
        layer.register_forward_hook(lambda layer, given, output: outputs.append(output))

    def learn() -> None:
        outputs.clear()
        module.zero_grad(set_to_none=True)
        acts.act(observations, carry)
        found = [output.sum() for output in outputs if getattr(output, "requires_grad", False)]
        if not found:
            raise GradientError("no layer of the policy's module returned a tensor with a gradient")
        torch.autograd.backward(found)
        if device == "cuda":
            torch.cuda.synchronize()

    learn()
    return learn
