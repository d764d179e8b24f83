"""Generated parts of the README: its tables of benchmarks, the caption of its plot, and the threshold.

They are between ``<!-- name -->`` and ``<!-- end of name -->``.

python benchmarks/tables/readme.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from on_paper import about
from sections import content, read, table
from sentences import crossing_us, step_us

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
ONE_PROCESS = "one process"

AGAIN = (
    "A worker killed by SIGKILL was replaced and stepped again after {:.2f} s (median, `python benchmarks/faults.py`)."
)
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
    """Return the tables of benchmarks, one for each machine and question, and the time to replace a worker."""
    again = AGAIN.format(read("faults")["until another one steps, s"]["median"])
    return "\n" + "\n\n".join([many_workers(), two_cores(), rollouts(), accelerated(), again]) + "\n"


def many_workers() -> str:
    """Return the rates of 15 workers."""
    rates = _stepping(read("peers_cores")["halfcheetah-15"])
    times = _times(rates, "AsyncVectorEnv")
    return _section(
        f"With 15 workers, parenv steps 120 HalfCheetahs {times} times as fast as `AsyncVectorEnv`",
        "peers_cores",
        {"120 HalfCheetahs": rates},
    )


def two_cores() -> str:
    """Return the rates of 2 workers, which are slower than one process for few environments."""
    found = {f"{n} CartPoles": _stepping(read("peers_stepping")[f"cartpole-{n}"]) for n in (64, 8)}
    times = [f"{name} {_times(rates, ONE_PROCESS)} times" for name, rates in found.items()]
    return _section(
        f"On two cores, workers step {times[0]} as fast as one process, and {times[1]}", "peers_stepping", found
    )


def rollouts() -> str:
    """Return the rates of rollouts with a policy."""
    found = read("peers_rollouts")
    rates = {
        "parenv": _best(found, "parenv"),
        "AsyncVectorEnv": _best(found, "CleanRL's loop, AsyncVectorEnv"),
        "SubprocVecEnv": _best(found, "SB3 PPO, SubprocVecEnv"),
        ONE_PROCESS: _best(found, "CleanRL's loop, SyncVectorEnv"),
    }
    return _section(
        f"Two workers collect rollouts with a small network {_times(rates, ONE_PROCESS)} times as fast as one process",
        "peers_rollouts",
        {"64 CartPoles": rates},
    )


def accelerated() -> str:
    """Return the rates of Stable-Baselines3 with and without ``accelerate``."""
    found = read("sb3_accelerate")["collecting, 16 HalfCheetah"]
    rates = {
        "parenv": _best(found, "accelerate"),
        "SubprocVecEnv": _best(found, "SubprocVecEnv"),
        ONE_PROCESS: _best(found, "DummyVecEnv"),
    }
    return _section(
        f"PPO of Stable-Baselines3 collects {_times(rates, ONE_PROCESS)} times as fast with `accelerate`",
        "sb3_accelerate",
        {"16 HalfCheetahs": rates},
    )


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
    case = {name: one for name, one in case.items() if "send/recv" not in name and "in process" not in name}
    systems = {
        "parenv": "parenv",
        "AsyncVectorEnv": "Gymnasium AsyncVectorEnv",
        "SubprocVecEnv": "SB3 SubprocVecEnv",
        ONE_PROCESS: "Gymnasium SyncVectorEnv",
        "EnvPool (C++)": "EnvPool",
    }
    return {title: _best(case, name) for title, name in systems.items()}


def _best(case: Mapping[str, Any], beginning: str) -> float | None:
    """Return the highest median of the systems whose names begin so, or ``None`` without any."""
    found = [one["median"] for name, one in case.items() if name.startswith(beginning) and "median" in one]
    return max(found, default=None)


def _times(rates: Mapping[str, float | None], other: str) -> str:
    """Return the rate of parenv as a multiple of another rate."""
    ours, theirs = rates["parenv"], rates[other]
    if ours is None or theirs is None:
        raise ValueError(f"the results must have rates of parenv and {other}")
    return f"{ours / theirs:.1f}"


def _section(heading: str, source: str, rows: Mapping[str, Mapping[str, float | None]]) -> str:
    """Return a heading, the measurement, and a table whose highest rates are bold."""
    systems = [name for name in next(iter(rows.values())) if any(rates[name] for rates in rows.values())]
    lines = []
    for work, rates in rows.items():
        highest = max(rates[name] or 0.0 for name in systems)
        cells = [f"{rates[name]:,.0f}" for name in systems]
        lines.append([work, *(f"**{cell}**" if cell == f"{highest:,.0f}" else cell for cell in cells)])
    command = content(source)["command"]
    return f"### {heading}\n\n{table(['env steps/s', *systems], lines)}\n\n*{machine(source)}, `{command}`*"


if __name__ == "__main__":
    README.write_text(filled(README.read_text()))
