"""Check the inputs that the fuzzer has kept, and messages that are damaged systematically."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import random
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.inputs import check, examples, join, kept, split

from parenv.errors import ProtocolError
from parenv.memory.spaces import MAX_SPACE_BYTES
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import KINDS as OF_WORKERS
from parenv.protocol.messages import Reply
from parenv.remote.host_messages import HOST_KINDS
from parenv.remote.host_messages import AnyMessage as Message

KINDS = (*OF_WORKERS, *HOST_KINDS)

# Some of the generated values make numpy or Gymnasium warn.
pytestmark = pytest.mark.filterwarnings("ignore")

EXAMPLES = examples()
HEADER_BYTES, SENDER_OFFSET = 16, 8
KEPT = kept()


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def test_joined_frames_are_split_again() -> None:
    for frames in EXAMPLES.values():
        assert split(join(frames)) == frames
    assert split(b"\0\3ab") == [b"ab"]
    assert split(b"\0\0\0") == [b""]


def test_the_fuzzer_begins_with_each_kind_of_message() -> None:
    assert {type(from_frames(frames)[1]) for frames in EXAMPLES.values()} == set(KINDS)
    assert all(check(frames) for frames in EXAMPLES.values())


def test_kept_inputs_are_messages_or_are_refused() -> None:
    verdicts = [check(split(data)) for data in KEPT.values()]
    assert len(verdicts) > 100
    assert 0 < sum(verdicts) < len(verdicts)
    assert sum(map(len, KEPT.values())) < 300_000


def test_kept_inputs_take_no_more_memory_than_a_space_may() -> None:
    tracemalloc.start()
    try:
        for name, data in KEPT.items():
            frames = split(data)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                from_frames(frames)
            except ProtocolError:
                pass
            assert tracemalloc.get_traced_memory()[1] - before < 1.5 * MAX_SPACE_BYTES, name
    finally:
        tracemalloc.stop()


def test_kept_inputs_import_nothing() -> None:
    for frames in EXAMPLES.values():
        check(frames)
    before = set(sys.modules)
    for data in KEPT.values():
        check(split(data))
    assert set(sys.modules) == before


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_flipped_bit_in_the_header_is_refused_or_names_another_sender(name: str) -> None:
    head, *buffers = EXAMPLES[name]
    for at, bit in itertools.product(range(HEADER_BYTES), range(8)):
        frames = [flipped(head, at, bit), *buffers]
        found = check(frames)
        assert found or at < SENDER_OFFSET
        assert not found or at >= 6
        if at >= SENDER_OFFSET:
            assert from_frames(frames)[0] != Sender(1, 2)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_truncated_head_is_refused_and_a_truncated_buffer_is_harmless(name: str) -> None:
    head, *buffers = EXAMPLES[name]
    for length in range(len(head)):
        assert not check([head[:length], *buffers])
    for number, buffer in enumerate(buffers):
        for length in range(len(buffer)):
            check([head, *buffers[:number], buffer[:length], *buffers[number + 1 :]])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", EXAMPLES)
def test_flipped_bits_and_random_bytes_of_bodies_are_a_message_or_are_refused(name: str) -> None:
    rng = random.Random(name)
    head, *buffers = EXAMPLES[name]
    for at, bit in itertools.product(range(HEADER_BYTES, len(head)), range(8)):
        check([flipped(head, at, bit), *buffers])
    for number, buffer in enumerate(buffers):
        for _ in range(5):
            check([head, *buffers[:number], rng.randbytes(len(buffer)), *buffers[number + 1 :]])
    for _ in range(20):
        check([head[:HEADER_BYTES] + rng.randbytes(len(head) - HEADER_BYTES), *buffers])


@pytest.mark.parametrize("name", EXAMPLES)
def test_frames_in_disorder_are_a_message_or_are_refused(name: str) -> None:
    frames = EXAMPLES[name]
    head, *buffers = frames
    for order in itertools.islice(itertools.permutations(frames), 720):
        assert order[0] == head or not check(order)
        check(order)
    for number in range(len(frames)):
        assert not check(frames[:number] + frames[number + 1 :])
        assert not check(frames[: number + 1] + frames[number:])
    for extra in (b"", b"\0", head, b"x" * 65_000):
        assert not check([*frames, extra])
        assert not check([head + extra, *buffers]) or not extra
        assert not check([head[:HEADER_BYTES] + extra + head[HEADER_BYTES:], *buffers]) or not extra


def canary(path: Path) -> bytes:
    """Return a pickle that creates a directory when it is loaded."""
    return b"cposix\nmkdir\n(S'" + str(path).encode() + b"'\ntR."


def test_loading_the_canary_creates_its_directory(tmp_path: Path) -> None:
    pickle.loads(canary(tmp_path / "sung"))
    assert (tmp_path / "sung").is_dir()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_pickle_in_a_message_is_loaded(kind: type[Message], tmp_path: Path) -> None:
    song = canary(tmp_path / "sung")
    padded = np.frombuffer(song + bytes(-len(song) % 8), "<i8")
    as_any = [song, {song: song}, padded, np.array(song), song.decode(), np.str_(song.decode())]
    values: dict[str, Any] = {
        "int": 1,
        "str": song.decode(),
        "bytes": song,
        "memoryview": memoryview(song),
        "Any": as_any,
    }
    message = kind(*(values[str(f.type)] for f in dataclasses.fields(kind)))
    frames = [bytes(frame) for frame in to_frames(Sender(1, 2), message)]
    assert check(frames)
    for number in range(len(frames)):
        check([*frames[:number], song, *frames[number + 1 :]])
        check([*frames[:number], frames[number] + song, *frames[number + 1 :]])
    check([frames[0][:HEADER_BYTES] + song, *frames[1:]])
    assert not (tmp_path / "sung").exists()


@pytest.mark.parametrize("tag", ["array", "scalar", "generator", "space", "graph"])
@pytest.mark.parametrize("dtype", ["O", "|O", "|O8", "object", "|V9", "i4,O", "|S{}"])
def test_no_pickle_in_a_tagged_buffer_is_loaded(tag: str, dtype: str, tmp_path: Path) -> None:
    song = canary(tmp_path / "sung")
    text = f'[1,{{"{tag}":["{dtype.format(len(song))}",[],0]}}]'.encode()
    head = bytes(to_frames(Sender(1, 2), Reply(1, None))[0])[:HEADER_BYTES]
    assert check([head + text, song]) == (dtype == "|S{}" and tag in ("array", "scalar"))
    assert not (tmp_path / "sung").exists()
