"""Check the reports of ``check_sharing`` on environments that can share a process, and on those that cannot."""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from envs import kill_oneself
from gymnasium import spaces
from scripted_agents import Scripted, ScriptedTurns

from parenv import ConfigurationError, WorkerOptions
from parenv.cli.main import main
from parenv.testing import LedgerEnv, check_sharing

OWN_PROCESS = "needs a process of its own: num_workers=num_envs"
Action = Callable[["Walk"], object]


class Walk(gym.Env[Any, Any]):
    """Environment that adds up its actions. A function may do something wrong in each of its methods."""

    observation_space, action_space = spaces.Box(-999, 999, (1,), np.float32), spaces.Box(-9, 9, (1,), np.float32)
    render_mode: str | None = None

    def __init__(self, **wrong: Action) -> None:
        self.wrong = wrong
        self.place = 0.0
        self.do("make")

    def do(self, what: str) -> Any:
        return self.wrong.get(what, lambda env: None)(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = float(self.np_random.uniform())
        self.do("reset")
        return self.seen(), self.do("info") or {}

    def step(self, action: Any) -> Any:
        self.place += float(action[0])
        self.do("step")
        return self.seen(), self.place, abs(self.place) > 20, False, self.do("info") or {}

    def seen(self) -> Any:
        return np.array([self.place], np.float32)

    def render(self) -> Any:
        return self.do("render")

    def close(self) -> None:
        self.do("close")


class Simulator:
    """State of a module, as of a C library. Each worker has one."""

    place = 0.0
    frame: ClassVar[Any] = np.zeros(1, np.float32)
    screen = 0.0
    is_open = False
    instances = 0
    now = 0


class OneWorld(Walk):
    """Environment whose only state is the simulator's."""

    @property
    def place(self) -> float:
        return Simulator.place

    @place.setter
    def place(self, place: float) -> None:
        Simulator.place = place


class OneFrameBuffer(Walk):
    """Environment with a state of its own, which returns the buffer of all instances."""

    def seen(self) -> Any:
        Simulator.frame[:] = self.place
        return Simulator.frame


class Filmed(Walk):
    """Environment that draws in a step, and reads the screen of all instances in ``render``."""

    render_mode = "rgb_array"

    def seen(self) -> Any:
        Simulator.screen = self.place
        return super().seen()

    def render(self) -> Any:
        return np.full((2, 2, 3), Simulator.screen)


class OneClock:
    """The time of all instances, for environments of several agents."""

    now = property(lambda self: Simulator.now, lambda self, now: setattr(Simulator, "now", now))


class ScriptedInOneWorld(OneClock, Scripted):
    """Environment of several agents, with the simulator's time."""


class TurnsInOneWorld(OneClock, ScriptedTurns):
    """Environment whose agents act in turns, with the simulator's time."""


def open_once(env: Walk) -> None:
    if Simulator.is_open:
        raise RuntimeError("the simulator runs already")
    Simulator.is_open = True


def shut(env: Walk) -> None:
    Simulator.is_open = False


def open_again(env: Walk) -> None:
    Simulator.is_open = True


def needs_to_be_open(env: Walk) -> None:
    assert Simulator.is_open, "the simulator is closed"


def count(env: Walk) -> None:
    Simulator.instances += 1


def of_two(then: Callable[[], object]) -> Action:
    """Return a function that does something if there is a second instance in the process."""

    def do(env: Walk) -> None:
        if Simulator.instances > 1:
            then()

    return do


def shift_by_count(env: Walk) -> None:
    env.place += Simulator.instances


def counted_info(env: Walk) -> Any:
    return {"nested": {"instances": Simulator.instances}}


SHARED: dict[str, tuple[Any, str]] = {
    "one world": (
        OneWorld,
        r"the observation of instance . in step 1 is \[.*\] after instance . was .*, and \[.*\] alone",
    ),
    "one frame buffer": (
        OneFrameBuffer,
        "the last observation of instance . was overwritten after instance . was .*: it is not a copy",
    ),
    "one screen": (Filmed, r"the frame of instance 0 in render\(\) differs after instance 1 was stepped"),
    "a second one cannot be made": (
        functools.partial(Walk, make=open_once),
        "another instance cannot be made in the same process: .* RuntimeError: the simulator runs already while it was",
    ),
    "closing ends it for all": (
        functools.partial(Walk, make=open_again, close=shut, step=needs_to_be_open),
        "instance 1 raised AssertionError: the simulator is closed in step .*, but only beside another instance",
    ),
    "making changes the others": (
        functools.partial(Walk, make=count, step=shift_by_count),
        "the observation of instance 0 in step 1 is .*, and .* alone",
    ),
    "infos": (
        functools.partial(Walk, make=count, info=counted_info),
        r"the info\['nested'\]\['instances'\] of instance 0 in reset\(\) is 2 after instance 1 was made, and 1 alone",
    ),
    "a crash": (
        functools.partial(Walk, make=count, reset=of_two(kill_oneself)),
        r"instance 0 ended its process in reset\(\): it was killed by SIGKILL, but only beside another instance",
    ),
    "an exit": (
        functools.partial(Walk, make=count, step=of_two(sys.exit)),
        "instance 0 raised SystemExit: .* in step 1, but only beside another instance",
    ),
    "parallel agents": (functools.partial(ScriptedInOneWorld, 0), "instance . .* alone"),
    "agents in turns": (functools.partial(TurnsInOneWorld, 0), "instance . .* alone"),
}


@pytest.mark.one_in(12)
@pytest.mark.parametrize(("make", "problem"), SHARED.values(), ids=SHARED)
def test_an_environment_with_one_world_per_process_needs_a_process_of_its_own(
    make: Any, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = check_sharing(make, steps=40)
    assert report.needs_own_process is True
    assert [re.search(problem, one) is not None for one in report.problems] == [True], report.problems
    assert capsys.readouterr().out.startswith(f"{OWN_PROCESS}\nproblem: ")


@pytest.mark.more
def test_a_hang_beside_another_instance_is_a_reason() -> None:
    make = functools.partial(Walk, make=count, step=of_two(functools.partial(time.sleep, 1000)))
    report = check_sharing(make, step_timeout_s=10)
    assert report.needs_own_process is True
    what = "did not return within step_timeout_s=10 s in step 1"
    assert report.problems == [f"instance 0 {what}, but only beside another instance in its process"]


def only_in_workers(main: int) -> Any:
    assert os.getpid() != main
    return LedgerEnv(0)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "make",
    [
        "CartPole-v1",
        Walk,
        [functools.partial(LedgerEnv, number) for number in range(2)],
        functools.partial(only_in_workers, os.getpid()),
        functools.partial(Scripted, 0),
        functools.partial(ScriptedTurns, 0),
    ],
    ids=["an env id", "numbers", "several factories", "not made here", "parallel agents", "agents in turns"],
)
def test_an_environment_with_a_state_of_its_own_can_share_a_process(make: Any) -> None:
    report = check_sharing(make, steps=40)
    assert (report.needs_own_process, report.problems, report.notes) == (False, [], [])
    assert str(report) == "can share a process: 3 instances returned the same as alone, in 40 steps each"


def noisy(env: Walk) -> None:
    env.place += float(np.random.default_rng().uniform())


ALONE: dict[str, tuple[Any, str]] = {
    "not deterministic": (
        functools.partial(Walk, step=noisy),
        "the environment is not deterministic: two runs alone with the same seed .* differ in observation.*, reward",
    ),
    "does not exist": (
        functools.partial(gym.make, "module_that_does_not_exist:Env-v0"),
        "instance 0 raised ModuleNotFoundError: .* while it was made, in a process of its own, while 2 other processes",
    ),
    "raises": (
        functools.partial(Walk, step=needs_to_be_open),
        "instance 0 raised AssertionError: the simulator is closed in step 1, in a process of its own",
    ),
    "crashes": (
        functools.partial(Walk, step=kill_oneself),
        "instance . ended its process in step 1: it was killed by SIGKILL, in a process of its own",
    ),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("make", "problem"), ALONE.values(), ids=ALONE)
def test_nothing_can_be_concluded_from_an_environment_that_fails_or_differs_alone(make: Any, problem: str) -> None:
    report = check_sharing(make, steps=20)
    assert report.needs_own_process is None
    assert [re.search(problem, one) is not None for one in report.problems] == [True], report.problems
    assert str(report).startswith("nothing can be concluded\nproblem: ")


def clock(env: Walk) -> Any:
    return {"time": {"s": time.perf_counter()}, "self": env}


@pytest.mark.more
def test_infos_that_differ_alone_are_left_out_with_a_note() -> None:
    report = check_sharing(functools.partial(Walk, info=clock), steps=8)
    assert report.needs_own_process is False
    assert report.notes == [
        "left out, because two runs alone differ: info['time']['s']",
        "left out, because it is not plain data: info['self']",
    ]


def test_wrong_arguments_of_the_check_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="steps must be an integer of at least 1, got 0"):
        check_sharing(Walk, steps=0)
    with pytest.raises(ConfigurationError, match="step_timeout_s must be positive seconds, got 0"):
        check_sharing(Walk, step_timeout_s=0)
    with pytest.raises(ConfigurationError, match=r"check_sharing cannot use WorkerOptions\(python="):
        check_sharing(Walk, workers=WorkerOptions(python=sys.executable))


MODULE = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

class OneWorld(CartPoleEnv):
    world = {}
    state = property(lambda self: self.world.get("state"), lambda self, state: self.world.update(state=state))
"""


@pytest.mark.more
def test_the_exit_status_of_the_command_tells_whether_instances_can_share_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "with_one_world.py").write_text(MODULE)
    assert main(["check", "CartPole-v1", "--steps", "8"]) == 0
    assert capsys.readouterr().out.startswith("can share a process")
    assert main(["check", "with_one_world:OneWorld", "--steps", "8"]) == 1
    assert capsys.readouterr().out.startswith(OWN_PROCESS)
