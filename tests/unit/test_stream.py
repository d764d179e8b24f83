"""Check that the messages that a connection delivers are a prefix of the sent ones, whatever is lost."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parenv.errors import ProtocolError
from parenv.protocol.data import Buffer
from parenv.remote.net.stream import ALIGNMENT, BIG_BYTES, Stream, Streams

MESSAGES = st.lists(st.lists(st.binary(max_size=20), max_size=4), max_size=6)


def sealed(messages: list[list[bytes]]) -> list[bytes]:
    stream, frames = Stream(), []
    for number, message in enumerate(messages):
        frames.append(stream.seal(message, credit=number))
        stream.sent_one()
    return frames


def delivered(frames: list[bytes]) -> list[list[Buffer]]:
    """Return the messages of the frames up to the first frame that is refused."""
    stream, messages = Stream(), []
    for frame in frames:
        try:
            credit, parts = stream.open(frame)
        except ProtocolError:
            break
        assert credit == len(messages)
        messages.append(parts)
    assert stream.received == len(messages)
    return messages


@given(MESSAGES)
def test_sealed_messages_are_opened_unchanged(messages: list[list[bytes]]) -> None:
    assert delivered(sealed(messages)) == messages


@given(MESSAGES, st.data())
def test_nothing_is_delivered_after_a_missing_frame(messages: list[list[bytes]], data: st.DataObject) -> None:
    frames = sealed(messages)
    passed = data.draw(st.lists(st.sampled_from(frames), max_size=8)) if frames else []
    whole = next((place for place, frame in enumerate(passed) if frames[place : place + 1] != [frame]), len(passed))
    assert delivered(passed) == messages[:whole]


@given(st.lists(st.binary(max_size=20), max_size=4), st.integers(0, 100), st.integers(0, 255))
def test_malformed_frames_raise_nothing_but_protocol_errors(parts: list[bytes], place: int, byte: int) -> None:
    """A host with a key may send any bytes."""
    frame = bytearray(Stream().seal(parts))
    frame[place % len(frame)] = byte
    for altered in (frame, frame[:place], frame + b"x" * (place + 1)):
        with contextlib.suppress(ProtocolError):
            Stream().open(bytes(altered))


@pytest.mark.parametrize("num_parts", [1, 1 << 20, (1 << 32) - 1])
@pytest.mark.parametrize("size", [1, 1 << 30, (1 << 64) - 1])
def test_sizes_beyond_the_frame_are_refused(num_parts: int, size: int) -> None:
    head = (0).to_bytes(8, "little") + (0).to_bytes(4, "little") + num_parts.to_bytes(4, "little")
    with pytest.raises(ProtocolError):
        Stream().open(head + size.to_bytes(8, "little"))


@pytest.mark.parametrize("sizes", [(1, BIG_BYTES), (3, BIG_BYTES + 1, 7, BIG_BYTES + 5)])
def test_big_parts_are_aligned_views_of_the_frame(sizes: tuple[int, ...]) -> None:
    frame = Stream().seal([bytes([number]) * size for number, size in enumerate(sizes)])
    _, parts = Stream().open(frame)
    assert [len(part) for part in parts] == list(sizes)
    for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        assert set(bytes(part)) == {number}
        assert isinstance(part, memoryview) == (size >= BIG_BYTES)
        if isinstance(part, memoryview):
            assert part.obj is frame
            assert frame.index(bytes([number]) * 16) % ALIGNMENT == 0


def test_parts_of_any_shape_are_accepted() -> None:
    part = memoryview(bytearray(range(64))).cast("B", (8, 8))
    _, parts = Stream().open(Stream().seal([part, memoryview(bytes(24)).cast("d"), bytearray(b"x")]))
    assert parts == [bytes(range(64)), bytes(24), b"x"]


def test_streams_of_closed_connections_are_deleted_and_others_kept() -> None:
    gone: set[bytes] = set()
    streams = Streams(2, lambda peer: peer not in gone)
    stays = streams.begin(b"stays")
    for number in range(20):
        peer = b"%d" % number
        assert streams.begin(peer) is streams.begin(peer)
        gone.add(peer)
        assert streams.of(b"stays") is stays
    assert sum(streams.of(b"%d" % number) is not None for number in range(20)) <= 3


def test_a_banned_peer_has_no_stream() -> None:
    streams = Streams(2, lambda peer: True)
    assert streams.of(b"a") is None
    assert streams.begin(b"a") is not None
    streams.ban(b"a")
    assert (streams.begin(b"a"), streams.of(b"a")) == (None, None)
    assert streams.begin(b"b") is not None
