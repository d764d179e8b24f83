"""Which mini-batch and which devices suit what acting and learning were measured to take: pure decisions."""

from __future__ import annotations

from collections.abc import Mapping

from parenv.advice.costs import Costs, Setting
from parenv.advice.recommendations import NEARLY, WORTH, Recommendation, in_seconds

WAKE_UP_S = 100e-6
"""To wake processes on other cores and be woken."""


def mini_batch(costs: Costs, device: str) -> Recommendation:
    """The smallest that is nearly as cheap per sample as any."""
    if not costs.learning_at:
        return Recommendation(
            "mini_batch", "as it is", None, "it was not measured: parenv advise does, for a policy with a module"
        )
    curve = costs.learning_at.get(device, costs.learning_at["cpu"])
    best = _cheap(curve)
    words = ", ".join(f"{in_seconds(curve[n])} at {n}" for n in sorted({min(curve), best, max(curve)}))
    return Recommendation("mini_batch", best, None, f"forward and backward take {words} per sample")


def _cheap(curve: Mapping[int, float]) -> int:
    return next(n for n, seconds in sorted(curve.items()) if NEARLY * seconds <= min(curve.values()))


def learner_device(costs: Costs) -> Recommendation:
    """The learner's, by forward and backward of a mini-batch that suits the CPU."""
    now, share = costs.learner_device, costs.learning_s / (costs.learning_s + costs.collecting_s)
    if len(costs.learning_at) < 2:
        because = f"learning, on {now}, is {share:.0%} of the cost; {_not_compared(costs)}"
        return Recommendation("learner_device", now, now, because)
    batch = _cheap(costs.learning_at["cpu"])
    seconds = {device: curve[batch] * batch for device, curve in costs.learning_at.items()}
    because = f"forward and backward of {batch} samples take {_by_device(seconds)}; learning is {share:.0%} of the cost"
    return Recommendation("learner_device", faster_device(seconds), now, because)


def worker_device(costs: Costs, best: Setting, share: float) -> Recommendation:
    """The workers', by what an env step then costs one of them; on another device than the CPU they take turns.

    Args:
        costs: of a run.
        best: the setting that is recommended.
        share: of acting in the time of the run's workers.
    """
    now = costs.worker_device
    acting = f"acting, on {now}, is {share:.0%} of a worker's time"
    if len(costs.acting_at) < 2:
        return Recommendation("worker_device", now, now, f"{acting}; {_not_compared(costs)}")
    seconds = {device: costs.acting_once_s(best.batch, device) for device in costs.acting_at}
    turns = {device: 1 if device == "cpu" else best.processes for device in seconds}
    steps = {device: costs.beside_acting_s + seconds[device] * turns[device] / best.batch for device in seconds}
    shared = f", which {best.num_workers} workers share" if best.num_workers > 1 else ""
    because = f"{acting}; on {best.batch} observations it takes {_by_device(seconds)}{shared}"
    return Recommendation("worker_device", faster_device(steps), now, because)


def step_workers(costs: Costs, best: Setting, device: str) -> Recommendation:
    """Whether one worker should act for all sub-environments and have others step them.

    Args:
        costs: of a run in which acting was measured at several batches.
        best: the setting that is recommended.
        device: on which workers are to act.
    """
    own_s, half_s = costs.acting_once_s(best.batch, device), costs.acting_once_s(-(-best.num_envs // 2), device)
    where = forward_place(own_s, half_s, best.num_workers, is_shared=device != "cpu")
    turns = f", {best.num_workers} of them in turn" if device != "cpu" else ", each on a core of its own"
    because = (
        f"a forward takes {in_seconds(own_s)} for a worker's own {best.batch} rows on {device}{turns}; for all at once "
        f"two of {in_seconds(half_s)} and a wake-up"
    )
    return Recommendation("step_workers", best.num_workers if where == "central" else "none", None, because)


def forward_place(own_s: float, half_s: float, num_workers: int, *, is_shared: bool) -> str:
    """Where to act: ``"local"``, in every worker for its own rows, or ``"central"``, in one for all.

    Local pays while a forward for its own rows costs less than a wake-up and its part of the joint one.

    Args:
        own_s: seconds of a forward for the rows of one worker.
        half_s: seconds of one for half of all rows; the joint one is two of these.
        num_workers: that would act, or step.
        is_shared: whether forwards of several workers take turns, as on a GPU; on the CPU each has a core.

    >>> forward_place(5e-3, 5e-3, 8, is_shared=True), forward_place(5e-3, 20e-3, 8, is_shared=False)
    ('central', 'local')
    """
    part_s = 2 * half_s / (num_workers if is_shared else 1)
    return "central" if num_workers > 1 and own_s >= WORTH * (WAKE_UP_S + part_s) else "local"


def faster_device(seconds: Mapping[str, float]) -> str:
    """The CPU, unless another device is worth it.

    Args:
        seconds: what the same work takes, by device.

    >>> faster_device({"cpu": 1.0, "cuda": 0.95}), faster_device({"cpu": 1.0, "cuda": 0.5})
    ('cpu', 'cuda')
    """
    fastest = min(seconds, key=lambda device: seconds[device])
    return fastest if seconds["cpu"] >= WORTH * seconds[fastest] else "cpu"


def _by_device(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{in_seconds(each)} on {device}" for device, each in seconds.items())


def _not_compared(costs: Costs) -> str:
    if costs.accelerator is None:
        return "no GPU was found for a torch module of the policy"
    return f"cpu and {costs.accelerator} were not compared: parenv advise does, for a policy with a module"
