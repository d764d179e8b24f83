"""Check ``publish(min_kl=...)``, which publishes a policy only if it has changed enough."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from parenv import AsyncWorkerPool, ConfigurationError, Policy, TorchPolicy
from parenv.policy.policy import Action


class Coin(torch.nn.Module):
    """Module with two actions, whose probabilities depend on a parameter and not on the observations."""

    def __init__(self) -> None:
        super().__init__()
        self.logit = torch.nn.Parameter(torch.zeros(()))

    def get_action_and_value(self, observations: Any, action: Any = None) -> tuple[Any, ...]:
        logits = torch.stack([self.logit, -self.logit]).expand(len(observations), 2)
        distribution = torch.distributions.Categorical(logits=logits)
        action = distribution.sample() if action is None else action
        return action, distribution.log_prob(action), distribution.entropy(), torch.zeros(len(observations))

    def set(self, logit: float) -> None:
        with torch.no_grad():
            self.logit.fill_(logit)


def make_pool(policy: Any, **more: Any) -> AsyncWorkerPool:
    """Return a sync pool of CartPoles with a seed."""
    arguments = {"num_envs": 8, "num_workers": 2, "rollout_length": 256, "mode": "sync", "seed": 1, **more}
    return AsyncWorkerPool("CartPole-v1", policy, **arguments)


def divergence(before: float, now: float) -> float:
    """Return the KL divergence from the coin with the logit ``before`` to the coin with the logit ``now``."""
    p, q = (1 / (1 + math.exp(-2 * logit)) for logit in (before, now))
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def test_only_a_policy_that_has_changed_enough_is_published_and_skips_are_counted() -> None:
    agent = Coin()
    with make_pool(TorchPolicy(agent)) as pool:
        stream = pool.rollouts()
        rollout = next(stream)
        for count, logit in enumerate((0.0, 0.01, 0.05), 1):
            agent.set(logit)
            assert divergence(0, logit) < 0.01
            assert pool.publish(agent, min_kl=0.01, on=rollout) == 0
            assert pool.statistics().skipped_publishes == count
        agent.set(0.2)
        assert divergence(0, 0.2) > 0.015
        assert pool.publish(agent, min_kl=0.01, on=rollout) == 1
        # The divergence is measured from the version that acted, and not from the newest one.
        assert pool.publish(TorchPolicy(agent), min_kl=0.01, on=rollout) == 2
        rollout = next(stream)
        assert rollout.policy_version == 2
        assert pool.publish(agent, min_kl=0.01, on=rollout.to("cpu")) == 2
        assert pool.publish(agent, min_kl=0.01, on=rollout, temperature=1.0) == 3
        assert pool.publish(agent) == 4
        assert pool.statistics().skipped_publishes == 4
        assert "4 publishes skipped" in str(pool.statistics())


@pytest.mark.more
def test_the_estimate_approximates_the_divergence() -> None:
    from parenv.pool.divergence import kl_from

    agent = Coin()
    with make_pool(TorchPolicy(agent), rollout_length=2048) as pool:
        rollout = next(pool.rollouts())
    assert kl_from(rollout, agent, TorchPolicy(agent)) == 0
    agent.set(0.5)
    assert kl_from(rollout, agent, TorchPolicy(agent)) == pytest.approx(divergence(0, 0.5), rel=0.1)
    agent.set(1e4)
    assert kl_from(rollout, agent, TorchPolicy(agent)) > 100


def test_only_named_policies_that_have_changed_enough_are_published() -> None:
    one, other = Coin(), Coin()
    policies = {"one": TorchPolicy(one), "other": TorchPolicy(other)}
    with make_pool(policies, policy_of=lambda _, episode: ("one", "other")[episode.env_id % 2]) as pool:
        rollout = next(pool.rollouts())
        assert pool.publish({"one": one, "other": other}, min_kl=0.01, on=rollout) == 0
        assert pool.statistics().skipped_publishes == 1
        other.set(0.3)
        assert pool.publish({"one": one, "other": other}, min_kl=0.01, on=rollout) == 1
        assert pool.policy_versions == {"one": 0, "other": 1}
        assert pool.publish({"one": one, "other": other}, min_kl=0.01, on=rollout, temperature=1.0) == 2
        assert pool.policy_versions == {"one": 1, "other": 2}
        assert pool.statistics().skipped_publishes == 1
        with pytest.raises(ConfigurationError, match="min_kl needs on=rollout"):
            pool.publish({"one": one}, min_kl=0.01, on=rollout["one"])
        with pytest.raises(ConfigurationError, match="got 'third'"):
            pool.publish({"third": one}, min_kl=0.01, on=rollout)


def test_rows_that_are_not_alive_do_not_count() -> None:
    from parenv.pool.divergence import kl_from

    agent = Coin()
    with make_pool({"coin": TorchPolicy(agent)}, num_workers=0, num_envs=1, rollout_length=16) as pool:
        rows = next(pool.rollouts())["coin"]
    agent.set(0.3)
    alive = rows.alive.copy()
    alive[8:] = False
    extras = {"log_prob": np.where(alive, rows.extras["log_prob"], np.nan)}
    assert 0 < kl_from(replace(rows, alive=alive, extras=extras), agent, TorchPolicy(agent)) < 0.5


def test_a_policy_whose_divergence_is_nan_is_published() -> None:
    agent = Coin()
    with make_pool(TorchPolicy(agent)) as pool:
        rollout = next(pool.rollouts())
        broken = replace(rollout, extras={"log_prob": np.full_like(rollout.extras["log_prob"], np.nan)})
        assert pool.publish(agent, min_kl=0.01, on=broken) == 1


class Own(Policy):
    """Policy that implements ``log_prob``."""

    takes_tensors = True

    def __init__(self) -> None:
        self.module = Coin()

    def act(self, observations: Any, carry: Any) -> Action:
        actions, log_prob, *_ = self.module.get_action_and_value(observations)
        return Action(actions, {"log_prob": log_prob})

    def log_prob(self, observations: Any, actions: Any) -> Any:
        return self.module.get_action_and_value(observations, actions)[1]


def test_a_custom_policy_may_implement_log_prob() -> None:
    policy = Own()
    with make_pool(policy) as pool:
        rollout = next(pool.rollouts())
        assert pool.publish(policy, min_kl=0.01, on=rollout) == 0
        policy.module.set(1.0)
        assert pool.publish(policy, min_kl=0.01, on=rollout) == 1


class Mute(Coin):
    """Module whose method ``act`` takes no actions and so cannot compute their log-probability."""

    def act(self, observations: Any) -> tuple[Any, ...]:
        return self.get_action_and_value(observations)


@pytest.mark.parametrize(
    ("policy", "given", "arguments", "message"),
    [
        (TorchPolicy(Coin()), Coin(), {"min_kl": 0.01}, "min_kl needs on=rollout"),
        (TorchPolicy(Coin()), Coin(), {"min_kl": -1}, "min_kl must be a positive number"),
        (TorchPolicy(Coin()), Coin(), {"min_kl": None}, "min_kl must be a positive number"),
        (TorchPolicy(Coin()), Coin().state_dict(), {}, "min_kl needs the module or the policy, got"),
        (TorchPolicy(Mute(), "act"), Mute(), {}, "Mute.act cannot compute the log-probability of given actions"),
        (
            lambda o: o[:, 2] > 0,
            lambda o: o[:, 2] > 0,
            {},
            r'needs rollouts with the extra "log_prob", got the extras \[\]',
        ),
    ],
)
def test_policies_that_cannot_be_compared_are_refused(policy: Any, given: Any, arguments: Any, message: str) -> None:
    with make_pool(policy, num_workers=0, num_envs=1, rollout_length=4) as pool:
        rollout = next(pool.rollouts())
        on = {} if message.startswith("min_kl needs on") else {"on": rollout}
        with pytest.raises(ConfigurationError, match=message):
            pool.publish(given, **{"min_kl": 0.01, **on, **arguments})
        assert pool.policy_version == 0
        assert pool.statistics().skipped_publishes == 0
