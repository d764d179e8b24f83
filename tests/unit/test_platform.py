"""Where parenv runs, and what it says elsewhere."""

from __future__ import annotations

import pytest
from scripts import printed_by

SCRIPT = """
import sys
sys.platform = sys.argv[1]
try:
    import parenv
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_importing_it_on_another_platform_says_where_it_runs(platform: str) -> None:
    words = f"parenv needs Linux, got {platform}: its workers use memfd, pidfd and eventfd"
    assert printed_by(SCRIPT, platform).startswith(words)


def test_importing_it_on_linux_says_nothing() -> None:
    assert printed_by(SCRIPT, "linux") == ""
