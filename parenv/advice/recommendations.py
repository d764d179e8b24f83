"""Advice on how to set a pool, as data and as text; ``advising`` decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from parenv.advice.costs import Costs, Setting

WORTH = 1.1
"""How many times faster something must be to be recommended over what is simpler."""
NEARLY = 0.95
"""The share of the best that is good enough where more costs more."""


@dataclass(frozen=True)
class Recommendation:
    """One setting.

    Args:
        name: such as ``"num_workers"``.
        value: what to set.
        now: what it is; ``None`` where the pool does not know.
        because: the figure behind it, in words.
    """

    name: str
    value: Any
    now: Any
    because: str


@dataclass(frozen=True)
class Advice:
    """What a run spent its time on, and how to set it.

    Args:
        costs: of the run, with its setting.
        recommended: the same with the recommendations.
        worker_shares: of the workers' time, by part; they add up to 1.
        driver_shares: of the driver's time.
        predicted_steps_per_second: of the recommended setting.
        parallel_helps: whether any number of workers is worth more than none.
        why: that it helps, or that it does not, with figures.
        recommendations: one for each setting.
    """

    costs: Costs
    recommended: Setting
    worker_shares: Mapping[str, float]
    driver_shares: Mapping[str, float]
    predicted_steps_per_second: float
    parallel_helps: bool
    why: str
    recommendations: tuple[Recommendation, ...]

    def __getitem__(self, name: str) -> Recommendation:
        """The recommendation of that name."""
        return {one.name: one for one in self.recommendations}[name]

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(advice: Advice) -> Iterator[str]:
    costs, now = advice.costs, advice.costs.setting
    yield (
        f"{now.num_envs} sub-environments in {now.num_workers} workers, {now.mode}, {now.parallelism}, T = "
        f"{now.rollout_length}: {in_steps(costs.env_steps_per_second)} env steps/s"
    )
    yield f"workers: {_in_words(advice.worker_shares)}"
    yield f"driver: {_in_words(advice.driver_shares)}"
    yield f"R = {costs.ratio:.2g}, collecting an env step over learning from it"
    yield advice.why
    width = max(len(one.name) for one in advice.recommendations)
    for one in advice.recommendations:
        value = f"{one.value}" if one.now is None or one.value == one.now else f"{one.value}, now {one.now}"
        yield f"  {one.name:<{width}}  {value:<16}  {one.because}"
    yield f"predicted: {in_steps(advice.predicted_steps_per_second)} env steps/s{_other_batch(advice)}"


def _other_batch(advice: Advice) -> str:
    """A rate that comes with other updates is not the same training, faster."""
    batch, what = advice["batch"], "episodes" if advice.recommended.rollout_length == "episode" else "env steps"
    if batch.value == batch.now:
        return ""
    return (
        f": an update learns from {batch.value:,} {what} then, instead of {batch.now:,}, so try whether it learns as "
        "well"
    )


def _in_words(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{part} {share:.0%}" for part, share in shares.items())


def in_steps(rate: float) -> str:
    """Three digits, with commas.

    >>> in_steps(331204.0), in_steps(47.31)
    ('331,000', '47.3')
    """
    rounded = float(f"{rate:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def in_seconds(seconds: float) -> str:
    """Three digits and a unit.

    >>> in_seconds(2.5e-6), in_seconds(0.0012), in_seconds(3.0)
    ('2.5 µs', '1.2 ms', '3 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
