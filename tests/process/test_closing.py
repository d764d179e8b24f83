"""Check that pools, vector envs and populations can be closed from threads and signal handlers and at exit."""

from __future__ import annotations

import contextlib
import dis
import os
import signal
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from audits import until
from gymnasium.error import ClosedEnvironmentError
from members import Short, population
from policies import zeros

from parenv import AsyncWorkerPool, ParallelVectorEnv, WorkerOptions
from parenv.errors import PoolClosedError
from parenv.process import launcher

LATE_S = 120.0
PATIENT = WorkerOptions(close_timeout_s=LATE_S)
POP_EXCEPT = dis.opmap["POP_EXCEPT"]


class Slow(Short):
    """Environment whose steps create one file and then wait for another."""

    def __init__(self, begun: Path, until: Path) -> None:
        self.begun, self.until = begun, until

    def step(self, action: Any) -> Any:
        self.begun.touch()
        while not self.until.exists():
            time.sleep(0.001)
        return super().step(action)


class Pool:
    """Pool and typical calls to it."""

    closed_error: type[Exception] = PoolClosedError

    def __init__(self, make: Callable[[], Any], folder: Path) -> None:
        self.it = AsyncWorkerPool(make, zeros, num_workers=2, rollout_length=4, workers=PATIENT)

    def use(self) -> None:
        stream = self.it.rollouts()
        next(stream)
        self.it.publish(zeros)
        next(stream)


class VectorEnv:
    """Vector env and typical calls to it."""

    closed_error: type[Exception] = ClosedEnvironmentError

    def __init__(self, make: Callable[[], Any], folder: Path) -> None:
        self.it = ParallelVectorEnv([make] * 4, num_workers=2, workers=PATIENT)

    def use(self) -> None:
        self.it.reset()
        self.it.step(np.zeros(4, int))
        self.it.call("__str__")
        self.it.send(np.zeros(1, int), [0])
        self.it.recv(batch_size=1)


class PopulationUser:
    """Population and a typical call to it."""

    closed_error: type[Exception] = PoolClosedError

    def __init__(self, make: Callable[[], Any], folder: Path) -> None:
        self.it = population(env_fn=make, num_workers=2, workers=PATIENT)

    def use(self) -> None:
        next(self.it.reports())


