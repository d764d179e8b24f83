"""Picture of a population's scores and hyper-parameters, drawn from its lineage file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parenv.bench.output_files import check_plotting, check_writable, writing
from parenv.errors import ConfigurationError
from parenv.protocol.digests import rows_of

WIDTH, HEIGHT = 9.0, 2.4
"""Size of a panel, in inches."""


def lineage(path: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """Draw scores and hyper-parameters of a population over env steps, coloured by ancestor.

    Each line is a member. If the member becomes a copy of another one, its line ends, and a new line begins at the
    other member.

    Args:
        path: File that a :class:`~parenv.Population` has written or is writing.
        output: Picture file. Default: a ``.png`` beside the lineage.

    Returns:
        Path of the picture.

    Raises:
        ConfigurationError: The file does not exist, is not a lineage or is damaged, or ``matplotlib`` is missing.
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
    """Return the first line of a lineage, and its training rounds and copies. An incomplete last line is skipped.

    Raises:
        ConfigurationError: The file is not a lineage, or it is damaged.
    """
    try:
        rows = rows_of(path.read_text(encoding="utf-8"))
        if rows[0]["event"] != "begin":
            raise ValueError("it does not begin with the first line of a lineage")
        return rows[0], [row for row in rows[1:] if row["event"] in ("turn", "copy")]
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(f"{path} cannot be read as a lineage of a population: {error}") from error


def last_turns(rows: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the last training round of each member."""
    return {row["member"]: row for row in rows if row["event"] == "turn"}


def pieces_of(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Split training rounds at copies. The rounds of a copy begin with the last round of its parent."""
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
