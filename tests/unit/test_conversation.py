"""Check which messages the driver and a worker may send in each state of their conversation."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from parenv.errors import ProtocolError
from parenv.protocol.conversation import Conversation
from parenv.protocol.messages import (
    DRIVER,
    KINDS,
    TRANSITIONS,
    WORKER,
    Call,
    Close,
    Commit,
    Credit,
    Failure,
    Layout,
    Message,
    Ready,
    Reply,
    State,
)

PLACES = list(itertools.product(State, (DRIVER, WORKER)))
SCRIPT: list[tuple[str, type[Message], State]] = [
    (WORKER, Ready, State.READY),
    (DRIVER, Layout, State.RUNNING),
    (DRIVER, Credit, State.RUNNING),
    (DRIVER, Call, State.RUNNING),
    (WORKER, Reply, State.RUNNING),
    (WORKER, Commit, State.RUNNING),
    (DRIVER, Close, State.CLOSING),
    (WORKER, Commit, State.CLOSING),
]


def message_of(kind: type[Message]) -> Message:
    """Return a message of this kind. A failure has the call -1, so it does not belong to a call."""
    example = {"int": -1, "str": "", "bytes": b"", "Any": None}
    return kind(*(example[str(f.type)] for f in dataclasses.fields(kind)))


def conversation_in(state: State) -> Conversation:
    conversation = Conversation()
    conversation.state = state
    return conversation


@pytest.mark.parametrize(("state", "role"), PLACES, ids=lambda value: getattr(value, "value", value))
def test_a_message_that_the_table_does_not_allow_is_an_error_and_keeps_the_state(state: State, role: str) -> None:
    for kind in KINDS:
        conversation = conversation_in(state)
        if (state, role, kind) in TRANSITIONS:
            message = message_of(kind)
            assert conversation.say(role, message) is message
            assert conversation.state is TRANSITIONS[state, role, kind]
        else:
            with pytest.raises(
                ProtocolError, match=f"the {role} must not send {kind.__name__} in the state '{state.value}'"
            ):
                conversation.say(role, message_of(kind))
            assert conversation.state is state


def test_a_conversation_begins_with_the_worker_being_ready_and_ends_with_close() -> None:
    conversation = Conversation()
    assert conversation.state is State.STARTING
    for role, kind, state in SCRIPT:
        conversation.say(role, message_of(kind))
        assert conversation.state is state


def test_the_driver_may_close_in_every_state_but_once() -> None:
    for state in State:
        assert ((state, DRIVER, Close) in TRANSITIONS) == (state is not State.CLOSING)


def test_closing_is_final_and_failed_leads_only_to_closing() -> None:
    assert {following for (state, *_), following in TRANSITIONS.items() if state is State.CLOSING} == {State.CLOSING}
    assert {following for (state, *_), following in TRANSITIONS.items() if state is State.FAILED} == {
        State.FAILED,
        State.CLOSING,
    }


@pytest.mark.parametrize("state", [State.RUNNING, State.CLOSING])
def test_a_failed_call_does_not_change_the_state(state: State) -> None:
    conversation = conversation_in(state)
    conversation.say(WORKER, dataclasses.replace(message_of(Failure), call=3))
    assert conversation.state is state


@pytest.mark.parametrize(
    ("state", "role"),
    [(state, DRIVER) for state in State] + [(State.STARTING, WORKER), (State.READY, WORKER)],
    ids=lambda value: getattr(value, "value", value),
)
def test_a_failed_call_may_be_reported_only_by_a_worker_that_may_have_calls(state: State, role: str) -> None:
    with pytest.raises(ProtocolError, match=f"the {role} must not send Failure in the state '{state.value}'"):
        conversation_in(state).say(role, dataclasses.replace(message_of(Failure), call=3))
