"""What a message from a host may have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parenv.errors import ProtocolError
from parenv.protocol.frames import HEADER_BYTES, Sender, from_frames, to_frames
from parenv.protocol.messages import Failure, Reply
from parenv.remote.host_messages import max_brackets
from parenv.remote.sizes import check_head, fitting

LIMIT = 1 << 26
WORKER = Sender(0, 0)


@pytest.mark.parametrize("filling", [b"[],", b"[[]],", b'{"tuple":[]},', b'{"dict":[]},'])
def test_a_head_of_many_lists_is_refused_before_it_is_read(filling: bytes) -> None:
    header = bytes(to_frames(WORKER, Reply(1, None))[0][:HEADER_BYTES])
    each = filling.count(b"[") + filling.count(b"{")
    many = (max_brackets(LIMIT) - 2) // each
    check_head([header + b"[1,[" + filling * many + b"0]]"], LIMIT)
    with pytest.raises(ProtocolError, match=r"^the head of a message has 262,14. lists and dicts, more than 262,144$"):
        check_head([header + b"[1,[" + filling * (many + 1) + b"0]]"], LIMIT)


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ([np.zeros(3)] * 80_000, True),
        ([()] * 120_000, True),
        ([[]] * 300_000, False),
        ("x" * 5_000_000, False),
        (np.zeros(1 << 26, np.int8), False),
        ("[" * 300_000, False),
    ],
    ids=["arrays", "tuples", "lists", "text", "bytes", "brackets in a text"],
)
def test_a_host_sends_an_error_in_place_of_what_its_driver_would_refuse(value: Any, fits: bool) -> None:
    frames = fitting(WORKER, Reply(1, value), LIMIT)
    check_head(frames, LIMIT)
    _, message = from_frames(frames)
    assert isinstance(message, Reply if fits else Failure)
    assert isinstance(message, Reply) or "RemotePlacement(max_message_bytes=67,108,864) lets cross" in message.message
