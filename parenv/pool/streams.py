"""Streams of rollouts, gradients or reports, which end when a criterion is met."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from parenv.experience.gradient import Gradient
from parenv.options import Stop
from parenv.pool.session_holder import S, StreamKey
from parenv.supervision.warning import Warner

ITEMS_BEFORE_WARNING = 100
"""Number of items without an evaluation after which a stream that only an evaluation ends warns."""


def stream(
    stop: Stop,
    using: Callable[[StreamKey], contextlib.AbstractContextManager[S]],
    take: Callable[[S, float], Any],
    mean_return: Callable[[Any], float],
    wait: Callable[[], bool] | None = None,
) -> Iterator[Any]:
    """Yield items until a criterion is met.

    Args:
        stop: Criteria, counted from the first request on.
        using: Function that returns the context of a session. No other thread may use the session until this stream
            ends.
        take: Function that returns the next item, or ``None`` at a deadline on the monotonic clock.
        mean_return: Function of each item that returns the mean return so far, for the criterion of that name.
        wait: Function that is called before each item. If it returns ``False`` and no item has arrived, the stream
            yields ``None``.
    """
    key, began = StreamKey(), time.monotonic()
    deadline = began + min(stop.seconds, threading.TIMEOUT_MAX)
    env_steps = episodes = items = 0
    reached = math.nan
    with using(key) as session:
        found = known = session.evaluation
    while not stop.reason(
        env_steps=env_steps,
        episodes=episodes,
        mean_return=reached,
        seconds=time.monotonic() - began,
        evaluation_return=math.nan if found is None or found is known else found.mean_return,
    ):
        waits, item = wait is None or wait(), session.undelivered
        try:
            with using(key) as session:
                if item is None:
                    item = take(session, deadline if waits else 0.0)
                session.undelivered, found = None, session.evaluation
        except KeyboardInterrupt:
            session.undelivered = item
            raise
        if item is None:
            if waits:
                return
            yield None
            continue
        env_steps += item.num_samples if isinstance(item, Gradient) else item.num_steps
        episodes += len(item.episodes)
        items += 1
        if items == ITEMS_BEFORE_WARNING and found is known and _has_no_other_end(stop):
            Warner()(
                f"Stop(evaluation_return={stop.evaluation_return:g}) is the only end of this stream, and "
                f"its first {items} items have seen no evaluation. Call pool.evaluate(...) "
                "or SaveBest.update(pool) in the loop"
            )
        reached = mean_return(item)
        yield item
        del item


def _has_no_other_end(stop: Stop) -> bool:
    others = replace(stop, evaluation_return=math.inf, window=1)
    return stop.evaluation_return < math.inf and others == Stop(window=1)


def mean_over(window: int) -> Callable[[Any], float]:
    """Return a function of each item that returns the mean return of the last episodes, NaN while there are fewer."""
    returns: deque[float] = deque(maxlen=window)

    def mean_return(item: Any) -> float:
        returns.extend(item.episodes.returns.tolist())
        return sum(returns) / window if len(returns) == window else math.nan

    return mean_return
