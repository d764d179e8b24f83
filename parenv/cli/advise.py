"""advise: measure an environment, a policy and its learner on this machine, and say how to set a pool for them."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from parenv.advice.advising import advise as advise_on
from parenv.advice.costs import Costs, Setting, fixed_seconds
from parenv.advice.recommendations import NEARLY, Advice, in_steps
from parenv.argument_checks import at_least, positive
from parenv.cli import measuring
from parenv.cli.agent import Agent, RandomNetwork, agent_by
from parenv.cli.curves import Watcher, acting_seconds, by_device, learning_seconds
from parenv.cli.environment import Environment, tried_out
from parenv.cli.machine import in_one_line, machine
from parenv.cli.schedule import rollout_length as usual_rollout_length
from parenv.cli.subjects import acting
from parenv.errors import ConfigurationError, ParenvError, SubEnvironmentError
from parenv.experience.gradient import Gradient
from parenv.policy.snapshots import module_of
from parenv.pool.pool import AsyncWorkerPool
from parenv.process.cores import usable_cores

ENVS_PER_WORKER = 8
ROUNDS = 3
FEWER = 4
"""How many times shorter the rollouts are by which a learner's costs by update and by env step are told apart."""


@dataclass(frozen=True)
class Verified:
    """Env steps per second with the setting that was measured and with the recommended one, in turn.

    Args:
        before: medians of the setting that was measured.
        predicted: what the advice says of the recommended one.
        measured: its median.
        take: the setting to take after that.
    """

    before: float
    predicted: float
    measured: float
    take: Setting

    @classmethod
    def of(cls, advice: Advice, before: float, measured: float) -> Verified:
        """The recommended setting is to be taken unless it is slower."""
        holds = measured >= NEARLY * before
        take = advice.recommended if holds else advice.costs.setting
        return cls(before, advice.predicted_steps_per_second, measured, take)


@dataclass(frozen=True)
class AdviceReport:
    """Everything that :func:`advise` found.

    Args:
        environment: its name.
        machine: see :func:`parenv.cli.machine.machine`.
        advice: see :class:`~parenv.advice.recommendations.Advice`.
        verified: the prediction and what came of it; ``None`` if that was not asked for.
    """

    environment: str
    machine: Mapping[str, Any]
    advice: Advice
    verified: Verified | None

    def __str__(self) -> str:
        lines = [in_one_line(self.machine), str(self.advice)]
        if self.verified is not None:
            lines += _in_words(self.verified, self.advice)
        return "\n".join(lines)

    def to_json(self) -> str:
        """As JSON, with R as ``"ratio"``: ``null`` where nothing was learned."""
        ratio = self.advice.costs.ratio
        return json.dumps({**asdict(self), "ratio": ratio if math.isfinite(ratio) else None}, indent=2) + "\n"


def _in_words(found: Verified, advice: Advice) -> Iterator[str]:
    before, predicted, measured = (in_steps(rate) for rate in (found.before, found.predicted, found.measured))
    ratio = found.measured / found.predicted
    yield f"verified: {before} env steps/s before; {predicted} predicted, {measured} measured ({ratio:.2f} times)"
    gain = f"{found.measured / found.before:.2f} times as fast as before"
    if found.take == advice.costs.setting == advice.recommended:
        yield "take what there is: the recommended setting is the one that was measured"
    elif found.take == advice.recommended:
        yield f"take the recommended setting: {gain}"
    else:
        yield f"the advice does not hold: the recommended setting is {gain}; keep {found.take}"


def advise(
    env: Any,
    *,
    agent: Any = None,
    seconds: float = 15.0,
    num_envs: int | None = None,
    num_workers: int | None = None,
    rollout_length: int | None = None,
    verify: bool = False,
    watch: Watcher = lambda doing: None,
) -> AdviceReport:
    """Train for a while in sync mode, where collecting and learning do not slow each other down, and draw conclusions.

    Args:
        env: an env id, ``"module:factory"``, or a callable that makes an environment.
        agent: ``"module:factory"`` or a factory. It makes a policy as :class:`~parenv.AsyncWorkerPool` takes it, or
            ``(policy, learn)``, or ``(policy, learn, loss_fn)``; see :class:`~parenv.cli.agent.Agent`. By default an
            MLP with two hidden layers of 64 that learns nothing.
        seconds: that measuring takes, roughly; as long again to verify.
        num_envs: sub-environments; 8 per worker by default.
        num_workers: while measuring; by default the cores that may be used.
        rollout_length: while measuring, ``T``; by default 128, or less where an env step takes long.
        verify: whether the advice is put to the test.
        watch: is told what comes next.

    Raises:
        ConfigurationError: an argument is wrong, or the environment or the agent does not run.
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

    first = new_agent()
    acting(environment, first.policy, batch=1)  # An agent that cannot is refused before anything is measured.
    watch("acting and learning by batch")
    acting_at = by_device("acting", acting_seconds, environment, first.policy, seconds / 6, watch)
    learning_at = by_device("learning", learning_seconds, environment, first.policy, seconds / 6, watch)
    length = rollout_length or usual_rollout_length(-(-envs // workers) * environment.step_s, seconds / 4)
    setting = Setting("sync", "experience", workers, envs, length)
    watch(f"training with {envs} sub-environments in {workers} workers for {seconds * 2 / 3:.0f} s")
    costs = _costs(environment, first, setting, seconds / 2)
    update_s = _update_seconds(environment, first, costs, seconds / 6, watch)
    shared = first.loss_fn is not None
    costs = replace(costs, acting_at=acting_at, learning_at=learning_at, can_share_learning=shared, update_s=update_s)
    advice = advise_on(costs)
    verified = _verified(environment, new_agent, advice, seconds, watch) if verify else None
    return AdviceReport(environment.name, facts, advice, verified)


class _Timed:
    """Times a learner's updates, but for the first one, which warms it up."""

    def __init__(self, learn: Callable[[Any], object]) -> None:
        self._learn = learn
        self.updates, self.wall_s, self.processor_s = -1, 0.0, 0.0

    def __call__(self, rollout: Any) -> None:
        began, began_processor = time.perf_counter(), time.process_time()
        self._learn(rollout)
        self.updates += 1
        if self.updates:
            self.wall_s += time.perf_counter() - began
            self.processor_s += time.process_time() - began_processor


