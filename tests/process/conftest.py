"""Fork servers import what test modules import, which each worker would import again to find their classes."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from parenv.supervision import launch

PRELOAD = ("pytest", "hypothesis", "psutil", "parenv.testing", "stable_baselines3")


@pytest.fixture(autouse=True)
def modules_are_imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    local_launch = launch.local_launch

    def with_torch(*arguments: Any, **more: Any) -> Any:
        return local_launch(*arguments, **{**more, "torch": True})

    for module in ("parenv.pool.opening", "parenv.population.session", "parenv.vector.process_backend"):
        monkeypatch.setattr(f"{module}.local_launch", with_torch)
    installed = tuple(name for name in PRELOAD if importlib.util.find_spec(name))
    monkeypatch.setattr(launch, "PRELOAD", (*launch.PRELOAD, *installed))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Does what it does in a script; a runner of tests may have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
