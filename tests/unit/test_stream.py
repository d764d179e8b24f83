"""The messages of a connection: whatever is left out on the way, what is delivered is a beginning of what was sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parenv.errors import ProtocolError
from parenv.protocol.data import Buffer
from parenv.transport.stream import Stream, Streams

Frame = tuple[Buffer, bool]
"""Its content, and whether more of the message follow."""


def sent(messages: list[list[bytes]]) -> list[Frame]:
    stream, frames = Stream(), []
    for message in messages:
        whole = [*message, stream.last_frame(len(message))]
        stream.sent_one()
        frames += [(frame, place < len(message)) for place, frame in enumerate(whole)]
    return frames


def delivered(frames: list[Frame]) -> list[list[Buffer]]:
    """As ZeroMQ puts frames together, and as far as they are accepted."""
    stream, messages = Stream(), []
    message: list[Buffer] = []
    for frame, more in frames:
        message.append(frame)
        if not more:
            try:
                stream.open(message)
            except ProtocolError:
                break
            messages.append(message)
            message = []
    return messages


MESSAGES = st.lists(st.lists(st.binary(max_size=3) | st.just(Stream().last_frame(1)), max_size=3), max_size=6)


@given(MESSAGES, st.data())
def test_of_what_is_left_out_nothing_is_put_together(messages: list[list[bytes]], data: st.DataObject) -> None:
    frames = sent(messages)
    assert delivered(frames) == messages
    kept = data.draw(st.lists(st.booleans(), min_size=len(frames), max_size=len(frames)))
    got = delivered([frame for frame, keep in zip(frames, kept, strict=True) if keep])
    assert got == messages[: len(got)]
    first = next((place for place, keep in enumerate(kept) if not keep), len(frames))
    whole = sum(not more for _, more in frames[:first])
    assert len(got) == whole, "what came before is delivered, and nothing after"


@given(MESSAGES, st.data())
def test_flags_that_are_set_on_the_way_put_nothing_together(messages: list[list[bytes]], data: st.DataObject) -> None:
    """Others can set them, since ZeroMQ heeds those that are not encrypted too, but not clear them."""
    frames = sent(messages)
    altered = data.draw(st.lists(st.booleans(), min_size=len(frames), max_size=len(frames)))
    got = delivered([(frame, more or flag) for (frame, more), flag in zip(frames, altered, strict=True)])
    assert got == messages[: len(got)]


@pytest.mark.parametrize("frames", [[], [b""], [b"x" * 13], [b"x" * 14], [b"a", b"b"]])
def test_what_does_not_end_as_it_must_is_refused(frames: list[Buffer]) -> None:
    with pytest.raises(ProtocolError):
        Stream().open(frames)


def test_credit_passes_with_a_message() -> None:
    here, there = Stream(), Stream()
    for credit in (0, 8, 65535):
        frames: list[Buffer] = [here.last_frame(0, credit)]
        here.sent_one()
        assert there.open(frames) == credit
        assert frames == []
    assert there.received == 3


def test_streams_of_the_gone_are_forgotten_and_the_others_kept() -> None:
    gone: set[bytes] = set()
    streams = Streams(2, lambda peer: peer not in gone)
    stays = streams.begin(b"stays")
    for number in range(20):
        peer = b"%d" % number
        assert streams.begin(peer) is streams.begin(peer)
        gone.add(peer)
        assert streams.of(b"stays") is stays
    assert sum(streams.of(b"%d" % number) is not None for number in range(20)) <= 3


def test_who_is_banned_is_heard_no_more() -> None:
    streams = Streams(2, lambda peer: True)
    assert streams.of(b"a") is None
    assert streams.begin(b"a") is not None
    streams.ban(b"a")
    assert (streams.begin(b"a"), streams.of(b"a")) == (None, None)
    assert streams.begin(b"b") is not None
