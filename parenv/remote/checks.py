"""Checks of what hosts send that depend on the run: size limits, and answers that must fit the request.

The form of a field that is always the same is part of the message, see :mod:`parenv.protocol.forms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from types import NoneType
from typing import Any

import numpy as np
from gymnasium import spaces

from parenv.errors import ProtocolError
from parenv.experience.endings import ENDINGS
from parenv.memory.agent_layout import agent_groups
from parenv.memory.kinds import is_kind, kind_numbers
from parenv.memory.layout import MAX_EPISODE_STEPS, WHOLE_EPISODES, SlotSpec, extras_and_carry, infos_from_data
from parenv.memory.maps import StepBufferMap
from parenv.memory.spaces import leaves, rebuild
from parenv.protocol.data import Buffer
from parenv.protocol.forms import Form, arrays, between, columns, fit, number, refuse, sized
from parenv.protocol.frames import Sender, build, from_frames, to_frames
from parenv.protocol.messages import Call, Commit, Failure, Ready, Reply, SideData, StepReady
from parenv.protocol.tensors import with_tensors
from parenv.remote.host_messages import max_brackets, max_head_bytes

FRAME_BYTES = 64
"""Upper bound of the overhead of a frame on the network."""
MAX_STEPS_OF_AN_EPISODE = 2 * MAX_EPISODE_STEPS
"""A worker checks the length of an episode only from time to time."""
COUNT = between(0)
METRICS = {str: number}
ENDING = between(0, len(ENDINGS) - 1)
EPISODE_COLUMNS = (number, COUNT, number, COUNT, ENDING)
"""Returns, lengths, seconds, env_ids, and indices of the reasons for the end."""
_STATE = {"policy": object, "hyperparameters": dict, "tensors": dict, "parts": dict, "normalising": list}
_TURN = {
    "score": float,
    "env_steps": int,
    "mean_return": float,
    "metrics": METRICS,
    "episodes": columns(*EPISODE_COLUMNS),
    "seconds": (float, float, float),
    "state": _STATE,
}


def decode(frames: list[Buffer], max_message_bytes: int) -> tuple[Sender, Any]:
    """Decode a message of a host.

    Raises:
        ProtocolError: The message is too expensive to read, or a field does not have its form.
    """
    if excess := _excess(frames[0], max_message_bytes):
        raise ProtocolError(excess)
    return from_frames(frames, of_host=True)


def fitting(sender: Sender, message: Any, max_message_bytes: int) -> list[Buffer]:
    """Encode a message of a worker, or an exception in its place if the main process would refuse the message."""
    frames = to_frames(sender, message)
    excess = _excess(frames[0], max_message_bytes)
    if (size := sum(len(frame) + FRAME_BYTES for frame in frames)) > max_message_bytes:
        excess = f"a message must have at most max_message_bytes={max_message_bytes:,} bytes, got {size:,}. {_RAISE}"
    if not excess:
        return frames
    call = message.sequence if isinstance(message, Reply) else -1
    doing = "commit" if isinstance(message, Commit) else "call"
    kind = ["parenv.errors", "NotDataError"]
    failure = Failure(call, 0, env_id=-1, doing=doing, kind=kind, message=excess, traceback="")
    return to_frames(sender, failure)


_RAISE = "Raise RemotePlacement.max_message_bytes."


def _excess(head: Buffer, max_message_bytes: int) -> str:
    """Return the error message if the JSON of a message is too expensive to read, or an empty text."""
    text, limit = bytes(head), f"with max_message_bytes={max_message_bytes:,}"
    if len(text) > (most := max_head_bytes(max_message_bytes)):
        return f"a message must have at most {most:,} bytes beside arrays {limit}, got {len(text):,}. {_RAISE}"
    if (brackets := text.count(b"[") + text.count(b"{")) > (most := max_brackets(max_message_bytes)):
        return f"a message must have at most {most:,} lists, dicts and arrays {limit}, got {brackets:,}. {_RAISE}"
    return ""


def check_ready(ready: Ready | StepReady, steps: bool, policies: Sequence[str] = (), first: bool = True) -> None:
    """Check a worker's description of its sub-environments.

    Args:
        ready: Message of the worker.
        steps: Whether the worker answers in a step buffer.
        policies: Names of the policies. Empty: one policy without a name.
        first: Whether this is worker 0, which describes what policies add to rollouts.

    Raises:
        ProtocolError: The description is malformed, or belongs to another task.
    """
    if isinstance(ready, StepReady) != steps:
        raise ProtocolError("a worker must have the task of its job")
    if isinstance(ready, StepReady):
        for distinct, which in ready.spaces.values():
            if len(which) != ready.num_envs or set(which) != set(range(len(distinct))):
                raise ProtocolError("a worker must assign each of its spaces to its sub-environments")
        found = [rebuild(space) for distinct, _ in ready.spaces.values() for space in distinct]
    else:
        found = [rebuild(space) for space in ready.spaces]
        if policies:
            found = _check_agents(ready, found[0], found[1], policies, first)
        else:
            extras_and_carry(ready.extras, ready.carry)
            infos_from_data(ready.infos)
    for space in found:
        leaves(space)


def _check_agents(ready: Ready, observed: Any, acted: Any, policies: Sequence[str], first: bool) -> list[Any]:
    """Check the agents of a worker; return all their spaces."""
    if not isinstance(observed, spaces.Dict) or not isinstance(acted, spaces.Dict):
        raise ProtocolError("a worker must describe the spaces of its agents")
    if not observed.spaces or list(observed.spaces) != list(acted.spaces):
        raise ProtocolError("a worker must describe the observations and actions of each agent")
    if first:
        num_groups = len(agent_groups(observed, acted))
        found = {name: (between(1, num_groups), list, list) for name in policies}
        form = {"state": list, "turns": bool, "infos": (list,) * num_groups, "found": found}
        about = fit(form, ready.extras, "Ready.extras")
        extras_and_carry((), about["state"])
        for infos in about["infos"]:
            infos_from_data(infos)
        for _, extras, carry in about["found"].values():
            extras_and_carry(extras, carry)
    return [*observed.spaces.values(), *acted.spaces.values()]


def check_side_data(step_buffer: StepBufferMap, worker: int, side_data: SideData) -> None:
    """Check the data of a worker that does not fit into its rows of a step buffer.

    Raises:
        ProtocolError: The data are about rows of another worker, or contain an invalid kind of info.
    """
    first, spec = sum(step_buffer.shares[:worker]), step_buffer.spec
    mine, numbers = range(first, first + step_buffer.shares[worker]), kind_numbers(worker, len(step_buffer.shares))
    for assigned, kind in side_data.kinds:
        if assigned not in numbers or not is_kind(kind, spec.info_bytes):
            raise ProtocolError("a kind of info is malformed")
    if not all(env_id in mine for env_id, _ in (*side_data.infos, *side_data.observations)):
        raise ProtocolError(f"side data must be about sub-environments of worker {worker}")


def check_commit(commit: Commit, spec: SlotSpec, share: int, num_ends: int) -> None:
    """Check the part of a rollout that is not in its slot.

    Raises:
        ProtocolError: The message does not fit such a rollout.
    """
    fit(_report(spec, share), commit.report, "Commit.report")
    if spec.rollout_length != WHOLE_EPISODES:
        num_rows = commit.report[0] if spec.groups[0].in_parts else None
        fit(_objects(spec, share, num_ends, num_rows), commit.objects, "Commit.objects")


def check_rows(rows: Any, share: int, num_ends: int, newest: int) -> None:
    """Check the rows of a slot with parts of whole episodes.

    Args:
        rows: Rows, :data:`~parenv.memory.layout.ROW_DTYPE` ``[n]``.
        share: Number of sub-environments of the worker.
        num_ends: Number of episode ends in the slot.
        newest: Version of the credit.

    Raises:
        ProtocolError: They do not belong to this worker.
    """
    columns, versions = rows["column"], rows["version"]
    if not ((columns >= 0) & (columns < share) & (versions >= 0) & (versions <= newest)).all():
        raise ProtocolError(f"rows of episodes must be of {share} sub-environments and of versions up to {newest}")
    if (rows["begins"] & rows["is_after"]).any():
        raise ProtocolError("a row after the end of an episode must not begin an episode")
    if (count := np.count_nonzero(rows["is_after"])) != num_ends:
        raise ProtocolError(f"a slot with {num_ends} episode ends must have as many rows after an end, got {count}")


def _objects(spec: SlotSpec, share: int, num_ends: int, num_rows: int | None) -> Form:
    if spec.is_named:
        return {}

    def rows(count: int) -> Form:
        if num_rows is not None:
            return sized(list, num_rows, num_rows)
        return sized([sized(list, share, share)], count, count)

    (group,) = spec.groups
    fixed, ends = group.rollout_length, sized(list, num_ends, num_ends)
    parts = (
        ("observations", group.observations, rows(fixed + 1)),
        ("actions", group.actions, rows(fixed)),
        ("finals", group.observations, ends),
    )
    return {(name, i): form for name, of, form in parts for i, leaf in enumerate(of) if leaf.dtype is None}


def _report(spec: SlotSpec, share: int) -> Form:
    """Return the form of ``Commit.report``. The number of samples is the weight of a gradient in the mean of all."""
    whole, learns = spec.rollout_length == WHOLE_EPISODES, bool(spec.groups[0].gradient_bytes)
    if spec.groups[0].in_parts:
        return between(0, share * spec.rollout_length), {}, NoneType, between(0, 0), sized(list, 0, 0)
    most = share * (MAX_STEPS_OF_AN_EPISODE if whole else spec.groups[0].rollout_length)
    count = between(int(not spec.is_named), most) if spec.is_named or learns else NoneType
    metrics = METRICS if spec.is_named or learns else {}
    lengths = between(0, MAX_STEPS_OF_AN_EPISODE)
    episodes = columns(number, lengths, number, COUNT, ENDING, most=share) if whole else NoneType
    table, in_use = (COUNT, [int]) if spec.is_named else (between(0, 0), sized(list, 0, 0))
    return count, metrics, episodes, table, in_use


def checked_reply(method: str, asked: int, value: Any, named: bool = False) -> Any:
    """Check the answer to a call.

    Args:
        method: Method that was called, see :class:`~parenv.protocol.messages.Call`.
        asked: Number of sub-environments that the call is about.
        value: Answer of the worker.
        named: Whether policies have names.

    Returns:
        The answer, with escaped texts if it reports an exception.

    Raises:
        ProtocolError: The answer does not fit the call.
    """
    if method == "set_attr" and value is None:
        return None
    if method == "turn" and type(value) is dict and list(value) == ["failure"]:
        failure = build(Failure, value["failure"], of_host=True)
        return {"failure": [getattr(failure, one.name) for one in fields(Failure)]}
    checked = fit(_replies(asked, named).get(method, object), value, f"the answer to {method}")
    if method == "turn":
        with_tensors(value["state"])  # The main process reads a member much later, when the host is forgotten.
    return checked


class OpenCalls:
    """The calls to workers whose answers are checked, and that have no answer yet.

    Args:
        named: Whether policies have names.
    """

    def __init__(self, named: bool = False) -> None:
        self._named = named
        self._asked: dict[tuple[Sender, int], tuple[str, int]] = {}

    def add(self, to: Sender, call: Call) -> None:
        """Add a call that is sent to a worker."""
        self._asked[to, call.sequence] = call.method, call.asked

    def checked(self, sender: Sender, answer: Reply | Failure) -> Any:
        """Check an answer, and return it in the form for the main process. Other answers are not checked.

        Raises:
            ProtocolError: The answer does not fit the call.
        """
        if isinstance(answer, Reply) and (sender, answer.sequence) in self._asked:
            method, asked = self._asked.pop((sender, answer.sequence))
            return replace(answer, value=checked_reply(method, asked, answer.value, self._named))
        if isinstance(answer, Failure) and not answer.more:
            # With ``more``, further failures of this call follow, so the call stays open.
            self._asked.pop((sender, answer.call), None)
        return answer

    def forget(self, worker: Sender) -> None:
        """Drop the calls to a worker that has ended."""
        self._asked = {key: asked for key, asked in self._asked.items() if key[0] != worker}


def _replies(asked: int, named: bool) -> dict[str, Form]:
    each = sized(list, asked, asked)
    return {
        "call": each,
        "get_attr": each,
        "is_wrapped": each,
        "set_attr": each,
        "reset": (),
        "load": int,
        "measure": ([_duration, _duration],),
        "set_state": [COUNT],
        "get_state": _state_of_worker,
        "turn": _TURN,
        "evaluate": _evaluation_by_name if named else _evaluation,
    }


def _duration(value: Any, where: str) -> Any:
    return value if isinstance(value, float) and value >= 0 else refuse(where, "seconds", type(value).__name__)


def _state_of_worker(value: Any, where: str) -> Any:
    fit(int, fit(dict, value, where).get("generation"), where)
    return value if "random" in value else refuse(where, "random states", "none")


def _evaluation(value: Any, where: str) -> Any:
    """Check the episodes of sub-environments, which are arrays."""
    checked = arrays(5)(value, where)
    fit([ENDING], checked[4].tolist(), where)
    return checked


def _evaluation_by_name(value: Any, where: str) -> Any:
    """Check the episodes of sub-environments, and by policy those of agents with their names and episode numbers."""
    of_agents = {str: columns(*EPISODE_COLUMNS, str, COUNT)}
    *whole, by_policy = fit((*(list,) * 5, of_agents), value, where)
    return [*columns(*EPISODE_COLUMNS)(whole, where), by_policy]
