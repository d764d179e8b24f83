"""Limits of one driver, as an estimate: ``scaling.md`` from constants that ``remote.py`` has measured."""

from __future__ import annotations

import math
from typing import Any

TEXT = """# How far one driver goes

On paper, from constants measured by `python benchmarks/remote.py` (`results/remote.json`), and written by
`python benchmarks/tables/table.py`. Driver, hosts and workers shared {cores} cores there
({cpu}), so take these as orders of magnitude and measure your own.

| constant | measured |
|---|---|
| processor time of the driver per rollout, all its threads | {rollout_ms:.2g} ms |
| the same per MB of rollout (decrypting, copying into the slot) | {megabyte_ms:.2g} ms |
| bytes per env step, CartPole with an MLP, up / down (weights apart) | {up:.0f} / {down:.2f} |
| bytes of weights per publish | once per host, half of that with `weights="bfloat16"` |
| publish until 16 workers on 4 hosts act by it, 1 MB: exact / bfloat16 / over shared memory | {small} ms |
| the same, 40 MB | {large} ms |
| 64 CartPoles in 2 workers through TCP and CURVE, share of ipc and shared memory: async / sync | {cartpole} |
| 8 Pongs in 2 workers without a policy, {frame_kb:.0f} kB per env step, the same share | {pong} |
| a step of 64 CartPoles of `ParallelVectorEnv` in 2 workers, on a host / here | {step} µs |
| one half of them by `send` and `recv`, on a host / here | {half} µs |
{sleeping}
| a cut host's first rollout after healing, median / longest | {healing:.1f} s / {longest:.1f} s |

Sleeping environments cost only the processor time of the loop around them. With steps of 2 ms, 64 workers take most
of the two cores by that alone, and what driver and hosts need for a rollout comes on top: hence the longer rollouts.

**Messages.** With small rollouts the driver is full at about {rollouts} rollouts per second. A rollout of 128 steps in
32 sub-environments of CartPole is {cartpole_kb} kB and takes {rollout_ms:.2g} + {cartpole_ms:.2g} ms: about
{cartpole_rollouts} of them, {cartpole_steps} env steps per second, which is what some {workers} workers produce at
{each} each. Longer rollouts and more sub-environments per worker are the first remedy: the {rollout_ms:.2g} ms is per
rollout, whatever its length.

**Bytes.** With pixels the bytes decide. 512 steps of Pong (4 x 84 x 84 bytes each) are {pong_mb} MB and take about
{pong_ms} ms: about {pong_rollouts} rollouts, {pong_steps} env steps, {pong_rate} MB per second. Send what the learner
needs: stack frames on the learner, or let workers run backward (`parallelism="gradient"` sends one gradient per rollout
instead of its observations).

**Weights.** A publish costs about {per_host_ms} ms per host for 40 MB. Publish less often than every rollout, or
`weights="bfloat16"` where the network, not the processor, is the limit.

**Then: several drivers.** Under `torchrun` every rank has a pool of its own with its part of the sub-environments, and
`DistributedDataParallel` or `parenv.learning.all_reduce_gradients` joins the learners. Each rank listens at a port of
its own, `RemotePlacement(f"tcp://{{address}}:{{5555 + rank}}", ...)`, and hosts are started for each; what one driver
can take then grows with the number of ranks.
"""


def about(value: float, significant: int = 2) -> str:
    """So many significant digits.

    >>> about(1786.0), about(0.0734), about(1786.0, 3)
    ('1,800', '0.073', '1,790')
    """
    if value == 0.0:
        return "0"
    digits = significant - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def scaling(found: Any) -> str:
    """The text.

    Args:
        found: the content of ``results/remote.json``.
    """
    facts, results = found["machine"], found["results"]
    cartpole, pong, publish = results["cartpole"], results["pong"], results["publish"]
    rollout_ms, megabyte_ms = results["driver"]["us per rollout"] / 1000.0, results["driver"]["ms per MB"]
    up, frame = (case["async"]["bytes per env step"]["received"] for case in (cartpole, pong))
    cartpole_mb, pong_mb = 128 * 32 * up / 1e6, 512 * frame / 1e6
    cartpole_ms, pong_ms = megabyte_ms * cartpole_mb, megabyte_ms * pong_mb + rollout_ms
    cartpole_rollouts, pong_rollouts = 1000.0 / (rollout_ms + cartpole_ms), 1000.0 / pong_ms
    each = cartpole["async"]["tcp"]["median"] / 2

    def shares(case: Any) -> str:
        return " / ".join(f"{case[mode]['tcp']['ratio_to_ipc']:.2f}" for mode in ("async", "sync"))

    def milliseconds(size: str) -> str:
        return " / ".join(about(publish[size][how]["median"]) for how in ("exact", "bfloat16", "ipc"))

    def microseconds(suffix: str) -> str:
        return " / ".join(about(results["vector"][place + suffix]["us per call"]) for place in ("tcp", "ipc"))

    sleeping = (
        f"| sleeping, {case}; share of the ideal over 4 hosts in network namespaces / here | "
        f"{rates['tcp over 4 namespaces']['ratio_to_ideal']:.2f} / {rates['ipc']['ratio_to_ideal']:.2f} |"
        for case, rates in results["sleeping"].items()
    )
    return TEXT.format(
        cores=facts["cores"],
        cpu=facts["cpu"],
        rollout_ms=rollout_ms,
        megabyte_ms=megabyte_ms,
        up=up,
        down=cartpole["async"]["bytes per env step"]["sent"],
        small=milliseconds("1 MB, ms"),
        large=milliseconds("40 MB, ms"),
        cartpole=shares(cartpole),
        pong=shares(pong),
        frame_kb=frame / 1000,
        step=microseconds(""),
        half=microseconds(" halves"),
        sleeping="\n".join(sleeping),
        healing=results["healing"]["median"],
        longest=results["healing"]["max"],
        rollouts=about(1000.0 / rollout_ms),
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
