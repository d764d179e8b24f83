"""Start of Ray without usage statistics, dashboard and logs."""

from __future__ import annotations

import logging
import os
import tempfile

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray


def start(num_cpus: int) -> None:
    """Start Ray on this machine, with its files in a temporary folder that ``asked.py`` removes."""
    ray.init(
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=500_000_000,
        _temp_dir=tempfile.gettempdir(),
    )
