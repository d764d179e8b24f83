"""Fixtures of the process tests. Fork servers preload the imports of test modules, so workers start faster."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from placements import host_keys, place, pytest_generate_tests  # noqa: F401
from pool_places import pool_place  # noqa: F401

from parenv.crew import launch
from parenv.envs.step_cost import StepCost
from parenv.vector.choice import Measured

PRELOAD = ("pytest", "psutil", "hypothesis", "parenv.testing", "envs", "policies")
LIBRARIES = {"sb3": "stable_baselines3", "sb3_accelerate": "stable_baselines3"}
"""Packages that are slow to import, by the only test files that need them."""


@pytest.fixture(autouse=True)
def modules_are_imported_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    local_launch, library = launch.local_launch, LIBRARIES.get(request.path.stem.removeprefix("test_"))

    def with_torch(job: Any, *arguments: Any, **more: Any) -> Any:
        # A fork server that only one test uses starts faster without torch.
        own = bool(job.options.environment or job.options.preload)
        return local_launch(job, *arguments, **{**more, **({} if own else {"torch": True})})

    for module in ("parenv.pool.opening", "parenv.crew.launch", "parenv.vector.connections"):
        monkeypatch.setattr(f"{module}.local_launch", with_torch)
    monkeypatch.setattr(launch, "PRELOAD", (*launch.PRELOAD, *PRELOAD, *([library] if library else [])))


@pytest.fixture
def a_step_takes_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the measurement of a step, on which the number of caller-stepped environments depends, by a constant."""
    measured = Measured(0.0, "", 0, StepCost(1e-3, 0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr("parenv.vector.first_worker.FirstWorker.measured", lambda _: measured)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Make SIGINT raise ``KeyboardInterrupt``, as in a script. A test runner may ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
