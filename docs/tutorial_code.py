"""Write the code in tutorial.md from examples/tutorial: python docs/tutorial_code.py.

With --run, this also runs the programs, which takes some minutes, and writes their outputs. A test compares the code of
the page with the programs.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parent
PAGE = DOCS / "tutorial.md"
STEPS = sorted((DOCS.parent / "examples" / "tutorial").glob("step*.py"))
ARGUMENT = re.compile(r"= int\(sys\.argv\[1\]\) if len\(sys\.argv\) > 1 else ")


def filled(page: str) -> str:
    """Return the page with the code of each step between its markers, without definitions of earlier steps."""
    shown: set[str] = set()
    for path in STEPS:
        code = without(shown, pasteable(path.read_text().partition('"""\n\n')[2]))
        block = f"<!-- not run: a test runs all blocks in their order -->\n```python\n{code}```"
        page = replaced(page, rf"(?<=<!-- {marker(path)} -->\n).*?(?=\n<!-- end of {marker(path)} -->)", block, path)
    return page


def pasteable(code: str) -> str:
    """Return code with a constant in place of its argument. A notebook has the arguments of its kernel."""
    return ARGUMENT.sub("= ", code).removeprefix("import sys\n\n")


def without(shown: set[str], code: str) -> str:
    """Return code without the definitions in a set, and add the other definitions of the code to the set."""
    lines = code.splitlines(keepends=True)
    for node in reversed(ast.parse(code).body):
        first, last = node.lineno - 1, node.end_lineno
        text = "".join(lines[first:last])
        if text in shown:
            del lines[first:last]
        elif isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef) or text[:1].isupper():
            shown.add(text)
    left = re.sub(r"\n{4,}", "\n\n\n", "".join(lines)).strip("\n") + "\n"
    return re.sub(r"^([A-Z_, ]+ = .*)\n{3}(?!class |def )", r"\1\n\n", left, flags=re.MULTILINE)


def with_outputs(page: str, output_of: Callable[[Path], str]) -> str:
    """Return the page with the output of each step in the block after its code."""
    for path in STEPS:
        pattern = rf"(?<=<!-- end of {marker(path)} -->\n\n```text\n).*?(?=\n```)"
        page = replaced(page, pattern, output_of(path).rstrip(), path)
    return page


def marker(path: Path) -> str:
    """Return the name of a program in the markers of the page."""
    return f"{path.parent.name}/{path.name}"


def replaced(page: str, pattern: str, by: str, path: Path) -> str:
    """Return the page with a new text in the only place that matches a pattern."""
    page, found = re.subn(pattern, lambda _: by, page, flags=re.DOTALL)
    if found != 1:
        raise ValueError(f"the tutorial must have the markers of {marker(path)} once, got {found}")
    return page


def output_of(path: Path) -> str:
    """Run a program and return its output."""
    return subprocess.run([sys.executable, path], check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    text = filled(PAGE.read_text())
    PAGE.write_text(with_outputs(text, output_of) if "--run" in sys.argv else text)
