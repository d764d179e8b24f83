"""The lineage of a population: every turn and every copy, a line of JSON each."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from parenv.errors import ConfigurationError
from parenv.population.evolution import Copied
from parenv.population.turn_report import Report

_OF_A_TURN = ("member", "turn", "env_steps", "score", "hyperparameters", "ancestor", "parent", "error")


class Lineage:
    """A file that grows with the population; without a path, nothing. It is begun with the first line.

    Args:
        path: where to.
        about: what the first line says of the population.

    Attributes:
        lines: how many there are.

    Raises:
        ConfigurationError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, about: Mapping[str, Any]) -> None:
        self._path = None if path is None else Path(path)
        self._about = about
        self._file: TextIO | None = None
        self.lines = 0
        if self._path is not None and not self._path.parent.is_dir():
            raise ConfigurationError(f"cannot write the lineage to {path}: there is no directory {self._path.parent}")

    def ended(self, report: Report, env_steps: int) -> None:
        """A turn that counts.

        Args:
            report: of the turn.
            env_steps: of the whole population until then.
        """
        said = {name: getattr(report, name) for name in _OF_A_TURN}
        self._write({"event": "turn", **said, "env_steps": env_steps})

    def copied(self, one: Copied, env_steps: int) -> None:
        """A member has become the child of another."""
        self._write({"event": "copy", "env_steps": env_steps, **one._asdict()})

    def go_on(self, lines: int) -> None:
        """Go on behind so many lines that another run has written; what it wrote after them happens again.

        Raises:
            ConfigurationError: there are fewer.
        """
        self.lines = lines
        if self._path is None or not lines:
            return
        try:
            kept = self._path.read_text(encoding="utf-8").splitlines(keepends=True)[:lines]
        except OSError as error:
            raise ConfigurationError(f"cannot go on with the lineage {self._path}: {error.strerror}") from error
        if len(kept) < lines:
            raise ConfigurationError(
                f"the lineage {self._path} has {len(kept)} lines, and the checkpoint is of {lines}"
            )
        self._path.write_text("".join(kept), encoding="utf-8")

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            self._file.close()

    def _write(self, row: Mapping[str, Any]) -> None:
        rows = [row] if self.lines else [{"event": "begin", **self._about}, row]
        if self._path is not None:
            if self._file is None:
                self._file = self._path.open("a" if self.lines else "w", encoding="utf-8")
            self._file.writelines(json.dumps(_finite(one), separators=(",", ":")) + "\n" for one in rows)
            self._file.flush()
        self.lines += len(rows)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
