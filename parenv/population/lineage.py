"""The lineage of a population: a file with a line of JSON for every training round and every copy."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from parenv.errors import ConfigurationError, ParenvError, embedded
from parenv.population.schedule import Copied, Report
from parenv.process.whole_files import make_folder_of, replacing
from parenv.protocol.digests import SealedLines, rows_of

_OF_REPORT = ("member", "turn", "env_steps", "score", "hyperparameters", "ancestor", "parent", "error")


class Lineage:
    """A file that grows with the population. It is created with the first line.

    Each line ends in a digest, by which readers notice damage.

    Args:
        path: Path of the file, or ``None`` for no file. A missing folder is created.
        about: Fields of the first line, which describe the population.

    Attributes:
        lines: Number of lines.

    Raises:
        ConfigurationError: The folder cannot be created.
    """

    def __init__(self, path: str | os.PathLike[str] | None, about: Mapping[str, Any]) -> None:
        self._path = None if path is None else Path(path)
        self._about = about
        self._file: TextIO | None = None
        self._sealed = SealedLines()
        self.lines = 0
        if self._path is not None:
            make_folder_of(self._path)

    def ended(self, report: Report, env_steps: int) -> None:
        """Write a line for a training round.

        Args:
            report: Report of the training round.
            env_steps: Env steps of the whole population so far.
        """
        fields = {name: getattr(report, name) for name in _OF_REPORT}
        self._write({"event": "turn", **fields, "env_steps": env_steps})

    def copied(self, one: Copied, env_steps: int) -> None:
        """Write a line for the replacement of a member by a copy of another."""
        self._write({"event": "copy", "env_steps": env_steps, **one._asdict()})

    def go_on(self, lines: int) -> None:
        """Continue after the first lines of another run, and delete its later lines.

        Raises:
            ConfigurationError: The file has fewer lines, or one is damaged.
        """
        self.lines, self._sealed = lines, SealedLines()
        if self._path is None or not lines:
            return
        try:
            kept = rows_of(self._path.read_text(encoding="utf-8"))[:lines]
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigurationError(
                f"the lineage {self._path} cannot be continued: {embedded(reason)}. "
                "Restore the file, or name another one."
            ) from error
        if len(kept) < lines:
            raise ConfigurationError(
                f"the lineage {self._path} must have at least {lines} lines as in the checkpoint, got {len(kept)}. "
                "Restore the file, or name another one."
            )
        with self._on_disk(), replacing(self._path) as draft:
            draft.write_text("".join(map(self._sealed.line, kept)), encoding="utf-8")

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            # Every line has been flushed, and a line that could not be written has raised its error already.
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _write(self, row: dict[str, Any]) -> None:
        rows = [row] if self.lines else [{"event": "begin", **self._about}, row]
        if self._path is not None:
            with self._on_disk():
                file = self._file = self._file or self._opened(self._path)
                file.writelines(self._sealed.line(_finite(one)) for one in rows)
                file.flush()
        self.lines += len(rows)

    def _opened(self, path: Path) -> TextIO:
        # The file may end with a part of a line, if the disk was full.
        self.go_on(self.lines)
        return path.open("a" if self.lines else "w", encoding="utf-8")

    @contextlib.contextmanager
    def _on_disk(self) -> Iterator[None]:
        """Raise an error of the disk as a ``ParenvError`` that names the file."""
        try:
            yield
        except OSError as error:
            self.close()
            raise ParenvError(
                f"the lineage {self._path} cannot be written: {error.strerror}. "
                "Make room on the disk, and continue from a checkpoint."
            ) from error


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by ``None``."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
