"""Convert arguments of a vector env's methods to one value for each sub-environment, by Gymnasium's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import batch_space, iterate


def each_seed(seed: Any, num_envs: int) -> list[int | None]:
    """Convert ``None``, a first seed or a list to one seed for each sub-environment.

    Raises:
        ValueError: A list has another length.

    >>> each_seed(7, 3), each_seed(None, 2)
    ([7, 8, 9], [None, None])
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + i for i in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={num_envs} but got length={len(seed)}."
        )
    return [None if one is None else int(one) for one in seed]


def each_value(values: Any, num_envs: int) -> list[Any]:
    """Convert one value for all, or a list or tuple, to one value for each sub-environment.

    Raises:
        ValueError: A list has another length.
    """
    if not isinstance(values, list | tuple):
        return [values] * num_envs
    if len(values) != num_envs:
        raise ValueError(
            "Values must be a list or tuple with length equal to the number of environments. "
            f"Got `{len(values)}` values for {num_envs} environments."
        )
    return list(values)


def each_action(space: Space[Any], actions: Any, n: int) -> list[Any]:
    """Split a batch of actions as Gymnasium does.

    Args:
        space: Space of one action.
        actions: Batch of actions.
        n: Number of sub-environments.

    Raises:
        ValueError: The batch has another number of actions.
    """
    each = list(iterate(batch_space(space, n), actions))
    if len(each) != n:
        raise ValueError(f"actions must have one for each of {n} sub-environments, got {len(each)}")
    return each


def as_env_ids(env_ids: Any, num_envs: int) -> Any:
    """Convert env_ids to an array, int64 ``[n]``.

    Args:
        env_ids: One integer or several; ``None`` for all.
        num_envs: Number of sub-environments.

    Raises:
        ValueError: There are no env_ids, or two are equal, or one is out of range.
    """
    ids = np.arange(num_envs) if env_ids is None else np.asarray(env_ids).reshape(-1)
    each = ids.tolist()
    if ids.dtype.kind not in "iu" or not each or min(each) < 0 or max(each) >= num_envs or len(set(each)) < len(each):
        raise ValueError(f"env_ids must be one or more different integers from 0 to {num_envs - 1}, got {each}")
    return ids.astype(np.int64, copy=False)


def without_mask(options: Any, num_envs: int) -> tuple[Sequence[int], Any]:
    """Take ``reset_mask`` out of a copy of the options.

    Returns:
        env_ids to reset, and the other options.

    Raises:
        TypeError, ValueError: The options are neither a mapping nor a list with one for each sub-environment, or the
            mask does not follow Gymnasium's rules.
    """
    if options is None or (isinstance(options, Mapping) and "reset_mask" not in options):
        return range(num_envs), options
    if not isinstance(options, Mapping):
        if not isinstance(options, list | tuple):
            raise TypeError(
                f"options must be a dict for all sub-environments, or a list with one for each, got {type(options)}"
            )
        if len(options) != num_envs:
            raise ValueError(f"options must have one for each of {num_envs} sub-environments, got {len(options)}")
        return range(num_envs), list(options)
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ValueError(f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}"
        )
    return np.flatnonzero(mask).tolist(), {key: value for key, value in options.items() if key != "reset_mask"}
