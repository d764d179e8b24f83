"""How acting and learning get cheaper with larger batches, on each device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from parenv.cli.environment import Environment
from parenv.cli.measuring import in_one_line
from parenv.cli.subjects import acting, one_thread, random_rows, seconds_each
from parenv.errors import GradientError
from parenv.memory.spaces import leaves, unflatten
from parenv.policy.devices import accelerator
from parenv.policy.policy import as_policy
from parenv.policy.snapshots import module_of

ACTING_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MINI_BATCHES = (32, 128, 512, 2048)
Curve = Callable[[Environment, Any, str, float], Mapping[int, float]]
Watcher = Callable[[str], object]
"""Is told what comes next, or why it does not."""


def by_device(
    what: str, curve: Curve, environment: Environment, policy: Any, seconds: float, watch: Watcher
) -> Mapping[str, Mapping[int, float]]:
    """A curve on the CPU and, for a policy with a module, on the other device that there is; up to where it fails.

    Args:
        what: in a word, for the watcher.
        curve: :func:`acting_seconds` or :func:`learning_seconds`.
        environment: whose observations.
        policy: as :class:`~parenv.AsyncWorkerPool` takes it.
        seconds: that all of it takes, roughly.
        watch: is told what cannot be measured, and why.
    """
    devices = [device for device in ("cpu", accelerator(policy)) if device is not None]
    found: dict[str, Mapping[int, float]] = {}
    for device in devices:
        try:
            found[device] = curve(environment, policy, device, seconds / len(devices))
        except Exception as error:
            watch(f"{what} on {device} is not measured: {in_one_line(error)}")
            break
    return found


def acting_seconds(environment: Environment, policy: Any, device: str, seconds: float) -> Mapping[int, float]:
    """Seconds for acting once, from arrays to arrays and with one thread on the CPU, by batch.

    Args:
        environment: whose observations.
        policy: as :class:`~parenv.AsyncWorkerPool` takes it.
        device: where its module is put.
        seconds: that all of it takes, roughly.

    Raises:
        ConfigurationError: it cannot act there.
    """
    each = seconds / len(ACTING_BATCHES)
    with one_thread():
        return {batch: seconds_each(acting(environment, policy, batch, device), each) for batch in ACTING_BATCHES}


def learning_seconds(environment: Environment, policy: Any, device: str, seconds: float) -> Mapping[int, float]:
    """Seconds per sample of forward and backward, with the copy to the device, by mini-batch.

    What is differentiated is the sum of all that the module's layers return, since a loss is not known here.

    Args:
        environment: whose observations.
        policy: as :class:`~parenv.AsyncWorkerPool` takes it.
        device: where its module is put.
        seconds: that all of it takes, roughly.

    Raises:
        GradientError: the policy has no module, or acts without gradients.
        Exception: what else it raises where it is given tensors and gradients are on.
    """
    if module_of(policy) is None:
        raise GradientError("the policy has no module")
    each = seconds / len(MINI_BATCHES)
    return {
        batch: seconds_each(_learning(environment, deepcopy(policy), batch, device), each) / batch
        for batch in MINI_BATCHES
    }


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
        found[0].item()  # Waits until a GPU has done all of it, in the order in which it was asked.

    learn()
    return learn
