"""Policies as torch modules from tensors to tensors, which can be exported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from parenv.errors import ConfigurationError
from parenv.experience.rollout import Rollout
from parenv.exporting.onnx_policy import names_of
from parenv.memory.layout import torch_dtype
from parenv.memory.spaces import Leaf, flatten, leaves, stacked, unflatten
from parenv.memory.trees import as_array, leaves_in
from parenv.policy.copies import copied
from parenv.policy.distributions import unchecked_distributions
from parenv.policy.policy import Action, Policy, apply_settings, as_policy, infos_needed
from parenv.policy.snapshots import module_of
from parenv.process.torch_modules import is_script
from parenv.worker.actor import carry_of, rows_as_leaves

BATCH = 3
"""Batch size of the example inputs. torch treats sizes 0 and 1 as constants."""
_NO_INFOS = {"action", "actions"}
"""Names with which a learner passes actions to get their log-probabilities."""


class Graph(NamedTuple):
    """Policy as a torch module, with names and layout of its inputs and outputs.

    Args:
        module: Module that takes a tensor per input and returns a tensor per output.
        example: Example inputs.
        inputs: Names of the inputs.
        outputs: Names of the outputs.
        observations: Leaves of the observation space.
        actions: Leaves of the actions.
        carry: Leaves of the carry.
        initial_carry: Initial carry of one sub-environment, an array per leaf.
    """

    module: Any
    example: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    observations: Sequence[Leaf]
    actions: Sequence[Leaf]
    carry: Sequence[Leaf]
    initial_carry: Sequence[Any]

    def rows_of(self, rollout: Rollout, count: int) -> list[list[Any]]:
        """Return up to ``count`` observations of a rollout, as one array per leaf for each step."""
        steps = [as_array(values) for values in flatten(self.observations, rollout.observations)]
        length, batch = steps[0].shape[:2]
        wanted = [(batch if self.carry else min(batch, count), *leaf.shape) for leaf in self.observations]
        rows = [[np.ascontiguousarray(values[t, : wanted[0][0]]) for values in steps] for t in range(length)]
        for values, shape in zip(rows[0], wanted, strict=True):
            if values.shape != shape:
                raise ConfigurationError(
                    f"observations of the rollout must have shape {shape[1:]}, got {values.shape[1:]}. Pass a rollout "
                    "of the same environment."
                )
        return rows[: -(-count // wanted[0][0])]

    def clipped(self, observations: Sequence[Any], far: float) -> list[Any]:
        """Return observations as arrays ``[B, ...]``, one per leaf, with absolute values of at most ``far``."""
        rows = stacked(self.observations, observations)
        return [np.clip(values, -far, far) if values.dtype.kind == "f" else values for values in rows]


def run_on_arrays(module: Any, values: Sequence[Any]) -> list[Any]:
    """Call a module of tensors with arrays, and return its outputs as arrays."""
    import torch

    with torch.inference_mode():
        return [as_array(value) for value in module(*map(torch.from_numpy, values))]


def graph_of(given: Any, observation_space: Space[Any]) -> Graph:
    """Return a copy of a policy as a graph.

    Raises:
        ConfigurationError: The policy cannot be exported. The message contains the reason.
    """
    of = leaves(observation_space)
    if any(leaf.dtype is None for leaf in of):
        raise ConfigurationError(
            f"observations must have a fixed size to be exported, got {observation_space}. Pad them to arrays in the "
            "environment."
        )
    policy = _policy(given)
    carry = policy.initial_carry(1)
    carry_leaves = carry_of(carry, 1)
    rows = [as_array(value) for value in flatten(carry_leaves, carry)]
    module = _module(policy, of, carry_leaves)
    example = _example(of, rows)
    first = _acted(module, example, observation_space)
    module.actions = actions = rows_as_leaves(leaves_in(first.actions))
    _check_same(actions, first.actions, module.acted(example).actions)
    outputs = (*names_of("actions", actions), *first.extras, *names_of("next_carry", carry_leaves))
    inputs = (*names_of("observations", of), *names_of("carry", carry_leaves))
    return Graph(module, example, inputs, outputs, of, actions, carry_leaves, [row[0] for row in rows])


def _acted(module: Any, example: Sequence[Any], space: Space[Any]) -> Action:
    try:
        return module.acted(example)  # type: ignore[no-any-return]
    except Exception as error:
        raise ConfigurationError(
            f"the policy raised {type(error).__name__} while it acted on {BATCH} observations of {space}: {error}"
        ) from error


def _policy(given: Any) -> Policy:
    if module_of(given) is None:
        raise ConfigurationError(
            "export needs a policy with a torch module (an nn.Module, a TorchPolicy, or a Policy with the attribute "
            f"module), got {given!r}"
        )
    if scripts := [name for name, part in module_of(given).named_modules() if is_script(part)]:
        raise ConfigurationError(
            f"the policy must not contain TorchScript to be exported, got it in {scripts[0] or 'the module itself'!r}. "
            "Pass the module without torch.jit.script() and torch.jit.trace()."
        )
    policy: Policy = copied(as_policy(given))
    if not policy.takes_tensors:
        raise ConfigurationError(
            f"{type(policy).__name__}.act computes with numpy arrays, which cannot be exported. Set takes_tensors = "
            "True, and compute with tensors."
        )
    # The file keeps the default of a parameter. For action_mask, this default would permit forbidden actions.
    if infos := (infos_needed(policy) | (policy.infos_taken() & {"action_mask"})) - _NO_INFOS:
        raise ConfigurationError(
            f"the policy acts on infos ({', '.join(sorted(infos))}), which an exported policy does not receive. Add "
            "them to the environment's observations."
        )
    policy.module.to("cpu").eval()
    apply_settings(policy, {**policy.settings, "deterministic": True})
    return policy


def _example(of: Sequence[Leaf], rows: Sequence[Any]) -> tuple[Any, ...]:
    import torch

    observations = [torch.zeros(BATCH, *leaf.shape, dtype=_dtype(leaf)) for leaf in of]
    return (*observations, *(torch.from_numpy(np.repeat(row, BATCH, 0)) for row in rows))


def _dtype(leaf: Leaf) -> Any:
    try:
        return torch_dtype(leaf.dtype)
    except TypeError as error:
        raise ConfigurationError(
            f"observations{leaf.name} must have a dtype of torch, got {leaf.dtype}. Cast them in the environment."
        ) from error


def _module(policy: Policy, observations: Sequence[Leaf], carry: Sequence[Leaf]) -> Any:
    import torch

    class Exported(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = policy.module  # So that its parameters are found.
            self.actions: Sequence[Leaf] = ()

        def forward(self, *values: Any) -> tuple[Any, ...]:
            actions, extras, following = self.acted(values)
            return (*flatten(self.actions, actions), *extras.values(), *flatten(carry, following))

        def acted(self, values: Sequence[Any]) -> Action:
            count = len(observations)
            before = unflatten(carry, values[count:]) if carry else None
            with unchecked_distributions():
                actions, extras, following = policy.act(unflatten(observations, values[:count]), before)
            return Action(actions, {name: torch.as_tensor(value) for name, value in extras.items()}, following)

    return Exported().eval()


def _check_same(of: Sequence[Leaf], first: Any, again: Any) -> None:
    """Refuse a policy that samples. It cannot be compared, and its file would sample the same actions in each run."""
    for one, other in zip(flatten(of, first), flatten(of, again), strict=True):
        if not np.array_equal(as_array(one), as_array(other), equal_nan=True):
            raise ConfigurationError(
                "the policy must not sample its actions to be exported, but it does with settings['deterministic'] = "
                'True. Use TorchPolicy(..., deterministic_method="..."), or read this setting in Policy.act.'
            )
