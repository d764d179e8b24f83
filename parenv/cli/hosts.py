"""Commands for worker hosts: ``parenv keys`` makes the keys of driver and hosts, ``parenv worker`` runs a host."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.argument_checks import at_least, positive
from parenv.cli.help import Run, add_command
from parenv.process.cores import usable_cores
from parenv.remote.host import PATIENCE_S, serve
from parenv.remote.net.host_keys import (
    DRIVER_FILE,
    HOSTS_FILE,
    add_host,
    create_keys,
    listed_hosts,
    read_host_keys,
    remove_host,
)

HOST_HELP = "Name of a machine that may run workers, such as gpu-7. It need not be its network name."


def add_keys_command(commands: Any) -> None:
    """Add the command."""
    all_verbs = add_command(
        commands,
        "keys",
        "make the keys of a driver and its worker hosts",
        "Make the keys with which a driver and its worker hosts authenticate each other.",
        ["parenv keys create keys gpu-7 gpu-8", "parenv keys add keys gpu-9", "parenv keys remove keys gpu-7"],
        None,
    )
    verbs = all_verbs.add_subparsers(dest="verb", required=True)

    def add(name: str, about: str, hosts: str, run: Run, where: str = "Directory of the keys.") -> Any:
        one = add_command(verbs, name, about, about, [f"parenv keys {name} keys {hosts}".rstrip()], run)
        one.add_argument("directory", type=Path, metavar="DIR", help=where)
        return one

    create = add(
        "create", "make the keys of a driver and its hosts", "gpu-7 gpu-8", _create, "Directory; made if missing."
    )
    create.add_argument("hosts", nargs="+", metavar="HOST", help=HOST_HELP)
    another = add("add", "let another host join, without a restart of the driver", "gpu-9", _add)
    another.add_argument("host", metavar="HOST", help=HOST_HELP)
    add("list", "list the hosts that may join, one per line", "", _list)
    about = "remove a host, without a restart of the driver, which closes the host's connection"
    remove = add("remove", about, "gpu-7", _remove)
    remove.add_argument("host", metavar="HOST", help="Name of the host, as parenv keys list shows it.")


def _create(options: argparse.Namespace) -> None:
    made = create_keys(options.directory, options.hosts)
    print(f"The driver needs {options.directory / DRIVER_FILE} and {options.directory / HOSTS_FILE}.")
    for path in made[1:-1]:
        _print_destination(path)


def _add(options: argparse.Namespace) -> None:
    _print_destination(add_host(options.directory, options.host))


def _list(options: argparse.Namespace) -> None:
    for name in listed_hosts(options.directory):
        print(name)


def _remove(options: argparse.Namespace) -> None:
    path = remove_host(options.directory, options.host)
    print(
        f"The host {options.host} may not join any more. A driver that runs closes its connection. The key {path} is "
        "deleted; delete the copy on the host too."
    )


def _print_destination(path: Path) -> None:
    print(f"The host {path.stem} needs {path}: move it there, readable by its owner only, for example with scp -p.")


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
