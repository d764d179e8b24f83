"""Worker hosts as processes on this machine; nothing of them may stay behind either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from worker_hosts import Hosts


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(autouse=True, scope="session")
def what_frees_uncopied_messages_is_there() -> None:
    """A thread of pyzmq that stays until the process ends."""
    context = zmq.Context()
    one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    one.bind("inproc://uncopied")
    other.connect("inproc://uncopied")
    one.send(b"x" * (1 << 20), copy=False)
    other.recv()
    context.destroy()
