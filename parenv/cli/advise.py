"""advise: measure an environment, a policy and its learner on this machine, and say how to set a pool for them."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

from parenv.cli import measuring
from parenv.cli.agent import Agent, RandomNetwork, agent_by
from parenv.cli.curves import acting_seconds, by_device, learning_seconds
from parenv.cli.environment import Environment, tried_out
from parenv.cli.machine import in_one_line, machine
from parenv.cli.schedule import rollout_length
from parenv.cli.subjects import acting
from parenv.crew.arguments import at_least
from parenv.errors import ConfigurationError, ParenvError, SubEnvironmentError
from parenv.experience.gradient import Gradient
from parenv.policy.snapshots import module_of
from parenv.pool.advice import Advice, in_steps
from parenv.pool.advising import advise as advise_on
from parenv.pool.costs import Setting
from parenv.pool.pool import AsyncWorkerPool
from parenv.process.cores import usable_cores

ENVS_PER_WORKER = 8
ROUNDS = 3


@dataclass(frozen=True)
class Verified:
    """Env steps per second with the setting that was measured and with the recommended one, in turn.

    Args:
        before: medians of the setting that was measured.
        predicted: what the advice says of the recommended one.
        measured: its median.
    """

    before: float
    predicted: float
    measured: float


@dataclass(frozen=True)
class AdviceReport:
    """Everything that :func:`advise` found.

    Args:
        environment: its name.
        machine: see :func:`parenv.cli.machine.machine`.
        advice: see :class:`~parenv.pool.advice.Advice`.
        verified: the prediction and what came of it; ``None`` if that was not asked for.
    """

    environment: str
    machine: Mapping[str, Any]
    advice: Advice
    verified: Verified | None

    def __str__(self) -> str:
        lines = [in_one_line(self.machine), str(self.advice)]
        if self.verified is not None:
            before, predicted, measured = (in_steps(rate) for rate in astuple(self.verified))
            ratio = self.verified.measured / self.verified.predicted
            lines.append(
                f"verified: {before} env steps/s before; {predicted} predicted, {measured} measured ({ratio:.2f} times)"
            )
        return "\n".join(lines)

    def to_json(self) -> str:
        """As JSON, with R as ``"ratio"``: ``null`` where nothing was learned."""
        ratio = self.advice.costs.ratio
        return json.dumps({**asdict(self), "ratio": ratio if math.isfinite(ratio) else None}, indent=2) + "\n"


def advise(
    env: Any,
    *,
    agent: Any = None,
    seconds: float = 15.0,
    num_envs: int | None = None,
    num_workers: int | None = None,
    verify: bool = False,
    watch: Callable[[str], object] = lambda doing: None,
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
        verify: whether the advice is put to the test.
        watch: is told what comes next.

    Raises:
        ConfigurationError: an argument is wrong, or the environment or the agent does not run.
    """
    if not seconds > 0:
        raise ConfigurationError(f"seconds must be positive, got {seconds!r}")
    workers = usable_cores() if num_workers is None else num_workers
    envs = ENVS_PER_WORKER * workers if num_envs is None else num_envs
    at_least("num_workers", workers, 1)
    at_least("num_envs", envs, workers)
    facts, environment = machine(), tried_out(env)

    def new_agent() -> Agent:
        return _agent(agent, environment)

    first = new_agent()
    acting(environment, first.policy, batch=1)  # An agent that cannot is refused before anything is measured.
    watch("acting and learning by batch")
    acting_at = by_device("acting", acting_seconds, environment, first.policy, seconds / 6, watch)
    learning_at = by_device("learning", learning_seconds, environment, first.policy, seconds / 6, watch)
    length = rollout_length(-(-envs // workers) * environment.step_s, seconds / 4)
    setting = Setting("sync", "experience", workers, envs, length)
    watch(f"training with {envs} sub-environments in {workers} workers for {seconds * 2 / 3:.0f} s")
    with _opened(environment, first, setting) as pool:
        _train(pool, first, setting, seconds * 2 / 3)
        costs = pool.advice().costs
    if first.learn is None:
        costs = replace(costs, learner_s=0.0, learner_processor_s=0.0)
    shared = first.loss_fn is not None
    advice = advise_on(replace(costs, acting_at=acting_at, learning_at=learning_at, can_share_learning=shared))
    verified = _verified(environment, new_agent, advice, seconds, watch) if verify else None
    return AdviceReport(environment.name, facts, advice, verified)


def _agent(agent: Any, environment: Environment) -> Agent:
    if agent is None:
        return Agent(RandomNetwork(environment.observation_space, environment.action_space))
    return agent_by(agent)


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
    gradient = setting.parallelism == "gradient"
    return AsyncWorkerPool(
        environment.make,
        agent.policy,
        num_envs=setting.num_envs,
        num_workers=setting.num_workers,
        mode=setting.mode,
        parallelism=setting.parallelism,
        rollout_length=setting.rollout_length,
        loss_fn=agent.loss_fn if gradient else None,
    )


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
    environment: Environment,
    new_agent: Callable[[], Agent],
    advice: Advice,
    seconds: float,
    watch: Callable[[str], object],
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
    return Verified(before, advice.predicted_steps_per_second, measured)
