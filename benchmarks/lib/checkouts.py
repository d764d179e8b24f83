"""Processes that measure with other checkouts of parenv, a slice at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Server:
    """A process that runs a script with one checkout, and measures a slice for each line that it receives.

    Args:
        checkout: Folder with ``parenv``.
        script: Script, which answers each line of the standard input with a line of JSON.
        arguments: Arguments of the script.
        warm_up: Number of slices that are measured at once and not used.
    """

    def __init__(self, checkout: Path, script: str, arguments: Sequence[str], warm_up: int) -> None:
        assert (checkout / "parenv").is_dir(), f"there is no parenv in {checkout}"
        self._process = subprocess.Popen(
            [sys.executable, script, *arguments],
            env={**os.environ, "PYTHONPATH": str(checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(warm_up):
            self.slice()

    def slice(self) -> Any:
        """Measure a slice."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
