"""Search for the fastest setting of a pool, one argument after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from parenv.advice import Setting

WORTH = 1.1
"""Gain from which a setting is worth a change."""
Move = Callable[[Setting], Setting | None]
"""Returns another setting to measure, or ``None`` if the move does not apply."""


def fastest(present: Setting, moves: Sequence[Sequence[Move]], rate: Callable[[Setting], float]) -> Setting:
    """Change one argument after another, and repeat each change for as long as the pool becomes clearly faster.

    Args:
        present: Setting to begin with.
        moves: For each argument, alternative moves. The first that helps is taken.
        rate: Function that measures a setting, in env steps per second.

    Returns:
        Fastest setting of those measured, up to differences below ``WORTH``.
    """
    best, best_rate = present, rate(present)
    for alternatives in moves:
        before = best
        for move in alternatives:
            while (other := move(best)) is not None and (reached := rate(other)) >= WORTH * best_rate:
                best, best_rate = other, reached
            if best != before:
                break
    return best


def moves_for(can_share_learning: bool, accelerator: str | None) -> list[tuple[Move, ...]]:
    """Return the moves of each argument, in the order of their usual effect.

    Args:
        can_share_learning: Whether workers can learn with ``parallelism="gradient"``.
        accelerator: Device beside the CPU on which workers can act, or ``None``.
    """
    return [
        (_scaled("num_workers", 2, 128), _replaced(num_workers=0), _scaled("num_workers", 0.5)),
        (_scaled("num_envs", 2, 8192), _scaled("num_envs", 0.5)),
        (_replaced(mode="async"),),
        (_replaced(parallelism="gradient"),) if can_share_learning else (),
        (_scaled("rollout_length", 2, 2048), _scaled("rollout_length", 0.5)),
        (_to_step_workers,),
        () if accelerator is None else (_replaced(worker_device=accelerator),),
    ]


def _scaled(name: str, factor: float, most: float = math.inf) -> Move:
    """Multiply a number. There is always a sub-environment for each worker."""

    def move(now: Setting) -> Setting | None:
        value: Any = int(getattr(now, name) * factor)
        other = replace(now, **{name: value})
        other = replace(other, num_envs=max(other.num_envs, other.num_workers))
        return other if 1 <= value <= most and other != now else None

    return move


def _replaced(**changes: Any) -> Move:
    """Replace values of a setting with workers."""

    def move(now: Setting) -> Setting | None:
        other = replace(now, **changes)
        return other if now.num_workers and other != now else None

    return move


def _to_step_workers(now: Setting) -> Setting | None:
    """Act in one worker for all sub-environments, and step them in other processes."""
    processes = max(2, now.num_workers)
    # Such a worker steps one half of its sub-environments while it acts for the other half.
    if not now.num_workers or now.step_workers is not None or now.num_envs < 2 * processes:
        return None
    return replace(now, num_workers=1, step_workers=processes)
