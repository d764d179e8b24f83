"""Comparison of values that must be bitwise identical, with equal types, dtypes, shapes and nesting."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_same(got: Any, wanted: Any, ignored: tuple[str, ...] = (), where: str = "") -> None:
    """Fail if two values differ, except in the ignored entries of dicts."""
    assert type(got) is type(wanted), f"{where}: {got!r} is a {type(got)}, not {wanted!r}, a {type(wanted)}"
    if isinstance(wanted, dict):
        assert list(got) == list(wanted), f"{where}: keys {list(got)}, not {list(wanted)}"
        for key in wanted:
            if key not in ignored:
                assert_same(got[key], wanted[key], ignored, f"{where}[{key!r}]")
    elif isinstance(wanted, list | tuple):
        assert len(got) == len(wanted), f"{where}: {got!r}, not {wanted!r}"
        for i, (one, other) in enumerate(zip(got, wanted, strict=True)):
            assert_same(one, other, ignored, f"{where}[{i}]")
    elif isinstance(wanted, np.ndarray | np.generic):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), f"{where}: {got!r}, not {wanted!r}"
        if wanted.dtype == object:
            assert_same(got.tolist(), wanted.tolist(), ignored, where)
        else:
            assert got.tobytes() == wanted.tobytes(), f"{where}: {got!r}, not {wanted!r}"
    else:
        assert repr(got) == repr(wanted), f"{where}: {got!r}, not {wanted!r}"
