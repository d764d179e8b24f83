"""Fork servers import what test modules import, which each worker would import again to find their classes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from parenv.envs.step_cost import StepCost
from parenv.supervision import launch

PRELOAD = ("pytest", "psutil", "hypothesis", "parenv.testing", "envs", "policies")
LIBRARIES = {"sb3": "stable_baselines3", "sb3_accelerate": "stable_baselines3"}
"""What takes longer and only the tests of a few files need, by their names."""


@pytest.fixture(autouse=True)
def modules_are_imported_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    local_launch, library = launch.local_launch, LIBRARIES.get(request.path.stem.removeprefix("test_"))

    def with_torch(job: Any, *arguments: Any, **more: Any) -> Any:
        # A fork server of a test's own starts sooner without.
        own = bool(job.options.environment or job.options.preload)
        return local_launch(job, *arguments, **{**more, **({} if own else {"torch": True})})

    for module in ("parenv.pool.opening", "parenv.supervision.calls", "parenv.vector.backend"):
        monkeypatch.setattr(f"{module}.local_launch", with_torch)
    monkeypatch.setattr(launch, "PRELOAD", (*launch.PRELOAD, *PRELOAD, *([library] if library else [])))


@pytest.fixture
def a_step_takes_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``caller_steps``, all get the same share, which otherwise depends on the speed of the machine."""
    monkeypatch.setattr("parenv.vector.worker_choice.measured_step", lambda *_: (StepCost(1e-3, 0.0), ""))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Does what it does in a script; a runner of tests may have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
