"""A placement that has started nobody has nothing to wait for but what is beside it."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Container, Sequence

from parenv.placement.local import LocalPlacement


class Beside:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.noticed: list[bool] = []

    def polled(self) -> Sequence[tuple[int, int]]:
        return ((self._descriptor, select.POLLIN),)

    def notice(self, ready: Container[object]) -> None:
        self.noticed.append(self._descriptor in ready)


def test_before_the_first_start_a_wait_is_for_what_is_beside_it() -> None:
    reading, writing = os.pipe()
    try:
        beside = Beside(reading)
        placement = LocalPlacement(beside=beside)
        began = time.monotonic()
        assert placement.wait(0.25) == []
        assert time.monotonic() - began >= 0.2
        os.write(writing, b"x")
        assert placement.wait(60.0) == []
        assert beside.noticed == [False, True]
        placement.close(0.0)
    finally:
        os.close(reading)
        os.close(writing)
