"""Check that valid messages of hosts are accepted and that malformed ones are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parenv.errors import ConfigurationError, ProtocolError
from parenv.memory.agent_layout import NOBODY, agents_spec
from parenv.memory.layout import ROW_DTYPE, WHOLE_EPISODES, RolloutSpec, SlotSpec, slot_layout
from parenv.memory.maps import SlotMap
from parenv.memory.spaces import describe, leaves
from parenv.protocol.forms import harmless
from parenv.protocol.frames import HEADER_BYTES, Sender, from_frames, to_frames
from parenv.protocol.messages import Commit, Credit, Failure, Ready, Reply, SideData, StepReady
from parenv.remote.checks import check_commit, check_ready, check_rows, checked_reply, decode, fitting
from parenv.remote.host_messages import Answers, Chunks, Gone, Heartbeat, max_brackets
from parenv.remote.transfer import RolloutTransfer

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
SPEC = SlotSpec((RolloutSpec(2, leaves(TEXT), leaves(TEXT)),))
FAILURE = Failure(0, 0, 0, "step", ["builtins", "ValueError"], "no", "", {"code": 3})
COMMIT = Commit(
    0,
    {("observations", 0): [["a", "b"]] * 3, ("actions", 0): [["a", "b"]] * 2, ("finals", 0): ["z"]},
    [None, {}, None, 0, []],
    [[1, "step", "ValueError: no", "a traceback"]],
)
GRADIENT = SlotSpec((RolloutSpec(2, leaves(BOX), leaves(DISCRETE), gradient_bytes=64),))
EPISODES = SlotSpec((replace(GRADIENT.groups[0], rollout_length=WHOLE_EPISODES),))
REPORT = Commit(0, {}, [4, {"loss": 0.5}, None, 0, []], [])
PARTS = SlotSpec((replace(SPEC.groups[0], in_parts=True),))
PARTS_COMMIT = Commit(
    0,
    {("observations", 0): ["a", "b"], ("actions", 0): ["a", None], ("finals", 0): ["z"]},
    [2, {}, None, 0, []],
    [],
)
COLUMNS = [[1.0, 2.0], [10, 20], [0.1, 0.2], [0, 1], [0, 1]]

TURN: dict[str, Any] = {
    "score": 1.0,
    "env_steps": 32,
    "mean_return": float("nan"),
    "metrics": {"loss": 0.5},
    "episodes": COLUMNS,
    "seconds": [0.1, 0.2, 0.3],
    "state": {"hyperparameters": {}, "tensors": {}, "policy": None, "parts": {}, "normalising": []},
}

OBSERVED = spaces.Dict({"fox": spaces.Box(-1, 1, (3,)), "hen": spaces.Box(-1, 1, (2,))})
ACTED = spaces.Dict({"fox": spaces.Discrete(2), "hen": spaces.Discrete(3)})
FOUND = {"clever": [1, [["value", [], "<f4", False]], []], "shy": [2, [], [[["h"], [8], "<f8"]]]}
ABOUT = {"state": [[[], [4], "<f4"]], "turns": False, "infos": [[], []], "found": FOUND}
AGENTS = Ready([describe(OBSERVED), describe(ACTED)], 2, ABOUT, [])
POLICIES = ("clever", "shy")
AGENTS_SPEC = agents_spec(4, OBSERVED, ACTED, POLICIES, ABOUT)
AGENTS_COMMIT = Commit(0, {}, [8, {"loss": 0.5}, None, 1, [0, 1]], [])
EVALUATED = (*COLUMNS, {"shy": [*COLUMNS, ["hen", "hen"], [3, 4]]})


SIDE_DATA = SideData([[4, ["dict"]]], [[0, {"a": 1}], [1, None]], [[1, ["x"]]], [[0, "infos['a']", "a list"]])
OF_HOSTS = (
    Gone(1, None, 9, ""),
    Gone(1, 0, None, "why not"),
    Chunks(0, [[0, memoryview(b"x")]]),
    Heartbeat([0, 1], bytes(64)),
    Answers([0, 1], bytes(32), memoryview(b"x")),
)
EXCESS = (
    r"^a message must have at most 262,144 lists, dicts and arrays with max_message_bytes=67,108,864, got 262,14.\. "
    r"Raise RemotePlacement.max_message_bytes.$"
)


def received(message: Any) -> Any:
    """Return a message of a host as the main process decodes it."""
    return decode(to_frames(WORKER, message), LIMIT)[1]


def ready(message: Any, steps: bool = False, policies: Sequence[str] = (), first: bool = True) -> None:
    check_ready(received(message), steps, policies, first)


def commit(message: Any, spec: SlotSpec, num_ends: int = 0) -> None:
    check_commit(received(message), spec, 2, num_ends)


def reply(method: str, asked: int, value: Any) -> Any:
    """Check the reply to a call and return its value. The suffix " by name" of a method selects named policies."""
    named = " by name"
    return checked_reply(method.removesuffix(named), asked, received(Reply(1, value)).value, method.endswith(named))


REPLIES = [
    ("call", 2, [1, None]),
    ("get_attr", 1, ["x"]),
    ("is_wrapped", 2, [True, False]),
    ("set_attr", 2, None),
    ("set_attr", 2, [None, None]),
    ("reset", 2, []),
    ("measure", 0, [[0.5, 0.0]]),
    ("load", 0, 3),
    ("evaluate", 3, (np.ones(2), np.ones(2, np.int64), np.ones(2), np.arange(2), np.arange(2))),
    ("get_state", 0, {"random": 1, "generation": 0}),
    ("set_state", 1, [0, 1]),
    ("turn", 0, TURN),
    ("turn", 0, {"failure": [0, 0, 0, "step", ["builtins", "ValueError"], "no", "", {}]}),
    ("evaluate by name", 3, EVALUATED),
]


@pytest.mark.parametrize(("method", "asked", "value"), REPLIES, ids=str)
def test_a_reply_has_the_shape_that_was_asked_for(method: str, asked: int, value: Any) -> None:
    reply(method, asked, value)
    for other in (5, "text", {3: 4}, [1] * 7, (np.ones(2),) * 5, [["deep"]] * 3, (np.ones((2, 2)),) * 4, None):
        if type(other) is not type(value) and not (method == "set_attr" and other is None):
            with pytest.raises(ProtocolError):
                reply(method, asked, other)


@pytest.mark.parametrize(
    ("method", "asked", "value"),
    [
        ("call", 2, [1]),
        ("get_attr", 2, []),
        ("set_attr", 2, [None]),
        ("reset", 2, [1]),
        ("measure", 0, [0.5]),
        ("measure", 0, [["1", 0.5]]),
        ("measure", 0, [[0.5, -1.0]]),
        ("measure", 0, [[float("nan"), 0.5]]),
        ("load", 0, True),
        ("evaluate", 3, (np.ones(2), np.ones(2), np.ones(3), np.ones(2), np.arange(2))),
        ("evaluate", 3, (np.ones(2), np.ones(2), np.array(["a", "b"]), np.ones(2), np.arange(2))),
        ("evaluate", 3, (np.ones(2), np.ones(2), np.ones(2), np.ones(2), np.array([0, 7]))),
        ("evaluate", 3, (np.ones(2), np.ones(2), np.ones(2), np.ones(2), np.array([0, -1]))),
        ("get_state", 0, {"random": 1, "generation": "0"}),
        ("set_state", 1, ["0"]),
        ("set_state", 1, [1 << 70]),
        ("turn", 0, TURN | {"score": 1}),
        ("turn", 0, TURN | {"failure": []}),
        ("turn", 0, TURN | {"metrics": {"loss": "0.5"}}),
        ("turn", 0, TURN | {"seconds": [0.1, 0.2]}),
        ("turn", 0, TURN | {"episodes": [*COLUMNS[:1], [10.5, 20], *COLUMNS[2:]]}),
        ("turn", 0, TURN | {"episodes": [*COLUMNS[:4], [0, 7]]}),
        ("turn", 0, TURN | {"state": {**TURN["state"], "tensors": None}}),
    ],
    ids=str,
)
def test_a_reply_of_another_shape_is_refused(method: str, asked: int, value: Any) -> None:
    with pytest.raises(ProtocolError):
        reply(method, asked, value)


@pytest.mark.parametrize("failure", [5, None, [], [0, 0, 0, "step", ["builtins", "ValueError"], 5, "", {}]])
def test_a_malformed_failure_of_a_training_round_is_refused(failure: Any) -> None:
    with pytest.raises(ProtocolError):
        reply("turn", 0, {"failure": failure})


@pytest.mark.parametrize(
    "tensor", [["<f8", [2], np.zeros(16, np.uint8)], ["float32", [3], np.zeros(8, np.uint8)], ["float32", [1]], [1]]
)
def test_malformed_tensors_in_the_state_of_a_member_are_refused(tensor: Any) -> None:
    with pytest.raises((ProtocolError, ValueError, RuntimeError, TypeError)):
        reply("turn", 0, TURN | {"state": {**TURN["state"], "tensors": {"weight": {"torch.Tensor": tensor}}}})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, \u00fcber\n\ttwo lines", "plain, \u00fcber\n\ttwo lines"),
        ("\x1b]0;title\x07\x1b[2Jgone", "\\x1b]0;title\\x07\\x1b[2Jgone"),
        ("a\rb\x9bc\u202ed\ud800", "a\\rb\\x9bc\\u202ed\\ud800"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_valid_messages_are_accepted() -> None:
    ready(STEPS, steps=True)
    ready(ROLLOUTS)
    ready(AGENTS, policies=POLICIES)
    ready(replace(AGENTS, extras={}), policies=POLICIES, first=False)
    for message, steps in ((STEPS, False), (ROLLOUTS, True)):
        with pytest.raises(ProtocolError, match="must have the task of its job"):
            ready(message, steps)
    for message in (FAILURE, SIDE_DATA, *OF_HOSTS):
        assert received(message) == message
    commit(COMMIT, SPEC, 1)
    commit(REPORT, GRADIENT)
    commit(replace(REPORT, report=[30, {}, COLUMNS, 0, []]), EPISODES)
    commit(AGENTS_COMMIT, AGENTS_SPEC)


@pytest.mark.parametrize("changed", [{"kind": "ValueError"}, {"attributes": [3]}, {"attributes": {3: "code"}}], ids=str)
def test_a_malformed_failure_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        received(replace(FAILURE, **changed))


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
def test_a_malformed_ready_message_for_a_vector_env_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        ready(replace(STEPS, **changed), steps=True)


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
def test_a_malformed_ready_message_for_a_pool_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises((ProtocolError, ConfigurationError)):
        ready(replace(ROLLOUTS, **changed))


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
def test_objects_of_another_shape_than_the_rollout_are_refused(objects: dict[Any, Any]) -> None:
    with pytest.raises(ProtocolError):
        commit(replace(COMMIT, objects={**COMMIT.objects, **objects}), SPEC, 1)


@pytest.mark.parametrize(
    ("spec", "report"),
    [
        (SPEC, [4, {}, None, 0, []]),
        (GRADIENT, None),
        (GRADIENT, [None, {}, None, 0, []]),
        (SPEC, [None, {"loss": 0.5}, None, 0, []]),
        (GRADIENT, [4, {}, None, 1, []]),
        (GRADIENT, [4, {}, None, 0, [1]]),
        (GRADIENT, [4, {}]),
        (GRADIENT, [-4, {}, None, 0, []]),
        (GRADIENT, ["4", {}, None, 0, []]),
        (GRADIENT, [4, [], None, 0, []]),
        (GRADIENT, [4, {"loss": "low"}, None, 0, []]),
        (GRADIENT, [4, {"loss": np.zeros(3)}, None, 0, []]),
        (GRADIENT, [4, {1: 0.5}, None, 0, []]),
        (GRADIENT, [1 << 70, {}, None, 0, []]),
        (GRADIENT, [0, {}, None, 0, []]),
        (GRADIENT, [5, {}, None, 0, []]),
        (GRADIENT, [4, {}, COLUMNS, 0, []]),
        (EPISODES, [0, {}, COLUMNS, 0, []]),
        (EPISODES, [5_000_000, {}, COLUMNS, 0, []]),
        (EPISODES, [30, {}, [column * 2 for column in COLUMNS], 0, []]),
        (EPISODES, [30, {}, [COLUMNS[0], [10, 1 << 40], *COLUMNS[2:]], 0, []]),
        (GRADIENT, [4, {"loss": 1 << 2000}, None, 0, []]),
        (EPISODES, [4, {}, [COLUMNS[0], [1 << 70, 2], *COLUMNS[2:]], 0, []]),
        (EPISODES, [4, {}, [[1 << 2000, 2.0], *COLUMNS[1:]], 0, []]),
        (EPISODES, [4, {}, None, 0, []]),
        (EPISODES, [4, {}, COLUMNS[:3], 0, []]),
        (EPISODES, [4, {}, [[1.0], *COLUMNS[1:]], 0, []]),
        (EPISODES, [4, {}, [["a", "b"], *COLUMNS[1:]], 0, []]),
        (EPISODES, [4, {}, [*COLUMNS[:3], [0.5, 0.5]], 0, []]),
    ],
    ids=lambda value: "" if isinstance(value, SlotSpec) else str(value)[:60],
)
def test_a_malformed_report_of_a_gradient_is_refused(spec: SlotSpec, report: Any) -> None:
    objects = COMMIT.objects if spec is SPEC else {}
    with pytest.raises(ProtocolError):
        commit(replace(COMMIT, objects=objects, report=report), spec, 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"spaces": [describe(OBSERVED)]},
        {"spaces": [describe(OBSERVED["fox"]), describe(ACTED)]},
        {"spaces": [describe(OBSERVED), describe(spaces.Dict({"fox": ACTED["fox"]}))]},
        {"spaces": [describe(spaces.Dict({}))] * 2},
        {"extras": {}},
        {"extras": ABOUT | {"turns": 1}},
        {"extras": ABOUT | {"infos": [[]]}},
        {"extras": ABOUT | {"infos": [[], [["mask", [-1], "|b1", True]]]}},
        {"extras": ABOUT | {"state": [[[], [4], "O"]]}},
        {"extras": ABOUT | {"found": {"clever": FOUND["clever"]}}},
        {"extras": ABOUT | {"found": FOUND | {"shy": [3, [], []]}}},
        {"extras": ABOUT | {"found": FOUND | {"shy": [0, [], []]}}},
        {"extras": ABOUT | {"found": FOUND | {"shy": [2, [["value", [], "O", False]], []]}}},
    ],
    ids=str,
)
def test_a_ready_message_with_malformed_agents_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        ready(replace(AGENTS, **changed), policies=POLICIES)


@pytest.mark.parametrize(
    "changed",
    [
        {"objects": {("observations", 0): []}},
        {"replaced": [[0, "step"]]},
        {"replaced": [["0", "step", "no", ""]]},
        {"report": None},
        {"report": [9, {}, None, 1, [0]]},
        {"report": [8, {}, None, "1", [0]]},
        {"report": [8, {}, None, 1, ["shy"]]},
        {"report": [8, {"loss": "0.5"}, None, 1, [0]]},
        {"report": [None, {}, None, 1, [0]]},
        {"report": [8, {}, COLUMNS, 1, [0]]},
    ],
    ids=str,
)
def test_a_malformed_commit_of_named_policies_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        commit(replace(AGENTS_COMMIT, **changed), AGENTS_SPEC)


@pytest.mark.parametrize(
    "changed",
    [
        {"report": [5, {}, None, 0, []]},
        {"report": [-1, {}, None, 0, []]},
        {"report": [3, {}, None, 0, []]},
        {"report": [None, {}, None, 0, []]},
        {"report": [2, {}, COLUMNS, 0, []]},
        {"objects": {**PARTS_COMMIT.objects, ("observations", 0): ["a"]}},
        {"objects": {**PARTS_COMMIT.objects, ("finals", 0): []}},
        {"objects": {}},
    ],
    ids=str,
)
def test_parts_of_episodes_must_have_as_many_values_as_rows(changed: dict[str, Any]) -> None:
    commit(PARTS_COMMIT, PARTS, 1)
    with pytest.raises(ProtocolError):
        commit(replace(PARTS_COMMIT, **changed), PARTS, 1)


@pytest.mark.parametrize(("field", "value"), [("column", 2), ("column", -1), ("version", 5), ("version", -1)])
def test_rows_of_episodes_must_have_a_known_version_and_a_column_of_the_worker(field: str, value: int) -> None:
    rows = np.zeros(3, ROW_DTYPE)
    rows["is_after"][1] = 1
    check_rows(rows, 2, 1, 4)
    with pytest.raises(ProtocolError, match="1 episode ends"):
        check_rows(rows[:1], 2, 1, 4)
    rows["begins"][1] = 1
    with pytest.raises(ProtocolError, match="must not begin an episode"):
        check_rows(rows, 2, 1, 4)
    rows["begins"][1] = 0
    rows[field][2] = value
    with pytest.raises(ProtocolError, match="rows of episodes must be of 2 sub-environments and of versions up to"):
        check_rows(rows, 2, 1, 4)


@pytest.mark.parametrize(
    "value",
    [
        COLUMNS,
        (*COLUMNS, []),
        (*COLUMNS, {"shy": COLUMNS}),
        (*COLUMNS, {"shy": [*COLUMNS, ["hen"], [3, 4]]}),
        (*COLUMNS, {"shy": [*COLUMNS, ["hen", 5], [3, 4]]}),
        (*COLUMNS, {"shy": [*COLUMNS, ["hen", "hen"], [3, -4]]}),
        (*COLUMNS[:3], ["0", "1"], COLUMNS[4], {}),
        (*COLUMNS[:4], [0, 7], {}),
    ],
    ids=str,
)
def test_a_malformed_evaluation_of_named_policies_is_refused(value: Any) -> None:
    with pytest.raises(ProtocolError):
        reply("evaluate by name", 3, value)


@pytest.mark.parametrize(("field", "group", "policy"), [("policies", 1, 1), ("assigned", 2, 0), ("policies", 2, 7)])
def test_agents_must_act_by_a_policy_of_their_group(field: str, group: int, policy: int) -> None:
    layout = slot_layout(AGENTS_SPEC, 2, 1)
    slots = SlotMap(bytearray(layout.total_bytes), AGENTS_SPEC, 0, layout.total_bytes, False, (2,), 1, lambda: names)
    names = {0: "clever", 1: "shy", 2: "shy"}
    transfer = RolloutTransfer(slots, 0)
    memory = np.zeros(layout.total_bytes, np.uint8)
    arrays = transfer.layout.arrays(memory)
    for of_group, acting in zip(arrays[1:], ([0, NOBODY], [1, 2]), strict=True):
        of_group["policies", 0][:] = of_group["assigned", 0][:] = acting
    for sequence in (0, 1):
        transfer.expect(Credit(sequence, 0, 0, 0, b""))
        arrays[0]["commits", 0]["sequence"] = sequence
        transfer.write(Chunks(sequence, [[0, memoryview(memory)[: layout.reserved_bytes]]]))
        if sequence == 0:
            transfer.finish(AGENTS_COMMIT)
            arrays[group][field, 0].flat[0] = policy
    with pytest.raises(ProtocolError, match="an agent must act by a policy of its group"):
        transfer.finish(replace(AGENTS_COMMIT, sequence=1))


@pytest.mark.parametrize("filling", [b"[],", b"[[]],", b'{"tuple":[]},', b'{"dict":[]},'])
def test_a_message_with_too_many_brackets_is_refused(filling: bytes) -> None:
    header = bytes(to_frames(WORKER, Reply(1, None))[0][:HEADER_BYTES])
    each = filling.count(b"[") + filling.count(b"{")
    many = (max_brackets(LIMIT) - 2) // each
    decode([header + b"[1,[" + filling * many + b"0]]"], LIMIT)
    with pytest.raises(ProtocolError, match=EXCESS):
        decode([header + b"[1,[" + filling * (many + 1) + b"0]]"], LIMIT)


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ([np.zeros(3)] * 80_000, True),
        ([()] * 120_000, True),
        ([[]] * 300_000, False),
        ("x" * 5_000_000, False),
        (np.zeros(1 << 26, np.int8), False),
        ("[" * 300_000, False),
    ],
    ids=["arrays", "tuples", "lists", "text", "bytes", "brackets in a text"],
)
def test_a_host_sends_a_failure_if_its_message_would_be_refused(value: Any, fits: bool) -> None:
    frames = fitting(WORKER, Reply(1, value), LIMIT)
    decode(frames, LIMIT)
    _, message = from_frames(frames)
    assert isinstance(message, Reply if fits else Failure)
    assert isinstance(message, Reply) or "max_message_bytes=67,108,864" in message.message
