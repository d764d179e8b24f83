"""Check that a placement that has started no process still waits for its second source of events."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Container, Sequence

from parenv.placement.local import LocalPlacement


class OtherSource:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.noticed: list[bool] = []

    def polled(self) -> Sequence[tuple[int, int]]:
        return ((self._descriptor, select.POLLIN),)

    def notice(self, ready: Container[object]) -> None:
        self.noticed.append(self._descriptor in ready)


def test_before_the_first_start_a_placement_waits_for_the_other_source() -> None:
    reading, writing = os.pipe()
    try:
        beside = OtherSource(reading)
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
