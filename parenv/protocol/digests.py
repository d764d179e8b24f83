"""Digests in files, with which a reader notices that a file is damaged."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

SIZE = 8
"""Size of a digest in bytes."""
_SEAL = re.compile(r'"[0-9a-f]{16}"[]}]')
_SEAL_LENGTH = 2 * SIZE + 3


def new_digest(content: bytes | memoryview = b"") -> hashlib.blake2b:
    """Make the digest of a content, to which more can be added."""
    return hashlib.blake2b(content, digest_size=SIZE)


class SealedLines:
    """Lines of JSON. Each ends in a digest of itself and of all lines before it.

    A reader notices a line that was changed, lost, repeated or moved. It does not notice that the last lines are
    missing: a run that is killed leaves such a file.

    >>> lines = SealedLines()
    >>> text = lines.line({"seed": 1}) + lines.line(["call", "render"])
    >>> print(text, end="")
    {"seed":1,"digest":"5456c0c4d6fa7d8c"}
    ["call","render","2e4b331e97e6d893"]
    >>> rows_of(text)
    [{'seed': 1}, ['call', 'render']]
    """

    def __init__(self) -> None:
        self._digest = new_digest()

    def line(self, row: dict[str, Any] | list[Any]) -> str:
        """Return the line of a non-empty row."""
        text = json.dumps(row, separators=(",", ":"))
        body = text[:-1] + (',"digest":' if isinstance(row, dict) else ",")
        self._digest.update(body.encode())
        return f'{body}"{self._digest.hexdigest()}"{text[-1]}\n'


def rows_of(text: str) -> list[Any]:
    """Return the rows of a file, without a last line that was not written completely.

    Old files, whose lines have no digests, are read without a check.

    Raises:
        ValueError: A line is damaged.
    """
    *lines, _ = text.split("\n")
    if not any(_SEAL.fullmatch(line[-_SEAL_LENGTH:]) for line in lines):
        return [json.loads(line) for line in lines]
    digest = new_digest()
    return [_checked(line, number, digest) for number, line in enumerate(lines, 1)]


def _checked(line: str, number: int, digest: hashlib.blake2b) -> Any:
    digest.update(line[:-_SEAL_LENGTH].encode())
    if line[-_SEAL_LENGTH:-1] != f'"{digest.hexdigest()}"':
        raise ValueError(f"line {number} does not match its digest")
    row = json.loads(line)
    row.pop("digest" if isinstance(row, dict) else -1)
    return row
