"""Processes that measure checkouts of parenv in short slices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Server:
    """Process that runs a script with one checkout of parenv and measures a slice for each line of its input.

    Args:
        checkout: Folder that contains the package ``parenv``.
        script: Path of the script. It answers each line of its standard input with a line of JSON.
        arguments: Arguments of the script.
        warm_up: Number of slices that the constructor measures and discards.
        environment: Further environment variables.
    """

    def __init__(
        self, checkout: Path, script: str, arguments: Sequence[str], warm_up: int, environment: Mapping[str, str] = {}
    ) -> None:
        assert (checkout / "parenv").is_dir(), f"{checkout} must contain the package parenv"
        self._process = subprocess.Popen(
            [sys.executable, script, *arguments],
            env={**os.environ, "PYTHONPATH": str(checkout), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(warm_up):
            self.slice()

    def slice(self) -> Any:
        """Measure a slice and return the decoded line of JSON."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """Close the input of the process and wait until it ends."""
        self._process.communicate()
