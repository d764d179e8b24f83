"""Processes that occupy cores while something else is measured."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run processes beside the block that only compute."""
    loops = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def conditions() -> dict[str, int]:
    """Return names of the conditions under which settings are compared, with their numbers of busy loops."""
    return {"free cores": 0, "a busy loop per core": len(os.sched_getaffinity(0))}


def _spin() -> None:
    while True:
        pass
