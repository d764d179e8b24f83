"""Measure the time of a step on a copy of an environment, and find native code in an environment."""

from __future__ import annotations

import array
import copy
import importlib.machinery
import itertools
import statistics
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from parenv.platform import system

if TYPE_CHECKING:
    from parenv.process.throwaway import Report, Thrown

MEASURE_S, MAX_MEASURE_S = 0.025, 0.05
"""Seconds after which a measurement ends after the next step, and at once."""
_LEAST_STEPS = 20
_FIELDS = 5
_LOOKS = 8
"""Number of looks at the load of the machine during a measurement."""
_TRUSTED = {"numpy", "gymnasium", "parenv", "torch", "mujoco", "ale_py", "cv2"}


class StepCost(NamedTuple):
    """Time of an env step.

    Args:
        step_s: Median processor seconds of an env step.
        wait_s: Median seconds for which an env step waits for something else than a core.
        spread_s: Standard deviation of both together, in seconds.
        queued: Seconds in the queue for a core per second of processor time.
        others: Mean number of other threads on the machine that ran or were queued.
    """

    step_s: float
    wait_s: float
    spread_s: float
    queued: float
    others: float


def measured_step(env: Any) -> StepCost | None:
    """Measure env steps with random actions, on a copy of an environment in a throwaway process.

    Neither the environment nor a random state changes.

    Returns:
        The time of a step, or ``None`` if it cannot be measured: the environment cannot be copied, refuses random
        actions, or takes too long for a reset.
    """
    if not system.FORK_IS_SAFE:
        return None
    from parenv.process.throwaway import throw_away

    thrown = throw_away(lambda report: _step(env, report), MAX_MEASURE_S)
    return None if thrown is None else cost_of(thrown)


def _step(env: Any, report: Report) -> None:
    """Step a copy of an environment, and report numbers after the reset and after each step.

    The numbers are the clock, the processor time, the time in the queue for a core, whether the last step waited, and
    the number of other threads.
    """
    # A copy of the environment has connections of its own, or cannot be made: a socket, a file or a lock has no copy.
    # So the copy does not use what the environment in the parent is connected to.
    env = copy.deepcopy(env)
    space = env.action_space
    space.seed(0)
    env.reset(seed=0)
    actions = [space.sample() for _ in range(64)]
    step, looks = env.step, 0
    queued_s = _queued_s()
    began = reported = now = time.perf_counter()
    others = system.running_threads() - 1
    report(array.array("d", (now, time.thread_time(), queued_s, 0.0, others)).tobytes())
    numbers, count = array.array("d"), 0
    switches = system.voluntary_switches()
    while now - began < MEASURE_S or count < _LEAST_STEPS:
        _, _, terminated, truncated, _ = step(actions[count % 64])
        if terminated or truncated:
            env.reset()
        now, used_s, count = time.perf_counter(), time.thread_time(), count + 1
        if has_waited := (now_switches := system.voluntary_switches()) > switches:
            switches = now_switches
        if has_waited or now - began > looks * MEASURE_S / _LOOKS:
            queued_s, looks, others = _queued_s(), looks + 1, system.running_threads() - 1
        numbers.extend((now, used_s, queued_s, has_waited, others))
        # The parent needs what came before a step that does not end in time. A report per step would wake it too often.
        if now - reported > MEASURE_S / _LOOKS:
            report(numbers.tobytes())
            numbers, reported = array.array("d"), now
    report(numbers.tobytes())


def _queued_s() -> float:
    times = system.processor_time()
    return 0.0 if times is None else times.queued_s


def cost_of(thrown: Thrown) -> StepCost | None:
    """Return the time of a step from the numbers of a throwaway process, or ``None`` if it has not made its reset.

    If the first step still waited at the limit, its time until then is a lower limit.
    """
    numbers = array.array("d", thrown.reported[: len(thrown.reported) // (8 * _FIELDS) * 8 * _FIELDS])
    rows = [numbers[at : at + _FIELDS] for at in range(0, len(numbers), _FIELDS)]
    if len(rows) == 1 and thrown.times is not None:
        rows.append(array.array("d", (thrown.at, *thrown.times, 1.0, rows[0][4])))
    if len(rows) < 2:
        return None
    # The first step of a forked process copies the pages that it writes.
    rows = rows[1:] if len(rows) > 2 else rows
    computing, waiting = [], []
    for before, after in itertools.pairwise(rows):
        wall_s, used_s, queued_s = (after[i] - before[i] for i in range(3))
        computing.append(max(0.0, used_s))
        # A step that did not sleep was only interrupted by other processes.
        waiting.append(max(0.0, wall_s - used_s - queued_s) if after[3] else 0.0)
    return StepCost(
        step_s=statistics.median(computing),
        wait_s=statistics.median(waiting),
        spread_s=statistics.pstdev(map(sum, zip(computing, waiting, strict=True))),
        queued=(rows[-1][2] - rows[0][2]) / max(sum(computing), 1e-9),
        others=statistics.fmean(row[4] for row in rows),
    )


def native_package(env: Any) -> str:
    """Return a package with extension modules that the modules of an environment or its wrappers use by name.

    numpy, gymnasium, torch and the standard library do not count, and neither do MuJoCo, ALE and OpenCV, whose errors
    are exceptions. The result is empty without such a package. Imports inside functions are not found.
    """
    layers = [env]
    while (inner := getattr(layers[-1], "env", None)) is not None:
        layers.append(inner)
    modules = {cls.__module__ for layer in layers for cls in type(layer).__mro__} - sys.stdlib_module_names
    for module in modules:
        for value in list(vars(sys.modules.get(module, ModuleType(module))).values()):
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            package = name.partition(".")[0] if isinstance(name, str) else ""
            if package and package not in _TRUSTED | sys.stdlib_module_names and _is_native(package):
                return package
    return ""


def _is_native(package: str) -> bool:
    """Tell whether an extension module of the package has been imported."""
    endings = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    mine = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == package]
    return any((getattr(module, "__file__", None) or "").endswith(endings) for module in mine)
