"""Systems to compare, each in a process of its own and in the virtual environment where it is installed.

One measures at a time; the others are stopped meanwhile, workers included, since some of them spin.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from installed import installed

HERE = Path(__file__).parent
ANSWER_WITHIN_S = 300.0


@dataclass(frozen=True)
class System:
    """One system in one configuration.

    Args:
        name: as the results call it.
        environment: the virtual environment that has it: of ``installed.ENVIRONMENTS``, or ``"parenv"``.
        module: its file under ``systems/``.
        function: what the file calls the question: ``(**arguments) -> (measure, close)``.
        arguments: for the function; plain data.
        reopened: started anew for each measurement, because it does not bear to be stopped in between.
    """

    name: str
    environment: str
    module: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    reopened: bool = False


class Asked:
    """A system that has been started. It is stopped except while it measures.

    Args:
        system: which one.

    Raises:
        RuntimeError: it cannot be installed, or it failed; says why.
    """

    def __init__(self, system: System) -> None:
        found = installed(system.environment)
        if found.reason:
            raise RuntimeError(f"not installed: {found.reason}")
        self._process = subprocess.Popen(
            [str(found.python), str(HERE / "served.py"), system.module, system.function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self.facts = self._ask(dict(system.arguments))
            self._signal(signal.SIGSTOP)
        except BaseException:
            self.kill()
            raise

    def measure(self, seconds: float) -> Any:
        """What the system measures in about that many seconds."""
        self._signal(signal.SIGCONT)
        try:
            return self._ask(seconds)
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it the way it wants to be ended, and then what is left."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError, RuntimeError, subprocess.TimeoutExpired):
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(20)
        self.kill()

    def kill(self) -> None:
        """End it with everything that it has started."""
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def _ask(self, question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(ANSWER_WITHIN_S, self.kill)
        watchdog.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(question) + "\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise RuntimeError(f"it ended with {self._process.wait()}, or did not answer for {ANSWER_WITHIN_S:.0f} s")
        answer = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer["answer"]

    def _signal(self, number: int) -> None:
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _all(self) -> list[psutil.Process]:
        """It and its offspring, those in its session too whose parent has gone."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self._process.pid:
                    found.append(process)
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [one for one in psutil.Process(self._process.pid).children(recursive=True) if one not in found]
        return found


def compared(systems: Sequence[System], repeats: int, seconds: float) -> dict[str, list[Any] | str]:
    """Measure all in turn, several times; for each what it found, or why it could not.

    Args:
        systems: which ones.
        repeats: measurements of each.
        seconds: that each takes, roughly.
    """
    found: dict[str, list[Any] | str] = {}
    running: dict[str, Asked] = {}
    try:
        for repeat in range(repeats):
            for system in systems:
                if not isinstance(found.setdefault(system.name, []), list):
                    continue
                try:
                    asked = running.get(system.name) or Asked(system)
                    running[system.name] = asked
                    found[system.name].append(asked.measure(seconds))  # type: ignore[union-attr]
                    print(f"  {repeat + 1} of {repeats}, {system.name}: {found[system.name][-1]}", flush=True)
                except RuntimeError as error:
                    found[system.name] = str(error)
                    print(f"  {system.name}: {error}", flush=True)
                if system.reopened or isinstance(found[system.name], str):
                    _end(running, system.name)
    finally:
        for name in list(running):
            _end(running, name)
    return found


def _end(running: dict[str, Asked], name: str) -> None:
    asked = running.pop(name, None)
    if asked is not None:
        asked.close()


def summary(found: Mapping[str, Sequence[float] | str], reference: str) -> dict[str, Any]:
    """Median, smallest and largest of each with the ratio of its median to the reference's, or why there is none."""
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
