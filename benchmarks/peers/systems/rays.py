"""Ray without anything that a small machine does not need."""

from __future__ import annotations

import logging
import os
import tempfile

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray


def start(num_cpus: int) -> None:
    """Start Ray here; its files lie where ``asked.py`` removes them."""
    ray.init(
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=500_000_000,
        _temp_dir=tempfile.gettempdir(),
    )
