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
from parenv.protocol.messages import Commit, Failure, Ready, StepReady
from parenv.remote.validation import check_commit, check_ready, check_reply, harmless, harmless_failure, harmless_turn

BOX, DISCRETE, TEXT = spaces.Box(-1, 1, (3,)), spaces.Discrete(2), spaces.Text(4)
STEPS = StepReady(
    {
        "observation_space": [[describe(BOX), describe(TEXT)], [0, 1, 0]],
        "action_space": [[describe(DISCRETE)], [0] * 3],
    },
    3,
    {"render_modes": ["human"]},
    None,
    {},
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

TURN: dict[str, Any] = {
    "score": 1.0,
    "env_steps": 32,
    "mean_return": float("nan"),
    "metrics": {"loss": 0.5},
    "episodes": COLUMNS,
    "seconds": [0.1, 0.2, 0.3],
    "state": {"hyperparameters": {}, "tensors": {}, "policy": None, "parts": {}, "normalising": []},
}

REPLIES = [
    ("call", 2, [1, None]),
    ("get_attr", 1, ["x"]),
    ("is_wrapped", 2, [True, False]),
    ("set_attr", 2, None),
    ("set_attr", 2, [None, None]),
    ("reset", 2, []),
    ("measure", 0, [0.5]),
    ("load", 0, 3),
    ("evaluate", 3, (np.ones(2), np.ones(2, np.int64), np.ones(2), np.arange(2))),
    ("get_state", 0, {"random": 1, "generation": 0}),
    ("set_state", 1, [0, 1]),
    ("turn", 0, TURN),
    ("turn", 0, {"failure": [0, 0, 0, "step", ["builtins", "ValueError"], "no", "", {}]}),
]


@pytest.mark.parametrize(("method", "asked", "value"), REPLIES, ids=str)
def test_a_reply_has_the_shape_that_was_asked_for(method: str, asked: int, value: Any) -> None:
    check_reply(method, asked, value)
    for other in (5, "text", {3: 4}, [1] * 7, (np.ones(2),) * 5, [["deep"]] * 3, (np.ones((2, 2)),) * 4, None):
        if type(other) is not type(value) and not (method == "set_attr" and other is None):
            with pytest.raises(ProtocolError):
                check_reply(method, asked, other)


@pytest.mark.parametrize(
    ("method", "asked", "value"),
    [
        ("call", 2, [1]),
        ("get_attr", 2, []),
        ("set_attr", 2, [None]),
        ("reset", 2, [1]),
        ("measure", 0, ["1"]),
        ("measure", 0, [-1.0]),
        ("measure", 0, [float("nan")]),
        ("load", 0, True),
        ("evaluate", 3, (np.ones(2), np.ones(2), np.ones(3), np.ones(2))),
        ("evaluate", 3, (np.ones(2), np.ones(2), np.array(["a", "b"]), np.ones(2))),
        ("get_state", 0, {"random": 1, "generation": "0"}),
        ("set_state", 1, ["0"]),
        ("set_state", 1, [1 << 70]),
        ("turn", 0, TURN | {"score": 1}),
        ("turn", 0, TURN | {"failure": []}),
        ("turn", 0, TURN | {"metrics": {"loss": "0.5"}}),
        ("turn", 0, TURN | {"seconds": [0.1, 0.2]}),
        ("turn", 0, TURN | {"episodes": [*COLUMNS[:1], [10.5, 20], *COLUMNS[2:]]}),
        ("turn", 0, TURN | {"state": {**TURN["state"], "tensors": None}}),
    ],
    ids=str,
)
def test_a_reply_of_another_shape_is_refused(method: str, asked: int, value: Any) -> None:
    with pytest.raises(ProtocolError):
        check_reply(method, asked, value)


@pytest.mark.parametrize("failure", [None, [], [0, 0, 0, "step", ["builtins", "ValueError"], 5, "", {}]])
def test_what_a_turn_has_raised_is_an_exception(failure: Any) -> None:
    with pytest.raises(ProtocolError):
        harmless_turn({"failure": failure})


@pytest.mark.parametrize(
    "tensor", [["<f8", [2], np.zeros(16, np.uint8)], ["float32", [3], np.zeros(8, np.uint8)], ["float32", [1]], [1]]
)
def test_the_state_of_a_member_has_tensors_that_can_be_read(tensor: Any) -> None:
    with pytest.raises((ProtocolError, ValueError, RuntimeError, TypeError)):
        harmless_turn(TURN | {"state": {**TURN["state"], "tensors": {"weight": {"torch.Tensor": tensor}}}})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, \u00fcber\n\ttwo lines", "plain, \u00fcber\n\ttwo lines"),
        ("\x1b]0;title\x07\x1b[2Jgone", "\\x1b]0;title\\x07\\x1b[2Jgone"),
        ("a\rb\x9bc\u202ed\ud800", "a\\rb\\x9bc\\u202ed\\ud800"),
    ],
)
def test_what_would_move_a_terminal_is_shown_and_does_nothing(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_what_honest_workers_say_is_let_through() -> None:
    check_ready(STEPS, steps=True)
    check_ready(ROLLOUTS, steps=False)
    for ready, steps in ((STEPS, False), (ROLLOUTS, True)):
        with pytest.raises(ProtocolError, match="another task"):
            check_ready(ready, steps)
    harmless_failure(FAILURE)
    check_commit(COMMIT, SPEC, 2, 1)
    check_commit(REPORT, GRADIENT, 2, 0)
    check_commit(replace(REPORT, report=[30, {}, COLUMNS]), EPISODES, 2, 0)


@pytest.mark.parametrize("changed", [{"kind": "ValueError"}, {"attributes": [3]}, {"attributes": {3: "code"}}], ids=str)
def test_a_failure_of_another_form_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        harmless_failure(replace(FAILURE, **changed))


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
        {"metadata": None},
        {"render_mode": 5},
        {"generators": 5},
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
