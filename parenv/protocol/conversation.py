"""State of the conversation with a worker: the messages that each side may send now. Both sides check it."""

from __future__ import annotations

from parenv.errors import ProtocolError
from parenv.protocol.messages import DRIVER, TRANSITIONS, WORKER, Failure, Message, State

__all__ = ["DRIVER", "WORKER", "Conversation"]

ANSWERING = {State.RUNNING, State.STEPPING, State.FAILED, State.CLOSING}
"""Where a failed call or step is an answer like any other, and changes nothing."""


class Conversation:
    """The state of the conversation with one worker, kept by each side for itself."""

    def __init__(self) -> None:
        self.state = State.STARTING

    def say(self, role: str, message: Message) -> Message:
        """Check that ``role`` may say ``message`` now, and move on.

        Raises:
            ProtocolError: it may not.
        """
        following = TRANSITIONS.get((self.state, role, type(message)))
        if isinstance(message, Failure) and message.call >= 0:
            following = self.state if self.state in ANSWERING and role == WORKER else None
        if following is None:
            raise ProtocolError(f"the {role} may not say {type(message).__name__} while {self.state.value}")
        self.state = following
        return message
