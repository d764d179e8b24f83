"""Check the architecture: imports only go down, and some operations are confined to a few modules."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from scripts import printed_by

import parenv

PACKAGE = Path(__file__).parent.parent / "parenv"
LAYERS = [
    {"errors", "argument_checks", "libraries", "options", "platform", "version"},
    {"protocol", "memory", "returns", "experience"},
    {"transport", "process", "placement"},
    {"envs", "policy", "worker"},
    {"remote"},
    {"crew"},
    {"pool", "vector", "population", "sessions"},
    {"records", "advice"},
    {"learning"},
    {"checkpoints", "hosts", "rollouts", "statistics"},
    {"adapters", "bench", "evaluation", "exporting", "progress", "testing"},
    {"cli"},
    {"__main__"},
]
LAYER_OF = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}
OPTIONAL_PACKAGES_OF_THE_POOL = {"parenv.records", "parenv.advice"}
"""Packages above the pool. It imports only their entry points, in functions, when a user requests a feature."""
MODULES = sorted(PACKAGE.rglob("*.py"))
PURE_PACKAGES = {"errors", "argument_checks", "options", "protocol", "memory", "returns", "experience"}


def package_of(path: Path) -> str:
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
        assert package_of(path) in LAYER_OF, f"{path} is in no layer"
        at_top = set(imports(path, at_top_only=True))
        for name in imports(path):
            parts = name.split(".")
            if package_of(path) == "pool" and name in OPTIONAL_PACKAGES_OF_THE_POOL - at_top:
                continue
            if parts[0] == "parenv":
                assert len(parts) > 1, f"{path} imports the whole package"
                assert LAYER_OF[parts[1]] <= LAYER_OF[package_of(path)], f"{path} imports {name}, in a higher layer"


def test_modules_do_not_import_each_other_in_circles() -> None:
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in MODULES}
    names = {name.removesuffix(".__init__"): path for name, path in names.items() if name != "parenv.__init__"}
    imported = {name: {one for one in imported_at_run_time(path) if one in names} for name, path in names.items()}
    while leaves := [name for name, needed in imported.items() if not needed & imported.keys() - {name}]:
        for leaf in leaves:
            del imported[leaf]
    assert sorted(imported) == []


def imported_at_run_time(path: Path) -> Iterator[str]:
    """Yield the names of modules, and of objects that may be modules, that are imported at the top or in a function."""
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


def test_the_diagram_of_the_layers_has_every_package() -> None:
    picture = (PACKAGE.parent / "ARCHITECTURE.md").read_text().split("```")[1]
    packages = {package for line in picture.splitlines() for package in line[:48].split()}
    assert sorted(LAYER_OF.keys() - {"__main__"} - packages) == []


def test_operating_system_modules_are_imported_only_by_allowed_packages() -> None:
    for path in MODULES:
        names, package = {name.split(".")[0] for name in imports(path)}, package_of(path)
        allowed = {
            "zmq": package == "transport" or "net" in path.parts,
            # It pickles actions, faster than cloudpickle. Nothing is unpickled there.
            "pickle": path == PACKAGE / "process" / "user_code.py",
            # The session raises multiprocessing.TimeoutError, because Gymnasium's vector envs do. Workers get the key
            # of the main process, without which its managers do not answer them.
            "multiprocessing": path == PACKAGE / "vector" / "vector_state.py" or package == "process",
            "subprocess": package in {"platform", "process"},
            "socket": package in {"platform", "process", "transport"} or "net" in path.parts,
            "threading": package not in PURE_PACKAGES,
            "selectors": package not in PURE_PACKAGES,
            "signal": package not in PURE_PACKAGES - {"errors"},
        }
        assert [name for name in names if not allowed.get(name, True)] == [], path
        assert "os.fork" not in path.read_text() or package == "process", path


OF_ONE_SYSTEM = {
    *("fcntl", "resource", "CDLL", "prctl", "syscall", "memfd_create", "posix_fallocate", "sched_getaffinity"),
    *("sched_setaffinity", "eventfd", "eventfd_read", "eventfd_write", "epoll", "waitid", "pidfd_open", "pipe2"),
    *("register_at_fork", "F_SETPIPE_SZ", "RUSAGE_THREAD", "MSG_CMSG_CLOEXEC", "SO_PEERCRED", "IPC_FILTER_PID"),
    "uname",
}
"""Names that Linux, macOS or Windows lacks."""
OF_ONE_SYSTEM_ON_PURPOSE = {
    "memory/device_memory.py: CDLL": "the library of CUDA, which is the same on all systems",
    "process/served_envs.py: /proc": "it runs in Python 3.6, and must not import parenv",
    "process/served_envs.py: resource": "it runs in Python 3.6, and must not import parenv",
    "transport/zeromq.py: IPC_FILTER_PID": "an option of ZeroMQ, set only if the addresses of the system need it",
}


def test_only_the_platform_uses_what_one_system_lacks() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in MODULES
        if package_of(path) != "platform"
        for name in names_of_one_system(path)
    }
    assert found == OF_ONE_SYSTEM_ON_PURPOSE.keys()


def names_of_one_system(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in OF_ONE_SYSTEM)
        if isinstance(node, ast.ImportFrom):
            yield from ({str(node.module), *(alias.name for alias in node.names)} & OF_ONE_SYSTEM)
        if isinstance(node, ast.Attribute) and node.attr in OF_ONE_SYSTEM:
            yield node.attr
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (root for root in ("/proc", "/sys", "ipc://@") if node.value.startswith(root))


def test_torch_is_imported_lazily() -> None:
    for path in MODULES:
        assert "torch" not in {name.split(".")[0] for name in imports(path, at_top_only=True)}, path


def test_remote_is_imported_only_through_its_entry_point() -> None:
    entry_point, outside = PACKAGE / "crew" / "launch.py", {"remote", "cli"}
    for path in MODULES:
        if package_of(path) in outside:
            continue
        found = {name for name in imports(path) if name.startswith("parenv.remote")}
        assert found == ({"parenv.remote.placement"} if path == entry_point else set()), path
    assert not any(name.startswith("parenv.remote") for name in imports(entry_point, at_top_only=True))


def test_what_runs_in_other_interpreters_imports_only_the_standard_library_and_numpy() -> None:
    names = {name.split(".")[0] for name in imports(PACKAGE / "process" / "served_envs.py")}
    assert names - sys.stdlib_module_names == {"numpy"}


def test_local_runs_do_not_import_remote() -> None:
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


def test_runs_do_not_import_records_and_advice_without_a_request() -> None:
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


def test_the_session_of_a_pool_imports_few_modules() -> None:
    found = {name for name in imports(PACKAGE / "pool" / "pool_session.py") if name.startswith("parenv")}
    assert len(found) <= 15, sorted(found)


def test_only_one_file_compares_autoreset_modes() -> None:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())) if path != PACKAGE / "envs/autoreset.py" else ():
            if isinstance(node, ast.Compare):
                words = set(re.findall(r"\w+", ast.unparse(node)))
                assert not words & {"AutoresetMode", "NEXT_STEP", "SAME_STEP", "DISABLED"}, f"{path}:{node.lineno}"


def test_benchmarks_and_commands_use_no_private_attributes_of_other_objects() -> None:
    for path in [*(PACKAGE / "bench").glob("*.py"), *(PACKAGE / "cli").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                assert ast.unparse(node.value) in ("self", "super()"), f"{path} uses {ast.unparse(node)}"
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("parenv"):
                assert not any(alias.name.startswith("_") for alias in node.names), f"{path} imports a private name"


def test_adapters_do_not_use_the_session_of_a_pool_or_vector_env() -> None:
    for path in (PACKAGE / "adapters").rglob("*.py"):
        assert "._session" not in path.read_text(), f"{path} uses a private attribute of pools"


def test_only_workers_unpickle() -> None:
    # Copies of policies are pickled by the same process that unpickles them.
    allowed = {"worker", "policy/copies.py"}
    for path in MODULES:
        where = str(path.relative_to(PACKAGE))
        if "loads(" in path.read_text().replace("json.loads(", "").replace("marshal.loads(", ""):
            assert package_of(path) in allowed or where in allowed, f"{where} unpickles"


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
    "pool/pool.py:AsyncWorkerPool": "the public class: all methods of a pool, a few lines each",
    "remote/host.py:HostSession": "a host's side of one connection, whose state all methods share",
    "remote/placement.py:HostsPlacement": "all methods of Placement, over the scheduler, the exchange and the versions",
    "crew/workers.py:Workers": "all messages to and from workers, a few lines each",
    "vector/env.py:ParallelVectorEnv": "the attributes and methods of Gymnasium's vector envs",
    "vector/backend.py:Backend": "all workers of a vector env, on top of wake-ups, the step buffer and the crew",
    "vector/vector_state.py:VectorState": "the state of every request",
}


def test_classes_and_functions_are_small() -> None:
    found = {f"{path.relative_to(PACKAGE)}:{name}": size for path in MODULES for name, size in large_in(path)}
    assert found.keys() == LARGE_ON_PURPOSE.keys(), found


def large_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the functions and classes that exceed a limit, and their sizes. Fields of dataclasses do not count."""
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


def test_no_other_class_has_the_name_of_an_exported_class() -> None:
    exported = {name for path in MODULES for name in exports(path)}
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name in exported:
                places.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert len(places) > 60
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def exports(path: Path) -> Iterator[str]:
    """Yield the names in ``__all__`` of a module, those that it imports as themselves, and those of public modules."""
    body = ast.parse(path.read_text()).body
    if path == PACKAGE / "__init__.py":
        yield from parenv.__all__
        return
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from ast.literal_eval(node.value)
        if path in (PACKAGE / "progress.py", PACKAGE / "returns.py") and isinstance(node, ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ImportFrom):
            # Modules that only have public names import each as itself.
            yield from (alias.name for alias in node.names if alias.name == alias.asname)
