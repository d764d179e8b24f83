"""Check what a pool does wherever its workers are: equal results, every transition once, deaths, hangs and limits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import envs
import numpy as np
import pytest
import torch
import without_torch
from comparison import assert_same
from policies import lean, zeros
from pool_places import FORKS, IN_PROCESS, STEP_WORKERS, Place, cases, ledgers_anywhere  # noqa: F401
from scripted_agents import Scripted, ScriptedTurns, act, opponents, scripted, species
from without_torch import anything, by_mask, nothing

from parenv import (
    GradientOptions,
    Policy,
    PolicyFactory,
    RestartPolicy,
    Stop,
    TorchPolicy,
    WorkerDiedError,
    WorkerTimeoutError,
    entry_point,
)
from parenv.errors import RestartLimitError
from parenv.policy.policy import Action
from parenv.testing import check_ledger

pytestmark = pytest.mark.usefixtures("warnings_are_expected")
N = 5


class Agent(torch.nn.Module):
    """Actor and critic that sample actions for CartPole."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)

    def act(self, observations: Any, carry: Any) -> Any:
        raise NotImplementedError

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Categorical(logits=self.actor(observations)).sample()


def loss_of_agent(policy: Any, rollout: Any) -> Any:
    return policy.critic(rollout.observations).mean() + policy.actor(rollout.observations).square().mean()


