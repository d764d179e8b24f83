"""Check how the stack of a process is read, also if the process is interrupted, stopped or killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from parenv.platform import system
from parenv.process.stack_pipe import LOOK_S, PIPE_BYTES, STACK_SIGNAL, StackPipe

FOR_EVER_S = 1000.0
WITH_A_HANDLER = """
import faulthandler, sys, time
faulthandler.register(int(sys.argv[2]), file=int(sys.argv[1]))
def wait_for_ever():
    print("ready", flush=True)
    time.sleep(1000)
def dive(depth):
    wait_for_ever() if depth == 0 else dive(depth - 1)
dive(80)
"""
INTERRUPTED = f"""
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [int(sys.argv[2])])  # The kernel blocks the signal too while its handler runs.
print("ready", flush=True)
os.write(int(sys.argv[1]), b"first line\\n")
time.sleep({20 * LOOK_S})
os.write(int(sys.argv[1]), b"last")
time.sleep({20 * LOOK_S})
os.write(int(sys.argv[1]), b" line\\n")
signal.pthread_sigmask(signal.SIG_UNBLOCK, [int(sys.argv[2])])
time.sleep(1000)
"""


@pytest.fixture
def pipe() -> Iterator[StackPipe]:
    with contextlib.closing(StackPipe()) as pipe:
        yield pipe


@contextlib.contextmanager
def running(script: str, pipe: StackPipe) -> Iterator[int]:
    """Run a process that can write to the pipe, and yield its pid."""
    arguments = [sys.executable, "-c", script, str(pipe.handle), str(int(STACK_SIGNAL))]
    with subprocess.Popen(arguments, pass_fds=[pipe.handle], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_stack_is_read_to_its_end(pipe: StackPipe) -> None:
    with running(WITH_A_HANDLER, pipe) as pid:
        for _ in range(3):
            os.kill(pid, STACK_SIGNAL)
            frames = [line for line in pipe.read(pid, FOR_EVER_S).splitlines() if "File" in line]
            assert ["in wait_for_ever" in frames[0], "in <module>" in frames[-1]] == [True, True]
            assert len(frames) == 83


@pytest.mark.more
def test_a_process_that_is_interrupted_while_it_writes_is_waited_for(pipe: StackPipe) -> None:
    with running(INTERRUPTED, pipe) as pid:
        assert pipe.read(pid, FOR_EVER_S) == "first line\nlast line\n"


@pytest.mark.linux  # Elsewhere, nothing tells whether a process is stopped.
@pytest.mark.parametrize("signum", [signal.SIGSTOP, signal.SIGKILL])
def test_a_stopped_or_killed_process_is_not_waited_for(pipe: StackPipe, signum: int) -> None:
    with running(WITH_A_HANDLER, pipe) as pid:
        os.kill(pid, signum)
        while not system.is_stopped(pid):
            time.sleep(0.001)
        os.kill(pid, STACK_SIGNAL)
        assert pipe.read(pid, FOR_EVER_S) == ""


def test_a_process_that_was_killed_and_reaped_is_not_waited_for(pipe: StackPipe) -> None:
    with running(WITH_A_HANDLER, pipe) as pid:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert pipe.read(pid, FOR_EVER_S) == ""


@pytest.mark.linux  # Elsewhere, nothing tells which signals a process ignores.
def test_a_process_that_ignores_the_signal_is_not_waited_for(pipe: StackPipe) -> None:
    script = """
import signal, sys, time
signal.signal(int(sys.argv[2]), signal.SIG_IGN)
print("ready", flush=True)
time.sleep(1000)
"""
    with running(script, pipe) as pid:
        os.kill(pid, STACK_SIGNAL)
        assert pipe.read(pid, FOR_EVER_S) == ""


def test_a_process_that_writes_nothing_is_waited_for_until_the_limit(pipe: StackPipe) -> None:
    assert pipe.read(os.getpid(), 0.0) == pipe.read(os.getpid(), 0.01) == ""


def test_a_late_stack_is_not_mistaken_for_the_stack_of_another_process(pipe: StackPipe) -> None:
    os.write(pipe.handle, b"late\n")
    pipe.clear()
    os.write(pipe.handle, b"this\n")
    assert pipe.read(os.getpid(), FOR_EVER_S) == "this\n"


def test_a_process_whose_stacks_are_not_read_continues(pipe: StackPipe) -> None:
    script = f"""
import faulthandler, signal, sys
faulthandler.register(int(sys.argv[2]), file=int(sys.argv[1]))
for _ in range({2 * PIPE_BYTES // 100}):
    signal.raise_signal(int(sys.argv[2]))  # The handler writes more than 100 bytes.
print("ready", flush=True)
"""
    with running(script, pipe):
        pipe.clear()
        os.write(pipe.handle, b"this\n")
        assert pipe.read(os.getpid(), FOR_EVER_S) == "this\n"
