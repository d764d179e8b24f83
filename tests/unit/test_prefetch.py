"""Check the order of calls for prefetched rollouts, with a stand-in for CUDA that records them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from parenv.errors import ConfigurationError
from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.rollout import Ends, Rollout
from parenv.learning import prefetch


@dataclass
class Log:
    """Stand-in for CUDA that records calls in order. Its side stream is ``side``, the learner's stream is ``main``."""

    calls: list[str] = field(default_factory=list)
    current: str = "main"
    copies: int = 0

    def Stream(self, device: Any) -> Log:  # noqa: N802
        return self

    @contextmanager
    def stream(self, side: Log) -> Iterator[None]:
        self.current = "side"
        yield
        self.current = "main"

    def current_stream(self, device: Any) -> str:
        return self.current

    def cudart(self) -> Log:
        return self

    def record_event(self) -> Event:
        self.copies += 1
        return Event(self, f"copy {self.copies - 1}")

    def synchronize(self) -> None:
        self.calls.append("side done")


@dataclass
class Event:
    log: Log
    name: str

    def synchronize(self) -> None:
        self.log.calls.append(f"{self.name} done")


@dataclass
class Tensor:
    log: Log
    name: str

    def record_stream(self, stream: str) -> None:
        self.log.calls.append(f"{self.name} used on {stream}")


@dataclass
class Source:
    """Rollout that records when its memory is freed."""

    log: Log
    number: int

    def to(self, device: torch.device, non_blocking: bool) -> list[Tensor]:
        assert (device.type, non_blocking) == ("cuda", True)
        self.log.calls.append(f"begin {self.number} on {self.log.current}")
        return [Tensor(self.log, f"tensor {self.number}")]

    def __del__(self) -> None:
        self.log.calls.append(f"free {self.number}")


def stream_of(log: Log, count: int, failure: Exception | None = None) -> Iterator[Any]:
    try:
        yield from map(Source, [log] * count, range(count))
        if failure:
            raise failure
    finally:
        log.calls.append("stream closed")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    for name in ("Stream", "stream", "current_stream", "cudart"):
        monkeypatch.setattr(torch.cuda, name, getattr(log, name))
    return log


def learn(log: Log, rollouts: Iterator[Any]) -> None:
    for rollout in rollouts:
        log.calls.append(f"learn {rollout[0].name[-1]}")


def test_the_next_copy_runs_and_the_source_is_freed_while_the_learner_computes(log: Log) -> None:
    learn(log, prefetch(stream_of(log, 3), "cuda"))
    assert log.calls == [
        *["begin 0 on side", "begin 1 on side"],
        *["copy 0 done", "tensor 0 used on main", "free 0", "learn 0"],
        *["begin 2 on side", "copy 1 done", "tensor 1 used on main", "free 1", "learn 1"],
        *["stream closed", "copy 2 done", "tensor 2 used on main", "free 2", "learn 2"],
        "side done",
    ]


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_the_given_number_of_rollouts_runs_ahead_and_none_is_lost(log: Log, ahead: int) -> None:
    learn(log, prefetch(stream_of(log, 4), "cuda", ahead=ahead))
    begun_before_learning = log.calls[: log.calls.index("learn 0")]
    assert sum(call.startswith("begin") for call in begun_before_learning) == min(ahead + 1, 4)
    assert [call for call in log.calls if call.startswith("learn")] == [f"learn {number}" for number in range(4)]


def test_no_source_is_freed_before_its_copy_is_done_when_the_learner_stops_early(log: Log) -> None:
    with closing(prefetch(stream_of(log, 3), "cuda")) as rollouts:
        next(rollouts)
        log.calls.clear()
    assert log.calls[:1] == ["side done"]
    assert sorted(log.calls[1:]) == ["free 1", "stream closed"]


def test_rollouts_before_a_failure_of_the_stream_are_yielded(log: Log) -> None:
    with pytest.raises(OSError, match="gone"):
        learn(log, prefetch(stream_of(log, 2, OSError("gone")), "cuda"))
    assert [call for call in log.calls if call.startswith("learn")] == ["learn 0", "learn 1"]


def real_rollout(reward: float) -> Rollout:
    row, column = np.zeros(1, np.int64), np.zeros(1, np.int64)
    block = np.full((2, 1), reward, np.float32)
    nothing = np.zeros(0)
    return Rollout(
        observations={"near": block, "far": (block, block)},
        actions=block,
        rewards=block,
        terminated=block > 0,
        truncated=block > 0,
        last_observations=block[-1],
        extras={"value": block},
        initial_carry=None,
        env_ids=column,
        worker=0,
        policy_version=1,
        policy_lag=0,
        restarted=np.zeros(2, bool),
        episodes=EpisodeStatistics(nothing, nothing, nothing, nothing, nothing.astype(str)),
        ends=[Ends(row, column, block[:1])],
        shifted_observations=block,
    )


def test_every_tensor_of_a_rollout_is_recorded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Tensor] = []
    recorded: list[torch.Tensor] = []

    def moved(tensor: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
        made.append(tensor.clone())
        return made[-1]

    monkeypatch.setattr(torch.Tensor, "to", moved)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: recorded.append(tensor))
    assert len(list(prefetch([real_rollout(1)], "cuda"))) == 1
    assert len(made) >= 14
    assert {id(tensor) for tensor in recorded} == {id(tensor) for tensor in made}


def test_on_the_cpu_nothing_runs_ahead_and_no_memory_is_copied(log: Log) -> None:
    rollouts = [real_rollout(reward) for reward in range(3)]
    source = iter(rollouts)
    moved = prefetch(source, "cpu")
    first = next(moved)
    assert next(source) is rollouts[1]
    assert first.rewards.data_ptr() == rollouts[0].rewards.ctypes.data
    assert [rollout.rewards[0, 0].item() for rollout in moved] == [2]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_closing_the_iterator_closes_its_source(log: Log, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "to", lambda source, *_, **__: [])
    source = stream_of(log, 3)
    rollouts = prefetch(source, device)
    next(rollouts)
    assert "stream closed" not in log.calls
    rollouts.close()
    assert "stream closed" in log.calls


def test_running_less_than_one_ahead_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="ahead must be an integer of at least 1, got 0"):
        prefetch([], "cpu", ahead=0)