class Scorer(torch.nn.Module):
    """Module that acts by its weights and returns them as an extra."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, ...]:
        actions = (observations.sum(1) + self.weight.sum().long()) % 50
        return actions, self.weight.expand(len(observations), 3)


class Counter(Policy):
    """Policy that counts steps in its carry and returns the published setting ``said`` as an extra."""

    def initial_carry(self, batch: int) -> Any:
        return {"steps": np.zeros(batch, np.int64)}

    def act(self, observations: Any, carry: Any) -> Action:
        said = np.full(len(observations), self.settings.get("said", 0))
        return Action(act(observations), {"steps": carry["steps"], "said": said}, {"steps": carry["steps"] + 1})


ROWS = (
    "observations", "actions", "rewards", "terminated", "truncated", "alive", "extras", "initial_carry", "env_ids",
    "agents", "policy_version", "policy_lag", "first_versions", "last_observations", "last_steps", "restarted",
    "infos", "next_infos",
)  # fmt: skip
EPISODES = ("env_ids", "returns", "lengths")


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: copied(part) for name, part in value.items()}
    return np.array(value) if isinstance(value, np.ndarray) else value


def listed(episodes: Any, *names: str) -> list[Any]:
    """Return the facts of some episodes, whose order depends on the shares of workers."""
    return sorted(zip(*(list(getattr(episodes, name)) for name in (*EPISODES, *names)), strict=True))


def everything(rollout: Any) -> dict[str, Any]:
    """Return all content of a rollout without times."""
    left_out = {"episodes", "serial", "ends"}
    plain = {field.name: getattr(rollout, field.name) for field in fields(rollout) if field.name not in left_out}
    return plain | {"next": rollout.next_observations(), "played": listed(rollout.episodes)}


def everything_of_agents(rollout: Any) -> dict[str, Any]:
    found = {
        name: {field: copied(getattr(rows, field)) for field in ROWS}
        | {"next": copied(rows.next_observations()), "played": listed(rows.episodes, "numbers", "agents")}
        for name, rows in rollout.items()
    }
    states = {"states": copied(rollout.states), "next": copied(rollout.next_states())}
    return {**found, **states, "played": listed(rollout.episodes, "numbers"), "steps": rollout.num_steps}


def collect(env_fn: Any, policy: Any, at: Place, **more: Any) -> list[Any]:
    """Return some rollouts."""
    torch.manual_seed(0)  # The main process makes the policy of a factory.
    with at.pool(env_fn, policy(), num_envs=N, mode="sync", rollout_length=16, seed=3, **more) as pool:
        return [everything(rollout.copy()) for rollout in pool.rollouts(Stop(env_steps=400))]


def evaluated(at: Place) -> list[Any]:
    with at.pool("CartPole-v1", lean, num_envs=N, mode="sync", rollout_length=16, seed=3) as pool:
        return [listed(pool.evaluate(number)) for number in (1, 4, 9, 17)]


def gradients(at: Place) -> list[Any]:
    torch.manual_seed(0)
    agent, found = Agent(), []
    learning = {"parallelism": "gradient", "loss_fn": loss_of_agent, "gradient": GradientOptions(reduction="mean")}
    with at.pool("CartPole-v1", agent, num_envs=4, mode="sync", rollout_length=8, seed=1, **learning) as pool:
        for gradient in pool.gradients(Stop(env_steps=96)):
            gradient.assign_to(agent)
            found.append([parameter.grad.tolist() for parameter in agent.parameters()])  # type: ignore[union-attr]
    return found


def league(kind: Any, at: Place) -> list[Any]:
    """Run a pool in which policies are published, frozen, released and evaluated, and return all results."""
    hen, past, found = TorchPolicy(Scorer(), "act", ("actions", "weight")), list[str](), []
    with at.pool(
        scripted(N, kind), {"hen": hen, "fox": Counter()}, policy_of=opponents, mode="sync",
        rollout_length=6, seed=4, infos=("now",), postprocess=lambda policy, rows: {"twice": rows.rewards * 2},
    ) as pool:  # fmt: skip
        for number, rollout in enumerate(pool.rollouts()):
            found.append(everything_of_agents(rollout))
            with torch.no_grad():
                hen.module.weight += 1
            if number in (1, 3):
                past.append(pool.freeze("hen"))
            if number == 6:
                pool.release(past.pop(0))
            if number == 12:
                return found
            pool.publish({"hen": hen}, past=list(past))
            if number % 3 == 0:
                pool.publish({"fox": Counter()}, said=number)
            if number == 5:
                played = pool.evaluate(7)
                found += [listed(played), listed(played["fox"], "numbers", "agents")]
    raise AssertionError("a stream without criteria has ended")


def loss_of_all(policies: Any, rollout: Any) -> Any:
    losses = [(policies["hen"].module.weight[0] - rows.rewards[rows.alive]).square().sum() for rows in rollout.values()]
    return sum(losses) / rollout.num_steps, {"alive": sum(rows.num_steps for rows in rollout.values())}


def gradients_of_agents(at: Place) -> list[Any]:
    hen, found = TorchPolicy(Scorer(), "act", ("actions", "weight")), []
    with at.pool(
        scripted(3, ScriptedTurns), {"hen": hen, "fox": Counter()}, policy_of=species, mode="sync",
        rollout_length=6, parallelism="gradient", loss_fn=loss_of_all, seed=4,
    ) as pool:  # fmt: skip
        for gradient in pool.gradients(Stop(env_steps=400)):
            gradient.assign_to({"hen": hen})
            assert hen.module.weight.grad is not None
            found.append([hen.module.weight.grad.tolist(), gradient.metrics, gradient.num_samples])
            if len(found) == 2:
                beside = pool.evaluate(4, wait=False)
            with torch.no_grad():
                hen.module.weight -= 1e-3 * hen.module.weight.grad
            pool.publish({"hen": hen})
        played = beside.result().episodes
    return [*found, listed(played)]


def env_of(name: str) -> Any:
    return entry_point(f"{without_torch.__file__}:{name}")


def given(policy: Any) -> Callable[[], Any]:
    return lambda: policy


Story = Callable[[Place], list[Any]]
STORIES: dict[str, tuple[Story, tuple[str, ...]]] = {
    "cartpole": (functools.partial(collect, "CartPole-v1", given(lean)), ()),
    "torch": (
        functools.partial(
            collect, "CartPole-v1", Agent, postprocess=lambda policy, rollout: {"twice": rollout.rewards * 2}
        ),
        ("draws",),
    ),
    "a factory": (functools.partial(collect, "CartPole-v1", given(PolicyFactory(Agent))), ("draws",)),
    "no fixed size": (functools.partial(collect, env_of("Words"), given(anything)), ("all spaces",)),
    "infos": (functools.partial(collect, env_of("WithInfos"), given(by_mask), infos=("mask", "speed")), ()),
    "no elements": (functools.partial(collect, env_of("WithoutElements"), given(nothing), infos=("nothing",)), ()),
    "evaluations": (evaluated, ("shares",)),
    "gradients": (gradients, ("draws",)),
    "parallel agents": (functools.partial(league, Scripted), ("agents", "shares")),
    "AEC agents": (functools.partial(league, ScriptedTurns), ("agents", "shares")),
    "gradients of agents": (gradients_of_agents, ("agents", "shares")),
}
_IN_FORKS: dict[str, list[Any]] = {}


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("pool_place", "story"),
    [case for case in cases([(name, needs) for name, (_, needs) in STORIES.items()]) if case.values[0] != FORKS],
    indirect=["pool_place"],
)
def test_results_of_synchronous_pools_are_equal_everywhere(pool_place: Place, story: str) -> None:
    tell = STORIES[story][0]
    wanted = _IN_FORKS.get(story) or _IN_FORKS.setdefault(story, tell(Place(FORKS, pool_place.begin_hosts)))
    assert len(wanted) > 2
    for one, other in zip(tell(pool_place), wanted, strict=True):
        assert_same(one, other)


class Numbered(Policy):
    """Policy that counts the steps of an episode from 10, and returns the number of its version."""

    def initial_carry(self, batch: int) -> Any:
        return np.full(batch, 10)

    def act(self, observations: Any, carry: Any) -> Action:
        number = np.full(len(observations), self.settings.get("number", 0))
        return Action(zeros(observations), {"steps": carry.copy(), "number": number}, carry + 1)


class NumberedNet(torch.nn.Module):
    """Module that acts like :class:`Numbered`, and has a parameter for gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("number", torch.tensor(0))
        self.bias = torch.nn.Parameter(torch.zeros(()))

    def initial_carry(self, batch: int) -> Any:
        return torch.full((batch,), 10)

    def act(self, observations: torch.Tensor, carry: torch.Tensor) -> Any:
        batch = len(observations)
        return torch.zeros(batch, dtype=torch.int64), carry, self.number.expand(batch), carry + 1


