"""Check the progress display (table, text lines and JSON lines) and the curves for TensorBoard."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parenv import AsyncWorkerPool, ConfigurationError, Stop, progress
from parenv.bench import display as display_module
from parenv.progress import ProgressDisplay, TensorBoardWriter, mean_lag, scalars
from parenv.testing import LedgerEnv


def pool_of_ledgers() -> AsyncWorkerPool:
    return AsyncWorkerPool(
        lambda: LedgerEnv(0), lambda o: np.zeros(len(o), np.int64), num_envs=2, num_workers=0, rollout_length=50
    )


def test_lines_of_json_have_the_names_of_metrics() -> None:
    shown = io.StringIO()
    with pool_of_ledgers() as pool, ProgressDisplay(pool, file=shown, as_json=True) as display:
        display.update()
        for _ in pool.rollouts(Stop(env_steps=1000)):
            display.update()
    lines = [json.loads(line) for line in shown.getvalue().splitlines()]
    assert lines[0]["rollout/mean_return"] is None
    assert all(list(line) == list(lines[0]) for line in lines)
    last = lines[-1]
    assert last["env_steps"] == 1000
    assert last["rollout/mean_length"] > 1
    assert last["rollout/rollouts"] == 10


class Terminal(io.StringIO):
    """Terminal that interprets the control sequences of the progress display."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> tuple[list[str], bool]:
        """Return the visible lines, and whether the cursor is visible."""
        lines, row, column, has_cursor = [""], 0, 0, True
        for command, text in re.findall(r"(\x1b\[[\d?;]*[A-Za-z]|[\r\n])|([^\x1b\r\n]+)", self.getvalue()):
            lines[row] = lines[row][:column] + text + lines[row][column + len(text) :]
            column += len(text)
            match command:
                case "\r":
                    column = 0
                case "\n":
                    row, column = row + 1, 0
                    lines += [""] * (row == len(lines))
                case "\x1b[1A":
                    row -= 1
                case "\x1b[2K":
                    lines[row] = ""
                case "\x1b[?25l" | "\x1b[?25h":
                    has_cursor = command.endswith("h")
                case _:
                    assert not command or command.endswith("m"), command
        return lines, has_cursor


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def test_a_terminal_shows_one_table_with_the_current_statistics(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    for module in (progress, display_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    stop, drawn = Stop(env_steps=1000, mean_return=1e9, seconds=60), []
    with pool_of_ledgers() as pool, ProgressDisplay(pool, stop, title="ledgers", file=terminal) as display:
        assert not terminal.screen()[1]
        for _ in pool.rollouts(stop):
            now += 0.06
            display.update()
            drawn.append(terminal.getvalue().count("ledgers"))
        statistics = pool.statistics()
    assert drawn == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    (title, _, *rows, _, behind), has_cursor = terminal.screen()
    assert (title.strip(), behind, has_cursor) == ("ledgers", "", True)
    assert [tuple(part.strip() for part in row.split("│")[1:3]) for row in rows] == [
        ("env steps", "1,000"),
        ("env steps/s", "1,667"),
        ("episodes", str(statistics.episodes)),
        ("mean return", f"{statistics.mean_return:.1f} / 1e+09"),
        ("policy lag", "0.0 (max 0)"),
        ("workers alive", "1 / 1"),
        ("time", "1 s of 60 s"),
    ]


def test_a_narrow_terminal_has_all_figures(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "34")
    with pool_of_ledgers() as pool, ProgressDisplay(pool, file=terminal):
        pass
    (_, _, *rows, _, _), _ = terminal.screen()
    assert all(len(row) == 34 and row.endswith("│") for row in rows)


def test_a_terminal_that_shrinks_is_cleared_because_wrapped_lines_cannot_be_located(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display_module, "REFRESH_S", 0.0)
    with pool_of_ledgers() as pool, ProgressDisplay(pool, file=terminal) as display:
        display.update()
        for width in (100, 40):
            assert "\x1b[2J" not in terminal.getvalue()
            display._display._console.width = width
            display.update()
    assert terminal.getvalue().count("\x1b[2J\x1b[H") == 1


def test_an_exception_leaves_the_last_figures_and_the_cursor(terminal: Terminal) -> None:
    def learn(rollout: Any) -> None:
        raise ValueError("not a number")

    with (
        pool_of_ledgers() as pool,
        pytest.raises(ValueError, match="not a number"),
        ProgressDisplay(pool, file=terminal),
    ):
        learn(next(pool.rollouts()))
    lines, has_cursor = terminal.screen()
    assert has_cursor
    assert [line for line in lines if re.search(r"env steps \W+100\W", line)]
    assert len(lines) == 11


def test_an_interrupt_while_the_last_figures_are_drawn_leaves_the_cursor(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    with pool_of_ledgers() as pool, pytest.raises(KeyboardInterrupt), ProgressDisplay(pool, file=terminal):
        monkeypatch.setattr(display_module, "in_rich", interrupt)
    assert terminal.screen()[1]


def test_a_display_that_has_ended_writes_nothing_more(terminal: Terminal) -> None:
    with pool_of_ledgers() as pool, ProgressDisplay(pool, file=terminal) as display:
        pass
    written = terminal.getvalue()
    display.__exit__(None, None, None)
    assert terminal.getvalue() == written


def test_a_title_may_have_square_brackets() -> None:
    shown = Terminal()
    with pool_of_ledgers() as pool, ProgressDisplay(pool, title="run [/a]", file=shown):
        pass
    assert "run [/a]" in shown.getvalue()


@pytest.fixture
def tensorboard_is_imported() -> None:
    """Import TensorBoard before a test has a pool: torch 2.3 keeps the frames of this import, and their variables."""
    import torch.utils.tensorboard  # noqa: F401


@pytest.mark.usefixtures("tensorboard_is_imported")
def test_curves_are_over_env_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pool_of_ledgers() as pool, TensorBoardWriter(pool, tmp_path, every_s=0.0) as writer:
        for _ in pool.rollouts(Stop(env_steps=500)):
            writer.update()
        pool.evaluate(2)  # The writer adds a last point when it closes.
        names = set(pool.metrics())
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert set(found.Tags()["scalars"]) == names
    points = found.Scalars("rollout/rollouts")
    assert [(point.step, point.value) for point in points][:5] == [(100 * i, i) for i in range(1, 6)]


def test_the_former_names_of_metrics_are_deprecated() -> None:
    with pool_of_ledgers() as pool:
        next(pool.rollouts())
        with pytest.warns(DeprecationWarning, match=r"scalars\(statistics\) is now pool.metrics\(\)"):
            former = scalars(pool.statistics())
        assert former["time/iterations"] == 1
        assert np.isnan(former["eval/mean_reward"])
        assert former["rollout/policy_lag_mean"] == mean_lag(pool.statistics()) == 0


def test_without_tensorboard_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pool_of_ledgers() as pool, pytest.raises(ConfigurationError, match=r"\.\[tensorboard\]"):
        TensorBoardWriter(pool, tmp_path)


def test_a_file_gets_lines_even_if_colours_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = io.StringIO()
    with pool_of_ledgers() as pool, ProgressDisplay(pool, file=shown) as display:
        display.update()
    assert "env steps 0" in re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())
    assert not re.search(r"\x1b\[[0-9?;]*[A-LN-Za-ln-z]", shown.getvalue())
