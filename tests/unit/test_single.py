"""Check that the row loop for one sub-environment fills rollouts bitwise as the loop for any number of them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from comparison import assert_same

from parenv.envs.fitting import Fit
from parenv.envs.stepping import EnvStepper
from parenv.errors import ObservationError, PolicyOutputError
from parenv.memory.layout import Extra, RolloutSpec
from parenv.memory.spaces import leaves
from parenv.policy.policy import Action, Policy
from parenv.worker import single, single_agent_collector
from parenv.worker.actor import Actor
from parenv.worker.single_agent_collector import SingleAgentCollector, StopCollectingError, private_writer, reset

from .scripted import quiet

T = 40


class CountingPolicy(Policy):
    """Policy without an initial carry that returns actions in a given form and the number of the step as an extra."""

    def __init__(self, form: Any) -> None:
        self.form = form

    def act(self, observations: Any, carry: Any) -> Action:
        count, seen = 0 if carry is None else carry, observations.copy()
        observations.fill(np.nan)  # The policy may overwrite its copy of the observations.
        return Action(self.form(seen), {"count": np.full(len(seen), count)}, count + 1)


def collector(env_id: str, policy: Any, extras: bool, fit: Fit | None = None) -> tuple[SingleAgentCollector, Any]:
    progress = quiet()
    stepper = EnvStepper([gym.make(env_id)], 0, progress, fit)
    of = (Extra("count", (), "<i8"),) if extras else ()
    spec = RolloutSpec(T, leaves(stepper.observation_space), leaves(stepper.action_space), of)
    rows, _ = reset(stepper, spec.observations, [7])
    actor = Actor(policy, spec.observations, spec.actions, "cpu", fit=fit)
    return SingleAgentCollector(stepper, actor, spec, rows, np.arange(1), 0, progress), private_writer(spec, 1)


def rollouts(env_id: str, policy: Any, extras: bool) -> list[Any]:
    """Return the contents of the slot after each of four rollouts, without measured seconds."""
    made, writer = collector(env_id, policy, extras)
    found = []
    for _ in range(4):
        made.collect(writer)
        ends = writer.end_records().copy()
        ends["seconds"] = writer.arrays["open", 0]["seconds"] = 0.0
        fields = [writer.arrays[name].copy() for name in writer.arrays if name[0] not in ("commits", "ends", "finals")]
        found.append([fields, ends, writer.arrays["finals", 0][: len(ends)].copy(), made.get_state()["rows"]])
    made.stepper.close()
    return found


FORMS = {
    "int64": ("CartPole-v1", lambda o: (o[:, 2] > 0).astype(np.int64)),
    "int32": ("CartPole-v1", lambda o: (o[:, 2] > 0).astype(np.int32)),
    "bool": ("CartPole-v1", lambda o: o[:, 2] > 0),
    "list": ("CartPole-v1", lambda o: [int(o[0, 2] > 0)]),
    "float32": ("MountainCarContinuous-v0", lambda o: o[:, 1:]),
    "float64": ("MountainCarContinuous-v0", lambda o: o[:, 1:].astype(np.float64)),
}


@pytest.mark.filterwarnings("ignore:the actions")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("extras", [False, True])
def test_both_loops_fill_the_same_rollouts(form: str, extras: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    env_id, function = FORMS[form]
    policy = CountingPolicy(function) if extras else function
    entered = []
    fill_rows = single.fill_rows
    monkeypatch.setattr(single_agent_collector, "fill_rows", lambda *given: entered.append(1) or fill_rows(*given))
    alone = rollouts(env_id, policy, extras)
    assert len(entered) == 4
    monkeypatch.setattr(single_agent_collector, "single_env", lambda *_: None)
    assert_same(alone, rollouts(env_id, policy, extras))
    assert len(entered) == 4


def test_the_error_for_a_wrong_observation_has_the_number_of_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, writer = collector("CartPole-v1", lambda o: np.zeros(1, np.int64), False)
    made.collect(writer)
    step, shown = made.stepper._steps[0], iter(range(3))

    def of_another_shape(action: Any) -> Any:
        observation, *rest = step(action)
        return (observation if next(shown, None) is not None else observation[:2]), *rest

    made.stepper._steps[0] = of_another_shape
    with pytest.raises(ObservationError, match=f"in env step {T + 4}: the observation must have shape"):
        made.collect(writer)


def test_actions_that_do_not_fit_are_an_error() -> None:
    made, writer = collector("CartPole-v1", lambda o: np.zeros(2, np.int64), False)
    with pytest.raises(PolicyOutputError, match=r"actions of shape \(1,\)"):
        made.collect(writer)


def test_closing_ends_the_loop_within_a_row() -> None:
    made, writer = collector("CartPole-v1", lambda o: np.zeros(1, np.int64), False)
    made._status.closing[0] = True
    with pytest.raises(StopCollectingError):
        made.collect(writer)


def test_each_row_advances_the_heartbeat() -> None:
    made, writer = collector("Pendulum-v1", lambda o: o[:, :1], False)
    before = made._status.heartbeat[0]
    made.collect(writer)
    assert made._status.heartbeat[0] - before == T + 1


def test_actions_that_must_be_finite_are_checked() -> None:
    made, writer = collector(
        "MountainCarContinuous-v0", lambda o: o[:, :1] * np.float32(np.nan), False, Fit(finite=True)
    )
    with pytest.raises(PolicyOutputError, match="must be finite"):
        made.collect(writer)
