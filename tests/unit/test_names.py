"""Names of README and documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts import printed_by

ROOT = Path(__file__).parents[2]
TEXT = "\n".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
NAMES = sorted(set(re.findall(r"\bparenv(?:\.[A-Za-z_]\w*)+", TEXT)))


def test_the_pages_have_such_names() -> None:
    assert {"parenv.learning.prefetch", "parenv.adapters.sb3.ParallelVecEnv", "parenv.progress"} <= set(NAMES)


MODULES = {"adapters", "cli", "learning", "progress", "returns", "testing"}


def module_of(name: str) -> str:
    """What has to be imported for it, if it is not there from the first."""
    return name.split(".")[1] if name.split(".")[1] in MODULES else ""


@pytest.mark.parametrize("module", sorted({module_of(name) for name in NAMES}))
def test_every_dotted_name_of_the_pages_is_there_after_import_parenv(module: str) -> None:
    # The longest comes first: what it needs must come by it alone.
    names = sorted((name for name in NAMES if module_of(name) == module), key=len, reverse=True)
    assert printed_by("import parenv\n" + "\n".join(names) + "\nprint('there')") == "there\n"


def test_what_needs_no_torch_does_not_import_it() -> None:
    printed_by(
        "import sys, parenv; parenv.returns.gae, parenv.progress, parenv.testing; assert 'torch' not in sys.modules"
    )


def test_names_that_are_not_there_are_errors_and_modules_that_are_loaded_lazily_are_listed() -> None:
    script = "import parenv\nassert 'learning' in dir(parenv)\nfor package in (parenv, parenv.adapters, parenv.cli):\n"
    printed_by(script + "    assert not hasattr(package, 'nonsense')\n")
