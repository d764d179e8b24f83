"""Facts about this machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from parenv.libraries import installed_version
from parenv.process.cores import usable_cores

PACKAGES = ("parenv", "gymnasium", "numpy", "torch", "stable_baselines3")
BUSY = 0.3
"""Load per core from which figures are not reliable."""


def machine() -> dict[str, Any]:
    """Return facts about this machine and versions of installed packages, as plain data.

    Returns:
        ``cpu``, ``cores`` (usable by this process), ``memory_gb``, ``load_average`` (over the last minute),
        ``system``, ``python``, ``packages`` (name to version) and ``date``.
    """
    return {
        "cpu": _cpu(),
        "cores": usable_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := installed_version(name)) is not None},
        "date": date.today().isoformat(),
    }


def in_one_line(facts: Mapping[str, Any]) -> str:
    """Return the facts that matter most to figures.

    >>> facts = {"cpu": "Some CPU", "cores": 2, "memory_gb": 8.0, "load_average": 0.5, "python": "3.11.7"}
    >>> in_one_line({**facts, "packages": {"torch": "2.13.0"}})
    'Some CPU, 2 cores, 8.0 GB, Python 3.11.7, torch 2.13.0, load average before 0.5'
    """
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, Python {facts['python']}, {packages}, "
        f"load average before {facts['load_average']}"
    )


def load_warning(facts: Mapping[str, Any]) -> list[str]:
    """Return a line that warns of a busy machine, or nothing if the machine was idle.

    >>> load_warning({"cores": 2, "load_average": 0.5})
    []
    """
    load, cores = facts["load_average"], facts["cores"]
    if load <= BUSY * cores:
        return []
    return [f"Warning: the load average before was {load:g} on {cores} cores. Repeat this on an idle machine."]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
