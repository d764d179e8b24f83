"""Sections about a machine with a GPU and many cores."""

from __future__ import annotations

from typing import Any

from sections import Section, span, table, written

ALL_CPU = "all on the CPU"
LIMIT, OURS, THEIRS = "limit", "parenv, step", "Gymnasium AsyncVectorEnv"
CASES = {
    "cartpole": "120 CartPoles with random actions",
    "halfcheetah": "120 HalfCheetahs with random actions",
    "rollouts": "Rollouts of 120 CartPoles with an MLP",
}
NAMES = {LIMIT: "upper bound", "parenv, step, nobody spins": "parenv, step, no spinning"}


def gpu(results: dict[str, Any]) -> str:
    """Return the time of an update with its rollout, relative to the CPU, and the load of the GPU."""
    systems = list(next(iter(results.values())))
    heads = ["", *(name for name in systems if name != ALL_CPU)]
    rows = [[work, *(_share(found[name]) for name in heads[1:])] for work, found in results.items()]
    shares = [
        found[name][f"ratio_to_{ALL_CPU}"] for found in results.values() for name in heads[1:] if "workers" not in name
    ]
    return written(
        [
            Section(
                f"With a learner on the GPU, an update takes {span(shares)} of its time on the CPU",
                "gpu",
                "Time of an update with its rollout, relative to the time with everything on the CPU. The load of the\n"
                "GPU is in brackets. The policies are a small MLP on CartPole, and convolutions on pixels.\n\n"
                + table(heads, rows),
            )
        ]
    )


def _share(found: dict[str, Any]) -> str:
    busy = found.get("gpu_utilisation_percent")
    return f"{found[f'ratio_to_{ALL_CPU}']:.2f}" + (f" ({busy:.0f} %)" if busy is not None else "")


def on_gpu(results: dict[str, Any]) -> str:
    """Return the env steps per second by the place of rollouts."""
    gpu, host = (_thousands(results[f"pool, rollouts on the {place}"]) for place in ("GPU", "host"))
    return written(
        [
            Section(
                f"A GPU simulator reaches {gpu},000 env steps/s with rollouts on the GPU, and {host},000 on the host",
                "batches_gpu",
                "A simulator of 256 frame stacks on the GPU, with a learner on the same GPU.\n\n"
                + table(["", "1,000 env steps/s"], [[name, _thousands(found)] for name, found in results.items()]),
            )
        ]
    )


def cores(results: dict[str, Any], case: str) -> str:
    """Return the env steps per second by number of workers."""
    found = {int(key.split("-")[1]): value for key, value in results.items() if key.startswith(f"{case}-")}
    systems = list(dict.fromkeys(name for one in found.values() for name in one))
    heads = ["1,000 env steps/s", *(f"{workers} workers" if workers > 1 else "1 worker" for workers in sorted(found))]
    rows = [
        [NAMES.get(name, name), *(_thousands(found[workers].get(name)) for workers in sorted(found))]
        for name in systems
    ]
    most = found[max(found)]
    ours, theirs = ("parenv, async", "CleanRL's loop, AsyncVectorEnv") if case == "rollouts" else (OURS, THEIRS)
    times = most[ours]["median"] / most[theirs]["median"]
    return written(
        [
            Section(
                f"{CASES[case]}: with {max(found)} workers, parenv is {times:.1f} times as fast as AsyncVectorEnv",
                "peers_cores",
                table(heads, rows),
            )
        ]
    )


def _thousands(found: dict[str, Any] | None) -> str:
    return f"{found['median'] / 1000:,.0f}" if found and "median" in found else ""
