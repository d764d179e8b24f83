"""Lines that end in a digest: what is damaged is noticed, and what was written without digests is read."""

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


def test_a_flipped_bit_is_noticed_wherever_it_is() -> None:
    raw = "".join(sealed()).encode()
    for bit in range(8 * (len(raw) - 1)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(
            ValueError, match=r"line \d does not match its digest|codec can't decode|delimiter|Extra data"
        ):
            rows_of(damaged.decode())


def test_a_line_that_is_lost_repeated_or_moved_is_noticed() -> None:
    first, second, third, fourth, fifth = sealed()
    for damaged in (
        [first, third, fourth, fifth],
        [first, second, second, third, fourth, fifth],
        [first, second, fourth, third, fifth],
    ):
        with pytest.raises(ValueError, match=r"line \d does not match its digest"):
            rows_of("".join(damaged))


def test_of_a_run_that_was_killed_the_complete_lines_are_read() -> None:
    text = "".join(sealed())
    assert rows_of(text[:-1]) == ROWS[:-1]
    assert rows_of("") == []


def test_lines_without_digests_are_read_as_they_are() -> None:
    assert rows_of("".join(json.dumps(row) + "\n" for row in ROWS)) == ROWS
