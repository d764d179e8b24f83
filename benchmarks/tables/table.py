"""Write the results of ``results/`` into the generated parts of pages.

A page has each part between ``<!-- name -->`` and ``<!-- end of name -->``. All other text of the pages is written.

python benchmarks/tables/table.py
"""

from __future__ import annotations

import re
from pathlib import Path

from parts import PARTS

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "benchmarks" / "RESULTS.md",
    ROOT / "docs" / "explanation" / "when-parallelism-helps.md",
)
MARKED = re.compile(r"<!-- (?!end of )([^>]+) -->.*?<!-- end of \1 -->", re.DOTALL)


def filled(page: str) -> str:
    """Return a page with new generated parts.

    Raises:
        KeyError: A part has an unknown name.
    """
    return MARKED.sub(lambda found: f"<!-- {found[1]} -->{PARTS[found[1]]()}<!-- end of {found[1]} -->", page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
