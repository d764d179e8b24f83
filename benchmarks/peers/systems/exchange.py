"""Distribution of weights to several processes by means of the standard library and torch, and its lower bound.

Each publish has different weights. Each worker answers with the first weight of its own copy, which is checked.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from systems.loops import Close, Measure


def milliseconds(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> Measure:
    """Return a measurement of the median milliseconds of a round, after three rounds that are not measured.

    Args:
        work: Function to measure.
        before: Function to call before each round. Its time does not count.
    """
    torch.set_num_threads(1)

    def timed() -> float:
        before()
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    def measure(seconds: float) -> float:
        found, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end or not found:
            found.append(timed())
        return 1000 * statistics.median(found)

    for _ in range(3):
        timed()
    return measure


class Source:
    """Weights of the learner, all equal to a version number.

    Args:
        megabytes: Size of the weights.
    """

    def __init__(self, megabytes: int) -> None:
        self.weights = np.zeros(megabytes * 250_000, np.float32)
        self.version = 0

    def change(self) -> None:
        """Increase the version, and set all weights to it."""
        self.version += 1
        self.weights[:] = self.version

    def check(self, firsts: Sequence[float]) -> None:
        """Check that all processes have the newest version.

        Args:
            firsts: First weight of each process.
        """
        if any(first != self.version for first in firsts):
            raise RuntimeError(f"all processes must have version {self.version}, got {firsts}")


def copies(megabytes: int, num_workers: int) -> tuple[Measure, Close]:
    """Measure the lower bound: one process makes a copy to hand out and a copy for each worker."""
    blocks = [np.zeros(megabytes * 250_000, np.float32) for _ in range(num_workers + 2)]
    return milliseconds(lambda: [np.copyto(block, blocks[0]) for block in blocks[1:]]), lambda: None


def started(target: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> Close:
    """Start a process for each tuple of arguments, and return a function that kills them."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=target, args=each, daemon=True) for each in arguments]
    for process in processes:
        process.start()
    return lambda: [process.kill() for process in processes]


def by_pipe(megabytes: int, num_workers: int) -> tuple[Measure, Close]:
    """Measure ``multiprocessing.Pipe``, with a ``send`` to each worker."""
    pairs = [multiprocessing.Pipe() for _ in range(num_workers)]
    close = started(_receive, [(theirs,) for _, theirs in pairs])
    source = Source(megabytes)

    def publish() -> None:
        for ours, _ in pairs:
            ours.send(source.weights)
        source.check([ours.recv() for ours, _ in pairs])

    return milliseconds(publish, source.change), close


def _receive(pipe: Any) -> None:
    while True:
        pipe.send(float(pipe.recv()[0]))


def by_queue(megabytes: int, num_workers: int, kind: str) -> tuple[Measure, Close]:
    """Measure a queue for each worker.

    Args:
        megabytes: Size of the weights.
        num_workers: Number of workers.
        kind: ``"multiprocessing"``, which sends arrays, or ``"torch"``, which sends one shared tensor.
    """
    context: Any = (torch.multiprocessing if kind == "torch" else multiprocessing).get_context("spawn")
    queues, answers = [context.Queue() for _ in range(num_workers)], context.Queue()
    close = started(_receive_from_queue, [(queue, answers) for queue in queues])
    source = Source(megabytes)
    shared = torch.from_numpy(source.weights).clone().share_memory_()

    def publish() -> None:
        sent = shared.copy_(torch.from_numpy(source.weights)) if kind == "torch" else source.weights
        for queue in queues:
            queue.put(sent)
        source.check([answers.get() for _ in queues])

    return milliseconds(publish, source.change), close


def _receive_from_queue(queue: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    while True:
        weights = queue.get()
        own = weights.clone() if torch.is_tensor(weights) else weights
        del weights
        answers.put(float(own[0]))
