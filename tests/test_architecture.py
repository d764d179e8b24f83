"""The floors and fences of DESIGN: imports only go down, and some things are done in one place only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import printed_by

PACKAGE = Path(__file__).parent.parent / "parenv"
FLOORS = [
    {"errors", "options"},
    {"protocol", "memory", "returns", "experience"},
    {"transport", "process", "placement"},
    {"envs", "policy", "worker", "host"},
    {"crew"},
    {"pool", "vector"},
    {"learning"},
    {"adapters", "cli", "progress", "testing"},
    {"__main__"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted(PACKAGE.rglob("*.py"))
PURE_ROOMS = {"errors", "options", "protocol", "memory", "returns", "experience"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, at_top_only: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    for node in tree.body if at_top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module or ""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_go_down(path: Path) -> None:
    if path == PACKAGE / "__init__.py":
        return
    assert room_of(path) in FLOOR_OF, f"{path} stands on no floor"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "parenv":
            assert len(parts) > 1, f"{path} imports the whole package"
            assert FLOOR_OF[parts[1]] <= FLOOR_OF[room_of(path)], f"{path} imports {name}, which is above it"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_power_stays_in_its_rooms(path: Path) -> None:
    names = {name.split(".")[0] for name in imports(path)}
    room = room_of(path)
    assert "zmq" not in names or room == "transport"
    assert "pickle" not in names
    # The session raises multiprocessing.TimeoutError, because Gymnasium's vector envs do.
    assert "multiprocessing" not in names or path == PACKAGE / "vector" / "session.py"
    assert "subprocess" not in names or room in {"process", "placement"}
    assert "os.fork" not in path.read_text() or room == "process"
    assert "socket" not in names or room in {"process", "transport"}
    assert not (
        room in PURE_ROOMS
        and names & {"threading", "selectors", "signal"} - ({"signal"} if room == "errors" else set())
    )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_torch_is_imported_lazily(path: Path) -> None:
    assert "torch" not in {name.split(".")[0] for name in imports(path, at_top_only=True)}


def test_only_workers_unpickle() -> None:
    allowed = {"worker", "pool/hiring.py"}
    for path in MODULES:
        where = str(path.relative_to(PACKAGE))
        if "loads(" in path.read_text().replace("json.loads(", ""):
            assert room_of(path) in allowed or where in allowed, f"{where} unpickles"


def test_a_pool_without_a_torch_policy_never_loads_torch() -> None:
    script = (
        "import sys, parenv\n"
        "with parenv.AsyncWorkerPool('CartPole-v1', lambda o: o[:, 2] > 0, num_workers=1) as pool:\n"
        "    next(pool.rollouts())\n"
        "assert 'torch' not in sys.modules\n"
    )
    printed_by(script)


def test_files_are_near_their_size() -> None:
    long = {str(path.relative_to(PACKAGE)): n for path in MODULES if (n := len(path.read_text().splitlines())) > 350}
    assert not long
