"""League: who played whom, who won, and whom to play next; arithmetic over results, which knows no workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from parenv.argument_checks import one_of, positive
from parenv.errors import ConfigurationError

Sampling = Literal["newest", "uniform", "prioritised"]
_PER_ELO = np.log(10.0) / 400.0


@dataclass(frozen=True)
class League:
    """Players in the order in which they joined, and the results of all their games. Nothing changes a league.

    A game between two players has a score from 0, lost, to 1, won; 0.5 is a draw.

    Args:
        players: names, the oldest first, such as ``"agent@12"`` of a frozen version.
        scores: by player and opponent, the sum of the player's scores, float64 ``[N, N]``.
        games: by player and opponent, how many games, int64 ``[N, N]``, symmetric.

    >>> league = League.of("first", "second").with_results([("second", "first", 1.0)] * 3)
    >>> league.payoff().tolist()
    [[0.5, 0.0], [1.0, 0.5]]
    >>> {name: round(rating) for name, rating in league.elo().items()}
    {'first': -203, 'second': 203}
    >>> league.opponents("second", "prioritised")
    {'first': 1.0}
    """

    players: tuple[str, ...]
    scores: Any
    games: Any

    @classmethod
    def of(cls, *players: str) -> League:
        """A league of players who have not played yet.

        Raises:
            ConfigurationError: a name comes twice.
        """
        return cls((), np.zeros((0, 0)), np.zeros((0, 0), np.int64)).with_players(*players)

    def with_players(self, *players: str) -> League:
        """The league with newer players.

        Raises:
            ConfigurationError: a name is there already.
        """
        joined = (*self.players, *players)
        for name in players:
            if joined.count(name) > 1:
                raise ConfigurationError(
                    f"{name!r} is a player of this league already: give the newer one another name"
                )
        more = ((0, len(players)), (0, len(players)))
        return League(joined, np.pad(self.scores, more), np.pad(self.games, more))

    def with_results(self, results: Iterable[tuple[str, str, float]]) -> League:
        """The league with more games.

        Args:
            results: of each game the player, the opponent, and the player's score; the opponent's is 1 minus that.

        Raises:
            ConfigurationError: somebody is no player of this league, or a score is none.
        """
        scores, games = self.scores.copy(), self.games.copy()
        for player, opponent, score in results:
            one, other = self._index(player), self._index(opponent)
            if not 0.0 <= score <= 1.0:
                raise ConfigurationError(
                    f"{player!r} against {opponent!r} has the score {score!r}, which must be 0 to 1"
                )
            for mine, theirs, gained in ((one, other, score), (other, one, 1.0 - score)):
                scores[mine, theirs] += gained
                games[mine, theirs] += 1
        return replace(self, scores=scores, games=games)

    def payoff(self) -> Any:
        """Mean score of each player (row) against each other (column), float64 ``[N, N]``.

        NaN where two have never met, and 0.5 against oneself.
        """
        with np.errstate(invalid="ignore"):
            payoff = self.scores / self.games
        np.fill_diagonal(payoff, 0.5)
        return payoff

    def elo(self, prior_games: float = 1.0) -> dict[str, float]:
        """Ratings under which the results are likeliest, whatever their order: 400 more mean ten wins to one.

        The model of Bradley and Terry (1952), by Newton's method. Games against oneself do not count.

        Args:
            prior_games: drawn games that each player is thought to have played against one of rating 0, so that who
                has won or lost all of them has a rating too; above 0.
        """
        positive("prior_games", prior_games)
        games = self.games * (1 - np.eye(len(self.players)))
        ratings = _likeliest(self.scores * (games > 0), games, prior_games) / _PER_ELO
        return dict(zip(self.players, ratings.tolist(), strict=True))

    def opponents(
        self, player: str, sampling: Sampling = "uniform", *, among: Sequence[str] | None = None, power: float = 2.0
    ) -> dict[str, float]:
        """With which probability to play whom; what :meth:`draw` draws from.

        Args:
            player: for whom. It does not play itself.
            sampling: ``"newest"``: always who joined last; ``"uniform"``: all alike; ``"prioritised"``: the more often
                the sooner the player loses, ``(1 - score) ** power``, as in AlphaStar (Vinyals et al. 2019,
                "Prioritized fictitious self-play"); who has not been met counts as a draw.
            among: players that may be drawn; by default all.
            power: how much harder opponents go before others.

        Raises:
            ConfigurationError: there is nobody to play, or somebody is no player of this league.
        """
        one_of("sampling", sampling, get_args(Sampling))
        me = self._index(player)
        there = sorted({self._index(name) for name in (self.players if among is None else among)} - {me})
        if not there:
            raise ConfigurationError(f"{player!r} has nobody to play in a league of {', '.join(self.players)}")
        if sampling == "newest":
            return {self.players[there[-1]]: 1.0}
        weights = np.ones(len(there))
        if sampling == "prioritised":
            weights = (1.0 - np.nan_to_num(self.payoff()[me, there], nan=0.5)) ** power
        if not weights.any():  # It beats everybody always.
            weights = np.ones(len(there))
        probabilities = weights / weights.sum()
        return {self.players[other]: float(p) for other, p in zip(there, probabilities, strict=True)}

    def _index(self, player: str) -> int:
        if player not in self.players:
            raise ConfigurationError(f"{player!r} is no player of this league, which has {', '.join(self.players)}")
        return self.players.index(player)

    @staticmethod
    def draw(probabilities: Mapping[str, float], generator: np.random.Generator) -> str:
        """One of :meth:`opponents`, such as in ``policy_of``, with the generator of the episode.

        >>> League.draw({"old": 0.0, "new": 1.0}, np.random.default_rng(0))
        'new'
        """
        names = list(probabilities)
        return names[int(generator.choice(len(names), p=list(probabilities.values())))]


def _likeliest(scores: Any, games: Any, prior_games: float) -> Any:
    """Ratings in natural units. The prior makes the likelihood strictly concave, so that there is one maximum."""
    ratings = np.zeros(len(games))
    for _ in range(100):
        wins = 1.0 / (1.0 + np.exp(ratings[None, :] - ratings[:, None]))
        against_prior = 1.0 / (1.0 + np.exp(-ratings))
        slope = (scores - games * wins).sum(1) + prior_games * (0.5 - against_prior)
        bend = games * wins * (1.0 - wins)
        curvature = np.diag(bend.sum(1) + prior_games * against_prior * (1.0 - against_prior)) - bend
        step = np.linalg.solve(curvature, slope) if len(games) else slope
        ratings = ratings + step * min(1.0, 1.0 / max(np.abs(step).max(initial=0.0), 1e-12))
        if np.abs(step).max(initial=0.0) < 1e-10:
            break
    return ratings
