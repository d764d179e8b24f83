"""Speeds of vector envs without options, from ``choice.json``: the table of the README and of a page of the docs."""

from __future__ import annotations

from typing import Any

from sections import content, read, table

CASES = {
    "cartpole 8": "8 CartPoles",
    "cartpole 64": "64 CartPoles",
    "halfcheetah 16": "16 HalfCheetahs",
    "pong 8": "8 Pongs",
    "sleeping 16": "16 envs that wait 2 ms",
    "sleeping 64": "64 envs that wait 2 ms",
}
REFERENCE = "SyncVectorEnv"
SYSTEMS = {
    "parenv": "parenv",
    "AsyncVectorEnv": "AsyncVectorEnv",
    "SubprocVecEnv": "SubprocVecEnv",
    "EnvPool": "EnvPool, own C++ envs",
}
FREE, BUSY = "free cores", "a busy loop per core"
NOTE = """Env steps per second with random actions, as a multiple of `SyncVectorEnv` ({machine}, \
`{command}`). parenv has its default settings. EnvPool steps its own environments, where it has them."""


def ratios(condition: str) -> dict[str, dict[str, float]]:
    """Return the env steps per second as a multiple of ``SyncVectorEnv``, by case and system."""
    return {case: read("choice")[condition][case]["ratio to SyncVectorEnv"] for case in CASES}


def speeds() -> str:
    """Return a table with a row for each case, and what was measured."""
    found, rates = ratios(FREE), read("choice")[FREE]
    rows = [
        [
            title,
            f"{rates[case]['SyncVectorEnv, env steps/s']:,.0f}",
            *(_cell(found[case], system) for system in SYSTEMS),
        ]
        for case, title in CASES.items()
    ]
    about = content("choice")
    machine = "{cores} free cores of {cpu}, {date}".format(**about["machine"])
    heads = ["", f"{REFERENCE}, env steps/s", *SYSTEMS.values()]
    return table(heads, rows) + "\n\n" + NOTE.format(machine=machine, command=about["command"])


def _cell(found: dict[str, Any], system: str) -> str:
    """Return a ratio, in bold if no other vector env for Python environments is as fast."""
    if system not in found:
        return ""
    text = f"{found[system]:.2f}" if found[system] < 0.995 else f"{found[system]:.1f}"
    best = max(ratio for other, ratio in found.items() if other in (*SYSTEMS, REFERENCE) and other != "EnvPool")
    return f"**{text}**" if found[system] == best else text
