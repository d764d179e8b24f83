"""Generated parts of the README: its lines of benchmarks, the caption of its plot, and the threshold.

They are between ``<!-- name -->`` and ``<!-- end of name -->``.

python benchmarks/tables/readme.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from on_paper import about
from sections import content, read
from sentences import crossing_us, step_us

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
ONE_PROCESS = "one process"

AGAIN = "**A worker killed by SIGKILL was replaced and stepped again after {:.2f} s** (median, `faults.py`)."
CAPTION = (
    "*Stepping with random actions. Above: {many}, `python benchmarks/peers/cores.py`. Below: {two}, "
    "`python benchmarks/peers/stepping.py`.*"
)


def filled(text: str) -> str:
    """Return the README with new generated parts."""
    parts = {
        "benchmarks": benchmarks(),
        "caption": CAPTION.format(many=machine("peers_cores"), two=machine("peers_stepping")),
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


def benchmarks() -> str:
    """Return a line for each benchmark, and the time to replace a worker."""
    many, stepping = _stepping(read("peers_cores")["halfcheetah-15"]), read("peers_stepping")
    again = AGAIN.format(read("faults")["until another one steps, s"]["median"])
    lines = [
        _line(
            "15 workers step 120 HalfCheetahs {} times as fast as `AsyncVectorEnv`.",
            "AsyncVectorEnv",
            "peers_cores",
            many,
        ),
        *(
            _line(
                f"Two workers step {n} CartPoles at {{}} times the speed of one process.",
                ONE_PROCESS,
                "peers_stepping",
                _stepping(stepping[f"cartpole-{n}"]),
            )
            for n in (64, 8)
        ),
        _line(
            "Two workers collect rollouts of 64 CartPoles at {} times the speed of one process.",
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
    return "\n" + "\n".join([*lines, f"* {again}"]) + "\n"


def _collecting() -> dict[str, float | None]:
    """Return the rates of rollouts with a policy."""
    found = read("peers_rollouts")
    return {
        "parenv": _best(found, "parenv"),
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


def threshold_us() -> float:
    """Return the time of a batched step in one process from which two workers are faster."""
    found = read("vector_env")
    few, many = (step_us(found[case], n) for case, n in (("cartpole-8", 8), ("cartpole-64", 64)))
    return crossing_us(few, many)


def machine(name: str) -> str:
    """Return hardware, versions and date of the results in ``results/NAME.json``."""
    return "{cpu}, {cores} cores, Python {python}, Gymnasium {gymnasium}, {date}".format(**content(name)["machine"])


def _stepping(case: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the rates of ``step()``, with workers in parenv."""
    systems = {
        "parenv": "parenv, step",
        "parenv with `caller_steps=True` and one worker": "parenv, caller and one worker",
        "AsyncVectorEnv": "Gymnasium AsyncVectorEnv",
        "SubprocVecEnv": "SB3 SubprocVecEnv",
        ONE_PROCESS: "Gymnasium SyncVectorEnv",
        "EnvPool (C++)": "EnvPool, own C++ envs, step",
    }
    return {title: _best(case, name) for title, name in systems.items()}


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
