"""Names of README and documentation."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from scripts import printed_by

ROOT = Path(__file__).parents[2]
TEXT = "\n".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FOUND = sorted(set(re.findall(r"\bparenv(?:\.[A-Za-z_]\w*)+", TEXT)))
NAMES = [name for name in FOUND if ".tianshou" not in name or importlib.util.find_spec("tianshou") is not None]
"""But those of an adapter whose library may be missing."""


def test_the_pages_have_such_names() -> None:
    assert {"parenv.learning.prefetch", "parenv.adapters.sb3.ParallelVecEnv", "parenv.progress"} <= set(NAMES)


def test_every_dotted_name_of_the_pages_is_there_after_import_parenv() -> None:
    script = """
import os, sys, parenv
for name in sys.argv[1:]:
    if not os.fork():  # Each in a process of its own, where nothing else has been imported.
        eval(name)
        os._exit(0)
    assert os.wait()[1] == 0, name
print("there")
"""
    assert printed_by(script, *NAMES) == "there\n"


def test_what_needs_no_torch_does_not_import_it() -> None:
    printed_by(
        "import sys, parenv; parenv.returns.gae, parenv.progress, parenv.testing; assert 'torch' not in sys.modules"
    )


def test_names_that_are_not_there_are_errors_and_modules_that_are_loaded_lazily_are_listed() -> None:
    script = "import parenv\nassert 'learning' in dir(parenv)\nfor package in (parenv, parenv.adapters, parenv.cli):\n"
    printed_by(script + "    assert not hasattr(package, 'nonsense')\n")
