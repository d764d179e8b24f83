"""Convert exceptions of a worker to messages."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from parenv.envs.step_buffer_rows import EnvError
from parenv.errors import trace_elsewhere, without_own_frames
from parenv.protocol.data import is_data
from parenv.protocol.messages import Failure

MAX_ATTRIBUTE_BYTES = 1 << 16


class FailedCallError(Exception):
    """Several sub-environments raised during one call.

    Args:
        errors: Error of each.
    """

    def __init__(self, errors: Sequence[EnvError]) -> None:
        super().__init__(f"{len(errors)} sub-environments raised")
        self.errors = errors


def failure_of(error: BaseException, doing: str, env_id: int, call: int = -1, more: int = 0) -> Failure:
    """Convert an exception to a message. Attributes are kept if they are small plain data."""
    kind, text = type(error), text_of(error)
    if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
        text = error.args[0]  # str() would add quotes, and the driver adds them too.
    return Failure(
        call=call,
        more=more,
        env_id=env_id,
        doing=doing,
        kind=[kind.__module__, kind.__qualname__],
        message=text,
        traceback=traceback_of(error),
        attributes={name: value for name, value in vars(error).items() if is_data(value, MAX_ATTRIBUTE_BYTES)},
    )


def as_answer(failure: Failure) -> dict[str, Any]:
    """Return a failure as the answer to a call, for one sub-environment of several."""
    return {"failure": [getattr(failure, part.name) for part in fields(failure)]}


def text_of(error: BaseException) -> str:
    """Return the text of an exception, also if ``str()`` of it raises."""
    try:
        return str(error)
    except Exception as another:
        return f"<{type(error).__name__}, which cannot say what it is: {type(another).__name__}>"


def traceback_of(error: BaseException) -> str:
    """Return the traceback as text, from the first frame of the user's code on, if it has one."""
    if text := trace_elsewhere(error):
        return text
    within: BaseException | None = error
    while within is not None:
        within.__traceback__ = without_own_frames(within.__traceback__) or within.__traceback__
        within = within.__cause__ or within.__context__
    return "".join(traceback.format_exception(error))
