"""Placeholder for a worker host in a Ray actor: it reports its processes, and ends or raises on command."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

import psutil

from parenv.process.launcher import ForkServerSpec, Launcher

LOOK_S = 0.1
SLEEP_S = 1000.0


def serve(address: str, keys: Any, num_workers: int, *, is_leaving: Callable[[], bool]) -> int:
    """Run until the driver sends a command or closes the connection, or until ``is_leaving()``."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    launcher = Launcher(ForkServerSpec((), (), threads=1))
    launcher.launch(0, "ray_placeholder:sleep", {}, ())
    select.select([launcher], [], [])
    launcher.events()
    with socket.create_connection((host, int(port))) as driver:
        about = {
            "pid": os.getpid(),
            "raylet": os.getppid(),
            "children": [child.pid for child in psutil.Process().children(recursive=True)],
            "num_workers": num_workers,
            "keys": keys,
            "in_main_thread": threading.current_thread() is threading.main_thread(),
        }
        driver.sendall(json.dumps(about).encode() + b"\n")
        while not is_leaving():
            ready, _, _ = select.select([driver], [], [], LOOK_S)
            if ready:
                if driver.recv(16) == b"raise":
                    raise RuntimeError("raised on command")
                return 0
    return 0


def sleep(arguments: dict[str, Any]) -> int:
    """Run as a worker, which only sleeps."""
    threading.Event().wait(SLEEP_S)
    return 0
