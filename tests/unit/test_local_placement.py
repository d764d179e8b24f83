"""A placement that has started nobody has nothing to wait for but what is beside it."""

from __future__ import annotations

from parenv.placement.local import LocalPlacement


class Beside:
    def __init__(self) -> None:
        self.waits: list[float] = []

    def wait(self, timeout_s: float) -> set[int]:
        self.waits.append(timeout_s)
        return set()


def test_before_the_first_start_a_wait_is_for_what_is_beside_it() -> None:
    beside = Beside()
    placement = LocalPlacement("nowhere:main", beside=beside)
    assert placement.wait(0.25) == []
    assert beside.waits == [0.25]
    placement.close(0.0)
