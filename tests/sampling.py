"""Which of many like cases run on every commit."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def one_in(count: int, *axes: Iterable[Any], first: int = 0) -> list[Any]:
    """All combinations, as parameters; all but every so many are soaked.

    Two axes are coloured like a chessboard. So every value of an axis is among those that are not soaked, unless there
    are too few of the others.

    Args:
        count: one in how many.
        *axes: values of the parameters; a tuple is a value of several.
        first: sum of the indices of the first that is not soaked.
    """
    return [
        pytest.param(
            *itertools.chain.from_iterable(value if isinstance(value, tuple) else (value,) for _, value in case),
            marks=pytest.mark.soak if (sum(index for index, _ in case) - first) % count else (),
        )
        for case in itertools.product(*map(enumerate, axes))
    ]
