"""Workers import the module of their test, most of which import torch: here their fork server has done so before."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from parenv.supervision.launch import local_launch


@pytest.fixture(autouse=True)
def torch_is_imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_torch(*arguments: Any, **more: Any) -> Any:
        return local_launch(*arguments, **{**more, "torch": True})

    for module in ("parenv.pool.opening", "parenv.population.population_session", "parenv.vector.process_backend"):
        monkeypatch.setattr(f"{module}.local_launch", with_torch)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Does what it does in a script; a runner of tests may have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
