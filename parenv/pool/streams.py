"""Streams: what a pool yields, one after the other, until a criterion holds."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from parenv.experience.gradient import Gradient
from parenv.experience.rollout import Rollout
from parenv.options import Stop
from parenv.pool.pool_session import PoolSession
from parenv.pool.session_holder import StreamKey

Item = TypeVar("Item", Rollout, Gradient)


def stream(
    stop: Stop,
    using: Callable[[StreamKey], contextlib.AbstractContextManager[PoolSession]],
    take: Callable[[PoolSession, float], Item | None],
    wait: Callable[[], bool] | None,
) -> Iterator[Item | None]:
    """Yield until a criterion holds.

    Args:
        stop: criteria, counted from here on.
        using: lets nobody else use the session meanwhile, and no other thread while this stream is not over.
        take: takes the next item, or ``None`` where there is none until a deadline on the monotonic clock.
        wait: asked before each; where it says no, ``None`` is yielded if there is none yet.
    """
    key, began = StreamKey(), time.monotonic()
    deadline = began + min(stop.seconds, threading.TIMEOUT_MAX)
    env_steps = episodes = 0
    returns: deque[float] = deque(maxlen=stop.window)
    with using(key) as session:
        found = known = session.evaluator.last
    while True:
        enough = len(returns) == stop.window
        mean_return = sum(returns) / stop.window if enough else math.nan
        seconds = time.monotonic() - began
        evaluation_return = math.nan if found is None or found is known else found.mean_return
        if stop.reason(
            env_steps=env_steps,
            episodes=episodes,
            mean_return=mean_return,
            seconds=seconds,
            evaluation_return=evaluation_return,
        ):
            return
        waits, item = wait is None or wait(), session.undelivered
        try:
            with using(key) as session:
                if item is None:
                    item = take(session, deadline if waits else 0.0)
                session.undelivered, found = None, session.evaluator.last
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
        returns.extend(item.episodes.returns.tolist())
        yield item
        del item