def numbered_net() -> TorchPolicy:
    return TorchPolicy(NumberedNet(), "act", ("actions", "steps", "number", "carry"))


def bias_of(policy: Any, rollout: Any) -> Any:
    return policy.module.bias * rollout.rewards.mean()


LEARNING: dict[str, Any] = {
    "parallelism": "gradient", "loss_fn": bias_of, "gradient": GradientOptions(keep_rollouts=True),
}  # fmt: skip
WHOLE: dict[str, Any] = {"mode": "async", "rollout_length": "episode"}
DELIVERIES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync"},
    "async": {"mode": "async"},
    "without prefetch": {"mode": "async", "prefetch": 0},
    "sync gradients": {"mode": "sync", **LEARNING},
    "async gradients": {"mode": "async", **LEARNING},
    "whole episodes": WHOLE,
    "episodes without prefetch": {**WHOLE, "prefetch": 0},
    "postprocessed episodes": {**WHOLE, "postprocess": lambda policy, rollout: {"twice": rollout.rewards * 2}},
}


def check_whole(rollout: Any) -> None:
    """Check that a rollout is one episode."""
    ended = (rollout.terminated | rollout.truncated)[:, 0].tolist()
    assert ended == [False] * (len(ended) - 1) + [True]
    assert rollout.episodes.lengths.tolist() == [len(ended)]
    assert np.isclose(rollout.episodes.returns[0], rollout.rewards.sum())
    assert rollout.episodes.env_ids.tolist() == rollout.env_ids.tolist()
    assert rollout.initial_carry.tolist() == [10]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("pool_place", "delivery"), cases(DELIVERIES), indirect=["pool_place"])
