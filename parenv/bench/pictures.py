"""Pictures of a report about a run. Needs the extra ``bench``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from parenv.bench.timeline import UNRECORDED, WINDOW, Timeline, Track

COLOURS = {
    "env": "#009e73",
    "act": "#e69f00",
    "postprocess": "#f0e442",
    "commit": "#cc79a7",
    "learn": "#0072b2",
    "publish": "#56b4e9",
    "evaluate": "#8c6bb1",
    "restart": "#d55e00",
    "wait": "#dddddd",
    UNRECORDED: "#ffffff",
}
"""Colour of each activity, in the order of the stack. Colour-blind readers can distinguish them."""
LOST = "#b00000"
INK = "#333333"
WIDTH = 10.0
NARROW = 4.6
"""Widths of a picture on a screen and on a phone, in inches."""
MOST_LANES = 32
MOST_DOTS = 4000
MOST_NAMES = 8
CYCLES = 8
"""Number of rollouts of each worker in a window of the timeline."""


class Picture(NamedTuple):
    """One picture of a report.

    Args:
        title: Text above the picture.
        caption: Text below the picture.
        draw: ``(figure, timeline) -> None`` draws on an empty figure of matplotlib, whose width is given.
    """

    title: str
    caption: str
    draw: Callable[[Any, Timeline], None]


def pictures(timeline: Timeline) -> list[Picture]:
    """Return the pictures for which a timeline has data."""
    if not len(timeline.arrived_s):
        return []
    marks = "" if not timeline.losses else " Red lines: a worker or a sub-environment was lost."
    diamonds = " Diamonds: mean returns of evaluations." if len(timeline.evaluations.seconds) else ""
    caption = f"Dots: episodes. Line: mean of the last {_window(timeline)}.{diamonds}{marks}"
    returns = Picture("Return", caption, _draw_returns)
    return [
        Picture("Timeline", _timeline_caption(timeline), _draw_timeline),
        Picture("Where the time went", _utilisation_caption(timeline), _draw_utilisation),
        *([returns] if len(timeline.episodes) else []),
        Picture("Throughput", f"Env steps as the workers made them.{marks}", _draw_throughput),
        Picture("Policy lag", "Versions published between acting and learning.", _draw_lag),
    ]


def windows(timeline: Timeline) -> list[tuple[str, float, float]]:
    """Return the windows of the timeline to enlarge: title, begin and end in seconds."""
    end = timeline.seconds
    length = min(end, CYCLES * timeline.cycle_s)
    found = [("the beginning", 0.0, length)]
    if end > 3 * length:
        found.append(("the middle", (end - length) / 2, (end + length) / 2))
    workers = timeline.workers[:MOST_LANES]
    restarts = [(*worker.pieces["restart"][0], worker.name) for worker in workers if "restart" in worker.pieces]
    if restarts:
        began, ended, name = min(restarts)
        around = max(length, 1.6 * (ended - began))
        found.append((f"{name} is restarted", max(0.0, began - 0.3 * around), began + 0.7 * around))
    return sorted(found, key=lambda window: window[1])


def _draw_timeline(figure: Any, timeline: Timeline) -> None:
    lanes, shown = timeline.tracks[: 1 + MOST_LANES], windows(timeline)
    height = 0.55 + 0.24 * len(lanes)
    figure.set_figheight(0.7 + len(shown) * (height + 0.35))
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    drawn = set()
    for panel, (title, since, until) in zip(panels, shown, strict=True):
        for lane, track in enumerate(lanes):
            drawn |= _draw_lane(panel, lane, track, since, until)
        for loss in timeline.losses:
            if since <= loss.seconds <= until and loss.worker + 1 < len(lanes):
                panel.plot([loss.seconds] * 2, [loss.worker + 0.5, loss.worker + 1.5], color=LOST, linewidth=2)
        panel.set(xlim=(since, until), title=title)
        _name_lanes(panel, lanes)
        panel.locator_params(axis="x", nbins=8 if figure.get_figwidth() >= WIDTH else 5)
        panel.ticklabel_format(axis="x", useOffset=False, style="plain")
    panels[-1].set_xlabel("seconds since the first request for a rollout")
    _explain(figure, [name for name in COLOURS if name in drawn])


def _draw_lane(panel: Any, lane: int, track: Track, since: float, until: float) -> set[str]:
    drawn = set()
    for name in sorted(track.pieces, key=lambda name: name not in ("learn", "wait")):
        pieces = track.pieces[name]
        seen = pieces[(pieces[:, 1] > since) & (pieces[:, 0] < until)]
        if len(seen):
            drawn.add(name)
            spans = np.stack([seen[:, 0], seen[:, 1] - seen[:, 0]], 1)
            panel.broken_barh(spans, (lane - 0.4, 0.8), color=COLOURS.get(name, INK), linewidth=0)
    return drawn


def _timeline_caption(timeline: Timeline) -> str:
    left_out = len(timeline.workers) - MOST_LANES
    return (
        "Acting and stepping alternate at each row of a rollout. Here each is one piece with the total duration. "
        "Red mark: a loss. Rollouts in progress at a loss, or at the end of the trace, are not recorded."
        + (f" {left_out} further workers are left out." if left_out > 0 else "")
    )


def _draw_utilisation(figure: Any, timeline: Timeline) -> None:
    lanes = timeline.tracks[: 1 + MOST_LANES]
    figure.set_figheight(1.2 + 0.3 * len(lanes))
    panel = figure.subplots()
    fractions = [track.fractions() for track in lanes]
    used = [name for name in COLOURS if any(one.get(name, 0.0) > 5e-4 for one in fractions)]
    left = np.zeros(len(lanes))
    for name in used:
        wide = np.array([100 * one.get(name, 0.0) for one in fractions])
        edge = {"edgecolor": "#bbbbbb", "linewidth": 0.6} if name == UNRECORDED else {}
        panel.barh(range(len(lanes)), wide, 0.8, left=left, color=COLOURS[name], **edge)
        for lane, (at, share) in enumerate(zip(left, wide, strict=True)):
            if share >= 50 / figure.get_figwidth():
                colour = "white" if name in ("learn", "env", "restart", "evaluate") else INK
                panel.text(at + share / 2, lane, f"{share:.0f} %", ha="center", va="center", fontsize=8, color=colour)
        left += wide
    panel.set(xlim=(0, 100), xlabel="share of the time, %")
    _name_lanes(panel, lanes)
    _explain(figure, used)


def _utilisation_caption(timeline: Timeline) -> str:
    on_worker = "loss_fn and backward (worker), " if any("learn" in one.pieces for one in timeline.workers) else ""
    return (
        "env: in sub-environments. act: in the policy. commit: loading new weights and handing the rollout over. "
        f"learn: {on_worker}your own code (driver). wait: for a rollout request (worker), for a rollout (driver). "
        "unrecorded: start, and rollouts that never arrived."
    )


def _draw_returns(figure: Any, timeline: Timeline) -> None:
    panels = _two_panels(figure)
    episodes, mean = timeline.episodes, timeline.episodes.running_mean(_window(timeline))
    evaluated = timeline.evaluations
    every = max(1, len(episodes) // MOST_DOTS)
    # One mean for each rollout: its episodes arrive at the same time, and the line would be vertical there.
    last = np.flatnonzero(np.diff(episodes.env_steps, append=-1))
    lost_s = [loss.seconds for loss in timeline.losses]
    lost = [timeline.env_steps_at(seconds) for seconds in lost_s]
    axes = (
        ("env steps", episodes.env_steps, evaluated.env_steps, lost),
        ("seconds", episodes.seconds, evaluated.seconds, lost_s),
    )
    for panel, (label, across, evaluated_at, places) in zip(panels, axes, strict=True):
        panel.scatter(across[::every], episodes.returns[::every], 5, color="#9ecae1", linewidths=0, rasterized=True)
        panel.plot(across[last], mean[last], color=COLOURS["learn"], linewidth=1.8)
        panel.scatter(evaluated_at, evaluated.mean_returns, 26, color=COLOURS["evaluate"], marker="D", zorder=3)
        _mark(panel, places)
        panel.set_xlabel(label)
        panel.locator_params(axis="x", nbins=6)
        _lighten(panel)
    panels[0].xaxis.set_major_formatter(_short)
    panels[0].set_ylabel("return of an episode")


def _two_panels(figure: Any) -> Any:
    """Make two panels, side by side if the figure is wide."""
    is_narrow = figure.get_figwidth() < WIDTH
    figure.set_figheight(5.6 if is_narrow else 3.4)
    return figure.subplots(2, 1, sharey=True) if is_narrow else figure.subplots(1, 2, sharey=True)


def _window(timeline: Timeline) -> int:
    """Return the number of episodes in a mean. Many episodes need a larger one for a thin line."""
    return max(WINDOW, len(timeline.episodes) // 200)


def _draw_throughput(figure: Any, timeline: Timeline) -> None:
    several = len(timeline.workers) > 1
    figure.set_figheight(5.2 if several else 3.0)
    panels = figure.subplots(1 + several, 1, sharex=True, squeeze=False)[:, 0]
    edges = np.linspace(0.0, timeline.seconds, 1 + int(np.clip(timeline.seconds / (4 * timeline.cycle_s), 4, 120)))
    rates = [np.diff(track.env_steps_until(edges)) / np.diff(edges) for track in timeline.workers]
    panels[0].stairs(np.sum(rates, 0), edges, baseline=None, color=INK, linewidth=1.8)
    if several:
        _draw_each(panels[1], edges, rates, [track.name for track in timeline.workers])
    titles = ("all workers", "each worker") if several else ("the worker",)
    for panel, title in zip(panels, titles, strict=True):
        _mark(panel, [loss.seconds for loss in timeline.losses])
        panel.set(xlim=(0, timeline.seconds), ylabel="env steps per second", title=title)
        panel.set_ylim(0, 1.1 * panel.dataLim.y1 or 1.0)
        panel.yaxis.set_major_formatter(_short)
        _lighten(panel)
    panels[-1].set_xlabel("seconds")


def _draw_each(panel: Any, edges: Any, rates: Sequence[Any], names: Sequence[str]) -> None:
    """Draw one line for each worker. If there are many lines, only some are named."""
    from matplotlib import colormaps

    named = set(np.linspace(0, len(rates) - 1, min(MOST_NAMES, len(rates))).round().astype(int).tolist())
    colours = colormaps["viridis"](np.linspace(0.0, 0.92, len(rates)))
    for i, (rate, colour) in enumerate(zip(rates, colours, strict=True)):
        panel.stairs(rate, edges, baseline=None, color=colour, alpha=0.85, label=names[i] if i in named else None)
    panel.figure.legend(loc="outside lower center", ncols=_columns(panel.figure), frameon=False, fontsize=9)


def _draw_lag(figure: Any, timeline: Timeline) -> None:
    figure.set_size_inches(min(WIDTH / 2, figure.get_figwidth()), 2.8)
    panel = figure.subplots()
    lags, counts = np.unique(timeline.policy_lag, return_counts=True)
    panel.bar(lags, counts, 0.8, color=COLOURS["publish"])
    if len(lags) <= 12:
        for lag, count in zip(lags, counts, strict=True):
            panel.text(lag, count, f"{100 * count / counts.sum():.3g} %", ha="center", va="bottom", fontsize=8)
    panel.set(xlabel="policy lag in publishes", ylabel="rollouts", xlim=(-0.8, max(3.0, float(np.max(lags))) + 0.8))
    panel.set_ylim(top=1.12 * float(np.max(counts)))
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.yaxis.set_major_formatter(_short)
    _lighten(panel)


def _name_lanes(panel: Any, lanes: Sequence[Track]) -> None:
    panel.set_yticks(range(len(lanes)), [track.name for track in lanes], fontsize=9)
    panel.set_ylim(len(lanes) - 0.4, -0.6)
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)


def _explain(figure: Any, names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=COLOURS[name], edgecolor="#bbbbbb", linewidth=0.5, label=name) for name in names]
    figure.legend(handles=patches, loc="outside upper center", ncols=_columns(figure), frameon=False, fontsize=9)


def _columns(figure: Any) -> int:
    """Return the number of names that fit beside each other in the legend."""
    return int(figure.get_figwidth() / 1.1)


def _mark(panel: Any, places: Sequence[float]) -> None:
    for place in places:
        panel.axvline(place, color=LOST, linewidth=0.9, linestyle=(0, (4, 3)))


def _lighten(panel: Any) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    panel.set_axisbelow(True)


def _short(value: float, _: Any) -> str:
    """Return a short label of a tick."""
    for letter, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
