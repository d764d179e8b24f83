"""Check that only one process at a time can use the file of a resumable run, a recording or an evaluation."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from parenv.errors import ConfigurationError
from parenv.evaluation.results import ResultsFile
from parenv.platform import system
from parenv.process.whole_files import draft_folder, lock, remove_left_drafts, replacing
from parenv.records.recording import Recorder
from parenv.records.run_folder import RunFolder


def use_for_a_run(path: Path) -> Callable[[], None]:
    folder = RunFolder(path.parent, keep=1)
    folder.lock()
    return folder.unlock


def use_for_a_recording(path: Path) -> Callable[[], None]:
    recorder = Recorder(path)
    recorder.begin({})
    return recorder.close


def use_for_an_evaluation(path: Path) -> Callable[[], None]:
    file = ResultsFile(path, {}, resume=True)
    return lambda: file.__exit__()


USES = {"run": use_for_a_run, "recording": use_for_a_recording, "evaluation": use_for_an_evaluation}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_file_in_use_is_refused(use: Callable[[Path], Callable[[], None]], tmp_path: Path) -> None:
    end = use(tmp_path / "file")
    with pytest.raises(ConfigurationError, match=r"(used by|another run is recorded|in use by)"):
        use(tmp_path / "file")
    end()
    use(tmp_path / "file")()


@pytest.mark.parametrize(
    ("use", "word"), [(USES[name], "evaluation" if name == "evaluation" else "run") for name in USES], ids=USES
)
def test_a_file_system_without_locks_is_used_with_a_warning(
    use: Callable[[Path], Callable[[], None]],
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level("WARNING", logger="parenv"):
        use(tmp_path / "file")()
    assert f"is on a file system without locks: a second {word} there would not be noticed" in caplog.text


def test_a_lock_ends_although_a_child_process_has_the_file_open(tmp_path: Path) -> None:
    path = tmp_path / "file"
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    # The duplicate refers to the same open file, like a descriptor that a child process has inherited.
    inherited = os.dup(first)
    assert lock(first, path, "run")
    assert not lock(second, path, "run")
    system.unlock(first)
    os.close(first)
    assert lock(second, path, "run")
    os.close(inherited)
    os.close(second)


def left_by_a_killed_process(folder: Path) -> None:
    """Have a process kill itself while it replaces ``folder / "file"``."""
    script = (
        "import os, pathlib, sys\n"
        "from parenv.process.whole_files import replacing\n"
        "with replacing(pathlib.Path(sys.argv[1])) as draft:\n"
        "    draft.write_text('half')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(folder / "file")], timeout=100).returncode == -9


def test_a_draft_is_removed_once_its_process_has_ended(tmp_path: Path) -> None:
    left_by_a_killed_process(tmp_path)
    (draft,) = tmp_path.iterdir()
    remove_left_drafts(tmp_path, "other")
    assert list(tmp_path.iterdir()) == [draft]
    with replacing(tmp_path / "file") as mine:
        assert not draft.exists()
        mine.write_text("whole")
        with replacing(tmp_path / "file") as other:
            other.write_text("of another thread")
        assert mine.read_text() == "whole"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["whole"]


def test_drafts_are_kept_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with draft_folder(tmp_path / "file") as draft:
        (draft / "file").write_text("half")
        remove_left_drafts(tmp_path, "file")
        assert (draft / "file").read_text() == "half"
    assert list(tmp_path.iterdir()) == []


def test_other_files_with_a_similar_name_are_kept(tmp_path: Path) -> None:
    for name in (".file.0123", ".file.0123456789abcdef.txt", ".afile.0123456789abcdef", "file.0123456789abcdef"):
        (tmp_path / name).mkdir()
    (tmp_path / ".file.0123456789abcdef").write_text("a file of the user")
    remove_left_drafts(tmp_path, "file")
    assert len(list(tmp_path.iterdir())) == 5


RACING = """
import pathlib, sys
from parenv.process.whole_files import draft_folder, remove_left_drafts
folder = pathlib.Path(sys.argv[1])
for _ in range(100):
    remove_left_drafts(folder, "file")
    with draft_folder(folder / "file") as draft:
        (draft / "part").write_text("whole")
        remove_left_drafts(folder, "file")
        assert (draft / "part").read_text() == "whole"
"""


@pytest.mark.more
def test_processes_that_make_and_remove_drafts_at_once_never_remove_each_others(tmp_path: Path) -> None:
    racing = [subprocess.Popen([sys.executable, "-c", RACING, str(tmp_path)]) for _ in range(4)]
    assert [one.wait(timeout=200) for one in racing] == [0] * 4
    remove_left_drafts(tmp_path, "file")
    assert list(tmp_path.iterdir()) == []
