"""Tables of a machine with a GPU and many cores."""

from __future__ import annotations

from typing import Any

from field import markdown

ALL_CPU = "all on the CPU"
LIMIT = "limit"


def gpu(results: dict[str, Any]) -> str:
    """Return the time of an update with its rollout, as a share of the CPU's, and the load of the GPU."""
    systems = list(next(iter(results.values())))
    heads = ["", *(name for name in systems if name != ALL_CPU)]
    lines = [[work, *(_share(found[name]) for name in heads[1:])] for work, found in results.items()]
    return "\n".join(markdown(heads, lines))


def _share(found: dict[str, Any]) -> str:
    busy = found.get("gpu_utilisation_percent")
    return f"{found[f'ratio_to_{ALL_CPU}']:.2f}" + (f" ({busy:.0f} %)" if busy is not None else "")


def on_gpu(results: dict[str, Any]) -> str:
    """Env steps per second by where rollouts lie, in thousands."""
    return "\n".join(
        markdown(["", "1,000 env steps/s"], [[name, _thousands(found)] for name, found in results.items()])
    )


def cores(results: dict[str, Any], question: str) -> str:
    """Env steps per second by numbers of workers, in thousands."""
    found = {int(key.split("-")[1]): value for key, value in results.items() if key.startswith(f"{question}-")}
    systems = list(dict.fromkeys(name for one in found.values() for name in one))
    heads = ["", *(f"{workers} workers" if workers > 1 else "1 worker" for workers in sorted(found))]
    lines = [[name, *(_thousands(found[workers].get(name)) for workers in sorted(found))] for name in systems]
    return "\n".join(markdown(heads, lines))


def _thousands(found: dict[str, Any] | None) -> str:
    return f"{found['median'] / 1000:,.0f}" if found and "median" in found else ""


def described(machine: dict[str, Any]) -> str:
    """Return a machine in words. The first question names the number of its cores, because it had all of them."""
    return f"{machine['cpu']}, {machine['gpu']}, Python {machine['python']}, torch {machine['torch']}"
