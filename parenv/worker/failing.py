"""What a task says beside its answers, and how exceptions leave a worker."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Protocol

from parenv.envs.board_rows import EnvError
from parenv.errors import without_own_frames
from parenv.protocol.data import is_data
from parenv.protocol.messages import Failure, Message

MAX_ATTRIBUTE_BYTES = 1 << 16
PENDING = object()
"""In the place of an answer: there will be one, once the task has gone on with it."""


class TaskOutput(Protocol):
    """Where a task says what does not lie in shared memory: a worker, or the vector env in whose process it is."""

    def say(self, message: Message) -> None:
        """Send a message to the driver."""

    def warn(self, text: str) -> None:
        """Have the user warned."""

    def report_error(self, errors: Sequence[EnvError]) -> None:
        """Say what sub-environments raised in a step on the step buffer."""


class FailedCallError(Exception):
    """Several sub-environments raised during one call.

    Args:
        errors: of each.
    """

    def __init__(self, errors: Sequence[EnvError]) -> None:
        super().__init__(f"{len(errors)} sub-environments raised")
        self.errors = errors


def failure_of(error: BaseException, doing: str, env_id: int, call: int = -1, more: int = 0) -> Failure:
    """An exception as a message; of its attributes, those that are plain data, and not much of it."""
    kind, text = type(error), text_of(error)
    if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
        text = error.args[0]  # Which it shows in quotes, and would do so again.
    return Failure(
        call=call,
        more=more,
        env_id=env_id,
        doing=doing,
        kind=[kind.__module__, kind.__qualname__],
        message=text,
        traceback=_traceback_of(error),
        attributes={name: value for name, value in vars(error).items() if is_data(value, MAX_ATTRIBUTE_BYTES)},
    )


def text_of(error: BaseException) -> str:
    """What an exception says, also where that raises."""
    try:
        return str(error)
    except Exception as another:
        return f"<{type(error).__name__}, which cannot say what it is: {type(another).__name__}>"


def _traceback_of(error: BaseException) -> str:
    """As text; from where the user's own code begins, if that is part of it."""
    within: BaseException | None = error
    while within is not None:
        within.__traceback__ = without_own_frames(within.__traceback__) or within.__traceback__
        within = within.__cause__ or within.__context__
    return "".join(traceback.format_exception(error))
