"""Tables of how cost grows, from the file that ``scaling.py`` writes."""

from __future__ import annotations

from typing import Any

import numpy as np
from field import markdown
from on_paper import about

PARTS = {
    "workers": "workers whose environments sleep 2 ms, µs",
    "environments": "CartPoles on 2 workers, µs",
    "weights": "MB of weights to 2 workers, µs",
}


def exponent(sizes: Any, units: Any) -> float:
    """Return the exponent k of a cost c n^k, by least squares of logarithms of the time per unit.

    Args:
        sizes: Sizes n.
        units: Times per unit, cost(n) / n.
    """
    return 1.0 + float(np.polyfit(np.log(sizes), np.log(units), 1)[0])


def tables(results: Any) -> str:
    """A table for each part, with a row for each of its curves, and how busy workers keep the machine.

    Args:
        results: of ``results/scaling.json``.
    """
    found = [curves(title, results[part]["curves"]) for part, title in PARTS.items()]
    found.insert(1, about_workers(results["workers"]))
    return "\n\n".join("\n".join(lines) for lines in found)


def curves(title: str, found: Any) -> list[str]:
    """Lines of Markdown: the time per unit at each size, and what is fitted."""
    sizes = [float(size) for size in next(iter(found.values()))["us per unit"]]
    heads = [title, *(f"{size:,g}" for size in sizes), "cost of n, fitted", "off by up to", "exponent", "rises by"]
    return markdown(heads, [row(name, sizes, one) for name, one in found.items()])


def row(name: str, sizes: list[float], found: Any) -> list[str]:
    """One curve."""
    samples, fit = list(found["us per unit"].values()), found["fit, us"]
    units = [sample["median"] for sample in samples]
    return [
        name,
        *(about(unit, 3) for unit in units),
        f"{about(fit['a'])} + {about(fit['b'])} n",
        f"{100 * fit['largest relative error']:.0f} %",
        f"{exponent(sizes, units):.2f}",
        rise(samples),
    ]


def rise(samples: list[Any]) -> str:
    """Return the excess of the last value over the cheapest, in bold if their repeats do not overlap."""
    cheapest, last = min(samples, key=lambda sample: sample["median"]), samples[-1]
    text = f"{100 * (last['median'] / cheapest['median'] - 1):.0f} %"
    return f"**{text}**" if last["min"] > cheapest["max"] else text


def about_workers(found: Any) -> list[str]:
    """Return lines of Markdown: shares of the independent loops' rate, and cores, by number of workers."""
    rows = {
        f"{what}, {mode}": by_n
        for what in ("share of the bare loops' rate", "cores busy")
        for mode, by_n in found[what].items()
    }
    heads = ["workers whose environments sleep 2 ms", *next(iter(rows.values()))]
    return markdown(heads, [[name, *(f"{value:.2f}" for value in by_n.values())] for name, by_n in rows.items()])
