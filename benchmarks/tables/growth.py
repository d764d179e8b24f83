"""Sections about the growth of the overhead, from the file that ``scaling.py`` writes."""

from __future__ import annotations

from typing import Any

import numpy as np
from on_paper import about
from sections import Section, markdown, measured, written

PARTS = {
    "workers": "workers whose environments sleep 2 ms, µs",
    "environments": "CartPoles on 2 workers, µs",
    "weights": "MB of weights to 2 workers, µs",
}

NAMES = {
    "driver's processor": "processor time of the main process",
    "worker's processor": "processor time of a worker",
    "the bare loops' rate": "the rate of independent processes",
    "bare loops": "independent processes",
    "deciding only": "scheduling only",
}
INTRODUCTION = """The tables have the time per unit at each size. The name of a curve contains the unit.

Two functions are fitted to the time of n units: a + b n, by relative errors, and c times n to the power of the
exponent. The exponent is 1 if the time is linear, and less if a unit becomes faster. "Rises by" compares the largest
size with the fastest one. It is bold if their repeats do not overlap. Independent processes ("bare
loops" in the plot) and copies are the references: if they rise, the machine is the cause.
"""
CAPTION = "Time per unit by number of workers, by number of sub-environments, and by size of the weights"


def exponent(sizes: Any, units: Any) -> float:
    """Return the exponent k of a cost c n^k, fitted by least squares to the logarithms.

    Args:
        sizes: Sizes n.
        units: Times per unit, cost(n) / n.
    """
    return 1.0 + float(np.polyfit(np.log(sizes), np.log(units), 1)[0])


def text(results: Any) -> str:
    """Return an introduction, a section for each part, and the plot.

    Args:
        results: Results of ``results/scaling.json``.
    """
    steps, rates = results["workers"]["curves"], results["workers"]["share of the bare loops' rate"]
    slower = [f"{steps[f'env step of a worker, {mode}']['largest over smallest']:.2f}" for mode in ("async", "sync")]
    vector_env, pool = (
        _exponent_of(results["environments"]["curves"][name])
        for name in ("env step, ParallelVectorEnv", "env step with MLP, async pool")
    )
    publish = results["weights"]["curves"]["publish of a MB"]["fit, us"]
    shares = [f"{list(rates[mode].values())[-1]:.2f}" for mode in ("async", "sync")]
    found = {part: "\n".join(curves(title, results[part]["curves"])) for part, title in PARTS.items()}
    sections = [
        Section(
            f"With 64 workers, an env step takes {slower[0]} times as long as with one in async mode, and {slower[1]} "
            "times in sync mode",
            "scaling",
            found["workers"],
        ),
        Section(
            f"64 workers reach {shares[0]} (async) and {shares[1]} (sync) of the rate of independent processes",
            "scaling",
            "Steps of many workers take longer when the cores are full. In sync mode, all workers wait for the\n"
            "slowest.\n\n" + "\n".join(about_workers(results["workers"])),
        ),
        Section(
            f"The time of n env steps has an exponent of {vector_env:.2f} in a vector env, and {pool:.2f} in a pool",
            "scaling",
            found["environments"],
        ),
        Section(
            f"A publish takes {publish['a'] / 1000:.2g} ms, and further {publish['b'] / 1000:.2g} ms for each MB",
            "scaling",
            found["weights"],
        ),
    ]
    plot = f"![{CAPTION}](results/scaling.png)\n*{CAPTION}. {measured('scaling')}*"
    return f"{INTRODUCTION}\n{written(sections)}\n\n{plot}"


def _exponent_of(curve: Any) -> float:
    found = curve["us per unit"]
    return exponent([float(size) for size in found], [sample["median"] for sample in found.values()])


def curves(title: str, found: Any) -> list[str]:
    """Return the lines of a table with the time per unit at each size and the fitted functions."""
    sizes = [float(size) for size in next(iter(found.values()))["us per unit"]]
    heads = [title, *(f"{size:,g}" for size in sizes), "cost of n, fitted", "off by up to", "exponent", "rises by"]
    return markdown(heads, [row(name, sizes, one) for name, one in found.items()])


def row(name: str, sizes: list[float], found: Any) -> list[str]:
    """Return the row of one curve."""
    samples, fit = list(found["us per unit"].values()), found["fit, us"]
    units = [sample["median"] for sample in samples]
    return [
        label(name),
        *(about(unit, 3) for unit in units),
        f"{about(fit['a'])} + {about(fit['b'])} n",
        f"{100 * fit['largest relative error']:.0f} %",
        f"{exponent(sizes, units):.2f}",
        rise(samples),
    ]


def label(curve: str) -> str:
    """Return the name of a curve in the tables."""
    for old, new in NAMES.items():
        curve = curve.replace(old, new)
    return curve


def rise(samples: list[Any]) -> str:
    """Return the excess of the last value over the cheapest, in bold if their repeats do not overlap."""
    cheapest, last = min(samples, key=lambda sample: sample["median"]), samples[-1]
    text = f"{100 * (last['median'] / cheapest['median'] - 1):.0f} %"
    return f"**{text}**" if last["min"] > cheapest["max"] else text


def about_workers(found: Any) -> list[str]:
    """Return the lines of a table with the share of the upper bound and the busy cores, by number of workers."""
    rows = {
        f"{what}, {mode}": by_n
        for what in ("share of the bare loops' rate", "cores busy")
        for mode, by_n in found[what].items()
    }
    heads = ["workers whose environments sleep 2 ms", *next(iter(rows.values()))]
    return markdown(heads, [[label(name), *(f"{value:.2f}" for value in by_n.values())] for name, by_n in rows.items()])
