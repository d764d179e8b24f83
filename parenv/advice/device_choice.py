"""Which mini-batch and which devices suit what acting and learning were measured to take: pure decisions."""

from __future__ import annotations

from collections.abc import Mapping

from parenv.advice.costs import Costs, Setting
from parenv.advice.recommendations import NEARLY, WORTH, Recommendation, in_seconds

HANDING_OVER_S = 150e-6
"""Of a worker that acts for others: to send actions to two halves, be woken, and take in what came of them."""


def mini_batch(costs: Costs, device: str) -> Recommendation:
    """The smallest that is nearly as cheap per sample as any."""
    if not costs.learning_at:
        return Recommendation(
            "mini_batch", "as it is", None, "it was not measured: parenv advise does, for a policy with a module"
        )
    curve = costs.learning_at.get(device, costs.learning_at["cpu"])
    best = nearly_cheapest(curve)
    words = ", ".join(f"{in_seconds(curve[n])} at {n}" for n in sorted({min(curve), best, max(curve)}))
    return Recommendation("mini_batch", best, None, f"forward and backward take {words} per sample")


def nearly_cheapest(curve: Mapping[int, float]) -> int:
    """The smallest number at which something costs hardly more than at any."""
    return next(n for n, seconds in sorted(curve.items()) if NEARLY * seconds <= min(curve.values()))


def learner_device(costs: Costs) -> Recommendation:
    """The learner's, by forward and backward of a mini-batch that suits the CPU."""
    now, share = costs.learner_device, costs.learning_s / (costs.learning_s + costs.collecting_s)
    if len(costs.learning_at) < 2:
        because = f"learning, on {now}, is {share:.0%} of the cost; {_not_compared(costs)}"
        return Recommendation("learner_device", now, now, because)
    batch = nearly_cheapest(costs.learning_at["cpu"])
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
    crowd = max(1.0, best.num_workers / costs.cores)
    in_turn, step_s = best.num_workers if device != "cpu" else crowd, costs.environment_s * best.batch * crowd
    where = forward_place(own_s, half_s, in_turn, step_s)
    turns = f", {in_turn:.3g} of them in turn" if in_turn > 1 else ", each on a core of its own"
    because = (
        f"a forward takes {in_seconds(own_s)} for a worker's own {best.batch} rows on {device}{turns}; for all at once "
        f"two of {in_seconds(half_s)}; to step a worker's rows takes {in_seconds(step_s)}"
    )
    return Recommendation("step_workers", best.num_workers if where == "central" else "none", None, because)


def forward_place(own_s: float, half_s: float, in_turn: float, step_s: float = 0.0) -> str:
    """Where to act: ``"local"``, in every worker for its own rows, or ``"central"``, in one for all.

    A row takes at least what all forwards take one after the other, and at least one forward and the stepping behind
    it, during which others have theirs.

    Args:
        own_s: seconds of a forward for the rows of one worker.
        half_s: seconds of one for half of all rows; the joint one is two of these.
        in_turn: forwards of workers that wait for one another: all of them on one GPU; on the CPU, those for which
            there is no core.
        step_s: seconds in which a process steps the rows of one worker.

    >>> forward_place(5e-3, 5e-3, in_turn=8), forward_place(5e-3, 20e-3, in_turn=1)
    ('central', 'local')
    """
    local_s = max(in_turn * own_s, step_s + own_s)
    central_s = HANDING_OVER_S + max(2 * half_s, step_s + half_s)
    return "central" if local_s >= WORTH * central_s else "local"


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
