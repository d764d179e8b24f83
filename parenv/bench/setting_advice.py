"""Measure where the time of a training loop goes, and which setting of its pool is the fastest on this machine."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from parenv.advice import Advice, Setting, in_seconds, in_steps
from parenv.argument_checks import at_least, positive
from parenv.bench.agent import Agent, RandomNetwork, agent_by
from parenv.bench.environment import Environment, tried_out
from parenv.bench.measuring import error_line, in_one_line, load_warning, machine
from parenv.bench.measuring import rollout_length as usual_rollout_length
from parenv.bench.subjects import acting, learning_costs
from parenv.errors import ConfigurationError, ParenvError, SubEnvironmentError
from parenv.experience.gradient import Gradient
from parenv.options import WorkerOptions
from parenv.policy.devices import accelerator
from parenv.policy.snapshots import module_of
from parenv.pool.pool import AsyncWorkerPool
from parenv.process.cores import usable_cores

WORTH = 1.1
"""Gain from which a setting is worth a change."""
Move = Callable[[Setting], Setting | None]
"""Returns another setting to measure, or ``None`` if the move does not apply."""


def fastest(present: Setting, moves: Sequence[Sequence[Move]], rate: Callable[[Setting], float]) -> Setting:
    """Change one argument after another, and repeat each change for as long as the pool becomes clearly faster.

    Args:
        present: Setting to begin with.
        moves: For each argument, alternative moves. The first that helps is taken.
        rate: Function that measures a setting, in env steps per second.

    Returns:
        Fastest setting of those measured, up to differences below ``WORTH``.
    """
    best, best_rate = present, rate(present)
    for alternatives in moves:
        before = best
        for move in alternatives:
            while (other := move(best)) is not None and (reached := rate(other)) >= WORTH * best_rate:
                best, best_rate = other, reached
            if best != before:
                break
    return best


def moves_for(can_share_learning: bool, accelerator: str | None) -> list[tuple[Move, ...]]:
    """Return the moves of each argument, in the order of their usual effect.

    Args:
        can_share_learning: Whether workers can learn with ``parallelism="gradient"``.
        accelerator: Device beside the CPU on which workers can act, or ``None``.
    """
    return [
        (_scaled("num_workers", 2, 128), _replaced(num_workers=0), _scaled("num_workers", 0.5)),
        (_scaled("num_envs", 2, 8192), _scaled("num_envs", 0.5)),
        (_replaced(mode="async"),),
        (_replaced(parallelism="gradient"),) if can_share_learning else (),
        (_scaled("rollout_length", 2, 2048), _scaled("rollout_length", 0.5)),
        (_to_step_workers,),
        () if accelerator is None else (_replaced(worker_device=accelerator),),
    ]


def _scaled(name: str, factor: float, most: float = math.inf) -> Move:
    """Multiply a number. There is always a sub-environment for each worker."""

    def move(now: Setting) -> Setting | None:
        value: Any = int(getattr(now, name) * factor)
        other = replace(now, **{name: value})
        other = replace(other, num_envs=max(other.num_envs, other.num_workers))
        return other if 1 <= value <= most and other != now else None

    return move


def _replaced(**changes: Any) -> Move:
    """Replace values of a setting with workers."""

    def move(now: Setting) -> Setting | None:
        other = replace(now, **changes)
        return other if now.num_workers and other != now else None

    return move


def _to_step_workers(now: Setting) -> Setting | None:
    """Act in one worker for all sub-environments, and step them in other processes."""
    processes = max(2, now.num_workers)
    # Such a worker steps one half of its sub-environments while it acts for the other half.
    if not now.num_workers or now.step_workers is not None or now.num_envs < 2 * processes:
        return None
    return replace(now, num_workers=1, step_workers=processes)


ENVS_PER_WORKER = 8
RUNS = 20
"""Number of short runs among which the seconds are divided. A search takes about as many."""
ROUNDS = 3
Watcher = Callable[[str], object]
"""Called with the next step, or with the reason why something is not measured."""


@dataclass(frozen=True)
class ShortRun:
    """One run of the search.

    Args:
        setting: Setting of the run.
        env_steps_per_second: Env steps per second, 0.0 if the run failed.
        failure: Error in one line, or ``None``.
    """

    setting: Setting
    env_steps_per_second: float
    failure: str | None = None


@dataclass(frozen=True)
class AdviceReport:
    """Result of :func:`advise`.

    Args:
        environment: Name of the environment.
        machine: Facts about the machine, see :func:`parenv.bench.measuring.machine`.
        advice: Facts about the run with the present setting.
        learning_s: Seconds of forward and backward per sample, by device and mini-batch.
        runs: Runs of the search. The first has the present setting.
        recommended: Fastest setting, or the present one if no other is clearly faster.
        present_steps_per_second: Env steps per second of the present setting.
        recommended_steps_per_second: Env steps per second of the recommended setting.
    """

    environment: str
    machine: Mapping[str, Any]
    advice: Advice
    learning_s: Mapping[str, Mapping[int, float]]
    runs: tuple[ShortRun, ...]
    recommended: Setting
    present_steps_per_second: float
    recommended_steps_per_second: float

    @property
    def gain(self) -> float:
        """Measured speed of the recommended setting, as a multiple of the speed of the present one."""
        return self.recommended_steps_per_second / self.present_steps_per_second

    def __str__(self) -> str:
        return "\n".join([in_one_line(self.machine), *load_warning(self.machine), str(self.advice), *_lines(self)])

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps({**asdict(self), "gain": self.gain}, indent=2) + "\n"


def _lines(report: AdviceReport) -> Iterator[str]:
    if report.learning_s:
        yield "forward and backward per sample"
    for device, seconds in report.learning_s.items():
        yield f"  {device}: " + ", ".join(f"{in_seconds(each)} in a mini-batch of {n}" for n, each in seconds.items())
    present, recommended = report.advice.setting, report.recommended
    yield "settings measured, as changes of the present one"
    for run in report.runs:
        result = f"failed: {run.failure}"
        if run.failure is None:
            ratio = run.env_steps_per_second / report.runs[0].env_steps_per_second
            result = f"{in_steps(run.env_steps_per_second)} env steps/s, {ratio:.2f} times as fast"
        yield f"  {run.setting.changes(present) or 'present setting'}: {result}"
    if recommended == present:
        yield f"keep the present setting: no other is at least {WORTH} times as fast"
        return
    yield f"take {recommended}"
    before, after = in_steps(report.present_steps_per_second), in_steps(report.recommended_steps_per_second)
    yield (
        f"it is {report.gain:.2f} times as fast as the present setting: {after} instead of {before} env steps/s, "
        f"medians of {ROUNDS} runs in turn"
    )
    if recommended.update_size != present.update_size:
        yield (
            f"an update then learns from {recommended.update_size:,} env steps instead of {present.update_size:,}: "
            "check that it learns as well"
        )


def advise(
    env: Any,
    *,
    agent: Any = None,
    seconds: float = 15.0,
    num_envs: int | None = None,
    num_workers: int | None = None,
    rollout_length: int | None = None,
    watch: Watcher = lambda doing: None,
) -> AdviceReport:
    """Train in short runs, one after another, and recommend the fastest setting of those measured.

    The present setting comes first. The search then varies ``num_workers``, ``num_envs``, ``mode``, ``parallelism``,
    ``rollout_length``, ``step_workers`` and the workers' device. In the end, the present setting and the fastest one
    run in turn.

    Args:
        env: Env id, ``"module:factory"``, or a callable that makes an environment.
        agent: ``"module:factory"`` or a factory. It makes a policy as :class:`~parenv.AsyncWorkerPool` takes it, or
            ``(policy, learn)``, or ``(policy, learn, loss_fn)``; see :class:`~parenv.bench.agent.Agent`. Every run has
            an agent of its own. Default: an MLP with two hidden layers of 64 that learns nothing.
        seconds: Approximate duration of the measurements, in seconds. The start of each pool adds to it.
        num_envs: Present number of sub-environments. Default: 8 per worker.
        num_workers: Present number of workers. Default: number of usable cores.
        rollout_length: Present rollout length. Default: 128, or less if env steps take long.
        watch: Called with a line before each step.

    Raises:
        ConfigurationError: An argument is wrong, or the environment or the agent does not run.
    """
    positive("seconds", seconds)
    workers = usable_cores() if num_workers is None else at_least("num_workers", num_workers, 1)
    envs = ENVS_PER_WORKER * workers if num_envs is None else at_least("num_envs", num_envs, workers)
    if rollout_length is not None:
        at_least("rollout_length", rollout_length, 1)
    facts, environment = machine(), tried_out(env)

    def new_agent() -> Agent:
        if agent is None:
            return Agent(RandomNetwork(environment.observation_space, environment.action_space))
        return agent_by(agent)

    first, slice_s = new_agent(), seconds / RUNS
    acting(environment, first.policy, batch=1)  # An agent that cannot act is refused before a process starts.
    other_device = accelerator(first.policy)
    devices = ["cpu"] if other_device is None else ["cpu", other_device]
    watch("learning by mini-batch")
    learning_s = learning_costs(environment, first.policy, devices, seconds / 8, watch)
    length = rollout_length or usual_rollout_length(-(-envs // workers) * environment.step_s, slice_s)
    present = Setting(workers, envs, "sync", "experience", length)

    def run(setting: Setting, seconds: float) -> tuple[float, Advice]:
        watch(f"training with {setting}")
        return _trained(environment, new_agent(), setting, seconds)

    rate, advice = run(present, 4 * slice_s)  # Facts need a longer run.
    moves = moves_for(first.loss_fn is not None, other_device)
    searched = _searched(present, rate, moves, lambda setting: run(setting, slice_s)[0])
    return AdviceReport(environment.name, facts, advice, learning_s, *searched)


def _searched(
    present: Setting, present_rate: float, moves: Sequence[Sequence[Move]], measure: Callable[[Setting], float]
) -> tuple[tuple[ShortRun, ...], Setting, float, float]:
    """Search for the fastest setting, and compare it with the present one; return the last fields of a report."""
    runs = [ShortRun(present, present_rate)]

    def short_run(setting: Setting) -> ShortRun:
        try:
            return ShortRun(setting, measure(setting))
        except Exception as error:  # A setting that does not run must not end the search.
            return ShortRun(setting, 0.0, error_line(error.__cause__ or error))

    def rate(setting: Setting) -> float:
        if setting != present:
            runs.append(short_run(setting))
        return runs[-1].env_steps_per_second

    best = fastest(present, moves, rate)
    if best == present:
        return tuple(runs), present, present_rate, present_rate
    # A drift of the machine affects both alike, since they run in turn.
    rounds = [(measure(present), short_run(best).env_steps_per_second) for _ in range(ROUNDS)]
    before, after = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    return (tuple(runs), best, before, after) if after >= WORTH * before else (tuple(runs), present, before, before)


@contextlib.contextmanager
def _as_user_error() -> Iterator[None]:
    """Turn an exception of the environment or the agent into a short message."""
    try:
        yield
    except ParenvError:
        raise
    except Exception as error:
        where = f", {error.__cause__}".splitlines()[0] if isinstance(error.__cause__, SubEnvironmentError) else ""
        raise ConfigurationError(f"the environment or the agent does not run: {error_line(error)}{where}") from error


@_as_user_error()
def _trained(environment: Environment, agent: Agent, setting: Setting, seconds: float) -> tuple[float, Advice]:
    """Train in a pool of its own; return env steps per second, and the facts about the run."""
    with AsyncWorkerPool(
        environment.make,
        agent.policy,
        num_envs=setting.num_envs,
        num_workers=setting.num_workers,
        mode=setting.mode,
        parallelism=setting.parallelism,
        rollout_length=setting.rollout_length,
        loss_fn=agent.loss_fn if setting.parallelism == "gradient" else None,
        workers=WorkerOptions(step_workers=setting.step_workers, device=setting.worker_device),
    ) as pool:
        # Async workers run ahead while the pool opens. Their rollouts must not count, unless the learner is the limit.
        ahead = 2 * setting.num_workers if setting.mode == "async" else 0
        _train(pool, agent, setting, seconds, rollouts=1 + ahead)
        return _train(pool, agent, setting, seconds), pool.advice()


def _train(pool: AsyncWorkerPool, agent: Agent, setting: Setting, seconds: float, rollouts: float = math.inf) -> float:
    """Train for some seconds or rollouts, and at least for one rollout; return env steps per second."""
    module, gradient = module_of(agent.policy), setting.parallelism == "gradient"
    steps, began = pool.statistics().env_steps, time.perf_counter()
    for count, arrived in enumerate(pool.gradients() if gradient else pool.rollouts(), 1):
        if isinstance(arrived, Gradient):
            arrived.assign_to(module)
        elif agent.learn is not None:
            agent.learn(arrived)
        if module is not None:
            pool.publish(agent.policy)
        if count >= rollouts or time.perf_counter() - began >= seconds:
            break
    return (pool.statistics().env_steps - steps) / (time.perf_counter() - began)
