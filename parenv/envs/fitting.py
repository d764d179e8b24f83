"""How values must fit their space: one rule for observations and actions, in pools and vector envs.

Shape and kind (boolean, integer, float) must be those of the space. A value of the same kind in another dtype is cast,
with one warning for all values of that leaf, or is an error with ``strict_dtype``. Only the actions that a vector env
is given reach its environments as they are, as with Gymnasium's, with the same warning; floats may be integers then.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from parenv.memory.spaces import Leaf
from parenv.options import WorkerOptions


class Fit:
    """What a user wants to hold of values, and what was said of them before.

    Args:
        strict: whether another dtype of the same kind is an error.
        finite: whether numbers must be finite.
        warn: told once for each leaf that its values are cast.

    Attributes:
        any_kind: whether values of every dtype fit, unless ``strict``.
    """

    def __init__(
        self, strict: bool = False, finite: bool = False, warn: Callable[[str], object] = warnings.warn
    ) -> None:
        self.strict, self.finite, self.any_kind = strict, finite, False
        self._warn = warn
        self._warned: set[object] = set()

    @classmethod
    def of(cls, options: WorkerOptions, warn: Callable[[str], object]) -> Fit:
        """What the options say."""
        return cls(options.strict_dtype, options.check_finite, warn)

    def problem(self, what: str, leaf: Leaf, array: Any, as_is: bool = False) -> str | None:
        """Why an array of another dtype than the leaf's does not fit, if it does not; else the user is warned.

        Args:
            what: ``"observation"`` or ``"action"``.
            leaf: of the space.
            array: of the right shape.
            as_is: whether it stays as it is, and is not cast; whole floats fit then where integers belong.
        """
        wanted: np.dtype[Any] = np.dtype(leaf.dtype)
        if array.dtype == wanted or (self.any_kind and not self.strict):
            return None
        if not of_one_kind(array.dtype, wanted) and not (as_is and _is_whole(array, wanted)):
            return f"{array.dtype} is not of the kind of {wanted}"
        if wanted.kind in "iu" and array.dtype.kind in "iu" and not np.array_equal(array.astype(wanted), array):
            return f"its values do not fit into {wanted}"
        if self.strict:
            return f"it is {array.dtype} and not {wanted}, and strict_dtype=True forbids to cast it"
        becomes = "not" if as_is else "are cast to"
        self.warn_once(
            (what, leaf),
            f"the {what}s{leaf.name} are {array.dtype} and {becomes} the {wanted} of their space: give them that "
            "dtype, or correct the space; WorkerOptions(strict_dtype=True) makes it an error",
        )
        return None

    def warn_once(self, about: object, text: str) -> None:
        """Warn the user, unless that was done about the same thing before."""
        if about not in self._warned:
            self._warned.add(about)
            self._warn(text)


def of_one_kind(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether values of one dtype may be cast to another: not from floats to integers, nor from numbers to booleans.

    >>> of_one_kind(np.dtype("f8"), np.dtype("f4")), of_one_kind(np.dtype("f4"), np.dtype("i8"))
    (True, False)
    """
    return np.can_cast(given, wanted, "same_kind") or (given.kind in "iu" and wanted.kind in "iu")


def _is_whole(array: Any, wanted: np.dtype[Any]) -> bool:
    """Whether floats are integers or booleans, as those of SB3's policy for MultiBinary are."""
    with np.errstate(invalid="ignore"):  # NaN equals no integer.
        return array.dtype.kind == "f" and wanted.kind in "iub" and np.array_equal(array.astype(wanted), array)


def not_finite(values: Any) -> bool:
    """Whether there is NaN or infinity in an array."""
    array = np.asarray(values)
    return array.dtype.kind == "f" and not np.isfinite(array).all()
