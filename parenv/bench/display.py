"""Tables, and the display of a program in progress: redrawn in a terminal, and lines of text in other files."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import IO, Any, NamedTuple, Self

from parenv.experience.summary import text_table

REFRESH_S, LINE_EVERY_S = 0.1, 5.0
"""Seconds between two drawings in a terminal, and between two lines in other files."""
FRAME = 4
"""Characters around a column: a line, a space on each side, and at most one more line."""
NAMES = 18
"""Characters of the column of names. Names are wrapped, and no word of a name is longer."""
_EXPENDABLE = {"lowest to highest": 2, "ratio": 1}


class Table(NamedTuple):
    """Text in columns.

    Args:
        title: Title above the table.
        columns: Heads of the columns.
        rows: Texts of each row, one per column.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def fitting(table: Table, width: int) -> Table:
    """Drop the columns that do not fit: ranges first, then ratios, then columns from the right.

    Args:
        table: Table whose first column has names, which may be wrapped. Figures may not be wrapped.
        width: Width of the terminal, in characters.
    """
    kept = list(range(len(table.columns)))
    while len(kept) > 2 and NAMES + sum(column_width(table, i) for i in kept[1:]) + FRAME * len(kept) > width:
        kept.remove(max(kept[1:], key=lambda i: (_EXPENDABLE.get(table.columns[i], 0), i)))
    rows = [[row[i] for i in kept] for row in table.rows]
    return Table(table.title, [table.columns[i] for i in kept], rows)


def column_width(table: Table, column: int) -> int:
    """Return the width of the longest figure of a column. The head may be wrapped between its words."""
    return max(map(len, (*table.columns[column].split(), *(row[column] for row in table.rows))), default=0)


def in_text(table: Table) -> list[str]:
    """Return a table as lines with columns of equal width. The first column is aligned to the left.

    >>> in_text(Table("title", ("", "head"), [("a", "1"), ("long", "12")]))
    ['title', '      head', 'a        1', 'long    12']
    """
    return [table.title, *text_table([table.columns, *table.rows])]


def in_rich(table: Table, width: int) -> Any:
    """Return a table for ``rich``, at most as wide as the terminal."""
    from rich import box
    from rich import table as rich_table

    table, has_heads = fitting(table, width), any(table.columns)
    made = rich_table.Table(title=table.title, box=box.ROUNDED, title_justify="left", show_header=has_heads)
    made.min_width = min(70 if has_heads else 44, width)
    made.add_column(table.columns[0], overflow="fold")
    for i, column in enumerate(table.columns[1:], 1):
        made.add_column(column, justify="right", overflow="fold", min_width=column_width(table, i))
    for row in table.rows:
        made.add_row(*row)
    return made


class Display:
    """Display of a program in progress. A terminal is redrawn if ``rich`` is installed. Other files get lines.

    Args:
        file: File to write to.
        plain: Whether a terminal gets lines too.
        screen: Whether to draw on a screen of its own, from which :meth:`stop` returns.
    """

    def __init__(self, file: IO[str], *, plain: bool = False, screen: bool = False) -> None:
        self._file, self._shown = file, -math.inf
        self._live: Any = None
        if file.isatty() and not plain:
            with contextlib.suppress(ImportError):
                from rich.console import Console
                from rich.live import Live

                self._console = Console(file=file, markup=False, emoji=False, highlight=False)
                self._live = Live(console=self._console, auto_refresh=False, screen=screen)
                self._width = self._console.width

    @property
    def is_live(self) -> bool:
        """True if the display redraws a terminal."""
        return self._live is not None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Leave the last drawing as it is. Idempotent."""
        if self._live is not None:
            self._live.stop()

    def is_due(self) -> bool:
        """Return whether it is time for another drawing or line. The caller then makes one."""
        now = time.monotonic()
        due = now - self._shown >= (LINE_EVERY_S if self._live is None else REFRESH_S)
        self._shown = now if due else self._shown
        return due

    def show(self, drawn: Table | str, line: str) -> None:
        """Redraw a terminal with a table or a line, or write another line to another file."""
        if self._live is None:
            self.write(line)
            return
        before, self._width = self._width, self._console.width
        if self._width < before:  # A narrower terminal has wrapped the table, and rich cannot find its first line.
            self._console.clear()
        self._live.update(self._rendered(drawn), refresh=True)

    def write(self, part: Table | str, style: str | None = None) -> None:
        """Write a table or a line that stays.

        Args:
            part: Table or line.
            style: Style in a terminal. Default: none.
        """
        if self._live is not None:
            self._console.print(self._rendered(part), style=style)
        else:
            print(part if isinstance(part, str) else "\n".join(("", *in_text(part))), file=self._file, flush=True)

    def _rendered(self, part: Table | str) -> Any:
        return part if isinstance(part, str) else in_rich(part, self._console.width)
