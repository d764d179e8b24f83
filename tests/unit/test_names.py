"""Check that the names of parenv in the README and the documentation exist."""

from __future__ import annotations

import importlib.util
import re
from itertools import groupby
from pathlib import Path

import pytest
from scripts import printed_by

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