PRODUCTS: list[Any] = [Pool, VectorEnv, PopulationUser]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_close_from_another_thread_ends_a_waiting_call_with_an_error(product: Any, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    user = product(lambda: Slow(begun, go), tmp_path)
    with ThreadPoolExecutor(2) as threads:
        call = threads.submit(user.use)
        until(begun.exists)
        closing = threads.submit(user.it.close)
        # The call has returned and is closing, although no step has ended.
        until(lambda: user.it._one_thread._closing)
        go.touch()
        with pytest.raises(user.closed_error, match=r"is closed$|after a call to `close\(\)`"):
            call.result(LATE_S)
        closing.result(LATE_S)
    assert user.it.closed
    with pytest.raises(user.closed_error):
        user.use()


@pytest.mark.more
def test_a_stopped_fork_server_is_continued_to_end_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parenv.placement.local.KILL_TIMEOUT_S", 1e6)
    workers = WorkerOptions(close_timeout_s=0.1, preload=("zipapp",))
    with AsyncWorkerPool(Short, zeros, num_workers=2, workers=workers) as pool:
        (fork_server,) = [one for spec, one in launcher._fork_servers.items() if "zipapp" in spec.preload]
        os.kill(fork_server._process.pid, signal.SIGSTOP)
    assert pool.statistics().workers_alive == 0


SCRIPT = """
import signal, sys, threading
import numpy as np
import test_closing
from pathlib import Path
user = test_closing.PRODUCT(test_closing.Short, Path("FOLDER"))
begun = threading.Event()
def use():
    while True:
        user.use()
        begun.set()
"""
ENDS = {
    "the main thread ends while a daemon thread is in a call": (
        "threading.Thread(target=use, daemon=True).start()\nbegun.wait()",
        0,
    ),
    "a handler of SIGTERM closes and exits": (
        """
def end(*_):
    user.it.close()
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
threading.Thread(target=lambda: (begun.wait(), signal.raise_signal(signal.SIGTERM))).start()
use()
""",
        7,
    ),
}


@pytest.mark.more
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("end", ENDS)
def test_a_script_that_exits_during_a_call_prints_nothing(end: str, product: Any, tmp_path: Path) -> None:
    then, code = ENDS[end]
    script = SCRIPT.replace("PRODUCT", product.__name__).replace("FOLDER", str(tmp_path)) + then
    path = os.pathsep.join([*sys.path, *map(str, (Path(__file__).parent, Path(__file__).parent.parent))])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=LATE_S,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


class AtLine:
    """Context manager that raises a signal before a line of parenv is executed.

    Args:
        number: Number of the line, counted in the order of execution. -1: raise no signal, only count the lines.
        signum: Signal to raise.

    Attributes:
        stack: Frames at which the signal was raised.
    """

    def __init__(self, number: int, signum: int = signal.SIGTERM) -> None:
        self.number, self.count, self._signum = number, 0, signum
        self.stack: list[str] = []

    def __enter__(self) -> AtLine:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        # Python ignores exceptions in callbacks of weak references, so the SystemExit of the handler would be lost.
        if f"{os.sep}parenv{os.sep}" not in frame.f_code.co_filename or is_called_by(frame, weakref.__file__):
            return None
        # CPython runs no signal handler before this instruction, and an error of a trace function there makes it keep
        # the exception that was handled, and the pool or vector env in its frames, until the process ends.
        if event != "line" or frame.f_code.co_code[frame.f_lasti] == POP_EXCEPT:
            return self._trace
        self.count += 1
        if self.count == self.number:
            self.stack = traceback.format_stack(frame)
            signal.raise_signal(self._signum)
        return self._trace


def is_called_by(frame: FrameType | None, file: str) -> bool:
    """Return whether a frame or one of its callers is code of a file."""
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame is not None


@pytest.fixture
def sigterm_handler() -> Iterator[Callable[[Any], None]]:
    """Yield a function that sets the handler of SIGTERM, and restore the handler at the end."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda handler: void(signal.signal(signal.SIGTERM, handler))
    signal.signal(signal.SIGTERM, before)


def void(value: object) -> None:
    pass


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:.*Calling `close` while waiting for a pending call")
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("parts", [2, pytest.param(100, marks=pytest.mark.more)])
def test_a_signal_handler_may_close_and_exit_at_any_line(
    parts: int, product: Any, sigterm_handler: Any, tmp_path: Path
) -> None:
    # There are thousands of lines, so a signal is raised at one line of each of ``parts`` equal parts.
    user = product(Short, tmp_path)
    with AtLine(-1) as lines:
        use_and_close(user)

    def handler(*_: object) -> None:
        user.it.close()
        sys.exit(7)

    sigterm_handler(handler)
    for part in range(parts):
        user = product(Short, tmp_path)
        with AtLine((2 * part + 1) * lines.count // (2 * parts)) as at:
            code = use_and_close(user)
        # The number of lines varies with the number of waits, so the line may not be reached.
        assert code == (7 if at.count >= at.number else None), "".join(at.stack)
        assert user.it.closed
        # The interpreter calls this when it exits.
        user.it._one_thread.end_of_use()


def use_and_close(user: Any) -> Any:
    """Run the calls of a user and close it. Return the exit code if ``sys.exit`` was called, else ``None``."""
    try:
        user.use()
        user.it.close()
    except SystemExit as error:
        return error.code
    return None


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("parts", [2, pytest.param(50, marks=pytest.mark.more)])
def test_ctrl_c_at_any_line_of_close_leaves_nothing_open(parts: int, product: Any, tmp_path: Path) -> None:
    user = product(Short, tmp_path)
    with AtLine(-1) as lines:
        user.it.close()
    for part in range(parts):
        user = product(Short, tmp_path)
        with AtLine((2 * part + 1) * lines.count // (2 * parts), signal.SIGINT), contextlib.suppress(KeyboardInterrupt):
            user.it.close()
        # If the signal came before the first effective line of close(), nothing is closed yet.
        user.it.close()
        assert user.it.closed
