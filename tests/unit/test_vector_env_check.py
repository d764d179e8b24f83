"""Check the reports of ``check_vector_env`` on correct vector envs and on deliberately broken ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parenv.testing import check_vector_env


class Walk(gym.Env[Any, Any]):
    """Environment that moves away from its start, and returns its own buffer or a copy of it."""

    def __init__(self, reuses_its_buffer: bool = False) -> None:
        self.observation_space, self.action_space = spaces.Box(-99, 99, (2,)), spaces.Discrete(3)
        self.reuses_its_buffer, self.buffer = reuses_its_buffer, np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.buffer[:] = self.np_random.uniform(-0.1, 0.1), 0.0
        return self.shown(), {}

    def step(self, action: Any) -> Any:
        self.buffer += np.float32([action - 1.0, 1.0])
        return (
            self.shown(),
            1.0,
            bool(self.buffer[1] >= 7 or abs(self.buffer[0]) > 1.5),
            False,
            {"place": float(self.buffer[0])},
        )

    def shown(self) -> Any:
        return self.buffer if self.reuses_its_buffer else self.buffer.copy()


class Broken(SyncVectorEnv):
    """Vector env that may declare a wrong autoreset mode, and whose step results are changed by a function."""

    def __init__(
        self,
        says: Any,
        does: AutoresetMode = AutoresetMode.NEXT_STEP,
        change: Callable[..., Any] = lambda *returned: returned,
        reuses: bool = False,
        **options: Any,
    ) -> None:
        super().__init__([lambda: Walk(reuses)] * 3, autoreset_mode=does, **options)
        self.metadata = {} if says is None else {"autoreset_mode": says}
        self.change = change

    def step(self, actions: Any) -> Any:
        return self.change(*super().step(actions))


class ResetsAll(Broken):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


class Unseeded(Broken):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=7 if seed is not None else None)


class Wild(Broken):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=int(np.random.default_rng().integers(1 << 30)))


NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_correct_vector_env_has_no_problems(mode: AutoresetMode, capsys: pytest.CaptureFixture[str]) -> None:
    report = check_vector_env(lambda: Broken(mode, mode))
    assert report.problems == []
    assert (report.declared, report.found) == (mode, mode)
    assert report.ends >= 40
    assert capsys.readouterr().out.startswith(f"declares {mode.name}, follows {mode.name}; ")


BROKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "declares next, does same": (
        lambda: Broken(NEXT, SAME),
        "declares NEXT_STEP, but its results .* follow SAME_STEP",
    ),
    "declares same, does next": (
        lambda: Broken(SAME, NEXT),
        "declares SAME_STEP, but its results .* follow NEXT_STEP",
    ),
    "declares nothing": (lambda: Broken(None), "must declare its autoreset mode"),
    "ignores the mask": (lambda: ResetsAll(DISABLED, DISABLED), "changes sub-environments that the mask leaves out"),
    "finals of the next": (
        lambda: Broken(SAME, SAME, reuses=True),
        "final_obs contains the first observations of the next",
    ),
    "rewards in a column": (
        lambda: Broken(NEXT, change=lambda o, r, *rest: (o, r[:, None], *rest)),
        r"rewards must be numbers of shape \(3,\), got float64 of shape \(3, 1\)",
    ),
    "flags as numbers": (
        lambda: Broken(NEXT, change=lambda o, r, t, *rest: (o, r, t.astype(int), *rest)),
        "terminated must be bool of shape .*, got int64 of shape",
    ),
    "another dtype": (
        lambda: Broken(NEXT, change=lambda o, *rest: (o.astype(np.float64), *rest)),
        "observations must have shape .* and dtype float32 like their space, got .* and float64",
    ),
    "four values": (
        lambda: Broken(NEXT, change=lambda o, r, t, u, i: (o, r, t, i)),
        "step must return .*, got 4 values",
    ),
    "infos in a list": (
        lambda: Broken(NEXT, change=lambda o, r, t, u, i: (o, r, t, u, [{}] * 3)),
        "infos must be a dict of arrays, got a list",
    ),
    "a run that cannot be repeated": (lambda: Wild(NEXT), "two runs with the same seed .* are different"),
    "not a vector env": (Walk, "must be a gymnasium.vector.VectorEnv, got .*Walk"),
}


@pytest.mark.parametrize(("make", "problem"), BROKEN.values(), ids=BROKEN)
def test_a_defect_is_reported_as_a_problem(make: Any, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = check_vector_env(make)
    assert any(re.search(problem, one) for one in report.problems), report.problems
    assert "problem: " in capsys.readouterr().out


NOTED: dict[str, tuple[Callable[[], Any], str]] = {
    "no final observations": (
        lambda: Broken(SAME, SAME, change=lambda o, r, t, u, i: (o, r, t, u, {})),
        "infos do not contain the final observation",
    ),
    "a batch of final observations that its mask excludes": (
        lambda: Broken(
            SAME, SAME, change=lambda o, r, t, u, i: (o, r, t, u, {"final_obs": o, "_final_obs": np.zeros(3, bool)})
        ),
        "infos do not contain the final observation",
    ),
    "one array for all": (lambda: Broken(NEXT, copy=False), "changes arrays that it has returned"),
    "seeds are ignored": (lambda: Unseeded(NEXT), r"reset\(seed=\) has no effect"),
    "a reward for a reset": (
        lambda: Broken(NEXT, change=lambda o, r, *rest: (o, r + 1, *rest)),
        "a step that only resets has a reward other than 0",
    ),
    "an info without a row for each": (
        lambda: Broken(NEXT, change=lambda o, r, t, u, i: (o, r, t, u, {"clock": np.zeros(2)})),
        "the info 'clock' is left out, because it does not have a row for each",
    ),
    "a known library": (lambda: Broken(NEXT), r"gymnasium 1\..* is installed. Known: FunctionalJaxVectorEnv"),
}


@pytest.mark.parametrize(("make", "note"), NOTED.values(), ids=NOTED)
def test_a_peculiarity_is_reported_as_a_note(make: Any, note: str) -> None:
    report = check_vector_env(make)
    assert report.problems == []
    assert any(re.search(note, one) for one in report.notes), report.notes
