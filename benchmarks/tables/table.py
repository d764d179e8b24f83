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
import speeds
from sections import content, read, written

HERE = Path(__file__).parents[1]
GUIDE = HERE.parent / "docs" / "explanation" / "when-parallelism-helps.md"
RESULTS, SCALING = HERE / "RESULTS.md", HERE / "scaling.md"
RESULTS_FILE = """# Results

Values are medians. Each section names its machine and its command. `python benchmarks/tables/table.py` writes this page
from the files in `results/`, and `make bench` repeats all measurements.

## Compared with other libraries

{compared}

## 1 to 15 workers

The machine has 16 cores and steps 120 environments. All systems may use as many cores as workers, and one more for the
main process. The upper bound has one independent process per worker. A step of all sub-environments waits for the
slowest worker. Rollouts need the main process only once per rollout, so they scale further.

{cores}

![Stepping and rollouts by the number of workers](results/peers_cores.png)

## A GPU

{gpu}

A learner on the GPU is worth it in all cases. Workers on the GPU share it, and are worth it if a forward pass on the
CPU takes longer than the transfer to the GPU and back.

## parenv alone

{own}

## How the overhead grows

{growth}
"""


def blocks() -> dict[str, str]:
    """Return the generated parts of the guide with their markers, by name."""
    parts = {
        "speeds": f"\n{speeds.speeds()}\n",
        "questions": f"\n{field.by_question()}\n",
        "driver": own.driver_ms(),
    }
    return {name: f"<!-- {name} -->{text}<!-- end of {name} -->" for name, text in parts.items()}


def filled(guide: str) -> str:
    """Return the guide with new generated parts."""
    found = blocks()
    return re.sub(r"<!-- ([^>]+) -->.*?<!-- end of \1 -->", lambda match: found[match[1]], guide, flags=re.DOTALL)


def everything() -> str:
    """Return ``RESULTS.md``."""
    return RESULTS_FILE.format(
        compared=written(one.of_systems() for one in field.comparisons()),
        cores="\n\n".join(devices.cores(read("peers_cores"), case) for case in devices.CASES),
        gpu=f"{devices.gpu(read('gpu'))}\n\n{devices.on_gpu(read('batches_gpu'))}",
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
