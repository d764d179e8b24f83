"""Measure environments, policies and pools on this machine, and draw runs.

These are the functions behind the commands of the same names: :func:`bench`, :func:`report` and :func:`lineage`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parenv.bench.benchmark import advise as advise
    from parenv.bench.benchmark import bench as bench
    from parenv.bench.lineage_plot import lineage as lineage
    from parenv.bench.run_report import report as report

_MODULE_OF = {"advise": "benchmark", "bench": "benchmark", "lineage": "lineage_plot", "report": "run_report"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a function when it is used: evaluations import this package, and need only its tables."""
        if name in _MODULE_OF:
            return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
