"""Records of logging in a worker, as plain data for the main process."""

from __future__ import annotations

import copy
import logging
import os
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parenv.errors import NotDataError
from parenv.memory.status_slot import StatusSlot
from parenv.process.script_settings import place_of
from parenv.protocol.data import is_data
from parenv.protocol.messages import Logged
from parenv.protocol.plain import as_data

MAX_RECORDS = 10_000
"""Maximum number of records between two messages of a worker."""
MAX_TEXT = 1 << 14
"""Maximum number of characters of each text in a record."""
_OWN = {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName"}
"""Attributes of every record. The user adds others by ``extra=``."""


class RecordQueue:
    """Records of this process that the main process does not have yet.

    Args:
        status: Status slot of the worker, with the sub-environment at work.

    Attributes:
        waiting: The records, as dicts.
    """

    def __init__(self, status: StatusSlot) -> None:
        self._status, self._pid, self._main_thread = status, os.getpid(), threading.get_ident()
        # Threads of environments log too. A signal handler may log while its thread has the lock.
        self._lock = threading.RLock()
        self.waiting: list[dict[str, Any]] = []
        self._dropped = 0

    def take(self) -> Logged:
        """Remove the records, and return a message with them."""
        with self._lock:
            message = Logged(self.waiting, self._dropped)
            self.waiting, self._dropped = [], 0
        return message

    def install(self, places: Mapping[str, Sequence[str]]) -> None:
        """Take each record that a logger of this process handles, in addition to the handlers of this process.

        A handler would not do: with one, ``basicConfig`` in ``setup_fn`` has no effect, and ``dictConfig`` removes it.

        Args:
            places: Destinations of the handlers of the main process, by logger. A module that adds a handler when it is
                imported adds it in both processes. Here it would write each record a second time.
        """
        call_handlers = logging.Logger.callHandlers

        def take_and_call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            # A process that an environment has forked is not the worker, and must not use its connection.
            if os.getpid() != self._pid:
                call_handlers(logger, record)
                return
            try:
                self._put(record)
            except Exception:
                # As with handlers, a record that raises must not end the environment.
                if logging.raiseExceptions:
                    traceback.print_exc()
            for name, handler in _handlers(logger):
                if record.levelno >= handler.level and place_of(handler) not in places.get(name, ()):
                    handler.handle(record)

        logging.Logger.callHandlers = take_and_call_handlers  # type: ignore[method-assign, assignment]

    def _put(self, record: logging.LogRecord) -> None:
        with self._lock:
            if len(self.waiting) >= MAX_RECORDS:
                self._dropped += 1
            else:
                self.waiting.append(self._plain(record))

    def _plain(self, record: logging.LogRecord) -> dict[str, Any]:
        in_main_thread = threading.get_ident() == self._main_thread
        env_id = self._status.env_id if in_main_thread else -1
        text = record.exc_text
        if record.exc_info and not text:
            text = logging.Formatter().formatException(record.exc_info)
        return {
            "name": record.name,
            "levelno": record.levelno,
            "msg": _cut(_text_of(record)),
            "created": record.created,
            "pathname": record.pathname,
            "lineno": record.lineno,
            "funcName": record.funcName,
            "threadName": record.threadName,
            "exc_text": text and _cut(text),
            "stack_info": record.stack_info and _cut(record.stack_info),
            "process": self._pid,
            "env_id": None if env_id < 0 else env_id,
            **{name: _plain_extra(value) for name, value in vars(record).items() if name not in _OWN},
        }


def _handlers(logger: logging.Logger | None) -> Iterator[tuple[str, logging.Handler]]:
    while logger is not None:
        yield from [(logger.name, handler) for handler in logger.handlers]
        logger = logger.parent if logger.propagate else None


def _text_of(record: logging.LogRecord) -> str:
    """Return the text of a record, also if its arguments do not fit."""
    try:
        return record.getMessage()
    except Exception as error:
        text = record.msg if isinstance(record.msg, str) else _shown(record.msg)
        return f"{text} (it cannot be formatted: {type(error).__name__}: {error})"


def _plain_extra(value: Any) -> Any:
    try:
        plain = as_data(value)
    except NotDataError:
        return _shown(value)
    # The environment may change the value before it is sent.
    return copy.deepcopy(plain) if is_data(plain, MAX_TEXT) else _shown(value)


def _shown(value: Any) -> str:
    try:
        return _cut(repr(value))
    except Exception:
        return f"<{type(value).__name__}>"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text):,} characters)"
