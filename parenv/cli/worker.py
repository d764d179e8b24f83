"""Command ``parenv worker``: worker host for a driver on another machine."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parenv.argument_checks import at_least, positive
from parenv.cli.help import add_command
from parenv.process.cores import usable_cores
from parenv.remote.host import PATIENCE_S, serve
from parenv.remote.net.host_keys import read_host_keys


def add_worker_command(commands: Any) -> None:
    """Add the command."""
    one = add_command(
        commands,
        "worker",
        "run workers for a driver on another machine",
        "Run workers for a driver on another machine, whose pool has a RemotePlacement. The command can start before "
        "or after the driver. It joins again after a lost connection, and ends with the driver. It returns 0 at the "
        "end of the driver, 1 if it found no driver, and 2 if the driver refused this host.",
        ["parenv worker --connect tcp://10.0.0.1:5555 --key gpu-7.key --num-workers 16"],
        _run,
    )
    one.add_argument("--connect", required=True, metavar="tcp://HOST:PORT", help="Address of the driver.")
    one.add_argument("--key", required=True, type=Path, metavar="FILE", help="Key file of this host; see parenv keys.")
    one.add_argument(
        "--num-workers",
        type=int,
        metavar="N",
        help="Workers (default: one per core that affinity and control groups permit).",
    )
    one.add_argument(
        "--patience",
        type=float,
        default=PATIENCE_S,
        metavar="S",
        help="Time limit for the search for the driver, at first and after a lost connection, in seconds "
        f"(default: {PATIENCE_S:g}).",
    )


def _run(options: argparse.Namespace) -> int:
    num_workers = usable_cores() if options.num_workers is None else options.num_workers
    at_least("--num-workers", num_workers, 1)
    positive("--patience", options.patience, " seconds")
    return serve(
        options.connect,
        read_host_keys(options.key),
        num_workers,
        patience_s=options.patience,
        tell=lambda words: print(f"parenv worker: {words}", file=sys.stderr, flush=True),
        is_leaving=_leaving_on_signals(),
    )


def _leaving_on_signals() -> Callable[[], bool]:
    """Return a function that reports whether SIGTERM or SIGINT has arrived."""
    came: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda number, frame: came.append(number))
    return lambda: bool(came)
