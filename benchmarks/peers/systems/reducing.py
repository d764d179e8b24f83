"""Mean of the gradients of two processes by means of the standard library and torch, and its lower bound.

Each process has its gradient in private memory and fills it before each round, which does not count. A round ends when
the learner's process has the mean.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from systems.exchange import milliseconds, started
from systems.loops import Close, Measure

PROCESSES = 2


def reading(megabytes: int) -> tuple[Measure, Close]:
    """Measure the lower bound: one process reads each gradient once."""
    gradients = [torch.ones(megabytes * 250_000) for _ in range(PROCESSES)]
    return milliseconds(lambda: [gradient.sum() for gradient in gradients]), lambda: None


class Differentiators:
    """Processes with one gradient each.

    Args:
        megabytes: Size of a gradient.
        deliver: Function ``(pipe, gradient, *arguments)`` that each process calls in every round.
        arguments: Further arguments of ``deliver`` for each process.
    """

    def __init__(self, megabytes: int, deliver: Callable[..., None], arguments: list[tuple[Any, ...]]) -> None:
        pairs = [multiprocessing.Pipe() for _ in arguments]
        self.pipes = [ours for ours, _ in pairs]
        theirs = [pipe for _, pipe in pairs]
        self.close = started(
            _differentiate, [(pipe, megabytes, deliver, *each) for pipe, each in zip(theirs, arguments, strict=True)]
        )
        self.rounds = 0

    def prepare(self) -> None:
        """Set the gradients of all processes to the number of the round."""
        self.rounds += 1
        self.deliveries(self.rounds)

    def deliveries(self, order: int = 0) -> list[Any]:
        """Return what each process delivers.

        Args:
            order: Number to fill the gradients with instead. Default: deliver the gradients.
        """
        for pipe in self.pipes:
            pipe.send(order)
        return [pipe.recv() for pipe in self.pipes]

    def check(self, mean: Any) -> None:
        """Check that the result is the mean of the newest gradients."""
        if float(mean[0]) != self.rounds or float(mean[-1]) != self.rounds:
            raise RuntimeError(f"the mean must be {self.rounds}, got {mean[0]}")


def _differentiate(pipe: Any, megabytes: int, deliver: Callable[..., None], *arguments: Any) -> None:
    torch.set_num_threads(1)
    gradient = torch.zeros(megabytes * 250_000)
    while True:
        if order := pipe.recv():
            gradient.fill_(order)
            pipe.send(order)
        else:
            deliver(pipe, gradient, *arguments)


def by_pipe(megabytes: int) -> tuple[Measure, Close]:
    """Measure gradients that are sent through pipes, and their mean in the learner's process."""
    processes = Differentiators(megabytes, _send, [()] * PROCESSES)

    def reduce() -> None:
        first, second = processes.deliveries()
        first += second
        first *= 0.5
        processes.check(first)

    return milliseconds(reduce, processes.prepare), processes.close


def _send(pipe: Any, gradient: Any) -> None:
    pipe.send(gradient.numpy())


def by_gloo(megabytes: int) -> tuple[Measure, Close]:
    """Measure ``torch.distributed.all_reduce`` with gloo. This process is one of the two ranks."""
    store = str(Path(tempfile.gettempdir()) / "gloo")
    ours, theirs = multiprocessing.Pipe()
    close = started(_other_rank, [(theirs, megabytes, store)])
    _join(store, 0)
    gradient = torch.zeros(megabytes * 250_000)
    rounds = iter(range(1, 1 << 24))

    def prepare() -> None:
        ours.send(order := next(rounds))
        gradient.fill_(order)
        dist.barrier()

    return milliseconds(lambda: _average(gradient), prepare), close


def _average(gradient: Any) -> None:
    before = float(gradient[0])
    dist.all_reduce(gradient)
    gradient /= PROCESSES
    if float(gradient[0]) != before:
        raise RuntimeError(f"the mean must be {before}, got {gradient[0]}")


def _join(store: str, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=PROCESSES)


def _other_rank(pipe: Any, megabytes: int, store: str) -> None:
    torch.set_num_threads(1)
    _join(store, 1)
    gradient = torch.zeros(megabytes * 250_000)
    while True:
        gradient.fill_(pipe.recv())
        dist.barrier()
        _average(gradient)
