#!/usr/bin/env python3
"""Fuzz the decoder of messages with atheris (``make fuzz``).

The tests replay the corpus. To add the inputs that the fuzzer has found, run in ``tests/``:
``PYTHONPATH=. fuzz/fuzz_frames.py -merge=1 -max_len=60000 ../build/fuzz/{corpus,found,real}`` and
``tar -czf fuzz/corpus.tar.gz -C ../build/fuzz corpus``.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["parenv.protocol", "parenv.memory.spaces", "gymnasium.spaces"]):
    from fuzz.inputs import check, join, split

HEADER_BYTES = 16
TAGS = ("tuple", "dict", "bytes", "graph", "space", "generator", "array", "scalar")
WORDS: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        1 << 31,
        -(1 << 31),
        1 << 63,
        10**30,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "a",
        [],
    ),
    *("<f4", "<f8", "|u1", "|b1", "<i8", ">i2", "<U1", "|S0", "<M8[ns]", "O", "|V8", "T", "i4,O", "<U99999999", "c16"),
    *("box", "discrete", "multi_discrete", "multi_binary", "text", "sequence", "graph", "one_of", "dict", "opaque"),
    *("bit_generator", "PCG64", "MT19937", "Philox", "SFC64", "state", "pos", "key", "buffer_pos", "has_uint32"),
)


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Change either any bytes, or values in the JSON and the buffers, with equal probability."""
    rng = random.Random(seed)
    frames = split(data)
    if not frames or rng.random() < 0.5:
        return bytes(atheris.Mutate(data, max_size))
    head, *buffers = frames
    try:
        tree = json.loads(head[HEADER_BYTES:])
    except (ValueError, RecursionError):
        return bytes(atheris.Mutate(data, max_size))
    for _ in range(rng.randint(1, 3)):
        if buffers and rng.random() < 0.2:
            buffers = mutated_buffers(buffers, rng)
        else:
            tree = mutated(tree, rng)
    try:
        text = json.dumps(tree, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return data
    return join([head[:HEADER_BYTES] + text[: (1 << 16) - 1 - HEADER_BYTES], *buffers])[:max_size]


def mutated_buffers(buffers: list[bytes], rng: random.Random) -> list[bytes]:
    at = rng.randrange(len(buffers))
    return rng.choice(
        [
            buffers[:at] + buffers[at + 1 :],
            [*buffers, buffers[at]],
            buffers[at:] + buffers[:at],
            [*buffers[:at], buffers[at][: rng.randint(0, len(buffers[at]))], *buffers[at + 1 :]],
            [*buffers[:at], rng.randbytes(rng.randint(0, 40)), *buffers[at + 1 :]],
        ]
    )


def mutated(node: Any, rng: random.Random) -> Any:
    """Return a copy of a tree in which one node has changed."""
    if isinstance(node, dict) and node and rng.random() < 0.8:
        key = rng.choice(list(node))
        if rng.random() < 0.1:
            return {rng.choice(TAGS): node[key]}
        return {**node, key: mutated(node[key], rng)}
    if isinstance(node, list) and node and rng.random() < 0.9:
        at = rng.randrange(len(node))
        how = rng.random()
        if how < 0.1:
            return node[:at] + node[at + 1 :]
        if how < 0.2:
            return [*node, node[at]]
        if how < 0.3:
            return [rng.choice(node) for _ in node]
        return [*node[:at], mutated(node[at], rng), *node[at + 1 :]]
    if isinstance(node, int) and rng.random() < 0.5:
        return node + rng.choice((-1, 1, 256, -256)) if rng.random() < 0.5 else node << rng.randint(0, 70)
    how = rng.random()
    if how < 0.15:
        return [node] if rng.random() < 0.5 else [node, node]
    if how < 0.3:
        return {rng.choice(TAGS): node}
    return rng.choice(WORDS)


def one_input(data: bytes) -> None:
    check(split(data))


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input, custom_mutator=mutate)
    atheris.Fuzz()
