"""League: results of games between players, ratings, and probabilities of the next opponent."""

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
    """Players in the order in which they joined, and the results of all their games. A league is immutable.

    The score of a game is between 0 for a loss and 1 for a win. 0.5 is a draw.

    Args:
        players: Names of the players, the oldest first, such as ``"agent@12"`` of a frozen version.
        scores: Sum of the player's scores by player and opponent, float64 ``[N, N]``.
        games: Number of games by player and opponent, int64 ``[N, N]``, symmetric.

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
        """Return a league of players without games.

        Raises:
            ConfigurationError: Two players have the same name.
        """
        return cls((), np.zeros((0, 0)), np.zeros((0, 0), np.int64)).with_players(*players)

    def with_players(self, *players: str) -> League:
        """Return the league with more players.

        Raises:
            ConfigurationError: Two players have the same name.
        """
        joined = (*self.players, *players)
        for name in players:
            if joined.count(name) > 1:
                raise ConfigurationError(
                    f"names of players must be unique, but {name!r} is a player already. Choose another name."
                )
        more = ((0, len(players)), (0, len(players)))
        return League(joined, np.pad(self.scores, more), np.pad(self.games, more))

    def with_results(self, results: Iterable[tuple[str, str, float]]) -> League:
        """Return the league with more games.

        Args:
            results: Player, opponent and the player's score of each game. The opponent's score is 1 minus the score.

        Raises:
            ConfigurationError: A name is not a player of this league, or a score is not between 0 and 1.
        """
        scores, games = self.scores.copy(), self.games.copy()
        for player, opponent, score in results:
            one, other = self._index(player), self._index(opponent)
            if not 0.0 <= score <= 1.0:
                raise ConfigurationError(f"the score of {player!r} against {opponent!r} must be 0 to 1, got {score!r}")
            for mine, theirs, gained in ((one, other, score), (other, one, 1.0 - score)):
                scores[mine, theirs] += gained
                games[mine, theirs] += 1
        return replace(self, scores=scores, games=games)

    def payoff(self) -> Any:
        """Return the mean score of each player (row) against each opponent (column), float64 ``[N, N]``.

        It is NaN for two players without a game, and 0.5 on the diagonal.
        """
        with np.errstate(invalid="ignore"):
            payoff = self.scores / self.games
        np.fill_diagonal(payoff, 0.5)
        return payoff

    def elo(self, prior_games: float = 1.0) -> dict[str, float]:
        """Return the ratings with the maximum likelihood of the results, in any order.

        A difference of 400 means ten wins for each loss. The model is by Bradley and Terry (1952), the solution by
        Newton's method. Games of a player against itself do not count.

        Args:
            prior_games: Number of additional draws of each player against a player with rating 0, above 0. They give a
                finite rating to a player that has won or lost all its games.
        """
        positive("prior_games", prior_games)
        games = self.games * (1 - np.eye(len(self.players)))
        ratings = _likeliest(self.scores * (games > 0), games, prior_games) / _PER_ELO
        return dict(zip(self.players, ratings.tolist(), strict=True))

    def opponents(
        self, player: str, sampling: Sampling = "uniform", *, among: Sequence[str] | None = None, power: float = 2.0
    ) -> dict[str, float]:
        """Return the probability of each opponent, for :meth:`draw`.

        Args:
            player: Player that needs an opponent. It does not play itself.
            sampling: ``"newest"``: the player that joined last. ``"uniform"``: equal probabilities. ``"prioritised"``:
                proportional to ``(1 - score) ** power``, as in AlphaStar (Vinyals et al. 2019, "Prioritized fictitious
                self-play"). An opponent without a game counts as a draw.
            among: Possible opponents. Default: all players.
            power: Preference for stronger opponents.

        Raises:
            ConfigurationError: There is no opponent, or a name is not a player of this league.
        """
        one_of("sampling", sampling, get_args(Sampling))
        me = self._index(player)
        there = sorted({self._index(name) for name in (self.players if among is None else among)} - {me})
        if not there:
            raise ConfigurationError(f"{player!r} has no opponent among {', '.join(self.players)}. Add a player.")
        if sampling == "newest":
            return {self.players[there[-1]]: 1.0}
        weights = np.ones(len(there))
        if sampling == "prioritised":
            weights = (1.0 - np.nan_to_num(self.payoff()[me, there], nan=0.5)) ** power
        if not weights.any():  # The player has won all its games.
            weights = np.ones(len(there))
        probabilities = weights / weights.sum()
        return {self.players[other]: float(p) for other, p in zip(there, probabilities, strict=True)}

    def _index(self, player: str) -> int:
        if player not in self.players:
            raise ConfigurationError(f"a player must be one of {', '.join(self.players)}, got {player!r}")
        return self.players.index(player)

    @staticmethod
    def draw(probabilities: Mapping[str, float], generator: np.random.Generator) -> str:
        """Draw one of :meth:`opponents`, such as in ``policy_of`` with the generator of the episode.

        >>> League.draw({"old": 0.0, "new": 1.0}, np.random.default_rng(0))
        'new'
        """
        names = list(probabilities)
        return names[int(generator.choice(len(names), p=list(probabilities.values())))]


def _likeliest(scores: Any, games: Any, prior_games: float) -> Any:
    """Return ratings in natural units. The prior makes the likelihood strictly concave, with one maximum."""
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
