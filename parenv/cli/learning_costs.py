"""Seconds of forward and backward per sample, by device and mini-batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from parenv.cli.environment import Environment
from parenv.cli.measuring import in_one_line
from parenv.cli.subjects import random_rows, seconds_each
from parenv.errors import GradientError
from parenv.memory.spaces import leaves, unflatten
from parenv.policy.policy import as_policy
from parenv.policy.snapshots import module_of

MINI_BATCHES = (32, 128, 512, 2048)


def learning_costs(
    environment: Environment, policy: Any, devices: Sequence[str], seconds: float, watch: Callable[[str], object]
) -> Mapping[str, Mapping[int, float]]:
    """Measure forward and backward, with the copy to the device.

    The sum of all outputs of the module's layers is differentiated, since the loss is not known here.

    Args:
        environment: Environment whose observations are learned from.
        policy: Policy as :class:`~parenv.AsyncWorkerPool` takes it.
        devices: Devices of the module.
        seconds: Approximate duration of all measurements, in seconds.
        watch: Called with the reason if a device cannot be measured.

    Returns:
        Seconds per sample, by device and mini-batch, without the devices that cannot be measured.
    """
    each = seconds / len(devices) / len(MINI_BATCHES)
    found: dict[str, Mapping[int, float]] = {}
    for device in devices:
        try:
            if module_of(policy) is None:
                raise GradientError("the policy has no module")
            found[device] = {
                batch: seconds_each(_learning(environment, deepcopy(policy), batch, device), each) / batch
                for batch in MINI_BATCHES
            }
        except Exception as error:
            watch(f"learning on {device} is not measured: {in_one_line(error)}")
    return found


def _learning(environment: Environment, policy: Any, batch: int, device: str) -> Callable[[], None]:
    import torch

    module, acts = module_of(policy).to(device), as_policy(policy)
    of = leaves(environment.observation_space)
    rows = [torch.as_tensor(values) for values in random_rows(environment.observation_space, batch)]
    carry = acts.initial_carry(batch)
    outputs: list[Any] = []
    for layer in module.modules():
        layer.register_forward_hook(lambda layer, given, output: outputs.append(output))

    def learn() -> None:
        outputs.clear()
        module.zero_grad(set_to_none=True)
        acts.act(unflatten(of, [values.to(device) for values in rows]), carry)
        found = [output.sum() for output in outputs if getattr(output, "requires_grad", False)]
        if not found:
            raise GradientError("no layer of the policy's module returned a tensor with a gradient")
        torch.autograd.backward(found)
        found[0].item()  # A GPU works in order, so this read waits for the whole backward pass.

    learn()
    return learn
