"""Check the commands and the program of the guide to several machines, with replacements for srun and ssh."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from worker_hosts import free_port

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "guides" / "several-machines.md").read_text()
TEXT = re.sub(r"```.*?```", "", SECTION, flags=re.DOTALL)
SSH = '#!/bin/sh\nshift\nexec "$@"\n'
SECONDS = 120.0


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts a command of the guide in a temporary directory, with a free address."""
    address = f"127.0.0.1:{free_port()}"
    standins = tmp_path / "bin"
    standins.mkdir()
    (standins / "srun").symlink_to(Path(__file__).parent / "srun")
    (standins / "ssh").write_text(SSH)
    (standins / "ssh").chmod(0o700)
    path = [str(standins), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(path), "DRIVER": "127.0.0.1"}
    started: list[subprocess.Popen[str]] = []

    def start(command: str | Sequence[str]) -> subprocess.Popen[str]:
        if isinstance(command, str):
            command = ["bash", "-c", command.replace("10.0.0.1:5555", address).replace("$DRIVER:5555", address)]
        settings: Any = {"cwd": tmp_path, "env": environment, "text": True, "start_new_session": True}
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **settings))
        return started[-1]

    def driver() -> str:
        of_ray, of_hosts = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
        (made,) = re.findall(r"^placement = .*\n", of_hosts, re.MULTILINE)
        program = re.sub(r"^placement = .*\n", made, of_ray, flags=re.MULTILINE)
        changes = {"RayPlacement": "RemotePlacement", "num_envs=64": "num_envs=64, num_workers=4"}
        for old, new in (changes | {"10.0.0.1:5555": address}).items():
            program = program.replace(old, new)
        (tmp_path / "driver.py").write_text(program)
        shown, _ = start([sys.executable, "driver.py"]).communicate(timeout=SECONDS)
        return shown

    start.driver = driver  # type: ignore[attr-defined]
    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.communicate()


def commands() -> list[str]:
    return [line for block in re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL) for line in block.splitlines() if line]


def one_liner(name: str) -> str:
    (found,) = [line for line in re.findall(r"`([^`]+)`", " ".join(TEXT.split())) if line.startswith(name)]
    return found


@pytest.mark.more
def test_keys_hosts_and_driver(run: Any) -> None:
    create, scp, worker, add = commands()[:4]
    assert run(create).communicate(timeout=SECONDS)[0]
    assert "keys/node3.key" in run(add).communicate(timeout=SECONDS)[0]
    assert shlex.split(scp)[:2] == ["scp", "-p"]
    hosts = [run(worker.replace("node1.key", f"keys/{name}.key").replace("16", "2")) for name in ("node1", "node2")]
    assert re.search(r"^hosts +2,", run.driver(), re.MULTILINE)
    for host in hosts:
        said, _ = host.communicate(timeout=SECONDS)
        assert host.returncode == 0, said
        assert "joined the driver" in said
        assert said.rstrip().endswith("the driver has closed its pool")


@pytest.mark.more
def test_under_slurm(run: Any) -> None:
    run("parenv keys create keys cluster").communicate(timeout=SECONDS)
    (command,) = [command for command in commands() if command.startswith("srun")]
    job = run(command.replace("--num-workers 16", "--num-workers 1"))
    assert re.search(r"^hosts +4,", run.driver(), re.MULTILINE)
    assert job.communicate(timeout=SECONDS)[0].count("the driver has closed its pool") == 4
    assert job.returncode == 0


@pytest.mark.more
def test_over_ssh(run: Any) -> None:
    run("parenv keys create keys node1 node2").communicate(timeout=SECONDS)
    loop = run(
        one_liner("for n in").replace("$n.key", "keys/$n.key").replace("--num-workers 16", "--num-workers 2") + "; wait"
    )
    assert re.search(r"^hosts +2,", run.driver(), re.MULTILINE)
    assert loop.communicate(timeout=SECONDS)[0].count("the driver has closed its pool") == 2