def test_every_transition_arrives_once_in_order_and_by_its_version(pool_place: Place, delivery: str) -> None:
    options = {"rollout_length": 9, **DELIVERIES[delivery]}
    learns, whole = "loss_fn" in options, options["rollout_length"] == "episode"
    longest, expected, number, env_steps = 90 if whole else 7, dict[int, tuple[int, ...]](), 0, 0
    policy: Any = numbered_net() if learns else Numbered()
    with pool_place.pool(ledgers_anywhere(N, max_length=longest), policy, **options) as pool:
        stream = pool.gradients() if learns else pool.rollouts()
        # On a busy machine, one worker may send much before the other has any processor time.
        while number < 40 or len(expected) < N:
            delivered = next(stream)
            for rollout in delivered.rollouts if learns else [delivered]:
                env_steps += check_ledger(rollout, expected, longest)
                versions = rollout.policy_versions if whole else rollout.policy_version
                assert (rollout.extras["number"] == versions).all()
                assert (rollout.extras["steps"] == 10 + rollout.observations[..., 2]).all()
                assert (rollout.initial_carry == rollout.extras["steps"][0]).all()
                assert whole or rollout.rewards.shape[0] == 9
                if whole:
                    check_whole(rollout)
                if "postprocess" in options:
                    assert (rollout.extras["twice"] == rollout.rewards * 2).all()
            assert learns or (delivered.worker is None) == (options["mode"] == "sync")
            assert delivered.policy_lag == number - delivered.policy_version
            assert options["mode"] == "async" or delivered.policy_lag == 0
            number += 1
            settings = {} if learns else {"number": number}
            if learns:
                policy.module.number += 1
            assert pool.publish(policy, **settings) == pool.policy_version == number
        statistics = pool.statistics()
    assert statistics.env_steps == env_steps
    assert not whole or statistics.episodes == statistics.rollouts == number
    assert statistics.environment_seconds > 0
    assert sum(statistics.policy_lag.values()) == number


HOWS = ("dies", "hangs")
SOON = RestartPolicy(max_restarts=1, backoff_s=1e-3)


def broken(how: str) -> list[Any]:
    """Return factories of four ledgers, of which the last one dies or hangs in every process.

    With step workers, errors have the numbers of a step worker and of its sub-environment in the acting worker, and
    half of the time limit.
    """
    return [*ledgers_anywhere(3), entry_point(f"{envs.__file__}:broken", env_id=3, how=how)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("pool_place", "how"), cases(HOWS, "processes"), indirect=["pool_place"])
def test_without_restarts_a_worker_that_dies_or_hangs_ends_the_pool(pool_place: Place, how: str) -> None:
    kind, words = {
        "dies": (WorkerDiedError, r"worker 1 .*SIGKILL"),
        "hangs": (WorkerTimeoutError, r"(?s)worker 1 .*step_timeout_s=(2|10) s during env\.step\(\).*sleep_long"),
    }[how]
    # The acting worker must find its hung step worker, and report it, within the other half of the limit.
    limit_s = 20.0 if pool_place.name == STEP_WORKERS else 2.0
    with pool_place.pool(broken(how), zeros, workers={"restart": None, "step_timeout_s": limit_s}) as pool:
        with pytest.raises(kind, match=words):
            list(pool.rollouts())
        assert pool.closed


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("pool_place", "how"), cases(HOWS, "processes"), indirect=["pool_place"])
def test_a_worker_that_dies_or_hangs_too_often_ends_the_pool_with_all_reasons(pool_place: Place, how: str) -> None:
    kind = {"dies": WorkerDiedError, "hangs": WorkerTimeoutError}[how]
    with pool_place.pool(broken(how), zeros, workers={"restart": SOON, "step_timeout_s": 2.0}) as pool:
        with pytest.raises(RestartLimitError, match=r"worker 1 \(env_ids (2-3|1)\) has died 2 times") as caught:
            list(pool.rollouts())
        # The errors of a step worker reach this process as text.
        assert [type(death) for death in caught.value.deaths] == [kind] * (2 * (pool_place.name != STEP_WORKERS))
        assert pool.closed
