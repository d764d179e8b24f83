"""lineage: what became of a population, as a picture, from the file that it wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parenv.cli.plot import check_plotting
from parenv.cli.writable import check_writable, writing
from parenv.errors import ConfigurationError
from parenv.protocol.digests import rows_of

WIDTH, HEIGHT = 9.0, 2.4
"""Inches of a panel."""


def lineage(path: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """Draw scores and hyper-parameters of a population over env steps, coloured by ancestor.

    A line is a member; where it becomes the child of another, it ends, and another begins at that one.

    Args:
        path: the file that a :class:`~parenv.Population` has written, or is writing.
        output: where to; by default beside it, as ``.png``.

    Returns:
        Where the picture is.

    Raises:
        ConfigurationError: there is no such file, it is not a lineage, it is damaged, or ``matplotlib`` is missing.
    """
    path = Path(path)
    where = Path(output) if output is not None else path.with_suffix(".png")
    about, rows = read_lineage(path)
    check_writable(where)
    check_plotting(where)
    from matplotlib.figure import Figure

    names = list(about["hyperparameters"])
    figure = Figure(figsize=(WIDTH, HEIGHT * (1 + len(names))), layout="constrained")
    panels = figure.subplots(1 + len(names), 1, sharex=True, squeeze=False)[:, 0]
    pieces = pieces_of(rows)
    for panel, name in zip(panels, (None, *names), strict=True):
        _draw(panel, pieces, name, about["size"])
        if name is not None and str(about["hyperparameters"][name]).startswith("LogUniform"):
            panel.set_yscale("log")
    panels[-1].set_xlabel("env steps of the population")
    survivors = {row["ancestor"] for row in last_turns(rows).values()}
    panels[0].set_title(f"{about['size']} members, {len(survivors)} ancestors in the end", fontsize=11)
    with writing(where):
        figure.savefig(where, dpi=130)
    return where


def read_lineage(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read the first line of a lineage, and its turns and copies. A last line that is not complete is left out.

    Raises:
        ConfigurationError: it is not a lineage, or it is damaged.
    """
    try:
        rows = rows_of(path.read_text(encoding="utf-8"))
        if rows[0]["event"] != "begin":
            raise ValueError("it does not begin as one")
        return rows[0], [row for row in rows[1:] if row["event"] in ("turn", "copy")]
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(f"{path} cannot be read as a lineage of a population: {error}") from error


def last_turns(rows: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The last turn of each member."""
    return {row["member"]: row for row in rows if row["event"] == "turn"}


def pieces_of(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Turns from one copy to the next; that of a child begins with the last one of its parent."""
    open_: dict[int, list[Mapping[str, Any]]] = {}
    found = []
    for row in rows:
        if row["event"] == "turn":
            open_.setdefault(row["member"], []).append(row)
        else:
            found.append(open_.get(row["member"], []))
            open_[row["member"]] = open_.get(row["parent"], [])[-1:]
    return [piece for piece in (*found, *open_.values()) if piece]


def _draw(panel: Any, pieces: Sequence[Sequence[Mapping[str, Any]]], name: str | None, size: int) -> None:
    from matplotlib import colormaps

    colours = colormaps["turbo"]
    for piece in pieces:
        values = [row["score"] if name is None else row["hyperparameters"][name] for row in piece]
        known = [(row["env_steps"], value) for row, value in zip(piece, values, strict=True) if value is not None]
        colour = colours(piece[-1]["ancestor"] / max(1, size - 1))
        if known:
            panel.plot(*zip(*known, strict=True), color=colour, linewidth=0.9, alpha=0.8, marker=".", markersize=2)
    panel.set_ylabel("score" if name is None else name)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.25)
