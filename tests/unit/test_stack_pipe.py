"""Reading the stack of a process that may be interrupted while it writes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

import pytest

from parenv.process.stack_pipe import PAUSE_S, StackPipe

STACK = b'Current thread 0x00007f (most recent call first):\n  File "env.py", line 3 in step\n'


@pytest.fixture
def pipe() -> Iterator[StackPipe]:
    with contextlib.closing(StackPipe()) as pipe:
        yield pipe


def write(pipe: StackPipe, *parts: bytes) -> threading.Thread:
    """Write parts from another thread, with pauses between them."""

    def run() -> None:
        for i, part in enumerate(parts):
            time.sleep(2 * PAUSE_S if i else 0.0)
            os.write(pipe.descriptor, part)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("place", [1, 18, len(STACK) - 1])
def test_who_is_interrupted_in_a_line_is_waited_for(pipe: StackPipe, place: int) -> None:
    writing = write(pipe, STACK[:place], STACK[place:])
    assert pipe.read(10.0) == STACK.decode()
    writing.join()


def test_what_breaks_off_for_good_is_what_there_is(pipe: StackPipe) -> None:
    write(pipe, STACK[:18]).join()
    assert pipe.read(0.2) == STACK[:18].decode()


def test_who_writes_without_end_is_not_heard_to_the_end(pipe: StackPipe) -> None:
    writing = write(pipe, *[b"and so on "] * 20)
    began = time.monotonic()
    assert pipe.read(0.5).startswith("and so on and so on ")
    assert time.monotonic() - began < 20 * 2 * PAUSE_S
    writing.join()


def test_who_says_nothing_is_not_waited_for_for_ever(pipe: StackPipe) -> None:
    assert pipe.read(0.0) == pipe.read(0.01) == ""
