"""Argument checks of ``torch.distributions``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def unchecked_distributions() -> Iterator[None]:
    """Disable the argument checks of ``torch.distributions``, which branch on values and take time."""
    from torch.distributions import Distribution

    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)
