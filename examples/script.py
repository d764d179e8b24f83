"""Shared code of the examples: command-line options, the learning curve, and the output files."""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn


def flag(default: Any, help_text: str, **options: Any) -> Any:
    """Return a dataclass field that `parse` turns into a flag: `rollout_length` becomes `--rollout-length`."""
    return field(default=default, metadata={"help": help_text, **options})


@dataclass
class CommonArgs:
    """Flags that the examples have in common."""

    env_id: str = flag("CartPole-v1", "Id of the environment")
    seed: int = flag(1, "Random seed")
    torch_threads: int = flag(1, "Number of PyTorch threads of the learner; more do not help small networks")
    save: str | None = flag(None, "File for the trained weights, such as agent.pt", metavar="FILE")
    plot: str | None = flag(None, "Image file for the learning curve, such as curve.png", metavar="FILE")


AnyArgs = TypeVar("AnyArgs", bound=CommonArgs)


def parse(args_class: type[AnyArgs], argv: Sequence[str] | None = None) -> AnyArgs:
    """Parse the command line into a dataclass of flags.

    `--save` and `--plot` are checked here, so that a wrong path does not fail after hours of training.
    """
    about = (sys.modules[args_class.__module__].__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for option in fields(args_class):
        kwargs: dict[str, Any] = {"type": str if option.default is None else type(option.default)}
        if isinstance(option.default, bool):
            kwargs = {"action": argparse.BooleanOptionalAction}
        elif isinstance(option.default, tuple):
            kwargs = {"type": type(option.default[0]), "nargs": "+"}
        parser.add_argument("--" + option.name.replace("_", "-"), default=option.default, **kwargs, **option.metadata)
    args = args_class(**vars(parser.parse_args(argv)))
    for path in filter(None, (args.save, args.plot)):
        if not Path(path).parent.is_dir():
            parser.error(f"cannot write {path}: there is no directory {Path(path).parent}")
    if args.plot:
        try:
            from matplotlib import figure as figure
        except ImportError:
            parser.error("--plot needs matplotlib: pip install matplotlib")
    return args


class Curve:
    """Learning curve: points of (env steps, seconds, mean return of the last `window` episodes)."""

    def __init__(self, print_every: int = 10_000, window: int = 100) -> None:
        self.points: list[tuple[int, float, float]] = []
        self.returns: deque[float] = deque(maxlen=window)
        self.print_every = print_every
        self.started = time.perf_counter()

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns)) if self.returns else 0.0

    def add(self, env_steps: int, episode_returns: Sequence[float]) -> None:
        """Add a point. Print it if `env_steps` has passed a multiple of `print_every`."""
        self.returns.extend(episode_returns)
        seconds = time.perf_counter() - self.started
        previous = self.points[-1][0] if self.points else 0
        self.points.append((env_steps, seconds, self.mean_return))
        if env_steps // self.print_every > previous // self.print_every:
            self.print_last()

    def reached(self, target: float) -> bool:
        """Return whether the mean return of the last `window` episodes is at least `target`."""
        return len(self.returns) == self.returns.maxlen and self.mean_return >= target

    def print_last(self) -> None:
        steps, seconds, mean = self.points[-1]
        print(f"{steps:8d} env steps  {seconds:6.1f} s  {mean:6.1f} mean return", flush=True)


def save_results(args: CommonArgs, curve: Curve, module: nn.Module) -> None:
    """Write the weights to the file of `--save`, and draw the curve to the file of `--plot`."""
    if args.save:
        torch.save(module.state_dict(), args.save)
    if args.plot:
        draw(args.plot, args.env_id, curve)


def draw(path: str, title: str, curve: Curve) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    panel = figure.subplots()
    steps, _, means = zip(*curve.points, strict=True)
    panel.plot(steps, means)
    panel.set(title=title, xlabel="env steps", ylabel=f"mean return of the last {curve.returns.maxlen} episodes")
    panel.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
