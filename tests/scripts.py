"""Scripts that run in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys


def printed_by(script: str, *arguments: str, **environment: str) -> str:
    """Run a script and return its standard output. If it fails, fail with its standard error."""
    command, variables = [sys.executable, "-c", script, *arguments], {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout
