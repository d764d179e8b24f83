"""Write the code in tutorial.md from examples/tutorial: python docs/tutorial_code.py.

A test compares the page with the programs.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent
PAGE = DOCS / "tutorial.md"
STEPS = sorted((DOCS.parent / "examples" / "tutorial").glob("step*.py"))
DEFINITION = re.compile(r"^(?:class|def) (\w+)\b.*\n(?:(?: {4}.*)?\n)*", re.MULTILINE)


def filled(page: str) -> str:
    """Return the page with the code of each step between its markers."""
    first = STEPS[0].read_text()
    for path in STEPS:
        name = f"{path.parent.name}/{path.name}"
        code = path.read_text().partition('"""\n\n')[2]
        if path != STEPS[0]:
            code = without_repeats(code, first)
        block = (
            f"<!-- {name} -->\n<!-- not run: a test runs the program -->\n```python\n{code}```\n<!-- end of {name} -->"
        )
        page, found = re.subn(
            rf"<!-- {name} -->.*?<!-- end of {name} -->", lambda _, to=block: to, page, flags=re.DOTALL
        )
        if not found:
            raise ValueError(f"the tutorial must have the markers of {name}")
    return page


def without_repeats(code: str, first: str) -> str:
    """Return code with one comment in place of the definitions that it shares with the first program."""
    repeated = [match[1] for match in DEFINITION.finditer(code) if match[0] in first]
    for number, name in enumerate(repeated):
        comment = f"# {' and '.join(repeated)}: as in step 1\n\n\n" if number == 0 else ""
        code = re.sub(rf"^(?:class|def) {name}\b.*\n(?:(?: {{4}}.*)?\n)*", comment, code, flags=re.MULTILINE)
    return code


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
