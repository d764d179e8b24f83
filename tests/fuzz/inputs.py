"""Inputs of the fuzzer, which are messages as byte strings, and the checks that must hold for any input.

Run in ``tests/``, ``python -m fuzz.inputs DIRECTORY`` writes real messages into the subdirectory ``real``, and the
corpus of the fuzzer into ``corpus``.
"""

from __future__ import annotations

import dataclasses
import math
import struct
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces import GraphInstance

from parenv.errors import ProtocolError
from parenv.memory.spaces import describe, leaves, rebuild
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import KINDS as OF_WORKERS
from parenv.protocol.messages import Ready, Reply, StepReady
from parenv.remote.host_messages import HOST_KINDS

KINDS = (*OF_WORKERS, *HOST_KINDS)

CORPUS = Path(__file__).parent / "corpus.tar.gz"
LIMIT_S = 1.0
_LENGTH = struct.Struct("!H")

SPACES: list[Space[Any]] = [
    spaces.Box(-1, 1, (2, 3)),
    spaces.Box(np.array([-1.0, 0]), np.array([1, np.inf]), dtype=np.float64),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3], start=[1, 1]),
    spaces.MultiBinary((2, 2)),
    spaces.Text(3, min_length=0, charset="abÄ"),
    spaces.Sequence(spaces.Discrete(2), stack=True),
    spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(2)),
    spaces.OneOf([spaces.Discrete(2), spaces.MultiBinary(1)]),
    spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.Discrete(2)])),
]
VALUES: list[Any] = [
    [None, True, -1, 1 << 80, 0.5, math.nan, -math.inf, "\ud800\0ä", b"\x80\x04."],
    {"a": (1, [2, {}]), (0, None): b"", 1.5: "x"},
    [np.zeros((2, 0, 3), np.float32), np.arange(6, dtype=">i2").reshape(2, 3), np.array(True)],
    [np.array(["ab", ""]), np.array([b"a"]), np.ones(2, np.complex64), np.float16([1, np.nan])],
    [np.array(["2020-01-01", "NaT"], "M8[D]"), np.timedelta64(5, "25s"), np.datetime64("NaT", "s")],
    [np.float32(1.5), np.uint8(3), np.str_("ä"), np.bytes_(b"a"), np.bool_(True)],
    [GraphInstance(np.zeros((2, 1)), None, np.array([[0, 1]]))],
    *SPACES,
    *(np.random.Generator(kind(3)) for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.Philox)),
    *(np.random.Generator(kind(3)) for kind in (np.random.SFC64, np.random.MT19937)),
]
OF_TYPE = {
    "int": 3,
    "str": "step",
    "bytes": b"\x80\x04N.",
    "memoryview": memoryview(b"\x80"),
    "Any": [("a", 1), {"b": None}],
}


def examples() -> dict[str, list[bytes]]:
    """Return the frames of a message of each kind, and of one with each value and space, by name."""
    messages = {kind.__name__: kind(*(OF_TYPE[str(f.type)] for f in dataclasses.fields(kind))) for kind in KINDS}
    messages |= {f"reply-{number}": Reply(1, value) for number, value in enumerate(VALUES)}
    messages |= {f"ready-{number}": Ready([describe(space)] * 2, 4, [], []) for number, space in enumerate(SPACES)}
    return {name: [bytes(frame) for frame in to_frames(Sender(1, 2), message)] for name, message in messages.items()}


def kept() -> dict[str, bytes]:
    """Return the corpus of the fuzzer, by file name."""
    with tarfile.open(CORPUS) as archive:
        return {Path(one.name).name: archive.extractfile(one).read() for one in archive if one.isfile()}  # type: ignore[union-attr]


def join(frames: Sequence[bytes]) -> bytes:
    """Concatenate frames, each preceded by its length."""
    return b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames)


def split(data: bytes) -> list[bytes]:
    """Split arbitrary bytes into frames. The last frame may be shorter than its length field."""
    frames, at = [], 0
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        frames.append(data[at : at + length])
        at += length
    return frames


def check(frames: Sequence[bytes]) -> bool:
    """Decode frames that may be a message.

    Check that a message can be encoded and decoded again without a change, and that it has no arrays of objects.

    Returns:
        Whether the frames are a message.
    """
    began = time.process_time()
    try:
        sender, message = from_frames(frames)
    except ProtocolError:
        return False
    finally:
        assert time.process_time() - began < LIMIT_S, "decoding took too long"
    said = to_frames(sender, message)
    assert to_frames(*from_frames(said)) == said
    for field in dataclasses.fields(message):
        _use(getattr(message, field.name))
    if isinstance(message, Ready | StepReady):
        for description in _descriptions(message.spaces):
            _rebuild(description)
    return True


def _use(value: Any) -> None:
    """Read all memory of a value, which reveals accesses to memory that is not its own."""
    if isinstance(value, list | tuple):
        for item in value:
            _use(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _use(key)
            _use(item)
    elif isinstance(value, np.random.Generator):
        value.bytes(64)
    elif isinstance(value, np.ndarray | np.generic):
        assert value.dtype.kind not in "OV"
        value.tobytes()


def _descriptions(node: Any) -> Iterator[Any]:
    """Yield everything that a driver may interpret as the description of a space."""
    yield node
    if isinstance(node, list):
        yield from node[:4]


def _rebuild(description: Any) -> None:
    began = time.process_time()
    try:
        space = rebuild(description)
    except ProtocolError:
        return
    finally:
        assert time.process_time() - began < LIMIT_S, "rebuilding took too long"
    again = describe(space)
    assert rebuild(again) == space
    repr(space)
    if all(isinstance(key, str) for key in getattr(space, "spaces", ())):
        leaves(space)


if __name__ == "__main__":
    real = {name: join(frames) for name, frames in examples().items()}
    for directory, inputs in (("real", real), ("corpus", kept())):
        path = Path(sys.argv[1]) / directory
        path.mkdir(parents=True, exist_ok=True)
        for name, data in inputs.items():
            (path / name).write_bytes(data)
