"""Report of the failures in a run: which sub-environment failed how often, doing what, with the last traceback."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from parenv.bench.timeline import Timeline, find_traces, read_timeline
from parenv.errors import during
from parenv.experience.failures import EnvFailures

MOST_ROWS = 20
"""Number of sub-environments that the report lists."""


def failure_report(path: str | os.PathLike[str]) -> str:
    """Return a text about the failures of sub-environments and workers in a run.

    Args:
        path: Trace that ``pool.trace`` has written or is writing, or a directory with at least one trace.

    Raises:
        ConfigurationError: There is no trace, or it is damaged.

    >>> import tempfile
    >>> from parenv import AsyncWorkerPool
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with AsyncWorkerPool("CartPole-v1", lambda observations: observations[:, 2] > 0, num_workers=0) as pool:
    ...         pool.trace(f"{folder}/trace.json")
    ...         rollout = next(pool.rollouts())
    ...     print(failure_report(folder))
    trace.json: no failures, no lost episodes
    """
    return "\n\n".join("\n".join(failure_lines(read_timeline(trace))) for trace in find_traces(Path(path)))


def failure_lines(timeline: Timeline) -> Iterator[str]:
    """Yield the lines of the text about one trace."""
    log = timeline.failures
    failures, lost, lost_by_env = log.failures(), log.lost_by_reason(), log.lost_by_env()
    count, lost_count = sum(one.count for one in failures), sum(lost.values())
    yield f"{timeline.name}: {_number(count, 'failure')}, {_number(lost_count, 'lost episode')}{_in_words(lost)}"
    for one in failures[:MOST_ROWS]:
        yield ""
        yield from _about(one, lost_by_env)
    if (more := len(failures) - MOST_ROWS) > 0:
        yield f"\nand {_number(more, 'sub-environment')} more"


def _about(one: EnvFailures, lost_by_env: Mapping[int, Mapping[str, int]]) -> Iterator[str]:
    who = one.who if one.env_id is None else f"{one.who} (worker {one.worker})"
    lost = sum(lost_by_env.get(-1 if one.env_id is None else one.env_id, {}).values())
    yield f"{who}: {_number(one.count, 'failure')}{_in_words(one.reasons)}, {_number(lost, 'lost episode')}"
    if one.error:
        yield f"  last {during(one.doing)}: {one.error}" if one.doing else f"  last: {one.error}"
        yield from (f"    {line}" for line in one.traceback.splitlines())


def _in_words(reasons: Mapping[str, int]) -> str:
    """Return the counts by reason in parentheses, empty without any."""
    words = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=lambda one: -one[1]))
    return f" ({words})" if words else ""


def _number(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'s' * (count != 1)}"
