"""The floors and fences of DESIGN: imports only go down, and some things are done in one place only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from scripts import printed_by

PACKAGE = Path(__file__).parent.parent / "parenv"
FLOORS = [
    {"errors", "argument_checks", "libraries", "options", "version"},
    {"protocol", "memory", "returns", "experience"},
    {"transport", "process", "placement"},
    {"envs", "policy", "worker"},
    {"remote", "interpreter"},
    {"supervision"},
    {"pool", "vector", "population"},
    {"records", "advice"},
    {"learning"},
    {"adapters", "bench", "evaluation", "exporting", "progress", "testing"},
    {"cli"},
    {"__main__"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
WINGS_OF_THE_POOL = {"parenv.records", "parenv.advice"}
"""They stand above it; it opens their doors, and nothing behind them, once somebody asks for what they have."""
MODULES = sorted(PACKAGE.rglob("*.py"))
PURE_ROOMS = {"errors", "argument_checks", "options", "protocol", "memory", "returns", "experience"}


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


def test_imports_only_go_down() -> None:
    for path in MODULES:
        if path == PACKAGE / "__init__.py":
            continue
        assert room_of(path) in FLOOR_OF, f"{path} stands on no floor"
        at_top = set(imports(path, at_top_only=True))
        for name in imports(path):
            parts = name.split(".")
            if room_of(path) == "pool" and name in WINGS_OF_THE_POOL - at_top:
                continue
            if parts[0] == "parenv":
                assert len(parts) > 1, f"{path} imports the whole package"
                assert FLOOR_OF[parts[1]] <= FLOOR_OF[room_of(path)], f"{path} imports {name}, which is above it"


def test_modules_do_not_import_each_other_in_circles() -> None:
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in MODULES}
    names = {name.removesuffix(".__init__"): path for name, path in names.items() if name != "parenv.__init__"}
    imported = {name: {one for one in imported_at_run_time(path) if one in names} for name, path in names.items()}
    while leaves := [name for name, needed in imported.items() if not needed & imported.keys() - {name}]:
        for leaf in leaves:
            del imported[leaf]
    assert sorted(imported) == []


def imported_at_run_time(path: Path) -> Iterator[str]:
    """Names of modules, and of what may be one, that are imported at the top or in a function."""
    tree = ast.parse(path.read_text())
    only_for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in only_for_types:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield str(node.module)


def test_the_picture_of_the_floors_has_every_room() -> None:
    picture = (PACKAGE.parent / "ARCHITECTURE.md").read_text().split("```")[1]
    rooms = {room for line in picture.splitlines() for room in line[:48].split()}
    assert sorted(FLOOR_OF.keys() - {"__main__"} - rooms) == []


def test_each_power_stays_in_its_rooms() -> None:
    for path in MODULES:
        names, room = {name.split(".")[0] for name in imports(path)}, room_of(path)
        allowed = {
            "zmq": room == "transport" or "net" in path.parts,
            "pickle": False,
            # The session raises multiprocessing.TimeoutError, because Gymnasium's vector envs do.
            "multiprocessing": path == PACKAGE / "vector" / "vector_session.py",
            "subprocess": room == "process",
            "socket": room in {"process", "transport", "interpreter"} or "net" in path.parts,
            "threading": room not in PURE_ROOMS,
            "selectors": room not in PURE_ROOMS,
            "signal": room not in PURE_ROOMS - {"errors"},
        }
        assert [name for name in names if not allowed.get(name, True)] == [], path
        assert "os.fork" not in path.read_text() or room == "process", path


def test_torch_is_imported_lazily() -> None:
    for path in MODULES:
        assert "torch" not in {name.split(".")[0] for name in imports(path, at_top_only=True)}, path


def test_many_machines_stand_behind_one_door() -> None:
    # Messages of other interpreters are checked as those of hosts are.
    door, outside = PACKAGE / "supervision" / "launch.py", {"remote", "cli", "interpreter"}
    for path in MODULES:
        if room_of(path) in outside:
            continue
        found = {name for name in imports(path) if name.startswith("parenv.remote")}
        assert found == ({"parenv.remote.placement"} if path == door else set()), path
    assert not any(name.startswith("parenv.remote") for name in imports(door, at_top_only=True))


def test_one_machine_does_without_what_many_machines_need() -> None:
    script = (
        "import sys\n"
        "sys.modules['parenv.remote'] = None\n"
        "import parenv\n"
        "with parenv.AsyncWorkerPool('CartPole-v1', lambda o: o[:, 2] > 0, num_workers=1) as pool:\n"
        "    next(pool.rollouts())\n"
        "envs = parenv.ParallelVectorEnv(['CartPole-v1'] * 2, num_workers=2)\n"
        "envs.reset()\n"
        "envs.step(envs.action_space.sample())\n"
        "envs.close()\n"
        "assert not any(name.startswith('parenv.remote.') for name in sys.modules)\n"
    )
    printed_by(script)


def test_a_run_does_without_records_and_advice_where_nobody_asks_for_them() -> None:
    script = (
        "import sys\n"
        "sys.modules['parenv.records'] = sys.modules['parenv.advice'] = None\n"
        "import parenv\n"
        "with parenv.AsyncWorkerPool('CartPole-v1', lambda o: o[:, 2] > 0, num_workers=1) as pool:\n"
        "    next(pool.rollouts())\n"
        "    pool.publish(lambda o: o[:, 2] > 0)\n"
        "    pool.evaluate(1)\n"
        "    pool.call('render')\n"
        "    print(pool.statistics())\n"
        "envs = parenv.ParallelVectorEnv(['CartPole-v1'] * 2, num_workers=2)\n"
        "envs.reset()\n"
        "envs.step(envs.action_space.sample())\n"
        "envs.close()\n"
    )
    assert "env steps" in printed_by(script)


def test_the_session_of_a_pool_knows_few_modules() -> None:
    found = {name for name in imports(PACKAGE / "pool" / "pool_session.py") if name.startswith("parenv")}
    assert len(found) <= 15, sorted(found)


def test_other_libraries_are_measured_without_parenv() -> None:
    for name in ("__init__.py", "other_libraries.py"):
        needed = [name for name in imports(PACKAGE / "bench" / name, at_top_only=True) if name.startswith("parenv")]
        assert needed == [], f"bench/{name} cannot be imported where only another library is installed"


def test_measuring_and_commands_use_no_private_attribute_of_other_objects() -> None:
    for path in [*(PACKAGE / "bench").glob("*.py"), *(PACKAGE / "cli").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                assert ast.unparse(node.value) in ("self", "super()"), f"{path} uses {ast.unparse(node)}"
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("parenv"):
                assert not any(alias.name.startswith("_") for alias in node.names), f"{path} imports a private name"


def test_adapters_use_no_session_of_a_pool_or_vector_env() -> None:
    for path in (PACKAGE / "adapters").rglob("*.py"):
        assert "._session" not in path.read_text(), f"{path} uses a private attribute of pools"


def test_only_workers_unpickle() -> None:
    # The placement of other interpreters unpickles what the main process has pickled for workers of this one.
    allowed = {"worker", "pool/opening.py", "interpreter/placement.py"}
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


MAX_METHODS, MAX_ATTRIBUTES, MAX_LINES = 25, 15, 60
LARGE_ON_PURPOSE = {
    "bench/benchmark.py:bench": "a table of options, one line each",
    "evaluation/evaluate.py:evaluate": "a table of options, one line each",
    "pool/pool.py:AsyncWorkerPool": "the public class: what can be asked of a pool, a few lines each",
    "remote/host.py:HostSession": "a host's side of one connection, which no two parts see alike",
    "remote/net/admission.py:Admission": "admission: what is let in is decided by all that is known of all connections",
    "remote/placement.py:HostsPlacement": "the whole of Placement, over the scheduler, the exchange and the versions",
    "supervision/supervisor.py:Supervisor": "the states that a worker goes through from its death to its return",
    "supervision/workers.py:Workers": "all that can be said to workers and heard of them, a few lines each",
    "vector/env.py:ParallelVectorEnv": "the attributes that Gymnasium's vector envs have, and their methods",
    "vector/backend.py:Backend": "all workers of a vector env, over wake-ups, the step buffer and the supervisor",
    "vector/vector_session.py:VectorSession": "where every request stands, whatever happens meanwhile",
}


def test_classes_and_functions_are_of_a_size_that_can_be_read() -> None:
    found = {f"{path.relative_to(PACKAGE)}:{name}": size for path in MODULES for name, size in large_in(path)}
    assert found.keys() == LARGE_ON_PURPOSE.keys(), found


def large_in(path: Path) -> Iterator[tuple[str, str]]:
    """Functions and classes beyond their size, but for records, which are all attributes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and (lines := node.end_lineno - node.lineno + 1) > MAX_LINES:  # type: ignore[operator]
            yield node.name, f"{lines} lines"
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            attributes = {part.attr for method in methods for part in ast.walk(method) if is_own_attribute(part)}
            if len(methods) > MAX_METHODS or len(attributes) > MAX_ATTRIBUTES:
                yield node.name, f"{len(methods)} methods, {len(attributes)} attributes"


def is_own_attribute(node: ast.AST) -> TypeGuard[ast.Attribute]:
    if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
        return False
    return isinstance(node.value, ast.Name) and node.value.id == "self"
