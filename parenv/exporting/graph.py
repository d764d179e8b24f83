"""A policy as a module of tensors in, tensors out: what is exported."""

from __future__ import annotations

import copy
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
from parenv.policy.distributions import unchecked_distributions
from parenv.policy.policy import Action, Policy, apply_settings, as_policy, infos_needed
from parenv.policy.snapshots import module_of
from parenv.worker.acting import carry_of, rows_as_leaves

BATCH = 3
"""Of the example: sizes 0 and 1 torch takes for constants."""
_NO_INFOS = {"action", "actions"}
"""With which a learner asks how likely actions are."""


class Graph(NamedTuple):
    """What is exported.

    Args:
        module: called with a tensor per input; returns a tensor per output.
        example: such tensors.
        inputs: their names.
        outputs: likewise.
        observations: leaves of the observation space.
        actions: leaves of the actions.
        carry: leaves of the carry.
        initial_carry: an array per leaf of the carry, of one sub-environment.
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
        """Observations of a rollout, step by step, as many as that or as there are."""
        steps = [as_array(values) for values in flatten(self.observations, rollout.observations)]
        length, batch = steps[0].shape[:2]
        wanted = [(batch if self.carry else min(batch, count), *leaf.shape) for leaf in self.observations]
        rows = [[np.ascontiguousarray(values[t, : wanted[0][0]]) for values in steps] for t in range(length)]
        for values, shape in zip(rows[0], wanted, strict=True):
            if values.shape != shape:
                raise ConfigurationError(f"the rollout has observations {values.shape[1:]}, not {shape[1:]}")
        return rows[: -(-count // wanted[0][0])]

    def clipped(self, observations: Sequence[Any], far: float) -> list[Any]:
        """Observations of the space as arrays ``[B, ...]``, one per leaf, numbers no farther from 0 than that."""
        rows = stacked(self.observations, observations)
        return [np.clip(values, -far, far) if values.dtype.kind == "f" else values for values in rows]


def run_on_arrays(module: Any, values: Sequence[Any]) -> list[Any]:
    """What a module of tensors returns for arrays, as arrays."""
    import torch

    with torch.inference_mode():
        return [as_array(value) for value in module(*map(torch.from_numpy, values))]


def graph_of(given: Any, observation_space: Space[Any]) -> Graph:
    """A copy of a policy as a graph.

    Raises:
        ConfigurationError: it is no policy that can be exported; the message says why.
    """
    of = leaves(observation_space)
    if any(leaf.dtype is None for leaf in of):
        raise ConfigurationError(
            f"{observation_space} has parts without a fixed size, which no graph can take: pad them to arrays in the "
            "environment"
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
            "export needs a policy with a torch module: an nn.Module, a TorchPolicy, or a Policy with a module "
            f"attribute; got {given!r}"
        )
    policy = copy.deepcopy(as_policy(given))
    if not policy.takes_tensors:
        raise ConfigurationError(
            f"{type(policy).__name__}.act takes numpy arrays, which no graph can follow: set takes_tensors = True and "
            "compute with tensors"
        )
    # A parameter with a default keeps it in the file. Without its mask a policy would take forbidden actions, though.
    if infos := (infos_needed(policy) | (policy.infos_taken() & {"action_mask"})) - _NO_INFOS:
        raise ConfigurationError(
            f"the policy acts on infos ({', '.join(sorted(infos))}), which are not among the inputs of an exported "
            "one: have the environment put them into its observations"
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
            f"torch has no tensors of dtype {leaf.dtype}, as observations{leaf.name} are: cast them in the environment"
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
    """An exported policy that drew its actions could not be compared, and would draw the same ones in every run."""
    for one, other in zip(flatten(of, first), flatten(of, again), strict=True):
        if not np.array_equal(as_array(one), as_array(other), equal_nan=True):
            raise ConfigurationError(
                "the policy draws its actions also where settings['deterministic'] is true, which cannot be exported: "
                'give TorchPolicy(..., deterministic_method="..."), or heed that setting in Policy.act'
            )
