"""Generated parts of the README: its table of speeds, its lines of benchmarks, and the caption of its plot.

They are between ``<!-- name -->`` and ``<!-- end of name -->``.

python benchmarks/tables/readme.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sections import content, read
from speeds import speeds

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
ONE_PROCESS = "one process"

AGAIN = "**A worker killed by SIGKILL was replaced and stepped again after {:.2f} s** (median, `faults.py`)."
CAPTION = (
    "*Stepping with random actions. Above: {many}, `num_workers` given, `python benchmarks/peers/cores.py`. Below: "
    "{two}, without options, `python benchmarks/choice.py`.*"
)


def filled(text: str) -> str:
    """Return the README with new generated parts."""
    parts = {
        "benchmarks": benchmarks(),
        "caption": CAPTION.format(many=machine("peers_cores"), two=machine("choice")),
    }
    for name, part in parts.items():
        marked = f"<!-- {name} -->{part}<!-- end of {name} -->"
        text, found = re.subn(
            rf"<!-- {name} -->.*?<!-- end of {name} -->", lambda _, to=marked: to, text, flags=re.DOTALL
        )
        if not found:
            raise ValueError(f"the README must have the markers of {name!r}")
    return text


def benchmarks() -> str:
    """Return the table of speeds, a line for each other benchmark, and the time to replace a worker."""
    again = AGAIN.format(read("faults")["until another one steps, s"]["median"])
    lines = [
        _line(
            "A pool in sync mode collects rollouts of 64 CartPoles at {} times the speed of one process.",
            ONE_PROCESS,
            "peers_rollouts",
            _collecting(),
        ),
        _line(
            "PPO of Stable-Baselines3 collects 16 HalfCheetahs at {} times the speed with `accelerate`.",
            ONE_PROCESS,
            "sb3_accelerate",
            _accelerated(),
        ),
    ]
    return "\n".join(["", speeds(), "", *lines, f"* {again}", ""])


def _collecting() -> dict[str, float | None]:
    """Return the rates of rollouts with a policy."""
    found = read("peers_rollouts")
    return {
        "parenv": _best(found, "parenv, sync"),
        "AsyncVectorEnv": _best(found, "CleanRL's loop, AsyncVectorEnv"),
        "SubprocVecEnv": _best(found, "SB3 PPO, SubprocVecEnv"),
        ONE_PROCESS: _best(found, "CleanRL's loop, SyncVectorEnv"),
    }


def _accelerated() -> dict[str, float | None]:
    """Return the rates of Stable-Baselines3 with and without ``accelerate``."""
    found = read("sb3_accelerate")["collecting, 16 HalfCheetah"]
    return {
        "parenv": _best(found, "accelerate"),
        "SubprocVecEnv": _best(found, "SubprocVecEnv"),
        ONE_PROCESS: _best(found, "DummyVecEnv"),
    }


def machine(name: str) -> str:
    """Return hardware, versions and date of the results in ``results/NAME.json``."""
    return "{cpu}, {cores} cores, Python {python}, Gymnasium {gymnasium}, {date}".format(**content(name)["machine"])


def _best(case: Mapping[str, Any], beginning: str) -> float | None:
    """Return the highest median of the systems whose names begin so, or ``None`` without any."""
    found = [one["median"] for name, one in case.items() if name.startswith(beginning) and "median" in one]
    return max(found, default=None)


def _line(answer: str, other: str, source: str, rates: Mapping[str, float | None]) -> str:
    """Return the answer with parenv's rate as a multiple of another rate, all rates, and the measurement."""
    known = {name: rate for name, rate in rates.items() if rate is not None}
    cells = "; ".join(f"{name} {rate:,.0f}" for name, rate in known.items())
    script = content(source)["command"].removeprefix("python benchmarks/")
    measured = "{cores} cores, {cpu}, {date}".format(**content(source)["machine"])
    answer = answer.format(f"{known['parenv'] / known[other]:.1f}")
    return f"* **{answer}** Env steps/s: {cells}. ({measured}, `{script}`)"


if __name__ == "__main__":
    README.write_text(filled(README.read_text()))
