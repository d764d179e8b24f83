"""Check the state of a connection after each sequence of events that ZeroMQ has been observed to report."""

from __future__ import annotations

import pytest
import zmq

from parenv.remote.net.tcp import Link

IN, OUT = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED
BROKEN, DENIED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_AUTH


@pytest.mark.parametrize(
    ("events", "state", "broken_handshakes"),
    [
        ([], "connecting", 0),
        ([IN], "connected", 0),
        ([IN, OUT], "lost", 0),
        ([IN, OUT, IN], "lost", 0),
        ([IN, OUT, IN, OUT], "lost", 0),
        ([DENIED], "refused", 0),
        ([DENIED, OUT], "refused", 0),
        ([OUT], "refused", 0),
        ([OUT, IN], "refused", 0),
        ([BROKEN], "connecting", 1),
        ([BROKEN, OUT], "connecting", 1),
        ([BROKEN, OUT, BROKEN, OUT], "connecting", 2),
        ([BROKEN, OUT, IN], "connected", 1),
        ([BROKEN, OUT, OUT], "refused", 1),
        ([BROKEN, OUT, DENIED, OUT], "refused", 1),
        ([BROKEN, OUT, IN, OUT], "lost", 1),
    ],
)
def test_events_determine_the_state_of_a_connection(events: list[int], state: str, broken_handshakes: int) -> None:
    link = Link()
    told = [link.take_in(event) for event in events]
    assert (link.state, link.broken_handshakes) == (state, broken_handshakes)
    assert told[-1:] == [state][: len(told)]
