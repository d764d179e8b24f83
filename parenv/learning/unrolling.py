"""unroll: run a recurrent network over a rollout again, for the learner's gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from parenv.experience.rollout import Rollout
from parenv.memory.trees import map_trees

if TYPE_CHECKING:
    from torch import Tensor


def unroll(
    step: Callable[[Any, Any], tuple[Any, Any]], rollout: Rollout[Tensor], initial_carry: Any
) -> tuple[Any, Any]:
    """Run a recurrent function over a rollout of tensors, with the carries that it had while it acted.

    Gradients flow through time, up to the beginning of each episode.

    Args:
        step: ``(observations [B, *obs], carry) -> (output, carry)``, such as a module.
        rollout: Rollout of tensors, with the carry that its first row acted with.
        initial_carry: Carry at the beginning of an episode, ``[B, ...]``, such as ``module.initial_carry(B)``.

    Returns:
        Outputs ``[T, B, ...]``, nested as ``step`` returns them, and the carries after each step, ``[T, B, ...]``. For
        values of next observations, call ``step`` with ``rollout.next_observations()`` and these carries.

    >>> import torch
    >>> from parenv import AsyncWorkerPool, TorchPolicy
    >>> class Agent(torch.nn.GRUCell):
    ...     def initial_carry(self, batch):
    ...         return torch.zeros(batch, 2)
    ...     def step(self, observations, carry):
    ...         hidden = self(observations, carry)
    ...         return hidden, hidden
    ...     def act(self, observations, carry):
    ...         hidden = self(observations, carry)
    ...         return hidden.argmax(-1), hidden, hidden
    >>> agent = Agent(4, 2)
    >>> policy = TorchPolicy(agent, "act", ("actions", "hidden", "carry"))
    >>> with AsyncWorkerPool("CartPole-v1", policy, num_workers=0, num_envs=3, rollout_length=32) as pool:
    ...     rollout = next(pool.rollouts()).to("cpu")
    >>> hidden, carries = unroll(agent.step, rollout, agent.initial_carry(3))
    >>> torch.allclose(hidden, rollout.extras["hidden"], atol=1e-6), hidden.requires_grad
    (True, True)
    """
    import torch

    ended, valid = rollout.terminated | rollout.truncated, rollout.valid
    # A row that only resets comes after the end of an episode, and the next episode begins after that row.
    begins = ~valid | (ended & torch.cat([valid[1:], valid[-1:]]))
    carry, outputs, carries = rollout.initial_carry, [], []
    for row, begun in enumerate(begins):
        output, carry = step(map_trees(itemgetter(row), rollout.observations), carry)
        outputs.append(output)
        carries.append(carry)
        carry = map_trees(partial(_where, begun), initial_carry, carry)
    return map_trees(_stacked, *outputs), map_trees(_stacked, *carries)


def _stacked(*rows: Any) -> Any:
    import torch

    return torch.stack(rows)


def _where(begun: Any, initial: Any, values: Any) -> Any:
    """Return values ``[B, ...]``, with initial values in the rows ``[B]`` in which an episode has begun."""
    import torch

    return torch.where(begun.reshape(-1, *(1,) * (values.dim() - 1)), initial, values)
