"""What a pool shows of itself while it runs: a table, lines, JSON, and TensorBoard's curves."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from parenv import AsyncWorkerPool, ConfigurationError, Stop
from parenv.progress import ProgressDisplay, TensorBoardWriter, scalars
from parenv.testing import LedgerEnv


def pool_of_ledgers() -> AsyncWorkerPool:
    return AsyncWorkerPool(
        lambda: LedgerEnv(0), lambda o: np.zeros(len(o), np.int64), num_envs=2, num_workers=0, rollout_length=50
    )


def test_lines_of_json_have_the_standard_names() -> None:
    shown = io.StringIO()
    with pool_of_ledgers() as pool, ProgressDisplay(pool, file=shown, as_json=True) as display:
        display.update()
        for _ in pool.rollouts(Stop(env_steps=1000)):
            display.update()
    lines = [json.loads(line) for line in shown.getvalue().splitlines()]
    assert lines[0]["rollout/ep_rew_mean"] is None
    last = lines[-1]
    assert last["env_steps"] == 1000
    assert last["rollout/ep_len_mean"] > 1
    assert last["time/iterations"] == 10
    assert sum(last[f"workers/{part}_share"] for part in ("environment", "acting", "learning", "waiting")) == (
        pytest.approx(1.0)
    )


def test_a_title_may_have_square_brackets() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    with pool_of_ledgers() as pool, ProgressDisplay(pool, title="run [/a]", file=shown):
        pass
    assert "run [/a]" in shown.getvalue()


def test_curves_are_over_env_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pool_of_ledgers() as pool, TensorBoardWriter(pool, tmp_path, every_s=0.0) as writer:
        for _ in pool.rollouts(Stop(env_steps=500)):
            writer.update()
        names = set(scalars(pool.statistics()))
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert set(found.Tags()["scalars"]) == names
    points = found.Scalars("time/iterations")
    assert [(point.step, point.value) for point in points][:5] == [(100 * i, i) for i in range(1, 6)]


def test_without_tensorboard_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pool_of_ledgers() as pool, pytest.raises(ConfigurationError, match=r"parenv\[tensorboard\]"):
        TensorBoardWriter(pool, tmp_path)


def test_a_file_gets_lines_even_where_colours_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = io.StringIO()
    with pool_of_ledgers() as pool, ProgressDisplay(pool, file=shown) as display:
        display.update()
    assert "env steps 0" in re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())
    assert not re.search(r"\x1b\[[0-9?;]*[A-LN-Za-ln-z]", shown.getvalue())
