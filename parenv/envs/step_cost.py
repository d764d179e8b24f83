"""Measure the time of a step, and find native code in an environment."""

from __future__ import annotations

import contextlib
import copy
import importlib.machinery
import sys
import time
from types import ModuleType
from typing import Any

from parenv.envs.factories import Factories
from parenv.envs.seeding import RandomState

MEASURE_S, MAX_MEASURE_S, MIN_MEASURED_STEPS = 0.05, 1.0, 20
_TRUSTED = {"numpy", "gymnasium", "parenv", "torch"}


def measured_step_s(factories: Factories, env_id: int) -> tuple[float, str]:
    """Measure the seconds per env step, with resets, on a sub-environment that is made for the measurement.

    Returns:
        The seconds, and the result of :func:`native_package`.
    """
    with RandomState(0), contextlib.closing(factories.make(env_id)) as env:
        # Other environments may share the space, and must not see another seed.
        space = copy.deepcopy(env.action_space)
        space.seed(0)
        env.reset(seed=0)
        steps, cost, began = 0, 0.0, time.perf_counter()
        while cost < MEASURE_S or (steps < MIN_MEASURED_STEPS and cost < MAX_MEASURE_S):
            _, _, terminated, truncated, _ = env.step(space.sample())
            if terminated or truncated:
                env.reset()
            steps, cost = steps + 1, time.perf_counter() - began
        began = time.perf_counter()
        for _ in range(steps):
            space.sample()
        # An interruption of the loop above could make the difference negative.
        return max(cost - (time.perf_counter() - began), cost / 2) / steps, native_package(env)


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
