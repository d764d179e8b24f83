"""Report about a run: facts, pictures and tables in one HTML file."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from parenv.advice import in_steps
from parenv.bench.display import Table
from parenv.bench.output_files import check_plotting, check_writable, write_text
from parenv.bench.pictures import COLOURS, NARROW, WIDTH, Picture, pictures
from parenv.bench.timeline import WINDOW, Loss, Timeline, find_traces, read_timeline

NAME = "report.html"
MOST_LOSSES = 100
DPI = 120
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #333; background: #fff; max-width: 66rem; margin: 2rem auto;
  padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
h2 { margin-top: 2.2rem; font-size: 1.15rem; }
p { max-width: 52rem; }
img { max-width: 100%; height: auto; display: block; }
.caption { color: #666; font-size: 13px; }
.warning { background: #fff3e0; border-left: 4px solid #d55e00; padding: .5rem .8rem; }
table { border-collapse: collapse; font-size: 14px; }
th, td { padding: .2rem .7rem; text-align: right; vertical-align: top; border-bottom: 1px solid #e4e4e4; }
.scrolled { overflow-x: auto; }
.numbers th, .numbers td { white-space: nowrap; }
.words td { overflow-wrap: anywhere; min-width: 3rem; }
@media (max-width: 600px) { body { margin: 1rem auto; } h1 { font-size: 1.4rem; } th, td { padding: .2rem .4rem; } }
th:first-child, td:first-child, .words th, .words td { text-align: left; }
"""


