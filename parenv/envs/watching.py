"""Watching what sub-environments of a vector env observe, for as long as that may bring something new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parenv.envs.fitting import Fit, not_finite
from parenv.envs.values import checked
from parenv.errors import ObservationError
from parenv.memory.spaces import Leaf, flatten


class ObservationWatch:
    """Checks the first observations of each sub-environment, of a reset and a step, or all where the user wants it.

    Args:
        of: leaves of the observation space.
        first_env_id: of the first sub-environment.
        count: of sub-environments.
        fit: how observations must fit.

    Attributes:
        on: whether there is anything left to look at.
    """

    def __init__(self, of: Sequence[Leaf], first_env_id: int, count: int, fit: Fit) -> None:
        self._leaves, self._first, self._fit = of, first_env_id, fit
        self._left = np.full(count, 2)
        self._steps = np.zeros(count, np.int64)
        self.on = True

    def count(self, columns: Sequence[int]) -> None:
        """These have taken a step."""
        self._steps[list(columns)] += 1

    def look(self, columns: Sequence[int], observations: Sequence[Any]) -> None:
        """Check what some observe.

        Raises:
            ObservationError: it does not fit the space.
        """
        for column, observation in zip(columns, observations, strict=True):
            for leaf, value in zip(self._leaves, flatten(self._leaves, observation), strict=True):
                if leaf.dtype is not None:
                    self._check(column, leaf, value)
        self._left[list(columns)] -= 1
        self.on = self._fit.strict or self._fit.finite or bool((self._left > 0).any())

    def _check(self, column: int, leaf: Leaf, value: Any) -> None:
        try:
            checked(leaf, value, self._fit)
            if self._fit.finite and not_finite(value):
                raise ObservationError(f"the observation{leaf.name} is not finite: {value!r}")
        except ObservationError as error:
            error.args = (f"in env step {self._steps[column]}: {error.args[0]}",)
            raise
