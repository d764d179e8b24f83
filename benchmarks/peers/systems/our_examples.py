"""Examples of parenv: PPO in one process, and PPO with a pool."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from systems.learning import Clock, Found


def to_475(example: str, seed: int, num_workers: int, settings: dict[str, Any]) -> tuple[Callable[[float], Found], Any]:
    """Measure a run of an example.

    Args:
        example: ``"ppo"``, or ``"ppo_plain"``, which has no workers.
        seed: Seed of the run.
        num_workers: Number of workers of ``"ppo"``.
        settings: Hyperparameters, which become options of the example.
    """
    sys.path.insert(1, str(Path(__file__).parents[3] / "examples"))
    module = importlib.import_module(example)
    workers = {"num_workers": num_workers} if example == "ppo" else {}
    flags = {**settings, **workers, "seed": seed}
    arguments = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", str(value))]

    def measure(_: float) -> Found:
        clock = Clock()
        if example == "ppo":
            module.make_pool = _with_callback(module.make_pool, clock.started)
        curve = module.main(arguments)
        env_steps, _, mean_return = curve.points[-1]
        return clock.found(env_steps, mean_return, curve.reached(settings["stop_return"]))

    return measure, lambda: None


def _with_callback(make: Callable[..., Any], callback: Callable[[], None]) -> Callable[..., Any]:
    def made(*arguments: Any) -> Any:
        pool = make(*arguments)
        callback()
        return pool

    return made
