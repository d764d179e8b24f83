"""What a worker on a host may say where messages leave their form open, and a sample of what it may not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parenv.errors import ConfigurationError, ProtocolError
from parenv.memory.layout import WHOLE_EPISODES, RolloutSpec
from parenv.memory.spaces import describe, leaves
from parenv.placement.forms import check_commit, check_failure, check_ready
from parenv.protocol.messages import Commit, Failure, Ready

BOX, DISCRETE, TEXT = spaces.Box(-1, 1, (3,)), spaces.Discrete(2), spaces.Text(4)
STEPS = Ready(
    {
        "observation_space": [[describe(BOX), describe(TEXT)], [0, 1, 0]],
        "action_space": [[describe(DISCRETE)], [0] * 3],
    },
    3,
    {"metadata": {"render_modes": ["human"]}, "render_mode": None, "generators": {}},
    [],
)
ROLLOUTS = Ready([describe(BOX), describe(DISCRETE)], 2, [["value", [], "<f4", False]], [[["h"], [8], "<f8"]])
SPEC = RolloutSpec(2, leaves(TEXT), leaves(TEXT))
FAILURE = Failure(0, 0, 0, "step", ["builtins", "ValueError"], "no", "", {"code": 3})
COMMIT = Commit(
    0,
    {("observations", 0): [["a", "b"]] * 3, ("actions", 0): [["a", "b"]] * 2, ("finals", 0): ["z"]},
    None,
    [[1, "step", "ValueError: no"]],
)
GRADIENT = RolloutSpec(2, leaves(BOX), leaves(DISCRETE), gradient_bytes=64)
EPISODES = replace(GRADIENT, rollout_length=WHOLE_EPISODES)
REPORT = Commit(0, {}, [4, {"loss": 0.5}, None], [])
COLUMNS = [[1.0, 2.0], [10, 20], [0.1, 0.2], [0, 1]]


def test_what_honest_workers_say_is_let_through() -> None:
    check_ready(STEPS, steps=True)
    check_ready(ROLLOUTS, steps=False)
    check_failure(FAILURE)
    check_commit(COMMIT, SPEC, 2, 1)
    check_commit(REPORT, GRADIENT, 2, 0)
    check_commit(replace(REPORT, report=[30, {}, COLUMNS]), EPISODES, 2, 0)


@pytest.mark.parametrize("changed", [{"kind": "ValueError"}, {"attributes": [3]}, {"attributes": {3: "code"}}], ids=str)
def test_a_failure_of_another_form_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        check_failure(replace(FAILURE, **changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"num_envs": 0},
        {"num_envs": 2},
        {"num_envs": 1 << 60},
        {"spaces": [describe(BOX), describe(DISCRETE)]},
        {"spaces": {}},
        {"spaces": {**STEPS.spaces, "action_space": 7}},
        {"spaces": {**STEPS.spaces, "action_space": [7, 7]}},
        {"spaces": {**STEPS.spaces, "action_space": [[describe(DISCRETE)], [0, 0, 1]]}},
        {"spaces": {**STEPS.spaces, "action_space": [[describe(DISCRETE)] * 2, [0, 0, 0]]}},
        {"spaces": {**STEPS.spaces, "action_space": [["box"], [0, 0, 0]]}},
        {"spaces": {**STEPS.spaces, "action_space": [[describe(DISCRETE)], ["0", "0", "0"]]}},
        {"extras": []},
        {"extras": {**STEPS.extras, "metadata": None}},
        {"extras": {**STEPS.extras, "render_mode": 5}},
        {"extras": {**STEPS.extras, "generators": 5}},
    ],
    ids=str,
)
def test_a_worker_of_a_vector_env_says_nothing_else(changed: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        check_ready(replace(STEPS, **changed), steps=True)


@pytest.mark.parametrize(
    "changed",
    [
        {"num_envs": 1 << 60},
        {"carry": [[["deeper"] * 2000, [8], "<f8"]]},
        {"carry": [[["deeper"] * 65, [8], "<f8"]]},
        {"carry": [[[("no", "key")], [8], "<f8"]]},
        {"spaces": [["dict", {1: describe(BOX)}], describe(DISCRETE)]},
    ],
    ids=lambda changed: str(changed)[:40],
)
def test_a_worker_of_a_pool_says_nothing_else(changed: dict[str, Any]) -> None:
    with pytest.raises((ProtocolError, ConfigurationError)):
        check_ready(replace(ROLLOUTS, **changed), steps=False)


@pytest.mark.parametrize(
    "objects",
    [
        {("observations", 0): 5},
        {("observations", 0): [["a", "b"]] * 2},
        {("observations", 0): [["a"]] * 3},
        {("observations", 0): [["a", "b"], ["a", "b"], 5]},
        {("actions", 0): [["a", "b"]] * 3},
        {("finals", 0): []},
        {("finals", 0): "z"},
    ],
    ids=str,
)
def test_objects_of_a_rollout_have_its_shape(objects: dict[Any, Any]) -> None:
    with pytest.raises(ProtocolError):
        check_commit(replace(COMMIT, objects={**COMMIT.objects, **objects}), SPEC, 2, 1)


@pytest.mark.parametrize(
    ("spec", "report"),
    [
        (SPEC, [4, {}, None]),
        (GRADIENT, None),
        (GRADIENT, [4, {}]),
        (GRADIENT, [-4, {}, None]),
        (GRADIENT, ["4", {}, None]),
        (GRADIENT, [4, [], None]),
        (GRADIENT, [4, {"loss": "low"}, None]),
        (GRADIENT, [4, {"loss": np.zeros(3)}, None]),
        (GRADIENT, [4, {1: 0.5}, None]),
        (GRADIENT, [1 << 70, {}, None]),
        (GRADIENT, [0, {}, None]),
        (GRADIENT, [5, {}, None]),
        (GRADIENT, [4, {}, COLUMNS]),
        (EPISODES, [0, {}, COLUMNS]),
        (EPISODES, [5_000_000, {}, COLUMNS]),
        (EPISODES, [30, {}, [column * 2 for column in COLUMNS]]),
        (EPISODES, [30, {}, [COLUMNS[0], [10, 1 << 40], *COLUMNS[2:]]]),
        (GRADIENT, [4, {"loss": 1 << 2000}, None]),
        (EPISODES, [4, {}, [COLUMNS[0], [1 << 70, 2], *COLUMNS[2:]]]),
        (EPISODES, [4, {}, [[1 << 2000, 2.0], *COLUMNS[1:]]]),
        (EPISODES, [4, {}, None]),
        (EPISODES, [4, {}, COLUMNS[:3]]),
        (EPISODES, [4, {}, [[1.0], *COLUMNS[1:]]]),
        (EPISODES, [4, {}, [["a", "b"], *COLUMNS[1:]]]),
        (EPISODES, [4, {}, [*COLUMNS[:3], [0.5, 0.5]]]),
    ],
    ids=lambda value: "" if isinstance(value, RolloutSpec) else str(value)[:60],
)
def test_a_report_is_of_a_gradient_and_of_numbers(spec: RolloutSpec, report: Any) -> None:
    objects = COMMIT.objects if spec is SPEC else {}
    with pytest.raises(ProtocolError):
        check_commit(replace(COMMIT, objects=objects, report=report), spec, 2, 1)
