"""Limits of one main process, as an estimate: ``scaling.md`` from constants that ``remote.py`` has measured."""

from __future__ import annotations

import math
from typing import Any

from sections import Section, span, table, written

TEXT = """# How far one main process goes

These limits are estimates from measured constants. The main process, the hosts and the workers shared the cores of one
machine, so take them as orders of magnitude and measure your own machine. `python benchmarks/tables/table.py` writes
this page.

## Workers on other machines

{constants}

### The main process is full at about {rollouts} small rollouts per second

**Messages.** A rollout of 128 steps in 32 CartPoles has {cartpole_kb} kB and takes {rollout_ms:.2g} + {cartpole_ms:.2g}
ms. The main process reads about {cartpole_rollouts} of them, which are {cartpole_steps} env steps per second. About
{workers} workers produce as much, at {each} env steps per second each. Use longer rollouts and more sub-environments
per worker first: {rollout_ms:.2g} ms are per rollout, whatever its length.

**Bytes.** With pixels, bytes are the limit. 512 steps of Pong (4 x 84 x 84 bytes each) have {pong_mb} MB and take about
{pong_ms} ms. The main process reads about {pong_rollouts} of them, which are {pong_steps} env steps and {pong_rate} MB
per second. Send only what the learner needs. For example, stack frames on the learner, or compute gradients on the
workers: `parallelism="gradient"` sends one gradient per rollout in place of its observations.

**Weights.** A publish of 40 MB takes about {per_host_ms} ms per host. Publish less often than every rollout, or use
`weights="bfloat16"` if the network is the limit, and not the processor.

**Beyond one main process.** Under `torchrun`, each rank has its own pool with its part of the sub-environments.
`DistributedDataParallel` or `parenv.learning.all_reduce_gradients` averages the gradients. Each rank listens on its own
port, `RemotePlacement(f"tcp://{{address}}:{{5555 + rank}}", ...)`, and has its own hosts. The limits above then count
for each rank.
"""


def about(value: float, significant: int = 2) -> str:
    """Return a number with this many significant digits.

    >>> about(1786.0), about(0.0734), about(1786.0, 3)
    ('1,800', '0.073', '1,790')
    """
    if value == 0.0:
        return "0"
    digits = significant - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def scaling(found: Any) -> str:
    """Return the part about workers on other machines.

    Args:
        found: Content of ``results/remote.json``.
    """
    results = found["results"]
    rollout_ms, megabyte_ms = _rollout_ms(results)
    cartpole, publish = results["cartpole"], results["publish"]
    up, frame = (results[name]["async"]["bytes per env step"]["received"] for name in ("cartpole", "pong"))
    cartpole_mb, pong_mb = 128 * 32 * up / 1e6, 512 * frame / 1e6
    cartpole_ms, pong_ms = megabyte_ms * cartpole_mb, megabyte_ms * pong_mb + rollout_ms
    cartpole_rollouts, pong_rollouts = 1000.0 / (rollout_ms + cartpole_ms), 1000.0 / pong_ms
    each = cartpole["async"]["tcp"]["median"] / 2
    parts = (_main_process, _throughput, _steps, _weights, _sleeping, _healing)
    return TEXT.format(
        constants=written(part(results) for part in parts),
        rollouts=about(1000.0 / rollout_ms),
        rollout_ms=rollout_ms,
        cartpole_kb=about(1000.0 * cartpole_mb),
        cartpole_ms=cartpole_ms,
        cartpole_rollouts=about(cartpole_rollouts),
        cartpole_steps=about(128 * 32 * cartpole_rollouts),
        workers=about(128 * 32 * cartpole_rollouts / each),
        each=about(each),
        pong_mb=about(pong_mb),
        pong_ms=about(pong_ms),
        pong_rollouts=about(pong_rollouts),
        pong_steps=about(512 * pong_rollouts),
        pong_rate=about(pong_mb * pong_rollouts),
        per_host_ms=about(publish["40 MB, ms"]["exact"]["median"] / 4),
    )


