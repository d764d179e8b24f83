"""Scripts that run in a process of their own."""

from __future__ import annotations

import subprocess
import sys


def printed_by(script: str, *arguments: str) -> str:
    """What a script writes to its standard output; if it fails, so does this, with what it wrote to the other."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout
