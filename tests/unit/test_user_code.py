"""Check that functions that are pickled for workers carry their file's name and their source lines."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from parenv.process.user_code import dumps

SOURCE = """# a comment
def first():
    return [
        1,
    ]

def second():
    return 2
"""


def function(name: str, path: Path) -> Callable[[], Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SOURCE, path, "exec"), names)
    return names[name]  # type: ignore[no-any-return]


def test_a_function_carries_its_source_lines_if_its_file_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SOURCE)
    data = [dumps(function(name, path)) for name in ("second", "first")]
    path.unlink()
    linecache.checkcache(str(path))
    assert linecache.getlines(str(path)) == []
    try:
        second, first = map(cloudpickle.loads, data)
        assert (first(), second()) == ([1], 2)
        assert first.__code__.co_filename == second.__code__.co_filename == str(path)
        linecache.checkcache(str(path))
        lines = SOURCE.splitlines(keepends=True)
        assert linecache.getlines(str(path)) == ["\n", *lines[1:5], "\n", *lines[6:]]
    finally:
        linecache.cache.pop(str(path), None)


def test_source_lines_that_are_available_are_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SOURCE)
    cloudpickle.loads(dumps(function("first", path)))
    path.write_text("# edited\n")
    linecache.checkcache(str(path))
    assert linecache.getlines(str(path)) == ["# edited\n"]


@pytest.mark.parametrize("filename", ["<string>", "", "no/such/file.py"])
def test_a_function_without_a_file_can_be_pickled(filename: str) -> None:
    assert cloudpickle.loads(dumps(function("second", Path(filename))))() == 2
