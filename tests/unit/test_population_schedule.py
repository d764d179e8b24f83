"""Check the selection, training rounds and stored states of the members of a population, without processes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parenv import ConfigurationError
from parenv.errors import NotDataError, ProtocolError
from parenv.memory.member_places import ROOM, MemberPlaces
from parenv.memory.shared import SharedMemory
from parenv.population import Generational, LogUniform, Member, Report, Tournament, Uniform
from parenv.population.lineage import Lineage
from parenv.population.schedule import MAX_LOST, NOWHERE, Copied, Outcome, Schedule
from parenv.population.selection import check_values, checked_ranges
from parenv.protocol.digests import rows_of
from parenv.worker.member import made, restore, state_of

NAN = float("nan")
RANGES = {"lr": LogUniform(1e-5, 1e-2), "entropy": Uniform(0.0, 0.02)}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_sampled_values_are_in_their_range_and_of_every_order_of_magnitude() -> None:
    drawn = np.array([RANGES["lr"].sample(rng(seed)) for seed in range(3000)])
    assert drawn.min() >= 1e-5
    assert drawn.max() <= 1e-2
    counts, _ = np.histogram(np.log10(drawn), bins=3)
    assert counts.min() > 900
    uniform = [RANGES["entropy"].sample(rng(seed)) for seed in range(1000)]
    assert np.mean(uniform) == pytest.approx(0.01, abs=0.001)


def test_perturbed_values_differ_by_the_given_fraction_and_stay_in_their_range() -> None:
    assert {RANGES["lr"].perturbed(1e-3, 0.2, rng(seed)) for seed in range(20)} == {1e-3 * 0.8, 1e-3 * 1.2}
    assert {RANGES["lr"].perturbed(1e-2, 0.2, rng(seed)) for seed in range(20)} == {8e-3, 1e-2}
    assert {RANGES["entropy"].perturbed(0.002, 0.2, rng(seed)) for seed in range(20)} == {0.0, 0.006}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Uniform(1.0, 1.0), "two finite numbers, the smaller one first"),
        (lambda: Uniform(0.0, math.inf), "two finite numbers"),
        (lambda: LogUniform(0.0, 1.0), "LogUniform.low must be positive, got 0.0"),
        (lambda: checked_ranges([1]), "must be ranges by name"),
        (lambda: checked_ranges({"lr": 0.1}), "must map names to ranges.*, got 'lr': 0.1"),
        (lambda: checked_ranges({3: Uniform(0, 1)}), "must map names to ranges.*, got 3: Uniform"),
        (lambda: check_values({"lr": 0.1}, RANGES, "initial[0]"), r"initial\[0\] must have values for 'lr', 'entropy'"),
        (
            lambda: check_values({"lr": 0.1, "entropy": 0.0}, RANGES, "initial[0]"),
            r"initial\[0\]\['lr'\] must be within LogUniform\(low=1e-05, high=0.01\), got 0.1",
        ),
        (lambda: Tournament(size=0), "Tournament.size must be an integer of at least 1, got 0"),
        (lambda: Tournament(every=0), "Tournament.every must be an integer"),
        (lambda: Tournament(perturb=1.0), "Tournament.perturb must be between 0 and 1"),
        (lambda: Generational(resample=1.5), "Generational.resample must be a probability"),
        (lambda: Generational(fraction=0.6), "fraction must be above 0 and at most 0.5"),
        (
            lambda: Generational(fraction=0.1).check_fits(8),
            "must be at least 0.125 in a population of 8 to select a member, got 0.1",
        ),
        (lambda: Tournament(size=4).check_fits(4), "Tournament.size must be at most 3 in a population of 4.*, got 4"),
    ],
)
def test_invalid_arguments_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        wrong()


def test_in_a_tournament_only_a_higher_score_wins() -> None:
    meets_all = Tournament(size=3)
    assert meets_all.parents([0], {0: 1.0, 1: 2.0, 2: 3.0, 3: 0.0}, rng()) == {0: 2}
    assert meets_all.parents([0], {0: 3.0, 1: 3.0, 2: 3.0, 3: 0.0}, rng()) == {}
    assert meets_all.parents([0], {0: NAN, 1: -5.0}, rng()) == {0: 1}
    assert meets_all.parents([0], {0: 1.0, 1: NAN, 2: NAN}, rng()) == {}
    assert meets_all.parents([0], {0: NAN, 1: NAN}, rng()) == {}
    assert meets_all.parents([0], {0: 1.0}, rng()) == {}


def test_in_a_tournament_all_opponents_are_equally_likely() -> None:
    scores = {0: 0.0, **{member: float(member) for member in range(1, 7)}}
    parents = [Tournament(size=1).parents([0], scores, rng(seed))[0] for seed in range(3000)]
    assert min(parents.count(member) for member in range(1, 7)) > 400


@pytest.mark.parametrize(("fraction", "size", "count"), [(1 / 49, 49, 1), (0.29, 100, 29), (0.28, 100, 28)])
def test_a_fraction_that_is_rounded_in_a_float_selects_the_whole_number(fraction: float, size: int, count: int) -> None:
    evolve = Generational(fraction=fraction)
    evolve.check_fits(size)
    parents = evolve.parents(range(size), {member: float(member) for member in range(size)}, rng())
    assert set(parents) == set(range(count))
    assert set(parents.values()) <= set(range(size - count, size))


def test_a_generation_replaces_the_worst_by_the_best_and_all_without_a_score() -> None:
    scores = {member: float(member) for member in range(10)}
    parents = Generational(fraction=0.2).parents(range(10), scores, rng())
    assert parents.keys() == {0, 1}
    assert set(parents.values()) <= {8, 9}
    assert Generational().parents(range(10), dict.fromkeys(range(10), 1.0), rng()) == {}
    died = {**scores, 9: NAN, 8: NAN, 7: NAN}
    parents = Generational(fraction=0.2).parents(range(10), died, rng())
    assert parents.keys() == {7, 8, 9}
    assert set(parents.values()) <= {5, 6}
    assert Generational().parents(range(10), dict.fromkeys(range(10), NAN), rng()) == {}


def schedule(evolve: Any, size: int = 6, in_order: bool = True, seed: int = 3) -> Schedule:
    first = [{name: range_.sample(rng(member)) for name, range_ in RANGES.items()} for member in range(size)]
    return Schedule(evolve, RANGES, first, seed, in_order)


class Simulation:
    """Simulated workers that finish training rounds in random order and lose some of them.

    The state of a member is its history, to which each round appends an entry.
    """

    def __init__(self, schedule: Schedule, seed: int, loses: float = 0.0) -> None:
        self.schedule, self.chance, self.loses = schedule, random.Random(seed), loses
        self.places: dict[int, tuple[Any, ...]] = {NOWHERE: ()}
        self.under_way: dict[int, tuple[Any, Any]] = {}
        self.events: list[Any] = []
        self.histories: dict[int, tuple[Any, ...]] = {}
        self.finished: dict[int, tuple[Any, ...]] = {}

    def run(self, turns: int, workers: int) -> None:
        while sum(isinstance(event, Report) for event in self.events) < turns:
            while len(self.under_way) < workers and (turn := self.schedule.next()) is not None:
                assert turn.member not in self.under_way
                self.under_way[turn.member] = turn, self.places[turn.source]
            self.finish(self.chance.choice(sorted(self.under_way)))

    def finish(self, member: int) -> None:
        turn, begun_from = self.under_way.pop(member)
        assert self.places[turn.source] == begun_from, "the source of a round was overwritten"
        if self.chance.random() < self.loses and self.schedule.members[member].lost < MAX_LOST - 1:
            assert self.schedule.lost(member)
            return
        history = (*begun_from, (member, turn.turn, *turn.hyperparameters.values()))
        assert all(one.place != turn.target for one in self.schedule.members), "the target is in use by a member"
        self.places[turn.target] = self.finished[member] = history
        score = float(hash(history) % 1000)
        for event in self.schedule.done(member, Outcome(score, 10)):
            if isinstance(event, Report):
                self.histories[event.member] = self.finished[event.member]
            else:
                self.histories[event.member] = self.histories[event.parent]
            self.events.append(event)
        for number, one in enumerate(self.schedule.members):
            if one.place != NOWHERE:
                assert self.places[one.place] == self.histories[number]


EVOLVES = [Tournament(size=2, resample=0.3), Generational(fraction=0.4, resample=0.3)]


@settings(max_examples=60)
@given(st.sampled_from(EVOLVES), st.integers(1, 6), st.booleans(), st.integers(0, 10**6), st.sampled_from([0.0, 0.3]))
def test_no_state_is_overwritten_in_any_order_of_rounds(
    evolve: Any, workers: int, in_order: bool, seed: int, loses: float
) -> None:
    Simulation(schedule(evolve, in_order=in_order), seed, loses).run(60, workers)


@settings(max_examples=40)
@given(st.sampled_from(EVOLVES), st.integers(1, 6), st.integers(0, 10**6), st.sampled_from([0.0, 0.3]))
def test_results_in_order_do_not_depend_on_speed_or_losses(evolve: Any, workers: int, seed: int, loses: float) -> None:
    alone = Simulation(schedule(evolve), 0)
    alone.run(60, 1)
    many = Simulation(schedule(evolve), seed, loses)
    many.run(60, workers)
    assert [comparable(event) for event in many.events][:60] == [comparable(event) for event in alone.events][:60]


def comparable(event: Report | Copied) -> Any:
    if isinstance(event, Copied):
        return event
    outcome = event.score, event.num_steps, event.env_steps, event.error
    return event.member, outcome, event.turn, event.parent, event.ancestor, event.hyperparameters


@settings(max_examples=40)
@given(st.sampled_from(EVOLVES), st.integers(1, 6), st.integers(0, 10**6), st.integers(1, 50))
def test_a_schedule_that_continues_has_the_same_results(evolve: Any, workers: int, seed: int, turns: int) -> None:
    whole = Simulation(schedule(evolve), 0)
    whole.run(80, 1)
    first = Simulation(schedule(evolve), seed)
    first.run(turns, workers)
    second = Simulation(schedule(evolve), seed + 1)
    second.schedule.load(json.loads(json.dumps(first.schedule.state())))
    second.places, second.histories = dict(first.places), dict(first.histories)
    second.run(80 - turns, workers)
    both = [comparable(event) for event in [*first.events, *second.events]]
    assert both[:80] == [comparable(event) for event in whole.events][:80]


def test_a_child_has_the_ancestor_of_its_parent_and_is_not_copied_before_it_has_a_score() -> None:
    one = schedule(Tournament(size=5), size=6, in_order=False)
    for _ in range(6):
        assert one.next()
    found = [one.done(member, Outcome(score, 10)) for member, score in enumerate([5.0, 4.0, 6.0, 1.0, 2.0, 3.0])]
    # A tournament needs the scores of all members, so only the last member competes. It loses to the best one.
    assert [len(events) for events in found] == [1, 1, 1, 1, 1, 2]
    assert (one.members[5].parent, one.members[5].ancestor, one.members[5].score) == (2, 2, None)
    assert one.best == 2
    assert one.next()
    (_, copied) = one.done(0, Outcome(5.5, 10))
    assert isinstance(copied, Copied)
    assert copied.parent == 2
    assert copied.inherited == one.members[2].hyperparameters
    assert copied.hyperparameters != copied.inherited


def test_a_member_that_repeatedly_ends_its_worker_has_died() -> None:
    one = schedule(Tournament(size=1), size=2)
    turn = one.next()
    assert turn is not None
    for _ in range(2 * MAX_LOST):
        assert one.lost(0, blamed=False)
        assert one.next() == turn
    for _ in range(MAX_LOST - 1):
        assert one.lost(0)
        assert one.next() == turn
    assert not one.lost(0)
    (ended,) = one.done(0, Outcome(NAN, 0, "died"))
    assert isinstance(ended, Report)
    assert one.members[0].place == NOWHERE
    assert not one.all_died
    second = one.next()
    assert second is not None
    one.done(second.member, Outcome(NAN, 0, "died too"))
    assert one.all_died
    assert one.best is None


@pytest.fixture
def places() -> Iterator[MemberPlaces]:
    found = MemberPlaces(2)
    found.buffer = SharedMemory(found.offset(3)).map()
    yield found
    found.buffer = None


def test_states_are_stored_in_their_places(places: MemberPlaces) -> None:
    state = {"tensors": {"a": np.arange(5.0)}, "more": [None, (1, 2.5), {"x": b"abc"}], "nothing": np.zeros((0, 3))}
    nbytes = places.write(1, state)
    assert nbytes < 1000
    places.write(2, {"other": 1})
    found = places.read(1)
    np.testing.assert_array_equal(found["tensors"].pop("a"), np.arange(5.0))
    assert found.pop("nothing").shape == (0, 3)
    assert found == {"tensors": {}, "more": [None, (1, 2.5), {"x": b"abc"}]}
    places.write_bytes(0, [memoryview(places.read_bytes(2))])
    assert places.read(0) == {"other": 1}


def test_a_place_without_a_valid_state_is_refused(places: MemberPlaces) -> None:
    with pytest.raises(ProtocolError, match="place 1 does not contain the state"):
        places.read(1)
    places.write(1, [1, 2])
    begin = places.offset(1)
    places.buffer[begin + 8 : begin + 16] = (ROOM * 2).to_bytes(8, "little")
    with pytest.raises(ProtocolError, match="is longer than its place"):
        places.read(1)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        self.brain = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
        self.register_buffer("not_saved", torch.zeros(2), persistent=False)

    def forward(self, observations: Any) -> Any:
        return self.body(observations)


def make_learner(hyperparameters: dict[str, float]) -> Member:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=hyperparameters["lr"], betas=(0.8, 0.9))
    return Member(net, optimizer=optimizer, mean=np.zeros(3), count=0, seen=[])


def update(member: Member) -> None:
    member.policy(torch.arange(12.0).reshape(4, 3)).square().mean().backward()
    member.optimizer.step()
    member.optimizer.zero_grad()


def test_a_restored_member_continues_like_the_original(places: MemberPlaces) -> None:
    torch.manual_seed(1)
    member = made(make_learner, 4, {"lr": 0.01})
    for _ in range(3):
        update(member)
    member.policy.not_saved += 7
    with torch.no_grad():
        member.policy.brain += 1.5
    member.mean, member.count = member.mean + 2.5, 3
    member.seen.append((1, "a"))
    places.write(0, state_of(member))
    other = made(make_learner, 4, {"lr": 0.01})
    restore(other, places.read(0))
    assert other.count == 3
    assert other.seen == [(1, "a")]
    assert other.mean.tolist() == [2.5] * 3
    for _ in range(2):
        update(member)
        update(other)
    for name, tensor in member.policy.named_parameters():
        assert torch.equal(tensor, other.policy.get_parameter(name)), name
    for name, tensor in member.policy.named_buffers():
        assert torch.equal(tensor, other.policy.get_buffer(name)), name
    # The restored member shares no memory with the place.
    places.write(0, {"x": np.full(10_000, 255, np.uint8)})
    update(other)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in other.policy.parameters())


def test_changed_hyperparameters_override_the_state_of_the_optimizer(places: MemberPlaces) -> None:
    member = made(make_learner, 0, {"lr": 0.01})
    update(member)
    member.optimizer.param_groups[0]["lr"] = 0.004  # A schedule of the learning rate does the same.
    places.write(0, state_of(member))
    for lr, acts in ((0.01, 0.004), (0.03, 0.03)):
        child = made(make_learner, 1, {"lr": lr})
        restore(child, places.read(0))
        assert child.optimizer.param_groups[0]["lr"] == acts
        assert child.optimizer.param_groups[0]["betas"] == (0.8, 0.9)
        before = child.policy.brain.clone().float()
        child.policy.brain.grad = torch.ones(3, dtype=torch.bfloat16)
        child.optimizer.step()
        moved = (child.policy.brain.float() - before).abs().max().item()
        assert moved == pytest.approx(acts, rel=0.05)  # The first step of Adam has the size of lr.


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (lambda: Member(3), ConfigurationError, "policy must be a Policy, a torch.nn.Module or a callable"),
        (lambda: Member(len, policy_=1, number=1), ConfigurationError, "cannot be named 'number'"),
        (lambda: Member(len, _x=1), ConfigurationError, "cannot be named '_x'"),
        (
            lambda: made(lambda h: Net(), 0, {}),
            ConfigurationError,
            "make_member must return a parenv.population.Member",
        ),
        (lambda: state_of(Member(len, env=Simulation)), NotDataError, "env of a member is a builtins.type"),
        (
            lambda: Member(len, a=1, b=2).optimizer,
            AttributeError,
            "this member has no part 'optimizer'. Its parts are: a, b",
        ),
        (
            lambda: restore(Member(len, a=1), {**state_of(Member(len, b=1))}),
            ConfigurationError,
            r"with the same parts and tensors as before, got the parts \['a'\]",
        ),
    ],
)
def test_invalid_members_are_refused(wrong: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        wrong()


def test_a_lineage_continues_after_the_lines_of_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "lineage.jsonl"
    copied = Copied(1, 2, NAN, 0, 3, 5.0, {"lr": 0.1}, {"lr": 0.12})
    first = Lineage(path, {"size": 2})
    for env_steps in (10, 20, 30):
        first.copied(copied, env_steps)
    assert first.lines == 4
    first.close()
    second = Lineage(path, {"size": 2})
    second.go_on(3)
    second.copied(copied, 25)
    second.close()
    rows = rows_of(path.read_text())
    assert [row.get("env_steps") for row in rows] == [None, 10, 20, 25]
    assert rows[0] == {"event": "begin", "size": 2}
    assert rows[1]["score"] is None  # JSON has no NaN.
    with pytest.raises(ConfigurationError, match="must have at least 9 lines as in the checkpoint, got 4"):
        Lineage(path, {}).go_on(9)
    with pytest.raises(ConfigurationError, match="cannot be made: Not a directory"):
        Lineage(path / "nowhere" / "lineage.jsonl", {})
