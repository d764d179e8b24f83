"""Advantages and return targets over time-major blocks ``[T, B]``.

All functions take and return arrays of one shape, ``[T, B]`` (or ``[T]``), dtype float32 or float64. If an argument is
a tensor, the results are tensors on its device without a gradient. Tensors on the CPU are read without a copy.
``next_values[t]`` is the value of the *true* next observation of step ``t``: the final observation if an episode ended
at ``t``, and the last observation at the edge of the rollout. ``Rollout.next_values`` computes it.

A terminated step does not bootstrap. A truncated step bootstraps from ``next_values``. Both stop the recursion, since
the next step belongs to another episode. If the environment did not return the final observation of a truncated step,
``next_values`` is NaN. :func:`gae` and :func:`vtrace` then use advantage 0 and the value of the step as target; the
other two return NaN. Steps that are not ``valid`` have no effect.

If rows are agents, ``alive``, bool ``[T, B]``, is true while an agent is present
(:class:`~parenv.rollouts.AgentRollout`). Steps that are not ``alive`` have no effect, and all results are zero for
them. A step before such a step counts as truncated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parenv.errors import ConfigurationError
from parenv.memory.trees import as_array

Array = npt.NDArray[Any]
_FLAGS = ("terminated", "truncated", "valid", "alive")
_MAX_LOG_RATIO = 80.0  # exp of more overflows float32; every bound in use is far below


class VTrace(NamedTuple):
    """Result of :func:`vtrace`: value targets ``v_s`` and policy-gradient advantages, both ``[T, B]``.

    >>> no, ones = [False, False], [1.0, 1.0]
    >>> found = vtrace([0.0, 0.0], [0.0, 0.0], ones, [0.5, 0.5], [0.5, 0.5], no, no, gamma=1.0)
    >>> found.targets.tolist(), found.advantages.tolist()
    ([2.5, 1.5], [2.0, 1.0])
    """

    targets: Any
    advantages: Any


def gae(
    rewards: Any,
    values: Any,
    next_values: Any,
    terminated: Any,
    truncated: Any,
    *,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    valid: Any = None,
    alive: Any = None,
) -> tuple[Any, Any]:
    """Estimate generalised advantages (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    Args:
        rewards: Rewards, ``[T, B]``.
        values: Values ``V(o_t)``, ``[T, B]``.
        next_values: Values of the true next observations, ``[T, B]``.
        terminated: Whether each step terminated the episode, bool ``[T, B]``.
        truncated: Whether each step truncated the episode, bool ``[T, B]``.
        gamma: Discount per step. Default: 0.99.
        gae_lambda: Lambda of the exponential average. Default: 0.95.
        valid: ``Rollout.valid``, bool ``[T, B]``. Other steps get advantage 0 and their value as target. Default: all
            steps are valid.
        alive: Whether the agent of the row is present, bool ``[T, B]``. Default: always.

    Returns:
        Advantages and return targets ``advantages + values``, each ``[T, B]``.

    >>> never = [False, False]
    >>> advantages, targets = gae([1.0, 1.0], [0.5, 0.5], [0.5, 9.0], [False, True], never, gamma=1, gae_lambda=1)
    >>> targets.tolist()
    [2.0, 1.0]
    """
    (rewards, values, next_values, terminated, truncated), as_given = _steps(
        rewards=rewards,
        values=values,
        next_values=next_values,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        alive=alive,
    )
    continues = ~(terminated | truncated)
    deltas = rewards + gamma * _unless(terminated, next_values) - values
    advantages = _backward_sum(deltas, (gamma * gae_lambda) * continues.astype(deltas.dtype))
    return as_given(advantages), as_given(advantages + values)


def discounted_returns(
    rewards: Any,
    next_values: Any,
    terminated: Any,
    truncated: Any,
    *,
    gamma: float = 0.99,
    valid: Any = None,
    alive: Any = None,
) -> Any:
    """Sum discounted rewards until the episode or the rollout ends, then bootstrap (Sutton and Barto, eq. 3.8).

    Args:
        rewards: Rewards, ``[T, B]``.
        next_values: Values of the true next observations, ``[T, B]``. Zeros give a pure Monte-Carlo return.
        terminated: Whether each step terminated the episode, bool ``[T, B]``.
        truncated: Whether each step truncated the episode, bool ``[T, B]``.
        gamma: Discount per step. Default: 0.99.
        valid: ``Rollout.valid``, bool ``[T, B]``. The return of other steps is 0. Default: all steps are valid.
        alive: Whether the agent of the row is present, bool ``[T, B]``. Default: always.

    Returns:
        Returns, ``[T, B]``.

    >>> never = [False, False, False]
    >>> discounted_returns([1.0, 1.0, 1.0], [0.0, 0.0, 8.0], never, never, gamma=0.5).tolist()
    [2.75, 3.5, 5.0]
    """
    (rewards, next_values, terminated, truncated), as_given = _steps(
        rewards=rewards, next_values=next_values, terminated=terminated, truncated=truncated, valid=valid, alive=alive
    )
    bootstraps = truncated & ~terminated
    continues = ~(terminated | truncated)
    bootstraps[-1:] |= continues[-1:]
    terms = rewards + gamma * _unless(~bootstraps, next_values)
    return as_given(_backward_sum(terms, gamma * continues.astype(rewards.dtype)))


def n_step_returns(
    rewards: Any,
    next_values: Any,
    terminated: Any,
    truncated: Any,
    *,
    n: int,
    gamma: float = 0.99,
    valid: Any = None,
    alive: Any = None,
) -> Any:
    """Compute n-step return targets (Sutton and Barto, *Reinforcement Learning*, 2nd ed., eq. 7.1).

    The sum has at most ``n`` rewards, and fewer if the episode or the rollout ends before. It bootstraps from the value
    of the true next observation of its last step.

    Args:
        rewards: Rewards, ``[T, B]``.
        next_values: Values of the true next observations, ``[T, B]``.
        terminated: Whether each step terminated the episode, bool ``[T, B]``.
        truncated: Whether each step truncated the episode, bool ``[T, B]``.
        n: Maximum number of rewards in a target, at least 1.
        gamma: Discount per step. Default: 0.99.
        valid: ``Rollout.valid``, bool ``[T, B]``. The target of other steps is 0. Default: all steps are valid.
        alive: Whether the agent of the row is present, bool ``[T, B]``. Default: always.

    Returns:
        Targets ``[T, B]``.

    >>> never = [False, False, False]
    >>> n_step_returns([1.0, 1.0, 1.0], [4.0, 4.0, 4.0], never, never, n=2, gamma=0.5).tolist()
    [2.5, 2.5, 3.0]
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    (rewards, next_values, terminated, truncated), as_given = _steps(
        rewards=rewards, next_values=next_values, terminated=terminated, truncated=truncated, valid=valid, alive=alive
    )
    ended = terminated | truncated
    one_step = rewards + gamma * _unless(terminated, next_values)
    targets: Array = one_step.copy()
    for _ in range(min(n, len(rewards)) - 1):
        longer = rewards[:-1] + gamma * targets[1:]
        targets[:-1] = np.where(ended[:-1], one_step[:-1], longer)
    return as_given(targets)


def vtrace(
    behaviour_log_prob: Any,
    target_log_prob: Any,
    rewards: Any,
    values: Any,
    next_values: Any,
    terminated: Any,
    truncated: Any,
    *,
    gamma: float = 0.99,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    trace_lambda: float = 1.0,
    valid: Any = None,
    alive: Any = None,
) -> VTrace:
    """Compute V-trace targets for rollouts by an older policy (Espeholt et al. 2018, arXiv:1802.01561, eq. 1).

    Args:
        behaviour_log_prob: Log-probabilities of the actions under the policy that acted, ``[T, B]``.
        target_log_prob: Log-probabilities of the actions under the policy that learns, ``[T, B]``.
        rewards: Rewards, ``[T, B]``.
        values: Values ``V(o_t)`` under the policy that learns, ``[T, B]``.
        next_values: Values of the true next observations, ``[T, B]``.
        terminated: Whether each step terminated the episode, bool ``[T, B]``.
        truncated: Whether each step truncated the episode, bool ``[T, B]``.
        gamma: Discount per step. Default: 0.99.
        rho_bar: Upper bound of the importance weights in the temporal differences. Default: 1.
        c_bar: Upper bound of the importance weights in the trace. Default: 1.
        trace_lambda: Lambda of the trace (remark 2). Default: 1, which gives the n-step Bellman target on policy.
        valid: ``Rollout.valid``, bool ``[T, B]``. Other steps get advantage 0 and their value as target. Default: all.
        alive: Whether the agent of the row is present, bool ``[T, B]``. Default: always.

    Returns:
        Value targets and policy-gradient advantages ``rho_t (r_t + gamma v_{t+1} - V(o_t))``.

    >>> never, zeros = [False, False], [0.0, 0.0]
    >>> vtrace([-0.5, -0.5], [-0.5, -0.5], [1.0, 1.0], zeros, zeros, never, never, gamma=1.0).targets.tolist()
    [2.0, 1.0]
    """
    (rewards, values, next_values, terminated, truncated, behaviour, target), as_given = _steps(
        rewards=rewards,
        values=values,
        next_values=next_values,
        terminated=terminated,
        truncated=truncated,
        behaviour_log_prob=behaviour_log_prob,
        target_log_prob=target_log_prob,
        valid=valid,
        alive=alive,
    )
    ratio = np.exp(np.minimum(target - behaviour, _MAX_LOG_RATIO))
    rho, trace = np.minimum(rho_bar, ratio), trace_lambda * np.minimum(c_bar, ratio)
    deltas = rho * (rewards + gamma * _unless(terminated, next_values) - values)
    targets: Array = values + _backward_sum(deltas, gamma * trace * ~(ended := terminated | truncated))
    next_targets = np.array(next_values)
    next_targets[:-1] = np.where(ended[:-1], next_values[:-1], targets[1:])
    advantages = rho * (rewards + gamma * _unless(terminated, next_targets) - values)
    return VTrace(as_given(targets), as_given(advantages))


def _steps(**given: Any) -> tuple[list[Any], Callable[[Array], Any]]:
    """Convert arguments as :func:`_blocks` does, and make steps without effect ends without reward.

    Returns:
        All arguments but ``valid`` and ``alive``, in their order, and a function that makes a tensor of a result.
    """
    blocks, as_given = _blocks(**{name: block for name, block in given.items() if block is not None})
    valid, alive = blocks.pop("valid", np.True_), blocks.pop("alive", np.True_)
    there = np.broadcast_to(valid & alive, blocks["rewards"].shape)
    truncated = blocks["truncated"] = blocks["truncated"].copy()
    truncated[:-1] |= there[:-1] & ~there[1:]
    nothing = np.zeros_like(blocks["rewards"])
    if "values" in blocks:
        nothing = blocks["values"] = _unless(~alive, blocks["values"])
        there = there & ~(truncated & ~blocks["terminated"] & np.isnan(blocks["next_values"]))
    blocks["rewards"] = np.where(there, blocks["rewards"], nothing)
    blocks["terminated"] = blocks["terminated"] | ~there
    return list(blocks.values()), as_given


def _backward_sum(terms: Array, decay: Array) -> Array:
    """``s_t = terms_t + decay_t * s_{t+1}`` with zero after the last step."""
    sums = np.empty_like(terms)
    later: Array = np.zeros_like(terms[:1])[0] if len(terms) else terms
    for t in range(len(terms) - 1, -1, -1):
        later = terms[t] + decay[t] * later
        sums[t] = later
    return sums


def _unless(nothing: Array, values: Array) -> Array:
    """Return the values, and zero in place of the values after a last step, even for NaN."""
    return np.where(nothing, values.dtype.type(0), values)


def _blocks(**given: Any) -> tuple[dict[str, Any], Callable[[Array], Any]]:
    """Convert arguments to arrays by name, and check that they have the same shape.

    Returns:
        Flags as booleans and all others in the highest precision of them, and a function that makes a tensor of a
        result if an argument is a tensor.

    Raises:
        ConfigurationError: Shapes differ. Numpy would broadcast them to another shape.
    """
    tensor = next((block for block in given.values() if hasattr(block, "detach")), None)
    arrays = {name: as_array(block) for name, block in given.items()}
    wanted = arrays["rewards"].shape
    for name, array in arrays.items():
        if array.shape != wanted:
            raise ConfigurationError(_wrong_shape(name, array.shape, wanted))
    dtype = np.result_type(np.float32, *(array for name, array in arrays.items() if name not in _FLAGS))

    def as_given(result: Array) -> Any:
        if tensor is None:
            return result
        import torch

        return torch.as_tensor(result, device=tensor.device)

    return {n: array.astype(bool if n in _FLAGS else dtype, copy=False) for n, array in arrays.items()}, as_given


def _wrong_shape(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    advice = "Pass all arrays as [T, B], or all as [T]"
    for longer, its_shape, other in ((name, shape, wanted), ("rewards", wanted, shape)):
        if its_shape == (*other, 1):
            advice = f"Pass {longer}.squeeze(-1)"
    return f"{name} must have the shape of rewards, {wanted}, got {shape}. {advice}."
