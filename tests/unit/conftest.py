"""Pure tests make no garbage worth looking for among everything that torch and gymnasium have imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import hypothesis
import pytest

hypothesis.settings.register_profile("unit", max_examples=50, deadline=None)


@pytest.fixture(autouse=True, scope="package")
def what_is_imported_is_not_searched_for_garbage() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
