"""Records of logging in workers, for the handlers of the main process."""

from __future__ import annotations

import logging
import traceback
from pathlib import PurePath

from parenv.protocol.messages import Logged

_log = logging.getLogger("parenv")


def handle_records(message: Logged, worker: int) -> None:
    """Give the records of a worker to the loggers of this process, with the worker's name.

    Args:
        message: Message of the worker.
        worker: Index of the worker.
    """
    for attributes in message.records:
        logger, level = logging.getLogger(attributes["name"]), attributes["levelno"]
        # The level may have been raised after the worker has started.
        if logger.isEnabledFor(level):
            path = PurePath(attributes["pathname"])
            derived = {
                "levelname": logging.getLevelName(level),
                "filename": path.name,
                "module": path.stem,
                "msecs": attributes["created"] % 1 * 1000,
                "processName": f"worker {worker}",
                "worker": worker,
            }
            try:
                logger.handle(logging.makeLogRecord(derived | attributes))
            except Exception:
                # In a handler of the user, an exception must not end the supervision of the workers.
                if logging.raiseExceptions:
                    traceback.print_exc()
    if message.dropped:
        _log.warning(
            "worker %d dropped %d log records, because it had %d others to send. Log less, or raise the level.",
            worker,
            message.dropped,
            len(message.records),
        )
