"""Fixtures of the unit tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def freeze_imported_objects() -> Iterator[None]:
    """Freeze all imported objects: otherwise the garbage collection after each test takes most of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
