"""State of the conversation with a worker: the messages that each side may send now. Both sides check it."""

from __future__ import annotations

from parenv.errors import ProtocolError
from parenv.protocol.messages import DRIVER, TRANSITIONS, WORKER, Failure, Message, State

__all__ = ["DRIVER", "WORKER", "Conversation"]

ANSWERING = {State.RUNNING, State.STEPPING, State.FAILED, State.CLOSING}
"""States in which a failed call or step is an answer, and does not change the state."""


class Conversation:
    """The state of the conversation with one worker, kept by each side for itself."""

    def __init__(self) -> None:
        self.state = State.STARTING

    def say(self, role: str, message: Message) -> Message:
        """Check that ``role`` may send ``message`` in the present state, and change to the next state.

        Raises:
            ProtocolError: The message is not allowed.
        """
        following = TRANSITIONS.get((self.state, role, type(message)))
        if isinstance(message, Failure) and message.call >= 0:
            following = self.state if self.state in ANSWERING and role == WORKER else None
        if following is None:
            raise ProtocolError(f"the {role} must not send {type(message).__name__} in the state {self.state.value!r}")
        self.state = following
        return message
