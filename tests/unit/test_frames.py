"""Check that messages are converted to frames and back, and that malformed frames are refused."""

from __future__ import annotations

import dataclasses
import struct
import warnings
import zlib
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from parenv.errors import ProtocolError
from parenv.protocol.frames import PROTOCOL_VERSION, Sender, from_frames, to_frames
from parenv.protocol.messages import KINDS as OF_WORKERS
from parenv.protocol.messages import Close, Commit, Credit, Failure
from parenv.remote.host_messages import HOST_KINDS, AnyMessage

KINDS = (*OF_WORKERS, *HOST_KINDS)

SETTINGS = settings(max_examples=60)
PLAIN = st.recursive(
    st.none() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2) | st.tuples(inner),
    max_leaves=4,
)
OF_TYPE = {
    "int": st.integers(-(1 << 62), 1 << 62),
    "str": st.text(),
    "bytes": st.binary(),
    "memoryview": st.binary().map(memoryview),
    "Any": PLAIN,
}
MESSAGES = st.one_of(
    [st.builds(kind, **{f.name: OF_TYPE[str(f.type)] for f in dataclasses.fields(kind)}) for kind in KINDS]
)
SENDERS = st.builds(Sender, st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
HEADER = "!4sHHII"
DIGEST = 2306123016


def header(magic: bytes = b"PENV", version: int = PROTOCOL_VERSION, kind: int = KINDS.index(Close)) -> bytes:
    return struct.pack(HEADER, magic, version, kind, 0, 0)


@given(SENDERS, MESSAGES)
@settings(max_examples=150)
def test_a_message_is_decoded_unchanged(sender: Sender, message: AnyMessage) -> None:
    frames = to_frames(sender, message)
    assert from_frames(frames) == (sender, message)
    assert from_frames([memoryview(bytes(frame)) for frame in frames]) == (sender, message)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_example_of_every_kind_of_message_is_decoded_unchanged(kind: type[AnyMessage]) -> None:
    example = {"int": 3, "str": "step", "bytes": b"\x80", "memoryview": memoryview(b"\x80"), "Any": [("a", 1)]}
    message = kind(*(example[str(f.type)] for f in dataclasses.fields(kind)))
    assert from_frames(to_frames(Sender(1, 2), message)) == (Sender(1, 2), message)


def test_another_version_is_refused_with_both_versions() -> None:
    with pytest.raises(ProtocolError, match=f"protocol version 77, but this process uses {PROTOCOL_VERSION}"):
        from_frames([header(version=77) + b"[]"])


def test_changed_messages_need_a_new_protocol_version() -> None:
    said = [(kind.__name__, [(f.name, str(f.type)) for f in dataclasses.fields(kind)]) for kind in KINDS]
    digest = zlib.crc32(repr(said).encode())
    assert (PROTOCOL_VERSION, digest) == (5, DIGEST), (
        f"the messages or their fields have changed: raise PROTOCOL_VERSION if other processes may use this version "
        f"already, run docs/protocol_tables.py and set DIGEST to {digest}"
    )


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "shorter than its header"),
        ([b""], "shorter than its header"),
        ([header()[:-1]], "shorter than its header"),
        ([header(magic=b"HTTP") + b"[]"], "does not begin with parenv's magic number"),
        ([header(kind=len(KINDS)) + b"[]"], f"unknown kind of message: {len(KINDS)}"),
        ([header()], "malformed data"),
        ([header() + b"[1]"], "Close must be a list of 0 fields"),
        ([header() + b"null"], "Close must be a list of 0 fields"),
        ([header(kind=KINDS.index(Commit)) + b"[1]"], "Commit must be a list of 8 fields"),
        ([header(kind=KINDS.index(Commit)) + b'["1",{}]'], "malformed data"),
        (
            [header(kind=KINDS.index(Commit)) + b'["1",null,null,null,null,0,null,null]'],
            "Commit.sequence must be int, got str",
        ),
        (
            [header(kind=KINDS.index(Commit)) + b"[true,null,null,null,null,0,null,null]"],
            "Commit.sequence must be int, got bool",
        ),
        (
            [header(kind=KINDS.index(Commit)) + b"[9223372036854775808,0,0,0,0,0,0,0]"],
            "Commit.sequence must be an integer of at most",
        ),
        ([header(kind=KINDS.index(Credit)) + b'[0,0,0,0,"x"]'], "Credit.snapshot must be bytes, got str"),
        ([header(kind=KINDS.index(Failure)) + b"[0,0,0,null,[],1,1,1]"], "Failure.doing must be str, got NoneType"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_malformed_frames_are_refused(frames: list[bytes], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        from_frames(frames)


def is_decoded_or_refused(frames: list[bytes]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy deprecates some of the generated dtypes.
        try:
            sender, message = from_frames(frames)
        except ProtocolError:
            return
    assert isinstance(sender, Sender)
    assert type(message) in KINDS


@given(st.integers(0, len(KINDS)), st.lists(st.binary(max_size=40), max_size=3))
@SETTINGS
def test_random_bytes_raise_nothing_but_protocol_errors(kind: int, frames: list[bytes]) -> None:
    is_decoded_or_refused(frames)
    is_decoded_or_refused([header(kind=kind), *frames])
    is_decoded_or_refused([header(kind=kind) + b"".join(frames)])


@given(SENDERS, MESSAGES, st.data())
@SETTINGS
def test_flipped_bits_and_truncation_raise_nothing_but_protocol_errors(
    sender: Sender, message: AnyMessage, data: Any
) -> None:
    head, *others = (bytes(frame) for frame in to_frames(sender, message))
    broken = bytearray(head)
    broken[data.draw(st.integers(0, len(head) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    is_decoded_or_refused([bytes(broken), *others])
    is_decoded_or_refused([head[: data.draw(st.integers(0, len(head)))], *others])
    is_decoded_or_refused([head, *others[1:]])
