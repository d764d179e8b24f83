"""Check that only one process at a time can use the file of a resumable run, a recording or an evaluation."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from parenv.errors import ConfigurationError
from parenv.evaluation.results import ResultsFile
from parenv.process.whole_files import lock, unlock
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
    unlock(first)
    os.close(first)
    assert lock(second, path, "run")
    os.close(inherited)
    os.close(second)
