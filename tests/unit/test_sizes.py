"""What a host lets cross of what its workers say."""

from __future__ import annotations

import numpy as np

from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import Failure, Reply
from parenv.remote.sizes import fitting

LIMIT, SENDER = 1 << 21, Sender(1, 2)


def test_what_is_not_too_large_crosses_as_it_is() -> None:
    for value in ("x" * 100_000, np.zeros(1_000_000, np.uint8)):
        assert fitting(SENDER, Reply(3, value), LIMIT) == to_frames(SENDER, Reply(3, value))


def test_in_the_place_of_what_is_too_large_there_is_an_error() -> None:
    for value, why in (
        ("x" * 200_000, "200,022 bytes beside arrays in one message, more than the sixteenth that RemotePlacement"),
        (np.zeros(LIMIT, np.uint8), "bytes in one message, more than RemotePlacement(max_message_bytes=2,097,152)"),
    ):
        sender, failure = from_frames(fitting(SENDER, Reply(3, value), LIMIT))
        assert sender == SENDER
        assert isinstance(failure, Failure)
        assert failure.call == 3
        assert why in failure.message
