"""How much crosses from hosts: what one message may have, on either side, and how many are heard at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from parenv.errors import ProtocolError
from parenv.protocol.data import Buffer
from parenv.protocol.frames import Sender, to_frames
from parenv.protocol.messages import Commit, Failure, Reply
from parenv.remote.host_messages import max_brackets, max_head_bytes
from parenv.remote.net.curve import HostListener

FRAME_BYTES = 64
"""At most what a frame takes on its way beside what it holds."""
MAX_MESSAGES_AT_ONCE = 64


def fitting(sender: Sender, message: Any, max_message_bytes: int) -> list[Buffer]:
    """A message of a worker as frames, or, in the place of one that is too large, an exception that says so."""
    frames = to_frames(sender, message)
    excess = _excess(frames, max_message_bytes)
    return to_frames(sender, _failure(message, excess)) if excess else frames


def _excess(frames: Sequence[Buffer], limit: int) -> str:
    size, allowed = sum(len(frame) + FRAME_BYTES for frame in frames), f"RemotePlacement(max_message_bytes={limit:,})"
    if size > limit:
        return f"{size:,} bytes in one message, more than {allowed} lets cross"
    if len(frames[0]) > max_head_bytes(limit):
        return (
            f"{len(frames[0]):,} bytes beside arrays in one message, more than the sixteenth that {allowed} lets cross"
        )
    if (brackets := _brackets(frames[0])) > max_brackets(limit):
        return f"{brackets:,} lists, dicts and arrays in one message, more than {allowed} lets cross"
    return ""


def _brackets(head: Buffer) -> int:
    """How many lists and dicts a head begins, at most."""
    text = bytes(head)
    return text.count(b"[") + text.count(b"{")


def _failure(message: Any, excess: str) -> Failure:
    call = message.sequence if isinstance(message, Reply) else -1
    doing = "commit" if isinstance(message, Commit) else "call"
    kind = ["parenv.errors", "NotDataError"]
    return Failure(call, more=0, env_id=-1, doing=doing, kind=kind, message=excess, traceback="")


def heard(listener: HostListener, max_message_bytes: int) -> Iterator[tuple[bytes, str, list[Buffer]]]:
    """Messages that have come, and of which connection and host each is; more of them the next time."""
    heads = 0
    for _ in range(MAX_MESSAGES_AT_ONCE):
        if heads > max_head_bytes(max_message_bytes) or (message := listener.receive()) is None:
            return
        heads += len(message[2][0])
        yield message


def check_head(frames: list[Buffer], max_message_bytes: int) -> None:
    """Check a message before it is read.

    Raises:
        ProtocolError: its head is too large, or has too many lists.
    """
    if len(frames[0]) > (most := max_head_bytes(max_message_bytes)):
        raise ProtocolError(f"the head of a message has {len(frames[0]):,} bytes, more than {most:,}")
    if (brackets := _brackets(frames[0])) > (most := max_brackets(max_message_bytes)):
        raise ProtocolError(f"the head of a message has {brackets:,} lists and dicts, more than {most:,}")
