"""Ray cluster of several nodes on this machine, in a separate process.

Run as a script, this file starts the cluster and executes commands from standard input, one line of JSON each. At the
end of the input it shuts the cluster down.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

OBJECT_STORE_BYTES = 80 << 20
SOON_LOST = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}
STOP_TIMEOUT_S = 120.0


class RayCluster:
    """Cluster with a head node of two CPUs, and further nodes that can be added and killed."""

    def __init__(self) -> None:
        # A separate directory hides this cluster from a plain ray.init() of other processes. Its path must be short,
        # because it contains Unix sockets.
        directory = tempfile.mkdtemp(prefix="ray-")
        here = Path(__file__).parent
        paths = [str(here), str(here.parents[1]), str(here.parents[2])]
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "RAY_TMPDIR": directory,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        self.address = self._read()

    @property
    def pid(self) -> int:
        return self._process.pid

    def add(self, **resources: float) -> int:
        """Add a node with two CPUs and the given resources; return the process id of its raylet."""
        return int(self._ask("add", resources))

    def remove(self, raylet: int) -> None:
        """Kill a node and everything that runs on it."""
        self._ask("remove", raylet)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(STOP_TIMEOUT_S)
        self._process.stdout.close()

    def _ask(self, command: str, argument: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, argument]) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the Ray cluster has ended"
        return json.loads(line)


def main() -> None:
    # Ray prints to standard output too. Move it to standard error, and keep a copy of the descriptor for replies.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    from ray.cluster_utils import Cluster

    def reply(value: Any) -> None:
        print(json.dumps(value), file=replies, flush=True)

    common = {"num_cpus": 2, "object_store_memory": OBJECT_STORE_BYTES}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**common, "include_dashboard": False, "_system_config": SOON_LOST},
    )
    nodes = {}
    reply(cluster.address)
    for line in sys.stdin:
        command, argument = json.loads(line)
        if command == "add":
            node = cluster.add_node(**common, resources=argument)
            pid = node.all_processes["raylet"][0].process.pid
            nodes[pid] = node
            reply(pid)
        else:
            cluster.remove_node(nodes.pop(argument), allow_graceful=False)
            reply(None)
    cluster.shutdown()
    shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True)


if __name__ == "__main__":
    main()
