"""Check that episodes of workers on hosts are recorded completely and once, also if a host is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from envs import ledgers
from policies import zeros

from parenv import AsyncWorkerPool, Stop, record_dataset
from parenv.testing.ledger import episode_length

minari = pytest.importorskip("minari")


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_lost_host_leaves_no_half_episode(
    hosts: Any, mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    hosts.start(3)
    ended: list[tuple[int, int]] = []
    was_restarted = False
    options: dict[str, Any] = {"num_workers": 4, "mode": mode, "rollout_length": 5, "episode_seeds": True}
    with (
        AsyncWorkerPool(ledgers(8), zeros, placement=hosts.placement(num_local=1), **options) as pool,
        record_dataset(pool, "minari:me/ledger-v0") as recording,
    ):
        for number, rollout in enumerate(pool.rollouts(Stop(seconds=200.0))):
            if number == 10:
                hosts.processes[0].kill()
                hosts.start(3)  # Its workers replace the lost ones.
            was_restarted |= bool(rollout.restarted.any())
            ended += [tuple(last[:2]) for last in rollout.final_observations.tolist()]
            if was_restarted and len(ended) > 200:
                break
    assert was_restarted
    assert recording.num_episodes == len(ended)
    dataset = minari.load_dataset("me/ledger-v0")
    found = []
    for episode in dataset:
        env_id, number = episode.observations[0, :2].tolist()
        length = episode_length(env_id, number, 7)
        assert episode.observations.tolist() == [[env_id, number, step] for step in range(length + 1)]
        found.append((env_id, number))
    assert sorted(found) == sorted(ended)
