"""Who may say what when."""

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


def a(kind: type[Message]) -> Message:
    """A message of this kind; as a failure, one of no call."""
    example = {"int": -1, "str": "", "bytes": b"", "Any": None}
    return kind(*(example[str(f.type)] for f in dataclasses.fields(kind)))


def conversation_in(state: State) -> Conversation:
    conversation = Conversation()
    conversation.state = state
    return conversation


@pytest.mark.parametrize(("state", "role"), PLACES, ids=lambda value: getattr(value, "value", value))
def test_what_the_table_does_not_allow_is_an_error_and_changes_nothing(state: State, role: str) -> None:
    for kind in KINDS:
        conversation = conversation_in(state)
        if (state, role, kind) in TRANSITIONS:
            message = a(kind)
            assert conversation.say(role, message) is message
            assert conversation.state is TRANSITIONS[state, role, kind]
        else:
            with pytest.raises(
                ProtocolError, match=f"the {role} must not send {kind.__name__} in the state '{state.value}'"
            ):
                conversation.say(role, a(kind))
            assert conversation.state is state


def test_a_conversation_begins_with_the_worker_being_ready_and_ends_with_close() -> None:
    conversation = Conversation()
    assert conversation.state is State.STARTING
    for role, kind, state in SCRIPT:
        conversation.say(role, a(kind))
        assert conversation.state is state


def test_the_driver_may_close_in_every_state_but_once() -> None:
    for state in State:
        assert ((state, DRIVER, Close) in TRANSITIONS) == (state is not State.CLOSING)


def test_nothing_leads_out_of_closing_and_only_closing_out_of_failed() -> None:
    assert {following for (state, *_), following in TRANSITIONS.items() if state is State.CLOSING} == {State.CLOSING}
    assert {following for (state, *_), following in TRANSITIONS.items() if state is State.FAILED} == {
        State.FAILED,
        State.CLOSING,
    }


@pytest.mark.parametrize("state", [State.RUNNING, State.CLOSING])
def test_a_call_that_failed_leaves_the_conversation_as_it_is(state: State) -> None:
    conversation = conversation_in(state)
    conversation.say(WORKER, dataclasses.replace(a(Failure), call=3))
    assert conversation.state is state


@pytest.mark.parametrize(
    ("state", "role"),
    [(state, DRIVER) for state in State] + [(State.STARTING, WORKER), (State.READY, WORKER)],
    ids=lambda value: getattr(value, "value", value),
)
def test_nobody_may_say_that_a_call_failed_where_there_are_no_calls(state: State, role: str) -> None:
    with pytest.raises(ProtocolError, match=f"the {role} must not send Failure in the state '{state.value}'"):
        conversation_in(state).say(role, dataclasses.replace(a(Failure), call=3))