def report(path: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """Write an HTML page with pictures and tables about a run. The page needs no other file.

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
    write_text(where, page(f"parenv: {path.name}", [read_timeline(trace) for trace in traces]))
    return where


def page(title: str, timelines: Sequence[Timeline]) -> str:
    """Return a page about some runs, as HTML."""
    body = "\n".join(part for timeline in timelines for part in _run(timeline))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def facts(timeline: Timeline) -> str:
    """Return the facts about a run in one sentence."""
    about, workers = timeline.about, len(timeline.workers)
    where = f"{workers} worker{'s' * (workers > 1)}" if about["in processes"] else "no worker processes (num_workers=0)"
    return (
        f"{about['mode']}, {about['parallelism']} parallelism, {where}, {timeline.num_envs} sub-environments: "
        f"{timeline.total_env_steps:,} env steps in {timeline.seconds:,.1f} seconds, "
        f"{in_steps(timeline.env_steps_per_second)} env steps per second, {_losses_in_words(timeline)}."
    )


def _losses_in_words(timeline: Timeline) -> str:
    """Count losses and restarts. A worker that is lost at its start or at the end of the run is not restarted."""
    lost, restarts = sum(loss.what == "worker" for loss in timeline.losses), timeline.restarts
    words = f"{restarts} restart{'s' * (restarts != 1)}"
    return words if lost == restarts else f"{lost} loss{'es' * (lost != 1)} of workers, {words}"


def figures_table(timeline: Timeline) -> Table:
    """Return the table of the run's figures."""
    episodes, lag = timeline.episodes, timeline.policy_lag
    last = slice(-WINDOW, None)
    rows = [
        ("env steps", f"{timeline.total_env_steps:,}"),
        ("seconds", f"{timeline.seconds:,.1f}"),
        ("env steps per second", in_steps(timeline.env_steps_per_second)),
        ("rollouts", f"{len(timeline.env_steps):,}"),
        ("publishes", f"{len(timeline.driver.pieces.get('publish', ())):,}"),
        ("policy lag, mean and highest", f"{lag.mean():.2f}, {lag.max()}" if len(lag) else ""),
        ("episodes", f"{len(episodes):,}"),
        (f"mean return of the last {WINDOW} episodes", f"{episodes.running_mean()[-1]:.4g}" if len(episodes) else ""),
        (f"mean length of the last {WINDOW} episodes", f"{episodes.lengths[last].mean():.4g}" if len(episodes) else ""),
        ("workers lost", f"{sum(loss.what == 'worker' for loss in timeline.losses)}"),
        ("workers restarted", f"{timeline.restarts}"),
        ("sub-environments replaced", f"{sum(loss.what == 'sub-environment' for loss in timeline.losses)}"),
    ]
    return Table("Figures", ("", ""), rows)


def fractions_table(timeline: Timeline) -> Table:
    """Return the shares of time of the main process and of each worker, with the env steps of each."""
    fractions = [track.fractions() for track in timeline.tracks]
    used = [name for name in COLOURS if any(one.get(name, 0.0) > 5e-4 for one in fractions)]
    rows = []
    for track, mine in zip(timeline.tracks, fractions, strict=True):
        env_steps = int(track.env_steps.sum())
        made = (f"{env_steps:,}", in_steps(env_steps / track.seconds)) if env_steps and track.seconds else ("", "")
        rows.append((track.name, *(f"{100 * mine[name]:.1f} %" if mine.get(name) else "" for name in used), *made))
    return Table("Shares of the time", ("", *used, "env steps", "per second"), rows)


def losses_table(timeline: Timeline) -> Table:
    """Return the table of losses: time, worker or sub-environment, time until the restart, reason."""
    rows = [
        (f"{loss.seconds:.2f}", loss.who, _back_after(timeline, loss), loss.reason)
        for loss in timeline.losses[:MOST_LOSSES]
    ]
    if len(timeline.losses) > MOST_LOSSES:
        rows.append(("", "", "", f"and {len(timeline.losses) - MOST_LOSSES} more"))
    return Table("Lost and replaced", ("second", "who", "back after", "why"), rows)


def _back_after(timeline: Timeline, loss: Loss) -> str:
    if loss.what != "worker":
        return ""
    back = [until for _, until in timeline.workers[loss.worker].pieces.get("restart", ()) if until >= loss.seconds]
    return f"{min(back) - loss.seconds:.2f} s" if back else "not"


def png(picture: Picture, timeline: Timeline, width: float) -> str:
    """Draw a picture of a width in inches, and return it as a data URL."""
    from matplotlib.figure import Figure

    figure, file = Figure(figsize=(width, 1.0), layout="constrained"), io.BytesIO()
    picture.draw(figure, timeline)
    figure.savefig(file, format="png", dpi=DPI)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _run(timeline: Timeline) -> Iterator[str]:
    yield f"<h1>Run of {escape(timeline.about['date'])} ({escape(timeline.name)})</h1>"
    yield f"<p>{escape(facts(timeline))}</p>"
    if not timeline.is_finished:
        yield _warning("The trace is not finished: the run is in progress or was killed.")
    if not len(timeline.arrived_s):
        yield _warning("There is no rollout in this trace.")
    elif not len(timeline.episodes):
        yield _warning("No episode ended in these rollouts, so there is no picture of returns.")
    for picture in pictures(timeline):
        title, wide, narrow = escape(picture.title), *(png(picture, timeline, width) for width in (WIDTH, NARROW))
        yield f"<h2>{title}</h2>"
        yield f'<picture><source media="(max-width: 600px)" srcset="{narrow}">'
        yield f'<img alt="{title}" src="{wide}"></picture>'
        yield f'<p class="caption">{escape(picture.caption)}</p>'
    for table in (figures_table(timeline), fractions_table(timeline)):
        yield _in_html(table)
    if timeline.losses:
        yield _in_html(losses_table(timeline), "words")


def _warning(words: str) -> str:
    return f'<p class="warning">{escape(words)}</p>'


def _in_html(table: Table, kind: str = "numbers") -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    head = f"<tr>{head}</tr>\n" if any(table.columns) else ""
    return f'<h2>{escape(table.title)}</h2>\n<div class="scrolled"><table class="{kind}">\n{head}{rows}\n</table></div>'
