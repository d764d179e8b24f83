"""How a connection to a driver is, told from the events that ZeroMQ reports of it: pure decisions."""

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
# Why not EVENT_HANDSHAKE_FAILED_PROTOCOL: see parenv.remote.net.admission.


class Link:
    """A connection that is made once: what is refused or lost stays so.

    >>> link = Link()
    >>> link.take_in(zmq.EVENT_HANDSHAKE_SUCCEEDED), link.take_in(zmq.EVENT_DISCONNECTED)
    ('connected', 'lost')

    Attributes:
        state: how it is.
        broken_handshakes: how often the other side has ended it before it was established. More than once or twice, it
            means that the key file is for another driver, or it has too many connections.
    """

    def __init__(self) -> None:
        self.state: State = "connecting"
        self.broken_handshakes = 0
        self._will_try_again = False

    def take_in(self, event: int) -> State:
        """Take in an event.

        Args:
            event: one of :data:`EVENTS`.

        Returns:
            How the connection is now.
        """
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
            # Of a peer that does not speak its protocol ZeroMQ says no more than that the connection has ended.
            self.state = "refused"
