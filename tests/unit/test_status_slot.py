"""Check that the status of a worker on a host is stored without overwriting the flags of local workers."""

from __future__ import annotations

from typing import Any

import pytest

from parenv.memory import status_slot
from parenv.memory.status_slot import STATUS_SLOT_BYTES, StatusSlot, header_bytes, take_status_slot


class Written(list[int]):
    """Flag of all workers that records each value that is written to it."""

    def __setitem__(self, i: Any, value: Any) -> None:
        self.append(value)


@pytest.mark.parametrize("has_infos", [0, 1])
def test_the_flag_of_a_local_worker_is_not_overwritten(has_infos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, flag = bytearray(header_bytes(2)), Written([0])

    class Slot(StatusSlot):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.any_infos = flag  # type: ignore[assignment]

    monkeypatch.setattr(status_slot, "StatusSlot", Slot)
    status = has_infos.to_bytes(8, "little").rjust(24, b"\0").ljust(STATUS_SLOT_BYTES, b"\0")
    take_status_slot(memory, 1, status)
    # A worker on this machine may set the flag between a read and a write here, so 0 must not be written.
    assert flag[1:] == [1] * has_infos
