"""Whose code raised an exception: that of a user is shown with the frames of the user's files, and no others."""

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


def is_of_the_user(error: BaseException) -> bool:
    """Whether it was raised below the last call of parenv, in code that parenv was given."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = [number for number, file in enumerate(files) if file.startswith(OURS)]
    return any(_is_users(file) for file in files[ours[-1] + 1 if ours else 0 :])


def users_frames(error: BaseException) -> str:
    """The innermost frames of the user's files behind an error, here or in a worker, and what was raised there.

    Nothing where no such file is in it.
    """
    for text in _tracebacks(error):
        frames = list(_FRAME.finditer(text))
        users = [frame[0] for frame in frames if _is_users(frame[1])]
        if users:
            return "".join(users[-MAX_FRAMES:]) + text[frames[-1].end() :].rstrip() + "\n"
    return ""


def _tracebacks(error: BaseException | None) -> Iterator[str]:
    """Those of an error and its causes, but for errors that say what is wrong themselves."""
    while error is not None:
        if isinstance(error, SubEnvironmentError):
            yield error.remote_traceback
        elif not isinstance(error, ParenvError):
            yield "".join(traceback.format_exception(error, chain=False))
        error = error.__cause__


def _is_users(file: str) -> bool:
    return not file.startswith(_NOT_THE_USERS)
