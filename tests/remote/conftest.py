"""Worker hosts as processes on this machine; nothing of them may stay behind either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_hosts import Hosts


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    try:
        yield made
    finally:
        made.end()
