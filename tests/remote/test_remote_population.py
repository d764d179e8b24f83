"""Check that a population on several hosts is equal to one on a single machine, even if hosts die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from members import after, first_turns, known_of, learn, population

from parenv import ConfigurationError, RestartPolicy, Stop, WorkerOptions
from parenv.errors import NotDataError
from parenv.hosts import RayPlacement
from parenv.population import Fitness, Generational, Member, Tournament

EVOLVES = [Generational(every=32, fraction=0.34), Tournament(size=2, every=32, resample=0.2)]


@pytest.mark.more
@pytest.mark.parametrize("evolve", EVOLVES)
def test_a_population_on_two_hosts_is_equal_to_a_local_one(hosts: Any, evolve: Any, tmp_path: Path) -> None:
    wanted = after(tmp_path / "one", 42, num_workers=0, evolve=evolve)
    hosts.start(1, 1)
    placement = hosts.placement(num_local=1)
    got = after(tmp_path / "several", 42, num_workers=3, evolve=evolve, placement=placement)
    assert got == wanted


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_members_of_a_killed_host_continue_on_another_from_their_last_report(hosts: Any, tmp_path: Path) -> None:
    undisturbed = after(tmp_path / "undisturbed", 60, num_workers=0)
    hosts.start(2, 2)
    known = []
    options = WorkerOptions(restart=RestartPolicy(max_restarts=1))
    more = {"workers": options, "num_workers": 3, "placement": hosts.placement()}
    with population(lineage=tmp_path / "killed", **more) as members:
        for report in members.reports(Stop(env_steps=32 * 60)):
            known.append(known_of(report))
            if len(known) in (10, 25, 40):
                hosts.processes[-2].kill()
                hosts.start(2)
        assert members.statistics().worker_restarts >= 3
    assert (first_turns(tmp_path / "killed", 60), known) == undisturbed


def learn_until_it_fails(member: Member, rollout: Any) -> Any:
    if member.hyperparameters["lr"] == 0.05:
        raise OverflowError("too far")
    return learn(member, rollout)


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_an_exception_of_a_member_on_a_host_is_reported(hosts: Any) -> None:
    hosts.start(1)
    more = {"initial": [{"lr": 0.05}], "evolve": Tournament(size=5, every=32, perturb=0.01), "num_workers": 1}
    with population(learn=learn_until_it_fails, placement=hosts.placement(), **more) as members:
        reports = list(members.reports(Stop(episodes=3 * 12)))
        assert members.best is not None
        assert members.member(members.best).updates >= 2
    assert reports[0].error == "OverflowError: too far"
    assert np.isnan(reports[0].score)
    assert not any(report.error for report in reports[1:6])


def make_large(hyperparameters: dict[str, float]) -> Member:
    return Member(lambda observations: np.zeros(len(observations), np.int64), weights=np.zeros(100_000))


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_a_state_larger_than_max_message_bytes_is_an_error(hosts: Any) -> None:
    hosts.start(1)
    large = {"make_member": make_large, "learn": lambda member, rollout: None, "fitness": Fitness(episodes=1)}
    with (
        population(**large, num_workers=1, placement=hosts.placement(max_message_bytes=1 << 17)) as members,
        pytest.raises(NotDataError, match="at most max_message_bytes=131,072 bytes"),
    ):
        list(members.reports())


@pytest.mark.parametrize(
    ("placement", "num_workers", "message"),
    [
        ("here", 2, "placement must be None, a RemotePlacement or a RayPlacement, got 'here'"),
        (RayPlacement(num_workers=3), 2, "must be equal to RayPlacement's num_workers=3, got 2"),
        (RayPlacement(num_workers=7), None, "num_workers must be at most size=6, .* got 7"),
    ],
)
def test_an_invalid_placement_is_refused(placement: Any, num_workers: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        population(placement=placement, num_workers=num_workers)
