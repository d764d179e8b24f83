"""Check that the events in the trace of a pool do not overlap and cover the time of each process."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from envs import slow
from nets import Biased
from policies import zeros

from parenv import AsyncWorkerPool, Stop
from parenv.testing import LedgerEnv


def pieces(path: Path) -> dict[str, list[Any]]:
    """Return the events of each track by name, sorted by their start times."""
    events = json.loads(path.read_text())
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    tracks: dict[str, list[Any]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[names[event["tid"]]].append(event)
    return {name: sorted(track, key=lambda event: event["ts"]) for name, track in tracks.items()}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_events_do_not_overlap_and_cover_the_run(mode: Any, num_workers: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with AsyncWorkerPool(
        lambda: slow(0, 1e-3), zeros, num_envs=2, num_workers=num_workers, mode=mode, rollout_length=10
    ) as pool:
        pool.trace(path)
        began = time.perf_counter()
        for _ in pool.rollouts(Stop(env_steps=200)):
            # No event covers the last loop body and the end of the stream, which are longer on a busy machine.
            seconds = time.perf_counter() - began
            time.sleep(5e-3)
            pool.publish(zeros)
        rollouts = pool.statistics().rollouts
    tracks = pieces(path)
    assert set(tracks) == {"driver", *(f"worker {worker}" for worker in range(max(1, num_workers)))}
    by_workers = [track for name, track in tracks.items() if name != "driver"]
    for track in by_workers:
        for one, following in itertools.pairwise(track):
            # A viewer truncates times to whole nanoseconds.
            assert int(1000 * one["ts"]) + int(1000 * one["dur"]) <= int(1000 * following["ts"])
        assert {event["name"] for event in track} == {"wait", "act", "env", "commit"}
        assert sum(event["dur"] for event in track if event["name"] == "env") >= 1e3 * 10 * sum(
            event["name"] == "env" for event in track
        )
    found = [event["name"] for event in tracks["driver"]]
    assert found.count("publish") == rollouts
    learned = sum(event["dur"] for event in tracks["driver"] if event["name"] in ("learn", "wait"))
    assert learned >= 0.8e6 * seconds
    versions = [event["args"]["policy_version"] for track in by_workers for event in track if event["name"] == "env"]
    assert max(versions) > 0


@pytest.mark.more
def test_gradients_have_events_for_learning_and_an_unfinished_file_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parenv.records.trace.FLUSH_S", 0.0)
    path = tmp_path / "runs" / "first" / "trace.json"
    with AsyncWorkerPool(
        lambda: LedgerEnv(0), Biased(), num_workers=1, mode="sync", rollout_length=4, parallelism="gradient",
        loss_fn=lambda policy, rollout: policy.bias * rollout.rewards.mean(),
    ) as pool:  # fmt: skip
        pool.trace(tmp_path / "other.json")
        pool.trace(path)
        for _ in pool.gradients(Stop(env_steps=2000)):
            pass
        unfinished = path.read_text()
    whole = unfinished[: unfinished.rindex("\n")].rstrip(",") + "]"
    assert len(json.loads(whole)) > 100
    assert {event["name"] for event in pieces(path)["worker 0"]} == {"wait", "act", "env", "learn", "commit"}
    assert pieces(tmp_path / "other.json")["driver"] == []


def test_a_full_disk_ends_the_trace_and_not_the_training(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level("WARNING", logger="parenv"),
        AsyncWorkerPool("CartPole-v1", zeros, num_envs=2, num_workers=0, rollout_length=2) as pool,
    ):
        pool.trace("/dev/full")
        for _ in pool.rollouts(Stop(env_steps=400)):
            pass
        assert pool.statistics().env_steps >= 400
    assert [record.getMessage() for record in caplog.records] == [
        "the trace /dev/full ends here, because it cannot be written: [Errno 28] No space left on device"
    ]
