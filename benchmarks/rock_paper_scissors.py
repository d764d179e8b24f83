"""Strategies and their exploitability in rock-paper-scissors against the newest opponent and against a league.

python benchmarks/rock_paper_scissors.py

Each player starts with the strategy of the previous player. It takes a few steps of an entropy-regularised policy
gradient against opponents that `parenv.learning.League` samples, and then joins the league. Expected scores are exact,
so one run is enough.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parenv.learning import League

SCORES = np.array([[0.5, 0.0, 1.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.5]])
"""Scores of rock, paper and scissors (rows) against rock, paper and scissors (columns)."""
PLAYERS, STEPS, STEP_SIZE, DECAY = 200, 10, 1.0, 0.1
FIRST = np.array([0.8, 0.1, 0.1])


def play(sampling: Any, players: int = PLAYERS) -> Any:
    """Return the strategies of successive players, ``[players, 3]``.

    Args:
        sampling: Rule by which the league samples opponents.
        players: Number of players.
    """
    strategies, logits = [FIRST], np.log(FIRST)
    league = League.of("0")
    for number in range(1, players):
        league = league.with_players(str(number))
        for _ in range(STEPS):
            now = np.exp(logits) / np.exp(logits).sum()
            met = [(str(number), str(old), float(now @ SCORES @ strategies[old])) for old in range(number)]
            chances = league.with_results(met).opponents(str(number), sampling)
            mixture = sum(chance * strategies[int(name)] for name, chance in chances.items())
            logits = (1 - DECAY) * logits + STEP_SIZE * (SCORES @ mixture - 0.5)
        strategies.append(np.exp(logits) / np.exp(logits).sum())
    return np.array(strategies)


def exploitability(strategy: Any) -> float:
    """Return how much the score of the best response to a strategy exceeds 0.5."""
    return float((SCORES @ strategy).max() - 0.5)


def averages(strategies: Any) -> Any:
    """Return the running averages of strategies, ``[players, 3]``."""
    return np.cumsum(strategies, 0) / np.arange(1, len(strategies) + 1)[:, None]


def draw(found: dict[str, Any]) -> Any:
    """Return a figure with the exploitability over players, and the paths of the strategies in the simplex."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (curves, triangle) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]])
    triangle.plot(*corners[[0, 1, 2, 0]].T, color="#999999", linewidth=1)
    for corner, name in zip(corners, ("rock", "paper", "scissors"), strict=True):
        triangle.annotate(name, corner, ha="center", va="bottom" if corner[1] else "top")
    lines = {
        "newest opponent only: the newest player": ("#d55e00", found["newest"]),
        "league, uniform: average of its players": ("#0072b2", averages(found["uniform"])),
        "league, prioritised: average of its players": ("#009e73", averages(found["prioritised"])),
    }
    for label, (colour, strategies) in lines.items():
        curves.semilogy([exploitability(strategy) for strategy in strategies], color=colour, label=label)
        triangle.plot(*(strategies @ corners).T, color=colour, linewidth=1, alpha=0.8)
    curves.set(xlabel="players so far", ylabel="exploitability", title="Gain of the best response")
    curves.legend(frameon=False, fontsize=8)
    triangle.set(title="Strategies", aspect="equal")
    triangle.axis("off")
    return figure


if __name__ == "__main__":
    from lib.common import save_picture

    found = {sampling: play(sampling) for sampling in ("newest", "uniform", "prioritised")}
    save_picture(draw(found), "rock_paper_scissors", 100)
