"""Figures of the README: its table of benchmarks, and the caption of its picture.

They are between ``<!-- name -->`` and ``<!-- end of name -->``.

python benchmarks/tables/readme.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from on_paper import about
from sentences import crossing_us, step_us

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"

TABLE = """
| env steps per second | parenv | AsyncVectorEnv | SubprocVecEnv | one process | EnvPool (C++) |
|---|---|---|---|---|---|
{rows}

{machines}. A worker killed by SIGKILL was replaced and stepped again after {again:.2f} s (median).
"""
FOOTNOTES = "¹²³⁴⁵"
CAPTION = (
    "*Stepping with random actions. Above: {many}, `python benchmarks/peers/cores.py`. Below: {two}, "
    "`python benchmarks/peers/stepping.py`.*"
)


def read(name: str) -> Any:
    """Return the content of a file of results."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def filled(text: str) -> str:
    """Return the README with its generated parts renewed."""
    parts = {
        "benchmarks": table(),
        "caption": CAPTION.format(
            many=machine(read("peers_cores")["machine"]), two=machine(read("peers_stepping")["machine"])
        ),
        "threshold": f"about {about(threshold_us())} µs",
    }
    for name, part in parts.items():
        marked = f"<!-- {name} -->{part}<!-- end of {name} -->"
        text, found = re.subn(
            rf"<!-- {name} -->.*?<!-- end of {name} -->", lambda _, to=marked: to, text, flags=re.DOTALL
        )
        if not found:
            raise ValueError(f"the README must have the markers of {name!r}")
    return text


def table() -> str:
    """Return the table of benchmarks and the machines that it was measured on."""
    stepping, cores, sb3 = (read(name) for name in ("peers_stepping", "peers_cores", "sb3_accelerate"))
    rollouts = read("peers_rollouts")
    acting, collecting = rollouts["results"], sb3["results"]["collecting, 16 HalfCheetah"]
    machines: list[str] = []

    def at(work: str, of: Mapping[str, Any]) -> str:
        if (one := machine(of["machine"])) not in machines:
            machines.append(one)
        return f"{work}{FOOTNOTES[machines.index(one)]}"

    rows = [
        _stepping(at("step 120 HalfCheetahs, 15 workers", cores), cores["results"]["halfcheetah-15"]),
        _stepping(at("step 64 CartPoles", stepping), stepping["results"]["cartpole-64"]),
        _stepping(at("step 8 CartPoles", stepping), stepping["results"]["cartpole-8"]),
        _row(
            at("rollouts of 64 CartPoles with a small network", rollouts),
            _best(acting, "parenv"),
            _best(acting, "CleanRL's loop, AsyncVectorEnv"),
            _best(acting, "SB3 PPO, SubprocVecEnv"),
            _best(acting, "CleanRL's loop, SyncVectorEnv"),
        ),
        _row(
            at("PPO of Stable-Baselines3 collects, 16 HalfCheetahs", sb3),
            _best(collecting, "accelerate"),
            None,
            _best(collecting, "SubprocVecEnv"),
            _best(collecting, "DummyVecEnv"),
        ),
    ]
    return TABLE.format(
        rows="\n".join(rows),
        machines=". ".join(f"{FOOTNOTES[number]} {one}" for number, one in enumerate(machines)),
        again=read("faults")["results"]["until another one steps, s"]["median"],
    )


def threshold_us() -> float:
    """Return the time of a batched step in one process from which two workers are faster."""
    few, many = (
        step_us(read("vector_env")["results"][case], n) for case, n in (("cartpole-8", 8), ("cartpole-64", 64))
    )
    return crossing_us(few, many)


def machine(facts: Mapping[str, Any]) -> str:
    """Return hardware, versions and date of a measurement."""
    return "{cpu}, {cores} cores, Python {python}, Gymnasium {gymnasium}, {date}".format(**facts)


def _stepping(work: str, case: Mapping[str, Any]) -> str:
    """Return a row of the rates of ``step()``, with workers in parenv."""
    case = {name: one for name, one in case.items() if "send/recv" not in name and "in process" not in name}
    systems = ("parenv", "Gymnasium AsyncVectorEnv", "SB3 SubprocVecEnv", "Gymnasium SyncVectorEnv", "EnvPool")
    return _row(work, *(_best(case, name) for name in systems))


def _best(case: Mapping[str, Any], beginning: str) -> float | None:
    """Return the highest median of the systems whose names begin so, or ``None`` without any."""
    found = [one["median"] for name, one in case.items() if name.startswith(beginning) and "median" in one]
    return max(found, default=None)


def _row(work: str, *rates: float | None) -> str:
    """Return a row with the highest rate in bold."""
    highest = max(rate for rate in rates if rate is not None)
    cells = ["-" if rate is None else f"{rate:,.0f}" for rate in (*rates, *[None] * (5 - len(rates)))]
    cells = [f"**{cell}**" if cell == f"{highest:,.0f}" else cell for cell in cells]
    return f"| {work} | {' | '.join(cells)} |"


if __name__ == "__main__":
    README.write_text(filled(README.read_text()))
