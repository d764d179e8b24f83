"""``parenv keys``: the key files that a driver and the hosts of its workers need to trust each other."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from parenv.remote.net.keys import DRIVER_FILE, HOSTS_FILE, add_host, create_keys

HOST_HELP = "name of a machine that may run workers, such as gpu-7; names need not be those of the network"


def add_keys_command(commands: Any) -> None:
    """Add the command to others."""
    both = commands.add_parser(
        "keys",
        help="make the keys of a driver and its worker hosts",
        description="Make the keys with which a driver and the machines that run its workers know each other.",
    )
    verbs = both.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("create", help="make a driver's key and those of its hosts")
    one.set_defaults(run=_create)
    one.add_argument("directory", type=Path, metavar="DIR", help="where to; made if missing")
    one.add_argument("hosts", nargs="+", metavar="HOST", help=HOST_HELP)
    one = verbs.add_parser("add", help="let another host join; a driver that runs need not be restarted")
    one.set_defaults(run=_add)
    one.add_argument("directory", type=Path, metavar="DIR", help="where the keys are")
    one.add_argument("host", metavar="HOST", help=HOST_HELP)


def _create(options: argparse.Namespace) -> None:
    made = create_keys(options.directory, options.hosts)
    print(f"The driver needs {options.directory / DRIVER_FILE} and {options.directory / HOSTS_FILE}.")
    for path in made[1:-1]:
        _say_where_to(path)


def _add(options: argparse.Namespace) -> None:
    _say_where_to(add_host(options.directory, options.host))


def _say_where_to(path: Path) -> None:
    print(f"The host {path.stem} needs {path}: move it there, readable by its owner only, for example with scp -p.")
