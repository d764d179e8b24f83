"""Final observations of the episodes in a ``VectorEnv``, in every form in which environments return them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parenv.envs.autoreset import Autoreset
from parenv.envs.fitting import Fit
from parenv.envs.targets import Target
from parenv.envs.values import row_writer
from parenv.errors import ConfigurationError
from parenv.memory.spaces import Leaf, flatten, unflatten
from parenv.memory.trees import as_array, deep_copy

FINAL_NAMES = ("final_obs", "final_observation")
"""Names in infos: Gymnasium's, and the former one that some libraries still use."""


class FinalObservations:
    """Finds the final observations of a ``VectorEnv`` and writes them.

    Args:
        env: The environment.
        autoreset: Declared autoreset mode.
        leaves: Leaves of the observation space.
        fit: Checks of observations.

    Attributes:
        first_time: Whether no episode has ended yet.
    """

    def __init__(self, env: Any, autoreset: Autoreset, leaves: Sequence[Leaf], fit: Fit) -> None:
        self._env, self._autoreset, self._leaves, self._fit = env, autoreset, leaves, fit
        self._write_one = row_writer(leaves, fit)
        self.first_time = True

    def write(self, target: Target, columns: Any, observations: Any, infos: Any) -> Any:
        """Write the final observations of a step, unless the next row is going to contain them.

        Args:
            target: Object to write to.
            columns: Columns of the ends, int64 ``[K]``.
            observations: Observations that the step returned.
            infos: Infos that the step returned.

        Returns:
            Whether each final observation is known, bool ``[K]``, or one bool for all.

        Raises:
            ConfigurationError: The environment does not follow its mode.
        """
        if self._autoreset.spends_step:
            if self.first_time:
                self._check_is_not_reset(columns, observations, infos)
            return True
        if not self._autoreset.resets_in_step:
            self._write(target, columns, observations, np.ones(len(columns), bool))
            return True
        given, there = given_finals(infos)
        if given is None:
            known = np.zeros(len(columns), bool)
        elif is_one_by_one(given):
            known = np.array([given[column] is not None for column in columns.tolist()])
        else:
            known = np.ones(len(columns), bool) if there is None else as_array(there)[columns].astype(bool)
        self._write(target, columns, given, known)
        if not known.all():
            self._fit.warn_once("final observations", _unknown(self._env))
        return known

    def _write(self, target: Target, columns: Any, given: Any, known: Any) -> None:
        begin = target.num_ends
        if known.any() and (self._fit.finite or is_one_by_one(given)):
            for i, column in enumerate(columns.tolist()):
                if known[i]:
                    self._write_one(target.finals, begin + i, final_of(self._leaves, given, None, column))
                else:
                    _write_nothing(self._leaves, target, slice(begin + i, begin + i + 1))
            return
        rows = slice(begin, begin + len(columns))
        if not known.all():
            _write_nothing(self._leaves, target, rows)
        if not known.any():
            return
        for finals, leaf, values in zip(target.finals, self._leaves, flatten(self._leaves, given), strict=True):
            if leaf.dtype is None:
                found = zip(columns.tolist(), known.tolist(), strict=True)
                finals[rows] = [deep_copy(values[column]) if is_known else None for column, is_known in found]
            else:
                among = columns[known]
                chosen = values[among] if hasattr(values, "detach") else as_array(values)[among]
                finals[rows][known] = as_array(chosen)

    def _check_is_not_reset(self, columns: Any, observations: Any, infos: Any) -> None:
        """Check that the environment does not return another final observation, as in ``SAME_STEP`` mode."""
        self.first_time = False
        given, there = given_finals(infos)
        if given is None:
            return
        for column in columns.tolist():
            final = final_of(self._leaves, given, there, column)
            if final is not None and not _are_equal(self._leaves, final, _row(self._leaves, observations, column)):
                raise ConfigurationError(
                    f"{self._env} declares the autoreset mode NEXT_STEP, but its last step of an episode returned the "
                    "first observation of the next episode, as in SAME_STEP. Correct "
                    'metadata["autoreset_mode"].'
                )


def is_one_by_one(given: Any) -> bool:
    """Tell whether final observations are one object for each sub-environment, and not a batch."""
    return isinstance(given, list) or (isinstance(given, np.ndarray) and given.dtype == object)


def given_finals(infos: Any) -> tuple[Any, Any]:
    """Return the final observations in infos, and their presence mask."""
    name = next((name for name in FINAL_NAMES if infos.get(name) is not None), None)
    return (None, None) if name is None else (infos[name], infos.get(f"_{name}"))


def final_of(leaves: Sequence[Leaf], given: Any, there: Any, column: int) -> Any:
    """Return the final observation of one column; ``None`` if the mask or the list has none."""
    if is_one_by_one(given):
        return given[column]
    return _row(leaves, given, column) if there is None or as_array(there)[column] else None


def _row(leaves: Sequence[Leaf], batch: Any, column: int) -> Any:
    parts = flatten(leaves, batch)
    return unflatten(leaves, [(part if isinstance(part, list | tuple) else as_array(part))[column] for part in parts])


def _are_equal(leaves: Sequence[Leaf], one: Any, other: Any) -> bool:
    pairs = zip(flatten(leaves, one), flatten(leaves, other), strict=True)
    return all(np.array_equal(as_array(first), as_array(second)) for first, second in pairs)


def _write_nothing(leaves: Sequence[Leaf], target: Target, rows: slice) -> None:
    for finals, leaf in zip(target.finals, leaves, strict=True):
        if leaf.dtype is None:
            finals[rows] = [None] * (rows.stop - rows.start)
        else:
            finals[rows] = np.nan if np.dtype(leaf.dtype).kind == "f" else 0


def _unknown(env: Any) -> str:
    return (
        f"{env} resets in the last step of an episode and does not return the final observation: its infos have no "
        '"final_obs". Rollout.next_known is False at these steps, next_observations() is NaN (0 for integers), and '
        "truncated episodes are not bootstrapped there."
    )