def _rollout_ms(results: Any) -> tuple[float, float]:
    """Return the milliseconds of the main process for a rollout, and for each MB."""
    return results["driver"]["us per rollout"] / 1000.0, results["driver"]["ms per MB"]


def _main_process(results: Any) -> Section:
    rollout_ms, megabyte_ms = _rollout_ms(results)
    size = results["cartpole"]["async"]["bytes per env step"]
    rows = [
        ["processor time of the main process per rollout, all threads", f"{rollout_ms:.2g} ms"],
        ["further processor time per MB (decryption, copy into the slot)", f"{megabyte_ms:.2g} ms"],
        ["bytes per env step to the main process, CartPole with an MLP", f"{size['received']:.0f}"],
        ["bytes per env step from the main process, without weights", f"{size['sent']:.2f}"],
    ]
    return Section(
        f"A rollout takes {rollout_ms:.2g} ms of the main process, and further {megabyte_ms:.2g} ms for each MB",
        "remote",
        table(["", "time or bytes"], rows),
    )


def _throughput(results: Any) -> Section:
    shares = {
        name: [results[name][mode]["tcp"]["ratio_to_ipc"] for mode in ("async", "sync")]
        for name in ("cartpole", "pong")
    }
    frame_kb = results["pong"]["async"]["bytes per env step"]["received"] / 1000
    names = {"cartpole": "64 CartPoles", "pong": f"8 Pongs without a policy, {frame_kb:.0f} kB per env step"}
    return Section(
        f"Over TCP and CURVE, rollouts reach {span([*shares['cartpole'], *shares['pong']])} of their local rate",
        "remote",
        "Two workers.\n\n"
        + table(
            ["", "async", "sync"], [[names[name], *(f"{share:.2f}" for share in pair)] for name, pair in shares.items()]
        ),
    )


def _steps(results: Any) -> Section:
    def microseconds(suffix: str) -> list[str]:
        return [f"{about(results['vector'][place + suffix]['us per call'])} µs" for place in ("tcp", "ipc")]

    there, here = microseconds("")
    rows = [["`step` of 64 CartPoles", there, here], ["`send` and `recv` of half of them", *microseconds(" halves")]]
    return Section(
        f"A step of 64 CartPoles takes {there} with workers on a host, and {here} with workers on this machine",
        "remote",
        "`ParallelVectorEnv` with two workers.\n\n" + table(["", "host", "this machine"], rows),
    )


def _weights(results: Any) -> Section:
    found = {
        size: [f"{about(results['publish'][f'{size}, ms'][how]['median'])} ms" for how in ("exact", "bfloat16", "ipc")]
        for size in ("1 MB", "40 MB")
    }
    return Section(
        f"16 workers on 4 hosts act with new weights of 40 MB after {found['40 MB'][0]}",
        "remote",
        'Each host receives the weights once. `weights="bfloat16"` halves their bytes.\n\n'
        + table(["", "4 hosts", "4 hosts, bfloat16", "this machine"], [[size, *row] for size, row in found.items()]),
    )


def _sleeping(results: Any) -> Section:
    shares = {
        case: [rates[place]["ratio_to_ideal"] for place in ("tcp over 4 namespaces", "ipc")]
        for case, rates in results["sleeping"].items()
    }
    return Section(
        f"Environments that sleep on 4 hosts reach {span([pair[0] for pair in shares.values()])} of the upper bound",
        "remote",
        "The hosts are network namespaces. With steps of 2 ms, the loops around 64 environments take most of the two\n"
        "cores. The main process and the hosts also need processor time for each rollout, so longer rollouts help.\n\n"
        + table(
            ["share of the upper bound", "4 hosts", "this machine"],
            [[case, *(f"{share:.2f}" for share in pair)] for case, pair in shares.items()],
        ),
    )


def _healing(results: Any) -> Section:
    healing = results["healing"]
    return Section(
        f"A host that was cut off delivers its first rollout {healing['median']:.1f} s after the network is back",
        "remote",
        f"This is the median. The longest time is {healing['max']:.1f} s.",
    )
