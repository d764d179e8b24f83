"""Check that importing parenv fails with an explanation on platforms other than Linux."""

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
def test_importing_parenv_on_another_platform_is_an_error(platform: str) -> None:
    words = f"parenv needs Linux, got {platform}: its workers use memfd, pidfd and eventfd"
    assert printed_by(SCRIPT, platform).startswith(words)


def test_importing_parenv_on_linux_prints_nothing() -> None:
    assert printed_by(SCRIPT, "linux") == ""
