"""Origin of an exception: parenv's code or the user's code, with the frames of the user's files."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from parenv.errors import ParenvError, SubEnvironmentError

MAX_FRAMES = 6
OURS = str(Path(__file__).parents[1])
_INSTALLED = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_NOT_THE_USERS = (OURS, *_INSTALLED, "<frozen")
_FRAME = re.compile(r'  File "([^"\n]+)", line \d+, in .*\n(?:    .*\n)*')


def is_from_user_code(error: BaseException) -> bool:
    """Return whether a file of the user is below the last frame of parenv."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = [number for number, file in enumerate(files) if file.startswith(OURS)]
    return any(_is_users(file) for file in files[ours[-1] + 1 if ours else 0 :])


def user_frames(error: BaseException) -> str:
    """Return the innermost frames of the user's files, in this process or a worker, with the exception.

    The text is empty if no file of the user is in a traceback.
    """
    for text in _tracebacks(error):
        frames = list(_FRAME.finditer(text))
        users = [frame[0] for frame in frames if _is_users(frame[1])]
        if users:
            return "".join(users[-MAX_FRAMES:]) + text[frames[-1].end() :].rstrip() + "\n"
    return ""


def _tracebacks(error: BaseException | None) -> Iterator[str]:
    """Yield the tracebacks of an exception and its causes, without parenv's own errors."""
    while error is not None:
        if isinstance(error, SubEnvironmentError):
            yield error.remote_traceback
        elif not isinstance(error, ParenvError):
            yield "".join(traceback.format_exception(error, chain=False))
        error = error.__cause__


def _is_users(file: str) -> bool:
    return not file.startswith(_NOT_THE_USERS)
