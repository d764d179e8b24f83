"""The parts of the examples beside learning: flags, the learning curve, and the files of a run."""

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


def flag(default: Any, words: str, **more: Any) -> Any:
    """A field of `Args` that is a flag of the command line: `rollout_length` is `--rollout-length`."""
    return field(default=default, metadata={"help": words, **more})


@dataclass
class CommonArgs:
    env_id: str = flag("CartPole-v1", "the environment, by its id")
    seed: int = flag(1, "of everything that is drawn")
    torch_threads: int = flag(1, "of the learner; networks as small as these gain nothing from more")
    save: str | None = flag(None, "file for the trained weights, such as agent.pt", metavar="FILE")
    plot: str | None = flag(None, "file for a picture of the learning curve, such as curve.png", metavar="FILE")


AnyArgs = TypeVar("AnyArgs", bound=CommonArgs)


def parse(kind: type[AnyArgs], argv: Sequence[str] | None = None) -> AnyArgs:
    """The flags of a command line; one that cannot be honoured at the end is refused before anything begins."""
    about = (sys.modules[kind.__module__].__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for one in fields(kind):
        how: dict[str, Any] = {"type": str if one.default is None else type(one.default)}
        if isinstance(one.default, bool):
            how = {"action": argparse.BooleanOptionalAction}
        elif isinstance(one.default, tuple):
            how = {"type": type(one.default[0]), "nargs": "+"}
        parser.add_argument("--" + one.name.replace("_", "-"), default=one.default, **how, **one.metadata)
    args = kind(**vars(parser.parse_args(argv)))
    for path in filter(None, (args.save, args.plot)):
        if not Path(path).parent.is_dir():
            parser.error(f"cannot write {path}: there is no directory {Path(path).parent}")
    if args.plot:
        try:
            from matplotlib import figure as figure
        except ImportError:
            parser.error('--plot needs matplotlib: pip install "parenv[bench]"')
    return args


class Curve:
    """The learning curve: (env steps, seconds, mean return of the last episodes)."""

    def __init__(self, print_every: int = 10_000, window: int = 100) -> None:
        self.points: list[tuple[int, float, float]] = []
        self.returns: deque[float] = deque(maxlen=window)
        self.print_every = print_every
        self.started = time.perf_counter()

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns)) if self.returns else 0.0

    def add(self, env_steps: int, episode_returns: Sequence[float]) -> None:
        self.returns.extend(episode_returns)
        seconds = time.perf_counter() - self.started
        previous = self.points[-1][0] if self.points else 0
        self.points.append((env_steps, seconds, self.mean_return))
        if env_steps // self.print_every > previous // self.print_every:
            self.print_last()

    def reached(self, target: float) -> bool:
        return len(self.returns) == self.returns.maxlen and self.mean_return >= target

    def print_last(self) -> None:
        steps, seconds, mean = self.points[-1]
        print(f"{steps:8d} steps  {seconds:6.1f} s  {mean:6.1f} mean return", flush=True)


def keep(args: CommonArgs, curve: Curve, module: nn.Module) -> None:
    """Write what `--save` and `--plot` ask for."""
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
