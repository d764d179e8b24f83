"""What a worker on a host may say where policies have names, and a sample of what it may not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parenv.errors import ProtocolError
from parenv.memory.agent_layout import NOBODY, agents_layout, agents_spec
from parenv.memory.maps import SlotMap
from parenv.memory.spaces import describe
from parenv.protocol.messages import Commit, Ready
from parenv.remote.agents_validation import check_agents_commit, check_agents_ready
from parenv.remote.slot_transfer import SlotTransfer
from parenv.remote.validation import check_reply

OBSERVED = spaces.Dict({"fox": spaces.Box(-1, 1, (3,)), "hen": spaces.Box(-1, 1, (2,))})
ACTED = spaces.Dict({"fox": spaces.Discrete(2), "hen": spaces.Discrete(3)})
FOUND = {"clever": [1, [["value", [], "<f4", False]], []], "shy": [2, [], [[["h"], [8], "<f8"]]]}
ABOUT = {"state": [[[], [4], "<f4"]], "turns": False, "infos": [[], []], "found": FOUND}
READY = Ready([describe(OBSERVED), describe(ACTED)], 2, ABOUT, [])
POLICIES = ("clever", "shy")
SPEC = agents_spec(4, OBSERVED, ACTED, POLICIES, ABOUT)
COMMIT = Commit(0, {}, [8, 1, [0, 1], {"loss": 0.5}], [])
COLUMNS: list[Any] = [[1.0, 2.0], [10, 20], [0.1, 0.2], [0, 1]]
EVALUATED = (*COLUMNS, {"shy": [*COLUMNS, ["hen", "hen"], [3, 4]]})


def test_what_honest_workers_say_is_let_through() -> None:
    check_agents_ready(READY, POLICIES, first=True)
    check_agents_ready(replace(READY, extras={}), POLICIES, first=False)
    check_agents_commit(COMMIT, SPEC, share=2)
    check_reply("evaluate by name", 3, EVALUATED)


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
def test_a_worker_that_does_not_say_its_agents_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        check_agents_ready(replace(READY, **changed), POLICIES, first=True)


@pytest.mark.parametrize(
    "changed",
    [
        {"objects": {("observations", 0): []}},
        {"replaced": [[0, "step"]]},
        {"replaced": [["0", "step", "no"]]},
        {"report": None},
        {"report": [9, 1, [0], {}]},
        {"report": [8, "1", [0], {}]},
        {"report": [8, 1, ["shy"], {}]},
        {"report": [8, 1, [0], {"loss": "0.5"}]},
    ],
    ids=str,
)
def test_a_rollout_is_reported_in_steps_versions_and_policies(changed: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        check_agents_commit(replace(COMMIT, **changed), SPEC, share=2)


@pytest.mark.parametrize(
    "value",
    [
        COLUMNS,
        (*COLUMNS, []),
        (*COLUMNS, {"shy": COLUMNS}),
        (*COLUMNS, {"shy": [*COLUMNS, ["hen"], [3, 4]]}),
        (*COLUMNS, {"shy": [*COLUMNS, ["hen", 5], [3, 4]]}),
        (*COLUMNS, {"shy": [*COLUMNS, ["hen", "hen"], [3, -4]]}),
        (*COLUMNS[:3], ["0", "1"], {}),
    ],
    ids=str,
)
def test_an_evaluation_by_name_has_its_columns(value: Any) -> None:
    with pytest.raises(ProtocolError):
        check_reply("evaluate by name", 3, value)


@pytest.mark.parametrize(("field", "group", "policy"), [("policies", 1, 1), ("assigned", 2, 0), ("policies", 2, 7)])
def test_who_acts_is_a_policy_of_these_agents(field: str, group: int, policy: int) -> None:
    layout = agents_layout(SPEC, 2, 1)
    slots = SlotMap(bytearray(layout.total_bytes), SPEC, 0, layout.total_bytes, False, (2,), 1, lambda: names)
    names = {0: "clever", 1: "shy", 2: "shy"}
    transfer = SlotTransfer(slots, 0)
    memory = np.zeros(layout.total_bytes, np.uint8)
    arrays = transfer.layout.arrays(memory)
    for of_group, acting in zip(arrays[1:], ([0, NOBODY], [1, 2]), strict=True):
        of_group["policies", 0][:] = of_group["assigned", 0][:] = acting
    for index in (0, 1):
        arrays[0]["commits", 0]["sequence"] = index
        transfer.write(0, 0, memoryview(memory)[: layout.reserved_bytes])
        if index == 0:
            transfer.finish(0, 0, layout.reserved_bytes)
            arrays[group][field, 0].flat[0] = policy
    with pytest.raises(ProtocolError, match="a policy acts that is none of these agents'"):
        transfer.finish(0, 1, layout.reserved_bytes)
