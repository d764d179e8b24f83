"""What of a message is more than the driver lets cross."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parenv.protocol.data import Buffer
from parenv.protocol.frames import Sender, to_frames
from parenv.protocol.messages import Commit, Failure, Reply
from parenv.remote.host_messages import max_head_bytes

FRAME_BYTES = 64
"""At most what a frame takes on its way beside what it holds."""


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
    return ""


def _failure(message: Any, excess: str) -> Failure:
    return Failure(
        call=message.sequence if isinstance(message, Reply) else -1,
        more=0,
        env_id=-1,
        doing="commit" if isinstance(message, Commit) else "call",
        kind=["parenv.errors", "NotDataError"],
        message=excess,
        traceback="",
    )
