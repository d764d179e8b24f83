"""What is measured with how many workers and for how long: pure decisions."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_ROLLOUT = 128


def worker_counts(cores: int) -> tuple[int, ...]:
    """Powers of two up to the number of cores, and that number.

    >>> worker_counts(1), worker_counts(2), worker_counts(12)
    ((1,), (1, 2), (1, 2, 4, 8, 12))
    """
    return (*(1 << i for i in range(cores.bit_length()) if 1 << i < cores), cores)


def grid(num_envs: Sequence[int], num_workers: Sequence[int]) -> list[tuple[int, int]]:
    """All pairs in which every worker has something to step, each once, in order.

    >>> grid((8, 2), (1, 4))
    [(2, 1), (8, 1), (8, 4)]
    """
    pairs = {(envs, workers) for envs in num_envs for workers in num_workers if workers <= envs}
    return sorted(pairs)


def rollout_length(row_s: float, slice_s: float) -> int:
    """Env steps per sub-environment and rollout, so that a measurement holds several rollouts.

    Args:
        row_s: seconds of one env step of all sub-environments of a worker, with acting.
        slice_s: seconds of a measurement.

    >>> rollout_length(0.0004, 0.4), rollout_length(0.004, 0.4), rollout_length(1.0, 0.4)
    (128, 16, 1)
    """
    length = LONGEST_ROLLOUT
    while length > 1 and length * row_s > slice_s / 4:
        length //= 2
    return length
