"""Check that the names of parenv in the README and the documentation exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from itertools import groupby
from pathlib import Path

import pytest
from scripts import printed_by

import parenv

ROOT = Path(__file__).parents[2]
TEXT = "\n".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FOUND = sorted(set(re.findall(r"\bparenv(?:\.[A-Za-z_]\w*)+", TEXT)))
NAMES = [name for name in FOUND if ".tianshou" not in name or importlib.util.find_spec("tianshou") is not None]
"""Names in the pages, without those of the Tianshou adapter if Tianshou is not installed."""


def test_names_are_found_in_the_pages() -> None:
    assert {"parenv.learning.prefetch", "parenv.adapters.sb3.ParallelVecEnv", "parenv.progress"} <= set(NAMES)


@pytest.mark.more
def test_every_dotted_name_of_the_pages_exists_after_import_parenv() -> None:
    script = """
import os, pkgutil, sys, parenv
for names in sys.argv[1:]:
    if not os.fork():  # Look up each module's names in a process that has imported no other module.
        for name in names.split():
            eval(name) if name.split(".")[1] in dir(parenv) else pkgutil.resolve_name(name)
        os._exit(0)
    assert os.wait()[1] == 0, names
print("there")
"""
    modules = [" ".join(names) for _, names in groupby(NAMES, lambda name: name.split(".")[1])]
    assert len(modules) > 5
    assert printed_by(script, *modules) == "there\n"


def test_modules_that_do_not_need_torch_do_not_import_it() -> None:
    printed_by(
        "import sys, parenv; parenv.returns.gae, parenv.progress, parenv.testing; assert 'torch' not in sys.modules"
    )


def test_missing_names_are_errors_and_lazy_modules_are_listed() -> None:
    script = "import parenv\nassert 'learning' in dir(parenv)\nfor package in (parenv, parenv.adapters, parenv.cli):\n"
    printed_by(script + "    assert not hasattr(package, 'nonsense')\n")


def test_names_that_left_the_top_level_work_and_warn() -> None:
    for name, module in parenv._MOVED_TO.items():
        assert name not in parenv.__all__
        with pytest.warns(DeprecationWarning, match=f"^parenv.{name} is parenv.{module}.{name} now$"):
            found = getattr(parenv, name)
        assert found is getattr(importlib.import_module(f"parenv.{module}"), name)


def test_type_checkers_and_the_running_package_find_the_same_names() -> None:
    tree = ast.parse((ROOT / "parenv" / "__init__.py").read_text())
    (for_types,) = (
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    names = {alias.asname for node in for_types.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names == {*parenv.__all__, *parenv._MODULES}


def test_import_parenv_loads_no_other_library() -> None:
    script = "import sys, parenv\nprint(*{name.partition('.')[0] for name in sys.modules})"
    assert not {"gymnasium", "numpy", "torch", "zmq"} & set(printed_by(script).split())
    script = "import sys\nfrom parenv import AsyncWorkerPool, ParallelVectorEnv\nprint(*sys.modules)"
    loaded = set(printed_by(script).split())
    assert not {"torch", "zmq", "parenv.population", "parenv.evaluation", "parenv.remote"} & loaded
