"""Scripts that run in a separate process."""

from __future__ import annotations

import subprocess
import sys


def printed_by(script: str, *arguments: str) -> str:
    """Run a script and return its standard output. If it fails, fail with its standard error."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout
