"""One rule for how values must fit their space, for observations and actions, in pools and vector envs.

Shape and kind (boolean, integer, float) must be the ones of the space. A value of the same kind in another dtype is
cast, with one warning for all values of that leaf. With ``strict_dtype`` it is an error. A vector env passes actions to
its environments without a cast, as Gymnasium does, and warns the same way. Such actions may be whole floats for a space
of integers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from parenv.errors import ObservationError
from parenv.memory.spaces import Leaf
from parenv.options import WorkerOptions


class Fit:
    """The checks that the user chose, and the warnings shown so far.

    Args:
        strict: Whether another dtype of the same kind is an error.
        finite: Whether numbers must be finite.
        warn: Function that is called once for each leaf whose values are cast.

    Attributes:
        any_kind: Whether values of every dtype fit, unless ``strict``.
    """

    def __init__(
        self, strict: bool = False, finite: bool = False, warn: Callable[[str], object] = warnings.warn
    ) -> None:
        self.strict, self.finite, self.any_kind = strict, finite, False
        self._warn = warn
        self._warned: set[object] = set()

    @classmethod
    def of(cls, options: WorkerOptions, warn: Callable[[str], object]) -> Fit:
        """Make one from the options."""
        return cls(options.strict_dtype, options.check_finite, warn)

    def observation(self, leaf: Leaf, value: Any) -> Any:
        """Convert one value of an observation to an array that can be written into a row of its leaf.

        Numpy scalars, Python numbers, lists of them and integers of another width need no warning.

        Raises:
            ObservationError: The value does not fit, or is not finite although it must be.
        """
        expected = np.dtype(leaf.dtype)
        why = ""
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ObservationError(f"the observation{leaf.name} must be an array, got {value!r}: {error}") from error
        if array.shape == leaf.shape:
            is_plain = leaf.integral or not isinstance(value, np.ndarray | np.generic)
            problem = None if is_plain and _survives(array, expected) else self.problem("observation", leaf, array)
            if problem is None:
                self.check_finite(leaf, array)
                return array
            why = f" ({problem})"
        raise ObservationError(
            f"the observation{leaf.name} must have shape {leaf.shape} and dtype {expected} like its space, got "
            f"{array.shape} and {array.dtype}{why}. Convert it in the environment, or correct the observation space."
        )

    def check_finite(self, leaf: Leaf, value: Any) -> None:
        """Check one value of an observation, if ``finite`` is set.

        Raises:
            ObservationError: The value is not finite.
        """
        if self.finite and not_finite(value):
            raise ObservationError(f"the observation{leaf.name} must be finite, got {shown(value)}")

    def problem(self, what: str, leaf: Leaf, array: Any, as_is: bool = False) -> str | None:
        """Return why an array of another dtype than its leaf does not fit; ``None``, after a warning, if it fits.

        Args:
            what: ``"observation"`` or ``"action"``.
            leaf: Leaf of the space.
            array: Array with the right shape.
            as_is: Whether the array is used without a cast. Whole floats then fit a leaf of integers.
        """
        wanted: np.dtype[Any] = np.dtype(leaf.dtype)
        if array.dtype == wanted or (self.any_kind and not self.strict):
            return None
        if not of_one_kind(array.dtype, wanted) and not (as_is and _is_whole(array, wanted)):
            return f"{array.dtype} cannot be cast to {wanted}"
        if wanted.kind in "iu" and array.dtype.kind in "iu" and not np.array_equal(array.astype(wanted), array):
            return f"its values do not fit into {wanted}"
        if self.strict:
            return f"it is {array.dtype} and not {wanted}, and strict_dtype=True forbids the cast"
        cast = "" if as_is else ", and they are cast"
        self.warn_once(
            (what, leaf),
            f"the {what}s{leaf.name} should have dtype {wanted} like their space, got {array.dtype}{cast}. Convert "
            "them, or correct the space. WorkerOptions(strict_dtype=True) makes this an error.",
        )
        return None

    def warn_once(self, about: object, text: str) -> None:
        """Warn the user, once for each object in ``about``."""
        if about not in self._warned:
            self._warned.add(about)
            self._warn(text)


def of_one_kind(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Tell whether a dtype may be cast to another: not from floats to integers, nor from numbers to booleans.

    >>> of_one_kind(np.dtype("f8"), np.dtype("f4")), of_one_kind(np.dtype("f4"), np.dtype("i8"))
    (True, False)
    """
    return np.can_cast(given, wanted, "same_kind") or (given.kind in "iu" and wanted.kind in "iu")


def not_finite(values: Any) -> bool:
    """Tell whether an array contains NaN or infinity."""
    array = np.asarray(values)
    return array.dtype.kind == "f" and not np.isfinite(array).all()


def shown(value: Any) -> str:
    """Shorten the text of a value for a message."""
    text = repr(value)
    return text if len(text) < 200 else text[:200] + "..."


def _is_whole(array: Any, wanted: np.dtype[Any]) -> bool:
    """Tell whether floats are integers or booleans, as the actions of SB3's policy for MultiBinary are."""
    with np.errstate(invalid="ignore"):  # NaN equals no integer.
        return array.dtype.kind == "f" and wanted.kind in "iub" and np.array_equal(array.astype(wanted), array)


def _survives(array: Any, expected: Any) -> bool:
    """Tell whether a cast within a kind, or from integers to floats, keeps the values."""
    if expected.kind == "f":
        return array.dtype.kind in "iuf"
    kinds = {"i": "iub", "u": "iub", "b": "b"}.get(expected.kind, "")
    return array.dtype.kind in kinds and np.array_equal(array.astype(expected), array)
