"""Which of many like cases run on every commit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(count: int, cases: Iterable[Any], first: int = 0) -> list[Any]:
    """Every so many of the cases, as parameters; the others are soaked.

    Args:
        count: one in how many.
        cases: a tuple is several parameters.
        first: index of the first that is not soaked.
    """
    return [
        pytest.param(
            *case if isinstance(case, tuple) else (case,), marks=pytest.mark.soak if (i - first) % count else ()
        )
        for i, case in enumerate(cases)
    ]
