"""Settings of the main process that workers on the same machine get too: of logging, numpy and torch."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from typing import Any

import numpy as np

_WITHOUT_A_FUNCTION = {"ignore", "warn", "raise", "print"}


def settings_of_script(has_torch: bool) -> dict[str, Any]:
    """Return the settings of this process, for :func:`apply_settings` in a worker.

    Args:
        has_torch: Whether the worker needs torch anyway.
    """
    root = logging.getLogger()
    named = list(root.manager.loggerDict.items())
    loggers = {"": root, **{name: logger for name, logger in named if isinstance(logger, logging.Logger)}}
    return {
        "levels": {name: logger.level for name, logger in loggers.items() if logger.level or logger is root},
        "places": {
            logger.name: [place for handler in logger.handlers if (place := place_of(handler))]
            for logger in loggers.values()
            if logger.handlers
        },
        "disabled_level": root.manager.disable,
        "captures_warnings": getattr(warnings.showwarning, "__module__", "") == "logging",
        "numpy_errors": {kind: how for kind, how in np.geterr().items() if how in _WITHOUT_A_FUNCTION},
        "torch": _torch_settings() if "torch" in sys.modules else {},
        "has_torch": has_torch,
    }


def place_of(handler: logging.Handler) -> str:
    """Return where a handler writes: to a terminal or a file; empty if it is not known."""
    if path := getattr(handler, "baseFilename", ""):
        return str(path)
    stream = getattr(handler, "stream", None)
    return "stdout" if stream is sys.stdout else "stderr" if stream is sys.stderr else ""


def apply_settings(settings: dict[str, Any]) -> None:
    """Apply the settings of the main process. Torch is imported only if the worker needs it anyway."""
    for name, level in settings["levels"].items():
        logging.getLogger(name).setLevel(level)
    logging.disable(settings["disabled_level"])
    logging.captureWarnings(settings["captures_warnings"])
    np.seterr(**settings["numpy_errors"])
    if settings["torch"] and (settings["has_torch"] or "torch" in sys.modules):
        torch: Any = importlib.import_module("torch")
        torch.set_default_dtype(getattr(torch, settings["torch"]["dtype"]))
        torch.use_deterministic_algorithms(settings["torch"]["deterministic"], warn_only=settings["torch"]["warn_only"])


def _torch_settings() -> dict[str, Any]:
    """Return the settings of torch, empty if they are the defaults."""
    torch: Any = sys.modules["torch"]
    settings = {
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
    }
    return {} if settings == {"dtype": "float32", "deterministic": False, "warn_only": False} else settings
