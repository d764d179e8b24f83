"""The lineage of a population as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parenv.cli.lineage import last_turns, pieces_of, read_lineage
from parenv.cli.main import main


def turn(member: int, turn: int, score: float | None, ancestor: int) -> dict[str, Any]:
    return {
        "event": "turn",
        "member": member,
        "turn": turn,
        "env_steps": 10 * turn + member,
        "score": score,
        "hyperparameters": {"lr": 0.1 * (member + 1), "entropy": 0.0},
        "ancestor": ancestor,
    }


ROWS = [
    {"event": "begin", "size": 2, "hyperparameters": {"lr": "LogUniform(0.1, 1)", "entropy": "Uniform(0, 1)"}},
    turn(0, 1, 5.0, 0),
    turn(1, 1, None, 1),
    {"event": "copy", "member": 1, "parent": 0},
    turn(0, 2, 6.0, 0),
    turn(1, 2, 7.0, 0),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "lineage.jsonl"
    # A line that is still being written does not matter.
    file.write_text("\n".join(map(json.dumps, ROWS)) + '\n{"event": "tur')
    return file


def test_a_childs_line_begins_where_its_parent_was(path: Path) -> None:
    about, rows = read_lineage(path)
    assert about["size"] == 2
    pieces = [[(row["member"], row["turn"]) for row in piece] for piece in pieces_of(rows)]
    assert pieces == [[(1, 1)], [(0, 1), (0, 2)], [(0, 1), (1, 2)]]
    assert {member: row["turn"] for member, row in last_turns(rows).items()} == {0: 2, 1: 2}


def test_the_command_draws_it(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lineage", str(path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'lineage.png'}\n"
    assert main(["lineage", str(path), "--output", str(tmp_path / "other.svg")]) == 0
    assert (tmp_path / "other.svg").read_text().startswith("<?xml")


def test_a_full_disk_is_an_error_in_one_line(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = tmp_path / "full.png"
    full.symlink_to("/dev/full")
    assert main(["lineage", str(path), "--output", str(full)]) == 1
    assert capsys.readouterr().err == f"parenv lineage: cannot write {full}: No space left on device\n"


@pytest.mark.parametrize("text", ["", "[1]", '{"event": "turn"}', "no lineage"])
def test_what_is_no_lineage_is_said(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text(text)
    assert main(["lineage", str(tmp_path / "file")]) == 2
    assert f"{tmp_path / 'file'} is no lineage of a population" in capsys.readouterr().err
    assert main(["lineage", str(tmp_path / "nowhere")]) == 2
    assert "cannot read" in capsys.readouterr().err
