"""Check that the guard of ``make test-portable`` is in force in this process and in workers."""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
from pathlib import Path

import gymnasium as gym
import pytest
from scripts import printed_by

from parenv import ParallelVectorEnv, WorkerOptions
from parenv.platform import system

FOLDER = str(Path(__file__).parents[1] / "portable")
"""Folder of the guard. It holds no tests: pytest puts folders of tests on the path, and hosts would be guarded too."""


class Missing(gym.Wrapper):  # type: ignore[type-arg]
    def found(self) -> list[str]:
        """Return what this process has and macOS has not."""
        return found()


def found() -> list[str]:
    names = [name for name in ("memfd_create", "eventfd", "sched_getaffinity", "posix_fallocate") if hasattr(os, name)]
    try:
        ctypes.CDLL(None).prctl  # noqa: B018
        names.append("prctl")
    except AttributeError:
        pass
    try:
        exec("import os; os.listdir('/proc/self')", {"__name__": "parenv.process"})
        names.append("/proc")
    except FileNotFoundError:
        pass
    for name, address in (("abstract names", ""), ("long paths", f"/tmp/{secrets.token_hex(50)}")):
        with socket.socket(socket.AF_UNIX) as one:
            try:
                one.bind(address)
                names.append(name)
            except OSError:
                continue
            if address:
                os.unlink(address)
    return [*names, system.NAME]


@pytest.mark.skipif("PARENV_PLATFORM" not in os.environ, reason="only in make test-portable")
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_processes_have_nothing_that_macos_lacks(start_method: str) -> None:
    makers = [lambda: Missing(gym.make("CartPole-v1"))] * 2
    workers = WorkerOptions(start_method=start_method)  # type: ignore[arg-type]
    with ParallelVectorEnv(makers, num_workers=2, workers=workers) as envs:
        assert envs.call("found") == (["posix"], ["posix"])
    assert found() == ["posix"]


def test_the_module_that_the_guard_hides_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.has_run = True\n")
    script = "import os, sitecustomize; print(os.has_run, sitecustomize.__file__, hasattr(os, 'memfd_create'))"
    expected = f"True {FOLDER}/sitecustomize.py False\n"
    assert printed_by(script, PYTHONPATH=os.pathsep.join([FOLDER, str(tmp_path)])) == expected
