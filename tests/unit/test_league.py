"""Check payoffs, ratings and opponents of a league, and how strategies develop against past or newest opponents."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parenv import ConfigurationError
from parenv.learning import League


def test_a_payoff_is_the_mean_score_of_a_row_against_a_column() -> None:
    league = League.of("a", "b", "c").with_results([("a", "b", 1.0), ("b", "a", 0.5), ("a", "b", 0.0)])
    payoff = league.payoff()
    assert payoff[0, 1] == payoff[1, 0] == 0.5
    assert np.isnan(payoff[0, 2])
    assert np.isnan(payoff[2, 1])
    assert np.diag(payoff).tolist() == [0.5] * 3
    assert league.games.tolist() == [[0, 3, 0], [3, 0, 0], [0, 0, 0]]


def test_a_league_is_immutable() -> None:
    before = League.of("a", "b")
    before.with_results([("a", "b", 1.0)])
    before.with_players("c")
    assert before.players == ("a", "b")
    assert not before.games.any()


def test_differences_of_ratings_match_the_chances_to_win() -> None:
    # Ten wins per loss correspond to a difference of 400 points. Many games outweigh the prior.
    results = [("a", "b", 1.0)] * 10_000 + [("a", "b", 0.0)] * 1_000
    results += [("b", "c", 1.0)] * 10_000 + [("b", "c", 0.0)] * 1_000
    elo = League.of("a", "b", "c").with_results(results).elo(prior_games=1e-3)
    assert elo["a"] - elo["b"] == pytest.approx(400, abs=0.5)
    assert elo["b"] - elo["c"] == pytest.approx(400, abs=0.5)


def test_ratings_do_not_depend_on_the_order_of_games_and_are_finite() -> None:
    rng = np.random.default_rng(0)
    players = [f"p{i}" for i in range(12)]
    results = [(a, b, float(i < j)) for i, a in enumerate(players) for j, b in enumerate(players) if i != j] * 30
    league = League.of(*players)
    first = league.with_results(results).elo()
    rng.shuffle(results)
    assert first == pytest.approx(league.with_results(results).elo())
    assert list(first.values()) == sorted(first.values(), reverse=True)
    assert all(np.isfinite(list(first.values())))
    assert league.elo() == dict.fromkeys(players, 0.0)
    assert League.of().elo() == {}


def test_a_game_against_oneself_does_not_change_the_ratings() -> None:
    league = League.of("a", "b").with_results([("a", "a", 1.0)])
    assert league.elo() == {"a": 0.0, "b": 0.0}


def test_each_sampling_method_chooses_its_opponents() -> None:
    league = League.of("p0", "p1", "p2", "me").with_results([("me", "p0", 1.0), ("me", "p1", 0.0), ("me", "p2", 0.5)])
    assert league.opponents("me", "newest") == {"p2": 1.0}
    assert league.opponents("p2", "newest") == {"me": 1.0}
    assert league.opponents("me", "uniform") == pytest.approx({"p0": 1 / 3, "p1": 1 / 3, "p2": 1 / 3})
    assert league.opponents("me", "prioritised") == pytest.approx({"p0": 0.0, "p1": 0.8, "p2": 0.2})
    assert league.opponents("me", "prioritised", among=["p0"]) == {"p0": 1.0}
    assert league.opponents("p0", "prioritised") == pytest.approx({"p1": 0.25 / 1.5, "p2": 0.25 / 1.5, "me": 1 / 1.5})


def test_opponents_are_drawn_with_their_probabilities() -> None:
    generator = np.random.default_rng(0)
    drawn = [League.draw({"a": 0.25, "b": 0.75}, generator) for _ in range(4000)]
    assert drawn.count("b") / 4000 == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda league: league.with_players("a"), "must be unique, but 'a' is a player already"),
        (lambda league: League.of("x", "x"), "'x' is a player"),
        (lambda league: league.with_results([("a", "z", 1.0)]), "a player must be one of a, b, got 'z'"),
        (lambda league: league.with_results([("a", "b", 1.5)]), "the score of 'a' against 'b' must be 0 to 1, got 1.5"),
        (lambda league: league.with_results([("a", "b", float("nan"))]), "must be 0 to 1, got nan"),
        (lambda league: league.opponents("a", "hardest"), "sampling must be one of 'newest', 'uniform', 'prioritised'"),
        (lambda league: league.opponents("a", among=["a"]), "'a' has no opponent among a, b"),
        (lambda league: league.elo(prior_games=0), "prior_games must be positive"),
    ],
)
def test_invalid_arguments_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        wrong(League.of("a", "b"))


@pytest.fixture
def game(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("rock_paper_scissors")


@pytest.mark.more
@pytest.mark.parametrize("sampling", ["uniform", "prioritised"])
def test_in_rock_paper_scissors_playing_the_past_leads_to_the_mixed_strategy(sampling: str, game: Any) -> None:
    strategies = game.play(sampling, 120)
    means = game.averages(strategies)
    assert game.exploitability(means[9]) > 0.09
    assert game.exploitability(means[49]) < 0.05
    assert game.exploitability(means[-1]) < 0.02
    assert max(map(game.exploitability, strategies[-60:])) < 0.1


def test_in_rock_paper_scissors_playing_only_the_newest_leads_to_cycles(game: Any) -> None:
    strategies = game.play("newest", 120)
    assert min(map(game.exploitability, strategies[-60:])) > 0.15
    favourites = strategies[-60:].argmax(1).tolist()
    turns = [(after - before) % 3 for before, after in itertools.pairwise(favourites) if after != before]
    assert len(turns) > 10
    # The favourite changes from rock to paper to scissors to rock. Each of them beats its predecessor.
    assert set(turns) == {1}
