"""Check that messages of hosts are decoded if their fields have their forms, and refused otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parenv.errors import ProtocolError
from parenv.memory.spaces import describe
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import Commit, Failure, Ready, Reply, SideData, StepReady
from parenv.remote.host import fitting
from parenv.remote.host_messages import Answers, Chunks, Gone, Heartbeat, Join

LIMIT = 1 << 26
WORKER = Sender(0, 0)
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
FAILURE = Failure(0, 0, 0, "step", ["builtins", "ValueError"], "no", "", {"code": 3})
COMMIT = Commit(
    0,
    {("observations", 0): [["a", "b"]] * 3, ("finals", 0): ["z"]},
    metrics={"loss": 0.5},
    in_use=[1],
    replaced=[[1, "step", "ValueError: no", "a traceback"]],
)
KIND = ("dict", (("a", "<f8"), ("b", ("array", "<i8", (2,)))))
SIDE_DATA = SideData([[4, KIND]], [[0, {"a": 1}], [1, None]], [[1, ["x"]]], [[0, "infos['a']", "a list"]])
ANSWERS = Answers([0, 1], bytes(32), memoryview(b"x"))
GONE = Gone(1, None, 9, "")
VALID: tuple[Any, ...] = (
    STEPS, ROLLOUTS, FAILURE, COMMIT, SIDE_DATA, ANSWERS, GONE, Gone(1, 0, None, "why not"),
    Chunks(0, [[0, memoryview(b"x")]]), Heartbeat([0, 1], bytes(64)), Join({}, "machine", 1, 1),
)  # fmt: skip


def received(message: Any) -> Any:
    """Return a message of a host as the main process decodes it."""
    return from_frames(to_frames(WORKER, message), of_host=True)[1]


def array_kind(dtype: str, shape: Any) -> Any:
    return ("dict", (("a", ("array", dtype, shape)),))


@pytest.mark.parametrize("message", VALID, ids=lambda message: type(message).__name__)
def test_valid_messages_are_accepted(message: Any) -> None:
    assert received(message) == message


CHANGES: list[tuple[Any, dict[str, Any]]] = [
    (FAILURE, {"kind": "ValueError"}),
    (FAILURE, {"kind": ["ValueError"]}),
    (FAILURE, {"kind": [1, 2]}),
    (FAILURE, {"attributes": [3]}),
    (FAILURE, {"attributes": {3: "code"}}),
    (STEPS, {"num_envs": 0}),
    (STEPS, {"num_envs": 1 << 60}),
    (STEPS, {"spaces": [describe(BOX), describe(DISCRETE)]}),
    (STEPS, {"spaces": {}}),
    (STEPS, {"spaces": {**STEPS.spaces, "action_space": 7}}),
    (STEPS, {"spaces": {**STEPS.spaces, "action_space": [7, 7]}}),
    (STEPS, {"spaces": {**STEPS.spaces, "action_space": [[describe(DISCRETE)], ["0", "0", "0"]]}}),
    (STEPS, {"metadata": None}),
    (STEPS, {"render_mode": 5}),
    (STEPS, {"generators": 5}),
    (ROLLOUTS, {"num_envs": 1 << 60}),
    (ROLLOUTS, {"spaces": 5}),
    (ROLLOUTS, {"spaces": ROLLOUTS.spaces[:1]}),
    (COMMIT, {"objects": 1}),
    (COMMIT, {"metrics": 5}),
    (COMMIT, {"in_use": ["4"]}),
    (COMMIT, {"env_steps": "4"}),
    (COMMIT, {"env_steps": 1 << 70}),
    (COMMIT, {"replaced": 3}),
    (COMMIT, {"replaced": [[0, "step"]]}),
    (COMMIT, {"replaced": [["0", "step", "no", ""]]}),
    (SIDE_DATA, {"kinds": None}),
    (SIDE_DATA, {"infos": [[2, "info"]]}),
    (SIDE_DATA, {"infos": [[2]]}),
    (SIDE_DATA, {"infos": [["2", {}]]}),
    (SIDE_DATA, {"observations": [[2, "x"]]}),
    (SIDE_DATA, {"left_out": [[2, "infos['a']"]]}),
    (SIDE_DATA, {"kinds": [[1, array_kind("|O", (2,))]]}),
    (SIDE_DATA, {"kinds": [[1, array_kind("<f8", (0, 1 << 60, 1 << 60))]]}),
    (SIDE_DATA, {"kinds": [[1, array_kind("<f8", (-1,))]]}),
    (SIDE_DATA, {"kinds": [[1, ("dict", (("a", "list"),))]]}),
    (SIDE_DATA, {"kinds": [[1, ("dict", ((1, "int"),))]]}),
    (SIDE_DATA, {"kinds": [[1, ("dict", (("a", ("tuple", ("int",))),))]]}),
    (SIDE_DATA, {"kinds": [[1, ("dict", [["a", "int"]])]]}),
    (SIDE_DATA, {"kinds": [[1, "int"]]}),
    (ANSWERS, {"rows": [0, "1"]}),
    (ANSWERS, {"rows": [False, True]}),
    (ANSWERS, {"rows": [0, 1 << 70]}),
    (ANSWERS, {"rows": {"0": 1}}),
    (ANSWERS, {"status_slot": b"short"}),
    (GONE, {"exit_code": "0"}),
    (Chunks(0, []), {"chunks": [[0, 5]]}),
    (Join({}, "machine", 1, 1), {"capacity": 0}),
]


@pytest.mark.parametrize(("message", "changed"), CHANGES, ids=lambda part: str(part)[:60])
def test_a_field_without_its_form_is_refused(message: Any, changed: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match=f"{type(message).__name__}.{next(iter(changed))}"):
        received(replace(message, **changed))


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ([np.zeros(3)] * 80_000, True),
        ("x" * 5_000_000, True),
        (np.zeros(1 << 26, np.int8), False),
    ],
    ids=["arrays", "text", "bytes"],
)
def test_a_host_sends_a_failure_if_its_message_would_be_too_large(value: Any, fits: bool) -> None:
    _, message = from_frames(fitting(WORKER, Reply(1, value), LIMIT))
    assert isinstance(message, Reply if fits else Failure)
    assert isinstance(message, Reply) or "max_message_bytes=67,108,864" in message.message
