"""Subjects of a benchmark: single costs of an environment and of a policy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from gymnasium import Space

from parenv.bench.environment import Environment, refused
from parenv.bench.measuring import Opened, Subject, error_line, seconds_each
from parenv.errors import ConfigurationError, GradientError
from parenv.memory.spaces import leaves, stacked, unflatten
from parenv.memory.trees import as_array
from parenv.policy.devices import on_device
from parenv.policy.policy import as_policy
from parenv.policy.snapshots import module_of
from parenv.pool.pool import AsyncWorkerPool
from parenv.worker.actor import Actor, check_actions

BATCHES = (1, 8, 64, 256)
MINI_BATCHES = (32, 128, 512, 2048)


def step_cost(environment: Environment) -> Subject:
    """Measure seconds per env step in this process, with random actions and without resets."""

    def open_one() -> Opened:
        env = environment.make()
        env.reset(seed=0)
        actions = [env.action_space.sample() for _ in range(64)]

        def measure(seconds: float) -> float:
            clock, step, spent, steps = time.perf_counter, env.step, 0.0, 0
            began = now = clock()
            deadline = began + seconds
            while True:
                _, _, terminated, truncated, _ = step(actions[steps % 64])
                steps += 1
                if terminated or truncated:
                    spent += clock() - began
                    env.reset()
                    began = now = clock()
                elif steps % 8 == 0 or steps < 8:
                    now = clock()
                if now >= deadline:
                    return (spent + now - began) / steps

        return Opened(measure, env.close)

    return Subject("env step", open_one)


def reset_cost(environment: Environment) -> Subject:
    """Measure seconds per reset in this process."""

    def open_one() -> Opened:
        env = environment.make()
        env.reset(seed=0)
        return Opened(lambda seconds: seconds_each(env.reset, seconds), env.close)

    return Subject("env reset", open_one)


def policy_cost(environment: Environment, policy: Any, batch: int) -> Subject:
    """Measure seconds per batch of observations for the policy, as in a worker with one thread."""

    def open_one() -> Opened:
        act = acting(environment, policy, batch)
        return Opened(one_thread()(lambda seconds: seconds_each(act, seconds)), lambda: None)

    return Subject(f"policy, batch {batch}", open_one)


def publish_cost(environment: Environment, policy: Any, num_workers: int) -> Subject:
    """Measure seconds from ``publish`` until all workers have loaded the weights."""

    def open_one() -> Opened:
        pool = AsyncWorkerPool(environment.make, policy, num_workers=num_workers, num_envs=num_workers, mode="sync")

        def publish() -> None:
            pool.publish(policy)
            pool.synchronize()

        return Opened(lambda seconds: seconds_each(publish, seconds), pool.close)

    return Subject(f"publish to {num_workers} worker{'s' * (num_workers > 1)}", open_one)


def acting(environment: Environment, policy: Any, batch: int) -> Callable[[], None]:
    """Return a function that acts once on a batch of random observations, as a worker does.

    Raises:
        ConfigurationError: The policy raises, or does not fit the environment.
    """
    space, of = environment.observation_space, leaves(environment.action_space)
    with refused(f"the agent cannot act on {batch} observations of {space}", but=ConfigurationError):
        actor = Actor(on_device(policy, "cpu"), leaves(space), of, "cpu")
        rows, carry = random_rows(space, batch), actor.initial_carry(batch)
        check_actions(of, environment.action_space, actor.actions.fitted(actor.act(rows, carry)[0], batch), batch)

    def act() -> None:
        nonlocal carry
        actions, extras, carry = actor.act(rows, carry)
        for values in (*actions, *extras.values()):
            as_array(values)

    return act


def random_rows(space: Space[Any], batch: int) -> list[Any]:
    """Return random observations by leaf: arrays ``[batch, ...]``, or lists if they have no fixed size."""
    space.seed(0)
    return stacked(leaves(space), [space.sample() for _ in range(batch)])


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Give torch one thread inside the block, as in a worker."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def learning_costs(
    environment: Environment, policy: Any, devices: Sequence[str], seconds: float, watch: Callable[[str], object]
) -> Mapping[str, Mapping[int, float]]:
    """Measure forward and backward, with the copy to the device.

    The loss is not known here. The gradient is that of the sum of all outputs of the module's layers.

    Args:
        environment: Environment whose observations are learned from.
        policy: Policy as :class:`~parenv.AsyncWorkerPool` takes it.
        devices: Devices of the module.
        seconds: Approximate duration of all measurements, in seconds.
        watch: Function that is called with the reason if a device cannot be measured.

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
            watch(f"learning on {device} is not measured: {error_line(error)}")
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
