"""Report about a run: curves, utilisation and failures in one HTML file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from parenv.advice import in_steps
from parenv.bench.failure_report import failure_lines
from parenv.bench.output_files import check_plotting, check_writable, write_text
from parenv.bench.pictures import pictures, png, window
from parenv.bench.timeline import UNRECORDED, WINDOW, Timeline, Track, find_traces, read_timeline

NAME = "report.html"
COLOURS = {
    "env": "#009e73",
    "act": "#e69f00",
    "postprocess": "#f0e442",
    "commit": "#cc79a7",
    "learn": "#0072b2",
    "publish": "#56b4e9",
    "evaluate": "#8c6bb1",
    "restart": "#d55e00",
    "wait": "#cccccc",
    UNRECORDED: "#f2f2f2",
}
"""Colour of each activity, in the order of the bars. Colour-blind readers can distinguish them."""
ACTIVITIES = (
    "env: in sub-environments. act: in the policy. commit: loading new weights and handing the rollout over. learn: "
    "loss_fn and backward (worker), your own code (driver). wait: for a rollout request (worker), for a rollout "
    "(driver). unrecorded: start, and rollouts that never arrived."
)
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #333; background: #fff; max-width: 66rem; margin: 2rem auto;
  padding: 0 1rem; }
h2 { margin-top: 2.2rem; font-size: 1.15rem; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
figure { margin: 0; }
img { width: 100%; display: block; }
.caption { color: #666; font-size: 13px; }
.warning { background: #fff3e0; border-left: 4px solid #d55e00; padding: .5rem .8rem; }
.scrolled { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; white-space: nowrap; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #e4e4e4; }
th:first-child, td:first-child { text-align: left; }
.bar { display: flex; width: 16rem; height: 1rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def report(path: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """Write an HTML page with curves, utilisation and failures of a run. The page needs no other file.

    Args:
        path: Trace that ``pool.trace`` has written or is writing, or a directory with at least one trace.
        output: File to write. Default: ``report.html`` beside the trace.

    Returns:
        Path of the page.

    Raises:
        ConfigurationError: There is no trace, it is damaged, the page cannot be written, or ``matplotlib`` is missing.

    >>> import tempfile
    >>> from parenv import AsyncWorkerPool
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with AsyncWorkerPool("CartPole-v1", lambda observations: observations[:, 2] > 0, num_workers=0) as pool:
    ...         pool.trace(f"{folder}/trace.json")
    ...         rollout = next(pool.rollouts())
    ...     report(folder).name
    'report.html'
    """
    path = Path(path)
    traces = find_traces(path)
    where = Path(output) if output is not None else traces[0].parent / NAME
    check_writable(where)
    check_plotting()
    body = "\n".join(part for trace in traces for part in _run(read_timeline(trace)))
    write_text(
        where,
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>parenv: {escape(path.name)}'
        f"</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n",
    )
    return where


def facts(timeline: Timeline) -> str:
    """Return the setting of a run in one sentence."""
    about, shares = timeline.about, timeline.about["sub-environments of each worker"]
    where = f"{len(shares)} worker{'s' * (len(shares) > 1)}"
    if not about["in processes"]:
        where = "no worker processes (num_workers=0)"
    return f"{about['mode']}, {about['parallelism']} parallelism, {where}, {sum(shares)} sub-environments"


def figures(timeline: Timeline) -> dict[str, str]:
    """Return the figures of a run by name."""
    episodes, lag, seconds = timeline.episodes, timeline.policy_lag, timeline.seconds
    found = {
        "env steps": f"{timeline.total_env_steps:,}",
        "seconds": f"{seconds:,.1f}",
        "env steps per second": in_steps(timeline.total_env_steps / seconds) if seconds else "",
        "rollouts": f"{len(timeline.env_steps):,}",
        "publishes": f"{len(timeline.driver.pieces.get('publish', ())):,}",
        "policy lag, mean and highest": f"{lag.mean():.2f}, {lag.max()}" if len(lag) else "",
        "episodes": f"{len(episodes):,}",
    }
    if len(episodes):
        found[f"mean return of the last {WINDOW} episodes"] = f"{episodes.running_mean()[-1]:.4g}"
        found[f"mean length of the last {WINDOW} episodes"] = f"{timeline.lengths[-WINDOW:].mean():.4g}"
    return found | {"workers restarted": f"{timeline.restarts}"}


def _run(timeline: Timeline) -> Iterator[str]:
    yield f"<h1>Run of {escape(timeline.about['date'])} ({escape(timeline.name)})</h1>"
    yield f"<p>{escape(facts(timeline))}.</p>"
    if not timeline.is_finished:
        yield _warning("The trace is not finished: the run is in progress or was killed.")
    if not len(timeline.arrived_s):
        yield _warning("There is no rollout in this trace.")
    elif not len(timeline.episodes):
        yield _warning("No episode ended in these rollouts, so there is no picture of returns.")
    yield _table((), figures(timeline).items())
    yield from _curves(timeline)
    yield from _utilisation(timeline.tracks)
    yield f"<h2>Failures</h2>\n<pre>{escape(chr(10).join(failure_lines(timeline)))}</pre>"
    perfetto = '<a href="https://ui.perfetto.dev">ui.perfetto.dev</a>'
    yield f"<p>{perfetto} shows when each worker did what. Open {escape(timeline.name)} there.</p>"


def _curves(timeline: Timeline) -> Iterator[str]:
    drawn = pictures(timeline)
    if drawn:
        yield '<h2>Curves</h2>\n<div class="curves">'
        for title, draw in drawn.items():
            yield f'<figure><img alt="{title}" src="{png(draw, timeline)}"></figure>'
        yield (
            f'</div>\n<p class="caption">Dots: episodes. Line: mean of the last {window(timeline)}. Diamonds: mean '
            "returns of evaluations. Red lines: a worker or a sub-environment was lost.</p>"
        )


def _utilisation(tracks: Sequence[Track]) -> Iterator[str]:
    """Yield the shares of time of the main process and of each worker, as bars and as numbers."""
    fractions = [track.fractions() for track in tracks]
    used = [name for name in COLOURS if any(one.get(name, 0.0) > 5e-4 for one in fractions)]
    rows = []
    for track, mine in zip(tracks, fractions, strict=True):
        parts = "".join(f'<i style="flex:{mine.get(name, 0.0):.4f};background:{COLOURS[name]}"></i>' for name in used)
        made = (f"{track.env_steps:,}", in_steps(track.env_steps / track.seconds)) if track.env_steps else ("", "")
        shares = (f"{100 * mine[name]:.1f} %" if mine.get(name) else "" for name in used)
        rows.append((track.name, f'<div class="bar">{parts}</div>', *shares, *made))
    heads = (f'<span style="border-bottom:.3rem solid {COLOURS[name]}">{name}</span>' for name in used)
    yield "<h2>Utilisation</h2>"
    yield _table(("", "share of the time", *heads, "env steps", "per second"), rows)
    yield f'<p class="caption">{ACTIVITIES}</p>'


def _warning(words: str) -> str:
    return f'<p class="warning">{words}</p>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are HTML."""
    lines = ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    if head:
        lines.insert(0, "<tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>")
    return '<div class="scrolled"><table>\n' + "\n".join(lines) + "\n</table></div>"
