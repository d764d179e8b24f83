"""Check that a run with workers on hosts resumes bitwise identically, on hosts that join again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cartpole_training import digest, train

pytestmark = [pytest.mark.usefixtures("warnings_are_expected"), pytest.mark.more]
UPDATES = 8


def test_a_run_on_hosts_continues_bitwise(hosts: Any, tmp_path: Path) -> None:
    def run(folder: str, last: int = 99, **placement: Any) -> tuple[str, int]:
        def stop(steps: int, pool: Any) -> None:
            if steps == last:
                os.kill(os.getpid(), signal.SIGTERM)

        np.random.seed(4)
        weights, statistics = train(tmp_path / folder, UPDATES, num_workers=2, after_update=stop, **placement)
        return digest(weights), statistics.env_steps

    expected = run("whole")
    hosts.start(1, 1)
    with pytest.raises(SystemExit):
        run("run", 3, placement=hosts.placement())
    hosts.start(2)
    assert run("run", placement=hosts.placement()) == expected
