"""report: what a run did, from the trace that it wrote, as a page with pictures."""

from __future__ import annotations

import os
from pathlib import Path

from parenv.cli.page import page
from parenv.cli.plot import check_plotting
from parenv.cli.trace_file import find_traces, read_timeline
from parenv.cli.writable import check_writable, write_text

NAME = "report.html"


def report(path: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """Write a page about the run that a trace is of: pictures and tables, in one file that needs no other.

    Args:
        path: a file that ``pool.trace`` has written, or is writing; or a directory with one or several.
        output: where to; ``report.html`` beside the trace by default.

    Returns:
        Where the page is.

    Raises:
        ConfigurationError: there is no trace, it is damaged, the page cannot be written, or ``matplotlib`` is missing.
    """
    path = Path(path)
    traces = find_traces(path)
    where = Path(output) if output is not None else traces[0].parent / NAME
    check_writable(where)
    check_plotting()
    write_text(where, page(f"parenv: {path.name}", [read_timeline(trace) for trace in traces]))
    return where
