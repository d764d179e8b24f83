"""Selection of the test cases that run on every commit."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def one_in(count: int, *axes: Iterable[Any], first: int = 0) -> list[Any]:
    """Return all combinations of values as parameters, and mark all but one in ``count`` as ``soak``.

    Of two axes, the unmarked cases are arranged like the fields of one colour on a chessboard. Every value of an axis
    therefore has an unmarked case, unless the other axis has too few values.

    Args:
        count: Distance between unmarked cases along an axis.
        *axes: Values of each parameter. A tuple has values of several parameters.
        first: Sum of the indices of the first unmarked case.
    """
    return [
        pytest.param(
            *itertools.chain.from_iterable(value if isinstance(value, tuple) else (value,) for _, value in case),
            marks=pytest.mark.soak if (sum(index for index, _ in case) - first) % count else (),
        )
        for case in itertools.product(*map(enumerate, axes))
    ]
