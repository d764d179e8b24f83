"""Check the limits on the unread messages and bytes of a host, as both ends count them."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from parenv.remote.net.stream import Receipts, Window


@given(sizes=st.lists(st.integers(0, 300), max_size=60), reads=st.lists(st.integers(0, 9), max_size=60))
def test_a_host_never_waits_for_a_driver_that_has_read_everything(sizes: list[int], reads: list[int]) -> None:
    window, receipts = Window(8, 200), Receipts(8, 200)
    unread: list[int] = []
    patience = itertools.chain(reads, itertools.repeat(1))
    for size in sizes:
        while not window.is_open:
            assert unread
            for _ in range(min(next(patience), len(unread))):
                window.read(receipts.due(unread.pop(0)))
        window.sent(size)
        unread.append(size)
        assert len(unread) <= 8
        assert sum(unread) - size < 200
