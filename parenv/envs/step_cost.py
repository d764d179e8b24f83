"""Measure the time of a step and its spread, and find native code in an environment."""

from __future__ import annotations

import contextlib
import copy
import importlib.machinery
import operator
import statistics
import sys
import time
from types import ModuleType
from typing import Any, NamedTuple

from parenv.envs.factories import Factories
from parenv.envs.seeding import RandomState

MEASURE_S, MAX_MEASURE_S, MIN_MEASURED_STEPS = 0.05, 1.0, 20
_TRUSTED = {"numpy", "gymnasium", "parenv", "torch"}


class StepCost(NamedTuple):
    """Time of an env step.

    Args:
        step_s: Mean seconds, with resets.
        spread_s: Standard deviation in seconds.
    """

    step_s: float
    spread_s: float


def measured_step(factories: Factories, env_id: int) -> tuple[StepCost, str]:
    """Measure env steps on a sub-environment that is made for the measurement.

    Returns:
        Their time, and the result of :func:`native_package`.
    """
    with RandomState(0), contextlib.closing(factories.make(env_id)) as env:
        # Other environments may share the space, and must not see another seed.
        space = copy.deepcopy(env.action_space)
        space.seed(0)
        env.reset(seed=0)
        ended = [time.perf_counter()]
        while (cost := ended[-1] - ended[0]) < MEASURE_S or (len(ended) <= MIN_MEASURED_STEPS and cost < MAX_MEASURE_S):
            _, _, terminated, truncated, _ = env.step(space.sample())
            if terminated or truncated:
                env.reset()
            ended.append(time.perf_counter())
        steps, began = len(ended) - 1, time.perf_counter()
        for _ in range(steps):
            space.sample()
        # An interruption of the loop above could make the difference negative.
        step_s = max(cost - (time.perf_counter() - began), cost / 2) / steps
        return StepCost(step_s, statistics.pstdev(map(operator.sub, ended[1:], ended))), native_package(env)


def native_package(env: Any) -> str:
    """Return a package with extension modules that the modules of an environment or its wrappers use by name.

    numpy, gymnasium, torch and the standard library do not count. The result is empty without such a package. Imports
    inside functions are not found.
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
