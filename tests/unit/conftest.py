from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def what_is_imported_is_not_searched_for_garbage() -> Iterator[None]:
    """The collection after each test would take most of the time of these tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
