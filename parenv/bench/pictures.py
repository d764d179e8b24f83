"""Curves of a report about a run. Needs the extra ``bench``."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from parenv.bench.timeline import WINDOW, Timeline

EPISODES, LINE, EVALUATIONS, LOST = "#9ecae1", "#0072b2", "#8c6bb1", "#b00000"
"""Colours. Colour-blind readers can distinguish them."""
WIDTH, HEIGHT, DPI = 4.6, 2.9, 160
"""Size of a picture in inches, readable on a phone, and its resolution."""
MOST_DOTS = 4000
Draw = Callable[[Any, Timeline], None]
"""Draws on an empty panel of matplotlib."""


def pictures(timeline: Timeline) -> dict[str, Draw]:
    """Return the functions that draw the pictures for which a timeline has data, by title."""
    if not len(timeline.arrived_s):
        return {}
    over = {"Return": "env_steps", "Return over time": "seconds"} if len(timeline.episodes) else {}
    returns = {title: partial(_draw_returns, over=axis) for title, axis in over.items()}
    return {**returns, "Throughput": _draw_throughput, "Policy lag": _draw_lag}


def png(draw: Draw, timeline: Timeline) -> str:
    """Draw a picture, and return it as a data URL."""
    from matplotlib.figure import Figure

    figure, file = Figure(figsize=(WIDTH, HEIGHT), layout="constrained"), io.BytesIO()
    panel = figure.subplots()
    draw(panel, timeline)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    panel.set_axisbelow(True)
    figure.savefig(file, format="png", dpi=DPI)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def window(timeline: Timeline) -> int:
    """Return the number of episodes in a mean. Many episodes need a larger one for a thin line."""
    return max(WINDOW, len(timeline.episodes) // 200)


def _draw_returns(panel: Any, timeline: Timeline, over: str) -> None:
    episodes, evaluations = timeline.episodes, timeline.evaluations
    across, every = getattr(episodes, over), max(1, len(episodes) // MOST_DOTS)
    panel.scatter(across[::every], episodes.values[::every], 5, color=EPISODES, linewidths=0)
    # One mean for each rollout: its episodes arrive at the same time, and the line would be vertical there.
    last = np.flatnonzero(np.diff(episodes.env_steps, append=-1))
    panel.plot(across[last], episodes.running_mean(window(timeline))[last], color=LINE, linewidth=1.8)
    panel.scatter(getattr(evaluations, over), evaluations.values, 26, color=EVALUATIONS, marker="D", zorder=3)
    _mark(panel, timeline.lost_s if over == "seconds" else [timeline.env_steps_at(at) for at in timeline.lost_s])
    panel.set(xlabel=over.replace("_", " "), ylabel="return of an episode")
    panel.locator_params(axis="x", nbins=6)
    panel.xaxis.set_major_formatter(_short)


def _draw_throughput(panel: Any, timeline: Timeline) -> None:
    arrived_s, seconds = timeline.arrived_s, max(timeline.seconds, 1e-6)
    # Async workers of equal speed deliver together. A bin has several deliveries of each.
    together = 4 * len(timeline.workers) if timeline.about["mode"] == "async" else 4
    count, edges = np.histogram(
        arrived_s, int(np.clip(len(arrived_s) / together, 4, 120)), (0.0, seconds), weights=timeline.env_steps
    )
    panel.stairs(count / np.diff(edges), edges, baseline=None, color=LINE, linewidth=1.8)
    _mark(panel, timeline.lost_s)
    panel.set(xlim=(0, seconds), ylim=(0, None), xlabel="seconds", ylabel="env steps per second")
    panel.yaxis.set_major_formatter(_short)


def _draw_lag(panel: Any, timeline: Timeline) -> None:
    lags, counts = np.unique(timeline.policy_lag, return_counts=True)
    panel.bar(lags, counts, 0.8, color=LINE)
    panel.set(xlabel="policy lag in publishes", ylabel="rollouts", xlim=(-0.8, max(3, *lags) + 0.8))
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.yaxis.set_major_formatter(_short)


def _mark(panel: Any, places: Sequence[float]) -> None:
    for place in places:
        panel.axvline(place, color=LOST, linewidth=0.9, linestyle=(0, (4, 3)))


def _short(value: float, _: Any) -> str:
    """Return a short label of a tick."""
    for letter, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
