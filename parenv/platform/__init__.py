"""The door to the operating system: one module per kind of system, each with the same functions.

``system`` is the module for this system, chosen once. ``PARENV_PLATFORM=posix`` chooses the portable one on Linux too,
so that it can be tested there. Windows has only the functions that a process without workers calls.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

# Type checkers know one module per system, so that they can check the calls of its functions.
if sys.platform == "win32":
    from parenv.platform import windows as system
elif sys.platform == "linux" and (TYPE_CHECKING or os.environ.get("PARENV_PLATFORM") != "posix"):
    from parenv.platform import linux as system
else:
    from parenv.platform import posix as system

__all__ = ["system"]
