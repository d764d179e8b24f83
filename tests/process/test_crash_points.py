"""Check that a run sees the last complete save, and an evaluation all finished episodes, after any crash."""

from __future__ import annotations

import itertools
import mmap
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from crashes import HOWS, Crash, How, status_of
from hypothesis import HealthCheck, Phase, given, settings

from parenv import ParenvError, resumable
from parenv.evaluation import EvaluatedEpisode
from parenv.evaluation.results import ResultsFile

KEEP = 1
ABOUT = {"policy": "0123", "seed": 0}
MESSAGES = ("so the checkpoint was not written, and an older file is unchanged", "Input/output error")


class Saved:
    """Number of saves that have returned, from 0 to 255, in memory that a forked process shares."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def count(self) -> int:
        return self._memory[0]

    @count.setter
    def count(self, count: int) -> None:
        self._memory[0] = count


Program = Callable[[Path, Saved, int], object]


def content_of(step: int) -> dict[str, Any]:
    return {"updates": step, "weights": np.full(100, step)}


def train(folder: Path, saved: Saved, last: int) -> None:
    """Begin or continue a run, check that it is where its last save was, and save each step."""
    values = content_of(0)
    with resumable(folder / "run", state={"values": values}, every_s=1e-9, keep=KEEP) as run:
        assert saved.count <= run.steps <= saved.count + 1
        np.testing.assert_equal(values, content_of(run.steps))
        names = {path.name for path in (folder / "run").glob("[!.]*")}
        kept = {f"step-{step:012}.ckpt" for step in range(max(0, run.steps - KEEP), run.steps + 1)}
        assert {f"step-{run.steps:012}.ckpt", "lock"} <= names <= kept | {"lock"}
        saved.count = run.steps
        while run.steps < last:
            values.update(content_of(run.steps + 1))
            run.step()
            saved.count = run.steps


def evaluate(folder: Path, saved: Saved, last: int) -> None:
    """Begin or continue the file of an evaluation, check that it has all written episodes, and write the others."""

    def episode(index: int) -> EvaluatedEpisode:
        return EvaluatedEpisode("reach", index, 7, index / 3, 5, None, "terminated", 0.5)

    with ResultsFile(folder / "results.jsonl", ABOUT, resume=True) as file:
        assert file.found == [episode(index) for index in range(len(file.found))]
        assert saved.count <= len(file.found) <= saved.count + 1
        for index in range(len(file.found), last):
            saved.count = index
            file.write(episode(index))
        saved.count = last


PROGRAMS: dict[str, Program] = {"run": train, "evaluation": evaluate}


def crashed(program: Program, folder: Path, saved: Saved, last: int, point: int, how: How) -> bool:
    """Run a program in a process that crashes, or continues after an error; return whether there was a crash."""
    happened = Saved()

    def act() -> None:
        crash = Crash(point, how, folder)
        crash.install()
        try:
            program(folder, saved, last)
        except (OSError, ParenvError) as error:
            if how != "error" or not any(words in str(error) for words in MESSAGES):
                raise
            program(folder, saved, last)
        happened.count = crash.has_happened

    status = status_of(act)
    assert status in ((0,) if how == "error" else (0, -signal.SIGKILL))
    return status != 0 or happened.count == 1


@pytest.fixture(autouse=True)
def every_line_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an evaluation sync each line. Otherwise a power failure would lose the lines of a second."""
    monkeypatch.setattr("parenv.evaluation.results.SYNC_EVERY_S", -1.0)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_crash_at_any_operation_loses_nothing_that_was_saved(program: str, how: How, tmp_path: Path) -> None:
    act, saved, last = PROGRAMS[program], Saved(), 2
    for point in itertools.count(1):
        folder, saved.count = tmp_path / str(point), 0
        folder.mkdir()
        happened = crashed(act, folder, saved, last, point, how)
        for _ in range(2):
            act(folder, saved, last)
        assert saved.count == last
        assert {path.suffix for path in folder.rglob("*")} <= {"", ".ckpt", ".jsonl"}
        if not happened:
            break
    assert point > 8


@settings(max_examples=15, derandomize=True, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
@given(crashes=st.lists(st.tuples(st.integers(1, 80), st.sampled_from(HOWS)), min_size=2, max_size=8))
@pytest.mark.parametrize("program", PROGRAMS)
def test_crashes_one_after_another_lose_nothing_that_was_saved(program: str, crashes: list[tuple[int, How]]) -> None:
    act, saved, last = PROGRAMS[program], Saved(), 30
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "crashes")
        folder.mkdir()
        for point, how in crashes:
            crashed(act, folder, saved, last, point, how)
        for _ in range(2):
            act(folder, saved, last)
    assert saved.count == last
