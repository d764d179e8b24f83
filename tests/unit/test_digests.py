"""Check that damage to lines with digests is detected, and that lines without digests can be read."""

from __future__ import annotations

import json

import pytest

from parenv.protocol.digests import SealedLines, rows_of

ROWS = [{"seed": 1, "about": "a pool"}, ["issue", 0, 1, 2], ["next", 0, 1], ["next", 0, 1], ["call", "render"]]


def sealed() -> list[str]:
    lines = SealedLines()
    return [lines.line(row) for row in ROWS]


def test_rows_come_back_without_their_digests() -> None:
    assert rows_of("".join(sealed())) == ROWS


def test_any_flipped_bit_is_detected() -> None:
    raw = "".join(sealed()).encode()
    for bit in range(8 * (len(raw) - 1)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(
            ValueError, match=r"line \d does not match its digest|codec can't decode|delimiter|Extra data"
        ):
            rows_of(damaged.decode())


def test_a_lost_repeated_or_moved_line_is_detected() -> None:
    first, second, third, fourth, fifth = sealed()
    for damaged in (
        [first, third, fourth, fifth],
        [first, second, second, third, fourth, fifth],
        [first, second, fourth, third, fifth],
    ):
        with pytest.raises(ValueError, match=r"line \d does not match its digest"):
            rows_of("".join(damaged))


def test_an_incomplete_last_line_is_ignored() -> None:
    text = "".join(sealed())
    assert rows_of(text[:-1]) == ROWS[:-1]
    assert rows_of("") == []


def test_lines_without_digests_are_read() -> None:
    assert rows_of("".join(json.dumps(row) + "\n" for row in ROWS)) == ROWS
