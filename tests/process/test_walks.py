"""Check that all files that run for a rollout and for a step are named in ARCHITECTURE.md."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import parenv
from parenv import AsyncWorkerPool, ParallelVectorEnv

pytestmark = pytest.mark.more
PACKAGE = Path(parenv.__file__).parent
SECTIONS = (PACKAGE.parent / "ARCHITECTURE.md").read_text().split("\n## ")
COMMIT_AT = 60
STEPS = range(40, 60)


class Files:
    """Collector of the files of parenv whose functions are called in this thread.

    Args:
        ends: ``(file, function)`` whose return ends the collection.
    """

    def __init__(self, ends: tuple[str, str] | None = None) -> None:
        self.names: set[str] = set()
        self._ends = ends

    def begin(self) -> None:
        """Start to collect with the files on the stack. In a worker, the stack counts from its main loop on."""
        frame: FrameType | None = sys._getframe(1)
        while frame and self._note(frame) != "worker/process.py":
            frame = frame.f_back
        sys.setprofile(self._profile)

    def _note(self, frame: FrameType) -> str:
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(PACKAGE):
            return ""
        name = path.relative_to(PACKAGE).as_posix()
        self.names.add(name)
        return name

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self._note(frame)
        elif event == "return" and self._ends and (self._note(frame), frame.f_code.co_name) == self._ends:
            sys.setprofile(None)


class Watched(gym.Wrapper[Any, Any, Any, Any]):
    """Environment that collects the files of its worker from one env step to another or to the end of a function.

    Args:
        path: File for the names.
        begin: Env step whose return begins.
        end: Env step that writes the file.
        ends: As in :class:`Files`.
    """

    def __init__(self, path: Path, begin: int, end: int, ends: tuple[str, str] | None = None) -> None:
        super().__init__(gym.make("CartPole-v1").unwrapped)
        self._path, self._begin, self._end = path, begin, end
        self._files, self._steps = Files(ends), 0

    def step(self, action: Any) -> Any:
        """Step without ending the episode, because a reset is not part of the walk."""
        self._steps += 1
        if self._steps == self._begin:
            self._files.begin()
        elif self._steps == self._end:
            sys.setprofile(None)
            self._path.write_text(json.dumps(sorted(self._files.names)))
        observation, reward, _, _, info = self.env.step(action)
        return observation, reward, False, False, info


class Policy(torch.nn.Linear):
    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return super().forward(observations).argmax(-1)


def stated(section: str) -> tuple[set[str], set[str]]:
    """Return the files that handle data and the others that run, as a section of the page lists them."""
    text = next(text for text in SECTIONS if text.startswith(section))
    walk = next(part for part in text.split("\n\n") if " files handle a " in part)
    handling, _, beside = walk.partition("Another ")
    counts = re.search(r"(\d+) files handle", handling), re.match(r"(\d+) run", beside)
    found = [set(re.findall(r"`([a-z_]+/[a-z_0-9]+\.py)`", part)) for part in (handling, beside)]
    assert [int(count[1]) for count in counts if count] == [len(part) for part in found]
    return found[0], found[1]


def test_the_walk_of_a_rollout(tmp_path: Path) -> None:
    handling, beside = stated("The life of a rollout")
    make = partial(Watched, tmp_path / "worker", COMMIT_AT, COMMIT_AT + 1, ("transport/zeromq.py", "send"))
    files = Files()

    def wait_for_message(frame: FrameType, event: str, value: object) -> None:
        code = frame.f_code
        if event == "return" and value is not None and code.co_name == "receive" and "zeromq" in code.co_filename:
            files.begin()

    with AsyncWorkerPool(make, Policy(4, 2), num_workers=1, num_envs=1, rollout_length=20, mode="async") as pool:
        stream = pool.rollouts()
        for _ in range(2):
            next(stream)
        sys.setprofile(wait_for_message)
        next(stream)
        sys.setprofile(None)
        for _ in range(2):
            next(stream)
    ran = files.names | set(json.loads((tmp_path / "worker").read_text()))
    assert ran <= handling | beside
    assert len(handling) <= 30


def test_the_walk_of_a_step(tmp_path: Path) -> None:
    handling, beside = stated("The life of a step")
    make = partial(Watched, tmp_path / "worker", STEPS.start, STEPS.stop)
    with ParallelVectorEnv([make], num_workers=1) as envs:
        envs.reset(seed=0)
        actions = np.zeros(1, np.int64)
        for _ in range(STEPS.start):
            envs.step(actions)
        files = Files()
        sys.setprofile(files._profile)
        for _ in STEPS:
            envs.step(actions)
        sys.setprofile(None)
        envs.step(actions)
    ran = files.names | set(json.loads((tmp_path / "worker").read_text()))
    assert ran <= handling | beside
    assert len(handling) <= 14
