"""Write ``results/`` into ``RESULTS.md``, ``scaling.md`` and the page on when parallelism helps.

That page has each generated part between ``<!-- name -->`` and ``<!-- end of name -->``.

python benchmarks/tables/table.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import devices
import field
import growth
import on_paper
import one_machine
import own
import sentences
from sections import content, read, written

HERE = Path(__file__).parents[1]
GUIDE = HERE.parent / "docs" / "explanation" / "when-parallelism-helps.md"
RESULTS, SCALING = HERE / "RESULTS.md", HERE / "scaling.md"
TABLES = """
Values are medians. All systems ran in turn, each in its own process. Each row of a table is the best variant of a
library. The best value and ties are bold. `make bench` repeats the measurements, with the other libraries in their own
virtual environments. [All measurements](../measurements.md) has every variant, the plots, and the systems that could
not be measured.

{compared}

## parenv alone

{own}
"""
RESULTS_FILE = """# Results

Values are medians. Each section names its machine and its command. `python benchmarks/tables/table.py` writes this page
from the files in `results/`, and `make bench` repeats all measurements.

## Compared with other libraries

{compared}

## parenv alone

{own}

## How the overhead grows

{growth}
"""


def blocks() -> dict[str, str]:
    """Return the generated parts of the guide with their markers, by name."""
    vector_env, cores = content("vector_env"), read("peers_cores")
    parts = {
        "when it pays": sentences.when_it_pays(vector_env),
        "shared machine": sentences.shared_machine(vector_env),
        "results": tables(),
        "a GPU": f"\n{devices.gpu(read('gpu'))}\n",
        "rollouts on a GPU": f"\n{devices.on_gpu(read('batches_gpu'))}\n",
        **{f"cores, {case}": f"\n{devices.cores(cores, case)}\n" for case in devices.CASES},
    }
    return {name: f"<!-- {name} -->{text}<!-- end of {name} -->" for name, text in parts.items()}


def filled(guide: str) -> str:
    """Return the guide with new generated parts."""
    found = blocks()
    return re.sub(r"<!-- ([^>]+) -->.*?<!-- end of \1 -->", lambda match: found[match[1]], guide, flags=re.DOTALL)


def tables() -> str:
    """Return the sections of the guide."""
    return TABLES.format(
        compared=written(one.of_libraries() for one in field.comparisons()),
        own=written(section for section in own.sections() if section.in_guide),
    )


def everything() -> str:
    """Return ``RESULTS.md``."""
    return RESULTS_FILE.format(
        compared=written(one.of_systems() for one in field.comparisons()),
        own=written(own.sections()),
        growth=growth.text(read("scaling")),
    )


def scaling() -> str:
    """Return ``scaling.md``."""
    published = json.loads((HERE / "tables" / "published.json").read_text())
    return on_paper.scaling(content("remote")) + one_machine.one_machine(
        content("many_workers"), content("collecting"), published
    )


if __name__ == "__main__":
    GUIDE.write_text(filled(GUIDE.read_text()))
    RESULTS.write_text(everything())
    SCALING.write_text(scaling())
