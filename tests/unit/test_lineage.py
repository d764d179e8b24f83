"""Check that the lineage of a population is written, read and drawn."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from parenv.bench.lineage_plot import last_turns, pieces_of, read_lineage
from parenv.cli.main import main
from parenv.errors import ConfigurationError, ParenvError
from parenv.population.lineage import Lineage
from parenv.population.schedule import Copied
from parenv.protocol.digests import rows_of


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
COPIED = Copied(1, 2, 3.0, 0, 2, 5.0, {"lr": 0.1}, {"lr": 0.2})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "lineage.jsonl"
    # The last line is incomplete, as while it is written. It is ignored.
    file.write_text("\n".join(map(json.dumps, ROWS)) + '\n{"event": "tur')
    return file


def test_a_childs_line_begins_where_its_parent_was(path: Path) -> None:
    about, rows = read_lineage(path)
    assert about["size"] == 2
    pieces = [[(row["member"], row["turn"]) for row in piece] for piece in pieces_of(rows)]
    assert pieces == [[(1, 1)], [(0, 1), (0, 2)], [(0, 1), (1, 2)]]
    assert {member: row["turn"] for member, row in last_turns(rows).items()} == {0: 2, 1: 2}


@pytest.mark.more
def test_the_command_draws_a_lineage(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lineage", str(path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'lineage.png'}\n"
    assert main(["lineage", str(path), "--output", str(tmp_path / "other.svg")]) == 0
    assert (tmp_path / "other.svg").read_text().startswith("<?xml")


def test_a_full_disk_is_an_error_in_one_line(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = tmp_path / "full.png"
    full.symlink_to("/dev/full")
    assert main(["lineage", str(path), "--output", str(full)]) == 1
    assert capsys.readouterr().err == f"parenv lineage: {full} cannot be written: No space left on device\n"


@pytest.mark.parametrize("text", ["", "[1]", '{"event": "turn"}', "no lineage"])
def test_a_file_that_is_not_a_lineage_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text(text)
    assert main(["lineage", str(tmp_path / "file")]) == 2
    assert f"{tmp_path / 'file'} cannot be read as a lineage of a population" in capsys.readouterr().err
    assert main(["lineage", str(tmp_path / "nowhere")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_damaged_line_is_an_error_and_files_without_digests_are_read(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "lineage.jsonl"
    written = Lineage(path, {"size": 2})
    for number in range(3):
        written.copied(COPIED, number)
    written.close()
    text = path.read_text()
    assert [row["env_steps"] for row in read_lineage(path)[1]] == [0, 1, 2]
    path.write_text(text.replace('"env_steps":1', '"env_steps":3'))
    for read in (lambda: read_lineage(path), lambda: Lineage(path, {"size": 2}).go_on(3)):
        with pytest.raises(ConfigurationError, match="line 3 does not match its digest"):
            read()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(text)))
    assert len(read_lineage(path)[1]) == 3
    Lineage(path, {"size": 2}).go_on(4)
    assert path.read_text() == text


def test_a_full_disk_is_an_error_and_the_lineage_continues_once_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "lineage.jsonl"
    lineage, limits = Lineage(path, {"size": 2}), resource.getrlimit(resource.RLIMIT_FSIZE)
    lineage.copied(COPIED, 10)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
        with pytest.raises(ParenvError, match=f"the lineage {path} cannot be written: File too large. Make room"):
            lineage.copied(COPIED, 20)
        lineage.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    lineage.copied(COPIED, 30)
    lineage.close()
    assert [row["env_steps"] for row in read_lineage(path)[1]] == [10, 30]
