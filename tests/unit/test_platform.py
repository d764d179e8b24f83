"""Check that the modules of all systems have the same functions, what those of POSIX do, and what a system refuses."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import select
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
from other_systems import imitate_windows_locks
from scripts import printed_by

from parenv import ConfigurationError, WorkerOptions
from parenv.memory.shared import SharedMemory
from parenv.platform import limits, linux, posix, system


def interface(module: object) -> dict[str, object]:
    """Return the public names of a module of a system, with the signatures of functions and the types of constants."""
    found: dict[str, object] = {}
    for name, value in vars(module).items():
        if isinstance(value, FunctionType) and not name.startswith("_") and value.__module__.startswith("parenv"):
            found[name] = inspect.signature(value)
        elif name.isupper() and not name.startswith("_"):
            found[name] = type(value)
    return found


def test_the_modules_of_all_systems_have_the_same_functions() -> None:
    assert interface(linux) == interface(posix)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with monkeypatch.context() as patch:
        imitate_windows_locks(patch)
        patch.setattr(sys, "platform", "win32")
        module = importlib.import_module("parenv.platform.windows")
    yield module
    del sys.modules["parenv.platform.windows"]


def test_windows_has_only_functions_that_the_others_have(windows: ModuleType) -> None:
    of_windows, of_posix = interface(windows), interface(posix)
    assert {name: of_posix[name] for name in of_windows} == {
        # The classes of constants differ where a system has none of them.
        name: of_posix[name] if name.isupper() else found
        for name, found in of_windows.items()
    }


def test_a_file_is_locked_once_on_windows(windows: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "lock"
    file.write_bytes(b"content")
    first = os.open(file, os.O_RDWR)
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import importlib
import pytest
from other_systems import imitate_windows_locks
imitate_windows_locks(pytest.MonkeyPatch())
sys.platform = "win32"
windows = importlib.import_module("parenv.platform.windows")
descriptor = os.open({str(file)!r}, os.O_RDWR)
print(windows.take_lock(descriptor), os.read(descriptor, 7))
"""
    assert windows.take_lock(first)
    assert printed_by(script) == "False b'content'\n"
    windows.unlock(first)
    assert printed_by(script) == "True b'content'\n"
    os.close(first)


def test_all_functions_of_a_system_are_used() -> None:
    package = Path(posix.__file__).parent.parent
    used = {
        node.attr
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "system"
    }
    assert sorted(interface(posix).keys() - used) == []


def test_a_full_pipe_wakes_the_process_that_waits() -> None:
    waiting, notifying = posix.make_wake_up()
    notify, take = posix.notifier(notifying), posix.taker(waiting)
    for _ in range(100_000):
        notify()
    take()
    assert not select.select([waiting], [], [], 0)[0]
    thread = threading.Thread(target=take)
    thread.start()
    notify()
    thread.join(60)
    assert not thread.is_alive()
    os.close(waiting)
    os.close(notifying)


def test_reserved_bytes_keep_their_values_and_take_room() -> None:
    memory = SharedMemory(1 << 22, fd=posix.make_memory())
    with memory.map() as mapping:
        mapping[5000:5003] = b"abc"
        posix.reserve(memory.fd, 4096, 3 << 20)
        assert mapping[5000:5003] == b"abc"
        assert mapping[: 1 << 22].count(0) == (1 << 22) - 3
    assert os.fstat(memory.fd).st_blocks * 512 >= 3 << 20
    memory.close()


def test_a_child_is_reaped_once() -> None:
    assert posix.reap(lambda pid: None) is None
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    looked: list[int] = []
    while (reaped := posix.reap(looked.append)) is None:
        pass
    assert reaped == (pid, 3)
    assert looked == [pid]


@pytest.mark.parametrize("name", ["linux", "posix", "windows"])
@pytest.mark.parametrize(
    ("feature", "options"), [("max_memory_bytes", {"max_memory_bytes": 1 << 30}), ("python", {"python": "python3"})]
)
def test_options_are_refused_as_the_table_of_limits_tells(
    name: str, feature: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "NAME", name)
    cell = limits.LIMITS[feature][name]
    if cell == limits.YES:
        WorkerOptions(**options)  # type: ignore[arg-type]
    else:
        with pytest.raises(ConfigurationError) as raised:
            WorkerOptions(**options)  # type: ignore[arg-type]
        assert str(raised.value) == cell
