"""Who may say what when: one table, checked on both sides of the wire."""

from __future__ import annotations

from enum import Enum

from parenv.errors import ProtocolError
from parenv.protocol.messages import (
    Actions,
    Call,
    Close,
    Commit,
    Credit,
    Failure,
    Layout,
    Message,
    Ready,
    Reply,
    Rows,
    SideData,
)


class State(Enum):
    """Where the conversation with one worker stands."""

    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    STEPPING = "stepping"
    FAILED = "failed"
    CLOSING = "closing"


DRIVER, WORKER = "driver", "worker"

TRANSITIONS: dict[tuple[State, str, type[Message]], State] = {
    (State.STARTING, WORKER, Ready): State.READY,
    (State.STARTING, WORKER, Failure): State.FAILED,
    (State.STARTING, DRIVER, Close): State.CLOSING,
    (State.READY, DRIVER, Layout): State.RUNNING,
    (State.READY, DRIVER, Rows): State.STEPPING,
    (State.READY, WORKER, Failure): State.FAILED,
    (State.READY, DRIVER, Close): State.CLOSING,
    (State.RUNNING, DRIVER, Credit): State.RUNNING,
    (State.RUNNING, DRIVER, Call): State.RUNNING,
    (State.RUNNING, DRIVER, Close): State.CLOSING,
    (State.RUNNING, WORKER, Commit): State.RUNNING,
    (State.RUNNING, WORKER, Reply): State.RUNNING,
    (State.RUNNING, WORKER, Failure): State.FAILED,
    (State.STEPPING, DRIVER, Actions): State.STEPPING,
    (State.STEPPING, DRIVER, Call): State.STEPPING,
    (State.STEPPING, DRIVER, Close): State.CLOSING,
    (State.STEPPING, WORKER, SideData): State.STEPPING,
    (State.STEPPING, WORKER, Reply): State.STEPPING,
    (State.STEPPING, WORKER, Failure): State.FAILED,
    (State.FAILED, DRIVER, Actions): State.FAILED,
    (State.FAILED, DRIVER, Credit): State.FAILED,
    (State.FAILED, DRIVER, Call): State.FAILED,
    (State.FAILED, DRIVER, Close): State.CLOSING,
    (State.CLOSING, WORKER, Ready): State.CLOSING,
    (State.CLOSING, WORKER, Commit): State.CLOSING,
    (State.CLOSING, WORKER, SideData): State.CLOSING,
    (State.CLOSING, WORKER, Reply): State.CLOSING,
    (State.CLOSING, WORKER, Failure): State.CLOSING,
}
"""``(state, who speaks, what) -> next state``; any other triple is an error."""


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
