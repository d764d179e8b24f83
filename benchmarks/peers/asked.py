"""Measurements of systems in turn, each in its own process with the interpreter of its virtual environment.

One system measures at a time. The others and their workers are stopped meanwhile, because some of them busy-wait.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import guard
import psutil
from installed import FOLDER, installed

HERE = Path(__file__).parent
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
ANSWER_TIMEOUT_S = 300.0
_GUARD_LOCK = threading.Lock()


@dataclass(frozen=True)
class System:
    """One system in one configuration.

    Args:
        name: Name in the results.
        environment: Virtual environment of the system: a key of ``installed.ENVIRONMENTS``, or ``"parenv"``.
        module: Name of a module in ``systems/``.
        function: Name of a function in this module, ``(**arguments) -> (measure, close)``.
        arguments: Arguments of the function, as JSON data.
        reopened: Whether to start a new process for each measurement.
    """

    name: str
    environment: str
    module: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    reopened: bool = False


class SystemProcess:
    """Process of a system. The process is stopped (SIGSTOP) except while it measures.

    Args:
        system: System to start.

    Raises:
        RuntimeError: The system cannot be installed, or it failed. The file ``stderr.txt`` in the folder of the
            virtual environments has the traceback.
    """

    def __init__(self, system: System) -> None:
        found = installed(system.environment)
        if found.reason:
            raise RuntimeError(f"not installed: {found.reason}")
        FOLDER.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix="peer-")
        with (FOLDER / "stderr.txt").open("a") as remarks:
            self._process = subprocess.Popen(
                [str(found.python), str(HERE / "served.py"), system.module, system.function],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=remarks,
                text=True,
                start_new_session=True,
                cwd=self._folder.name,  # Some libraries leave files there.
                env={**os.environ, **ONE_THREAD, "TMPDIR": self._folder.name},
            )
        _notify_guard(self._process.pid)
        try:
            self.facts = self._ask(dict(system.arguments))
            self._signal(signal.SIGSTOP)
        except BaseException:
            self.kill()
            raise

    def measure(self, seconds: float) -> Any:
        """Return the result of a measurement that takes about this many seconds."""
        self._signal(signal.SIGCONT)
        try:
            return self._ask(seconds)
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """Let the process close its system and exit, and kill what is left after 20 s."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError, RuntimeError, subprocess.TimeoutExpired):
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(20)
        self.kill()

    def kill(self) -> None:
        """Kill the process and everything that it has started."""
        guard.kill(self._process.pid)
        self._process.wait()
        _notify_guard(-self._process.pid)
        self._folder.cleanup()

    def _ask(self, question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(ANSWER_TIMEOUT_S, self.kill)
        watchdog.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(question) + "\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise RuntimeError(f"exited with {self._process.wait()}, or did not answer within {ANSWER_TIMEOUT_S:.0f} s")
        answer = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer["answer"]

    def _signal(self, number: int) -> None:
        for process in guard.members(self._process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


@functools.cache
def _guard() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, guard.__file__], stdin=subprocess.PIPE, text=True, start_new_session=True)


def _notify_guard(leader: int) -> None:
    """Send the guard the pid of a session's leader, negative if the session has ended."""
    with _GUARD_LOCK:
        pipe = _guard().stdin
        assert pipe is not None
        pipe.write(f"{leader}\n")
        pipe.flush()


def compared(
    systems: Sequence[System], repeats: int, seconds: float, warm_up_s: float = 0.0
) -> dict[str, list[Any] | str]:
    """Measure all systems in turn, several times.

    Args:
        systems: Systems to measure.
        repeats: Number of measurements of each system.
        seconds: Approximate seconds of a measurement.
        warm_up_s: Seconds of a first measurement that is discarded. Default: no such measurement.

    Returns:
        Results of each system by name, or the reason of its failure.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found: dict[str, list[Any] | str] = {}
    running: dict[str, SystemProcess] = {}
    try:
        with ThreadPoolExecutor(4) as several:
            opened = [(system, several.submit(SystemProcess, system)) for system in systems if not system.reopened]
        for system, future in opened:
            if future.exception() is None:
                running[system.name] = future.result()
            else:
                found[system.name] = str(future.exception())
        if warm_up_s:
            for asked in running.values():
                asked.measure(warm_up_s)
        for repeat in range(repeats):
            for system in systems:
                if not isinstance(found.setdefault(system.name, []), list):
                    continue
                try:
                    if system.name not in running:
                        running[system.name] = SystemProcess(system)
                    found[system.name].append(running[system.name].measure(seconds))  # type: ignore[union-attr]
                    print(f"  {repeat + 1} of {repeats}, {system.name}: {found[system.name][-1]}", flush=True)
                except RuntimeError as error:
                    found[system.name] = str(error)
                    print(f"  {system.name}: {error}", flush=True)
                if system.reopened or isinstance(found[system.name], str):
                    _close(running, system.name)
        for name in list(running):
            _close(running, name)
    except BaseException:
        for asked in running.values():
            asked.kill()
        raise
    return found


def _close(running: dict[str, SystemProcess], name: str) -> None:
    asked = running.pop(name, None)
    if asked is not None:
        asked.close()


def summary(found: Mapping[str, Sequence[float] | str], reference: str) -> dict[str, Any]:
    """Return the median, range and ratio to the reference of each system, or the reason of its failure."""
    base = found[reference]
    if isinstance(base, str):
        raise RuntimeError(f"{reference}: {base}")
    return {
        name: {"failed": values}
        if isinstance(values, str)
        else {
            "median": statistics.median(values),
            "min": min(values),
            "max": max(values),
            f"ratio_to_{reference}": statistics.median(values) / statistics.median(base),
        }
        for name, values in found.items()
    }
