"""Check whether several instances of an environment can share a process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from parenv.argument_checks import at_least, options_of, positive
from parenv.envs.factories import EnvFn, as_factories
from parenv.errors import ConfigurationError, WorkerDiedError, WorkerError, WorkerTimeoutError, describe_exit
from parenv.options import WorkerOptions
from parenv.testing.sharing_probe import OPAQUE, OVERWRITTEN, RAISED, Outcome, SharingProbe
from parenv.vector.env import ParallelVectorEnv

INSTANCES = 3
_DECISIVE = ("observation", "reward", "terminated", "truncated")
"""Beginnings of the names of values that must be the same in two runs alone."""
_PARTICIPLES = {"make": "made", "reset": "reset", "step": "stepped", "render": "rendered", "close": "closed"}
_EVALUATE_IN_PLACE = (
    "pool.evaluate makes further instances in the workers of a pool. Pass in_place=True. parenv.evaluate needs "
    "num_envs=1"
)
Order = tuple[int, str]
"""Number of an instance, and the method to call."""


@dataclass(frozen=True)
class SharingReport:
    """Result of :func:`check_sharing`.

    Args:
        needs_own_process: Whether each instance needs a process of its own; ``None`` if nothing can be concluded.
        steps: Number of steps of each instance.
        problems: Reasons, a sentence each.
        notes: Further facts, a sentence each.

    >>> print(SharingReport(True, 100, ["the reward of instance 0 in step 2 is 3.0 beside instance 1, and 1.0 alone"]))
    needs a process of its own: num_workers=num_envs
    problem: the reward of instance 0 in step 2 is 3.0 beside instance 1, and 1.0 alone
    """

    needs_own_process: bool | None
    steps: int
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = {
            True: "needs a process of its own: num_workers=num_envs",
            False: f"can share a process: {INSTANCES} instances returned the same as alone, in {self.steps} steps each",
            None: "nothing can be concluded",
        }[self.needs_own_process]
        lines = [verdict, *(f"problem: {problem}" for problem in self.problems)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def check_sharing(
    env_fn: EnvFn,
    steps: int = 100,
    seed: int = 0,
    *,
    step_timeout_s: float = 60.0,
    workers: WorkerOptions | None = None,
) -> SharingReport:
    """Check whether several instances of an environment can share a process, and print the result.

    A worker steps many sub-environments in one process. A simulator with one world per process, such as libsumo, a
    pybullet client without an id, a game engine, or a renderer with one frame buffer, then mixes them up. It needs
    ``num_workers=num_envs``.

    The check steps instances alternately in one process, and each alone in a process of its own, with the same seeds
    and random actions. One is reset, made or closed while another is in the middle of an episode. Observations,
    rewards, flags, frames and infos that are plain data must be the same. This process makes no environment.

    Args:
        env_fn: Function that makes the environment, an env id, or a sequence of those.
        steps: Number of steps of each instance.
        seed: Seed of resets and actions.
        step_timeout_s: Limit in seconds for each call of an instance: to make, reset, step, render or close it.
        workers: Further options of the processes, such as ``environment`` and ``setup_fn``.

    Returns:
        The conclusion with its reasons. An exception, a crash and a hang of the environment are reported too.

    Raises:
        ConfigurationError: An argument is invalid.

    >>> report = check_sharing("CartPole-v1", steps=20)
    can share a process: 3 instances returned the same as alone, in 20 steps each
    """
    at_least("steps", steps, 1)
    at_least("seed", seed, 0)
    positive("step_timeout_s", step_timeout_s, " seconds")
    options = options_of("workers", workers, WorkerOptions)
    if options.python is not None:
        raise ConfigurationError(
            f"check_sharing cannot use WorkerOptions(python={options.python!r}), because that interpreter need not "
            "have parenv. Leave it out, or use num_workers=num_envs."
        )
    options = replace(options, step_timeout_s=step_timeout_s)
    report = _checked(partial(SharingProbe, as_factories(env_fn).functions, seed), options, steps)
    print(report)
    return report


def schedule(steps: int) -> list[Order]:
    """Return the orders of all instances, in which each instance takes about the same number of steps."""
    part = -(-steps // 4)

    def alternately(*numbers: int) -> list[Order]:
        return [(number, "step") for _ in range(part) for number in numbers]

    return [
        *((0, "make"), (1, "make"), (0, "reset"), (1, "reset"), *alternately(0, 1), (0, "render"), (1, "render")),
        # One is reset while the other is in the middle of an episode, and takes several steps.
        *((1, "reset"), *alternately(0), *alternately(1), (0, "reset"), *alternately(1, 0), (1, "render")),
        # One is closed, and another made in its place, as after recycle_episodes or a failure.
        *(*alternately(0), (0, "close"), *alternately(1), (2, "make"), (1, "reset"), (2, "reset"), *alternately(2, 1)),
        *((1, "close"), *alternately(2), (2, "reset"), *alternately(2), (2, "render"), *alternately(2), (2, "close")),
    ]


@dataclass
class _Run:
    """Outcomes of the instances so far, and the failure that has ended the run.

    Args:
        outcomes: Orders with their outcomes, in the order of the schedule.
        failure: Number of the instance and a sentence without its subject, or ``None``.
    """

    outcomes: list[tuple[Order, Outcome]] = field(default_factory=list)
    failure: tuple[Order, str] | None = None

    def of(self, number: int) -> list[Outcome]:
        return [outcome for (mine, _), outcome in self.outcomes if mine == number]


def _checked(probe: Callable[..., Any], options: WorkerOptions, steps: int) -> SharingReport:
    orders = schedule(steps)
    each = [[order for order in orders if order[0] == number] for number in range(INSTANCES)]
    rounds = [[order for order in some if order is not None] for some in zip_longest(*each)]
    alone = []
    for _ in range(2):
        alone.append(run := _run([partial(probe, number) for number in range(INSTANCES)], options, rounds))
        if run.failure is not None:
            order, what = run.failure
            beside = f"in a process of its own, while {INSTANCES - 1} other processes had an instance each"
            return SharingReport(None, steps, [f"instance {order[0]} {what}, {beside}. Correct this first"])
    differing, notes = _differences_alone(*alone)
    if real := [name for name in differing if name.startswith(_DECISIVE)]:
        problem = (
            "the environment is not deterministic: two runs alone with the same seed and actions differ in "
            f"{_listed(real)}. Draw random numbers from env.np_random only, which reset(seed=) seeds"
        )
        return SharingReport(None, steps, [problem])
    shared = _run([partial(probe, None)], options, [[order] for order in orders])
    difference = _problem(shared, alone[0], differing)
    if difference is None:
        return SharingReport(False, steps, [], notes)
    return SharingReport(True, steps, [difference], [*notes, _EVALUATE_IN_PLACE])


def _run(probes: Sequence[Callable[[], Any]], options: WorkerOptions, rounds: Sequence[Sequence[Order]]) -> _Run:
    """Call the instances of all probes, each on a worker of its own, until one fails."""
    run = _Run()
    current: Sequence[Order] = rounds[0]
    try:
        with contextlib.closing(ParallelVectorEnv(probes, num_workers=len(probes), workers=options)) as envs:
            for current in rounds:
                answers = envs.call("serve", list(current))
                for order, outcomes in zip(current, zip(*answers, strict=True), strict=True):
                    (outcome,) = [found for found in outcomes if found is not None]
                    if RAISED in outcome:
                        run.failure = run.failure or (order, f"raised {outcome[RAISED]} {_during(run, order)}")
                    else:
                        run.outcomes.append((order, outcome))
                if run.failure is not None:
                    break
    except WorkerError as error:
        order = current[0] if len(probes) == 1 else next((one for one in current if one[0] == error.worker), current[0])
        run.failure = order, _ended(error, _during(run, order), options.step_timeout_s)
    return run


def _ended(error: WorkerError, during: str, limit: float | None) -> str:
    if isinstance(error, WorkerTimeoutError):
        return f"did not return within step_timeout_s={limit:g} s {during}"
    if isinstance(error, WorkerDiedError):
        return f"ended its process {during}: it {describe_exit(error.exit_code, error.signal)}"
    return f"failed {during}: {error}"


def _during(run: _Run, order: Order) -> str:
    method = order[1]
    if method != "step":
        return {"make": "while it was made", "close": "in close()"}.get(method, f"in {method}()")
    done = sum(one == order for one, _ in run.outcomes)
    return f"in step {done + 1}"


def _differences_alone(one: _Run, another: _Run) -> tuple[list[str], list[str]]:
    """Return the names of the values in which two runs differ, and notes about values that are not compared."""
    names, opaque = dict[str, None](), dict[str, None]()
    for number in range(INSTANCES):
        for mine, other in zip(one.of(number), another.of(number), strict=True):
            names |= dict.fromkeys(_differing(mine, other))
            opaque |= dict.fromkeys(name for name, text in mine.items() if text == OPAQUE)
    notes = []
    if names:
        notes.append(f"left out, because two runs alone differ: {_listed(list(names))}")
    if opaque:
        notes.append(f"left out, because it is not plain data: {_listed(list(opaque))}")
    return list(names), notes


def _differing(mine: Outcome, other: Outcome) -> list[str]:
    return [name.removeprefix(OVERWRITTEN) for name in mine | other if mine.get(name) != other.get(name)]


def _problem(shared: _Run, alone: _Run, ignored: Sequence[str]) -> str | None:
    """Return the first difference between instances that share a process and instances alone."""
    taken = [iter(alone.of(number)) for number in range(INSTANCES)]
    seen = _Run()
    for order, outcome in shared.outcomes:
        expected = next(taken[order[0]])
        for name in outcome | expected:
            shared_text, text_alone = outcome.get(name), expected.get(name)
            if shared_text != text_alone and name.removeprefix(OVERWRITTEN) not in ignored:
                return _difference(seen, order, name, shared_text, text_alone)
        seen.outcomes.append((order, outcome))
    if shared.failure is None:
        return None
    order, what = shared.failure
    if order[1] == "make":
        return f"another instance cannot be made in the same process: instance {order[0]} {what}"
    return f"instance {order[0]} {what}, but only beside another instance in its process"


def _difference(seen: _Run, order: Order, name: str, here: str | None, alone: str | None) -> str:
    number, before = order[0], ""
    others = [one for one, _ in seen.outcomes if one[0] != number]
    if others:
        before = f" after instance {others[-1][0]} was {_PARTICIPLES[others[-1][1]]}"
    if name.startswith(OVERWRITTEN):
        return (
            f"the last {name.removeprefix(OVERWRITTEN)} of instance {number} was overwritten{before}: it is not a copy"
        )
    of = f"the {name} of instance {number} {_during(seen, order)}"
    if here is None or alone is None:
        return f"{of} is missing {'in a shared process' if here is None else 'alone'}{before}"
    is_short = not (name.startswith("frame") or " (" in here) and len(here + alone) < 200
    return f"{of} is {here}{before}, and {alone} alone" if is_short else f"{of} differs{before} from the one alone"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more values" if len(names) > 3 else "")
