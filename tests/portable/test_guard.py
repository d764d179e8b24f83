"""Check that the guard of ``make test-portable`` is in force in this process and in workers."""

from __future__ import annotations

import ctypes
import os
import socket

import gymnasium as gym
import pytest

from parenv import ParallelVectorEnv
from parenv.platform import system

pytestmark = pytest.mark.skipif("PARENV_PLATFORM" not in os.environ, reason="only in make test-portable")


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
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.bind("")
            names.append("abstract names")
        except OSError:
            pass
    return [*names, system.NAME]


def test_processes_have_nothing_that_macos_lacks() -> None:
    envs = ParallelVectorEnv([lambda: Missing(gym.make("CartPole-v1"))] * 2, num_workers=2)
    assert envs.call("found") == (["posix"], ["posix"])
    envs.close()
    assert found() == ["posix"]
