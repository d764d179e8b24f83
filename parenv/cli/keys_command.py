"""``parenv keys``: the key files that a driver and the hosts of its workers need to trust each other."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from parenv.cli.help import Run, add_command
from parenv.remote.net.host_keys import DRIVER_FILE, HOSTS_FILE, add_host, create_keys, listed_hosts, remove_host

HOST_HELP = "name of a machine that may run workers, such as gpu-7; names need not be those of the network"


def add_keys_command(commands: Any) -> None:
    """Add the command to others."""
    all_verbs = add_command(
        commands,
        "keys",
        "make the keys of a driver and its worker hosts",
        "Make the keys with which a driver and the machines that run its workers know each other.",
        ["parenv keys create keys gpu-7 gpu-8", "parenv keys add keys gpu-9", "parenv keys remove keys gpu-7"],
        None,
    )
    verbs = all_verbs.add_subparsers(dest="verb", required=True)

    def add(name: str, about: str, hosts: str, run: Run, where: str = "where the keys are") -> Any:
        one = add_command(verbs, name, about, about, [f"parenv keys {name} keys {hosts}".rstrip()], run)
        one.add_argument("directory", type=Path, metavar="DIR", help=where)
        return one

    create = add(
        "create", "make a driver's key and those of its hosts", "gpu-7 gpu-8", _create, "where to; made if missing"
    )
    create.add_argument("hosts", nargs="+", metavar="HOST", help=HOST_HELP)
    another = add("add", "let another host join; a driver that runs need not be restarted", "gpu-9", _add)
    another.add_argument("host", metavar="HOST", help=HOST_HELP)
    add("list", "show which hosts may join, a name on each line", "", _list)
    about = "let a host join no more; a driver that runs need not be restarted, and ends its connection"
    remove = add("remove", about, "gpu-7", _remove)
    remove.add_argument("host", metavar="HOST", help="its name, as parenv keys list shows it")


def _create(options: argparse.Namespace) -> None:
    made = create_keys(options.directory, options.hosts)
    print(f"The driver needs {options.directory / DRIVER_FILE} and {options.directory / HOSTS_FILE}.")
    for path in made[1:-1]:
        _say_where_to(path)


def _add(options: argparse.Namespace) -> None:
    _say_where_to(add_host(options.directory, options.host))


def _list(options: argparse.Namespace) -> None:
    for name in listed_hosts(options.directory):
        print(name)


def _remove(options: argparse.Namespace) -> None:
    path = remove_host(options.directory, options.host)
    print(
        f"The host {options.host} may not join any more, and leaves a driver that runs. Its key {path} "
        "is gone from here; remove the copy on the host too."
    )


def _say_where_to(path: Path) -> None:
    print(f"The host {path.stem} needs {path}: move it there, readable by its owner only, for example with scp -p.")