def _costs(environment: Environment, agent: Agent, setting: Setting, seconds: float) -> Costs:
    """Of training for so long, and of learning once the learner is warm."""
    timed = None if agent.learn is None else _Timed(agent.learn)
    with _opened(environment, agent, setting) as pool:
        agent = agent._replace(learn=timed)
        _train(pool, agent, setting, 0.0)
        rate = _train(pool, agent, setting, seconds)
        costs = replace(pool.advice().costs, env_steps_per_second=rate, learner_s=0.0, learner_processor_s=0.0)
    if timed is None:
        return costs
    learned = timed.updates * setting.env_steps_of_a_rollout
    return replace(costs, learner_s=timed.wall_s / learned, learner_processor_s=timed.processor_s / learned)


def _update_seconds(
    environment: Environment, agent: Agent, costs: Costs, seconds: float, watch: Watcher
) -> float | None:
    """What an update costs whatever its size, by learning from rollouts of another length too; ``None``: not known."""
    if agent.learn is None:
        return 0.0
    length = costs.setting.length
    other = replace(costs.setting, rollout_length=length // FEWER if length >= FEWER else length * FEWER)
    watch(f"training with rollouts of {other.length} env steps instead of {length}")
    try:
        there = _costs(environment, agent, other, seconds)
    except ParenvError as error:
        watch(f"learning from so many is not measured: {measuring.in_one_line(error)}")
        return None
    return fixed_seconds({one.setting.env_steps_of_a_rollout: one.update_seconds for one in (costs, there)})


@contextlib.contextmanager
def _blamed() -> Iterator[None]:
    try:
        yield
    except ParenvError:
        raise
    except Exception as error:
        where = f", {error.__cause__}".splitlines()[0] if isinstance(error.__cause__, SubEnvironmentError) else ""
        raise ConfigurationError(
            f"the environment or the agent does not run: {measuring.in_one_line(error)}{where}"
        ) from error


@_blamed()
def _opened(environment: Environment, agent: Agent, setting: Setting) -> AsyncWorkerPool:
    loss_fn = agent.loss_fn if setting.parallelism == "gradient" else None
    return AsyncWorkerPool(environment.make, agent.policy, loss_fn=loss_fn, **asdict(setting))


@_blamed()
def _train(pool: AsyncWorkerPool, agent: Agent, setting: Setting, seconds: float) -> float:
    """Train for so long, one rollout at least; env steps per second."""
    gradient, module = setting.parallelism == "gradient", module_of(agent.policy)
    steps, began = pool.statistics().env_steps, time.perf_counter()
    for arrived in pool.gradients() if gradient else pool.rollouts():
        if isinstance(arrived, Gradient):
            arrived.assign_to(module)
        elif agent.learn is not None:
            agent.learn(arrived)
        if module is not None:
            pool.publish(agent.policy)
        if time.perf_counter() - began >= seconds:
            break
    return (pool.statistics().env_steps - steps) / (time.perf_counter() - began)


def _verified(
    environment: Environment, new_agent: Callable[[], Agent], advice: Advice, seconds: float, watch: Watcher
) -> Verified:
    """Both settings in turn, so that a drift of the machine meets both alike."""
    settings = {"before": advice.costs.setting, "advised": advice.recommended}
    rates: dict[str, list[float]] = {name: [] for name in settings}
    for number in range(ROUNDS):
        for name, setting in settings.items():
            watch(f"verifying, round {number + 1} of {ROUNDS}: {setting.num_workers} workers, {setting.mode}")
            agent = new_agent()
            with _opened(environment, agent, setting) as pool:
                _train(pool, agent, setting, seconds / ROUNDS / 8)
                rates[name].append(_train(pool, agent, setting, seconds / ROUNDS / 2))
    before, measured = (statistics.median(values) for values in rates.values())
    return Verified.of(advice, before, measured)
