"""The way from the user's call to the sentence that says what happened: without the frames in between."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, TypeVar

from parenv.errors import ParenvError, ProtocolError, without_own_frames

T = TypeVar("T")


class Shortened(Generic[T]):
    """A context manager that shortens what is raised inside another, unless it may be this package's own fault.

    Frames of the user's stay, such as those of an environment in this process; so do causes. What came before on the
    way, such as the end of a worker that was killed for what is raised now, is not shown.

    Args:
        inner: the other one.
    """

    def __init__(self, inner: AbstractContextManager[T]) -> None:
        self._inner = inner

    def __enter__(self) -> T:
        return self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)
        said = isinstance(error, ParenvError) or isinstance(error and error.__cause__, ParenvError)
        if error is not None and said and not isinstance(error, ProtocolError):
            error.__suppress_context__ = True
            error.__traceback__ = without_own_frames(trace)
