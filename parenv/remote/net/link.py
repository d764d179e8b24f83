"""State of a host's connection, derived from the events that ZeroMQ reports."""

from __future__ import annotations

from typing import Literal

import zmq

State = Literal["connecting", "connected", "refused", "lost"]
EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
# parenv.remote.net.admission explains why EVENT_HANDSHAKE_FAILED_PROTOCOL is missing.


class Link:
    """A connection that is made once. After ``refused`` or ``lost``, its state does not change.

    >>> link = Link()
    >>> link.take_in(zmq.EVENT_HANDSHAKE_SUCCEEDED), link.take_in(zmq.EVENT_DISCONNECTED)
    ('connected', 'lost')

    Attributes:
        state: State of the connection.
        broken_handshakes: Number of handshakes that the peer has aborted. More than two mean that the key file belongs
            to another main process, or that this one has too many connections.
    """

    def __init__(self) -> None:
        self.state: State = "connecting"
        self.broken_handshakes = 0
        self._will_try_again = False

    def take_in(self, event: int) -> State:
        """Process one of :data:`EVENTS`. Returns the new state."""
        if self.state == "connected" and event == zmq.EVENT_DISCONNECTED:
            self.state = "lost"
        elif self.state == "connecting":
            self._take_in_handshake(event)
        return self.state

    def _take_in_handshake(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.state = "connected"
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self.broken_handshakes += 1
            self._will_try_again = True
        elif event == zmq.EVENT_DISCONNECTED and self._will_try_again:
            self._will_try_again = False
        else:
            # If the peer does not speak ZeroMQ's protocol, this event is the only one.
            self.state = "refused"
