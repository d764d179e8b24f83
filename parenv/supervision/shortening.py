"""The way from the user's call to the sentence that says what happened: without the frames in between."""

from __future__ import annotations

from parenv.errors import ParenvError, ProtocolError, without_own_frames


def shorten(error: BaseException) -> None:
    """Shorten the traceback of what is raised, unless it may be this package's own fault.

    Frames of the user's stay, such as those of an environment in this process; so do causes. What came before on the
    way, such as the end of a worker that was killed for what is raised now, is not shown.
    """
    said = isinstance(error, ParenvError) or isinstance(error.__cause__, ParenvError)
    if said and not isinstance(error, ProtocolError):
        error.__suppress_context__ = True
        error.__traceback__ = without_own_frames(error.__traceback__)
