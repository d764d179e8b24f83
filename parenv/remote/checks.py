"""Checks of what hosts send that depend on the run: size limits, and answers that must fit the request.

The form of a field that is always the same is part of the message, see :mod:`parenv.protocol.forms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from types import NoneType
from typing import Any

from gymnasium import spaces

from parenv.errors import ProtocolError
from parenv.memory.agent_layout import agent_groups
from parenv.memory.layout import MAX_EPISODE_STEPS, WHOLE_EPISODES, SlotSpec, extras_and_carry, infos_from_data
from parenv.memory.spaces import leaves, rebuild
from parenv.protocol.data import Buffer
from parenv.protocol.forms import Form, arrays, between, columns, fit, number, refuse, sized
from parenv.protocol.frames import Sender, build, from_frames, to_frames
from parenv.protocol.messages import Commit, Failure, Ready, Reply, StepReady
from parenv.protocol.tensors import with_tensors
from parenv.remote.host_messages import max_brackets, max_head_bytes

FRAME_BYTES = 64
"""Upper bound of the overhead of a frame on the network."""
MAX_STEPS_OF_AN_EPISODE = 2 * MAX_EPISODE_STEPS
"""A worker checks the length of an episode only from time to time."""
COUNT = between(0)
METRICS = {str: number}
EPISODE_COLUMNS = (number, COUNT, number, COUNT)
"""Returns, lengths, seconds and env_ids."""
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
        raise ProtocolError(f"a message has {excess}")
    return from_frames(frames, of_host=True)


def fitting(sender: Sender, message: Any, max_message_bytes: int) -> list[Buffer]:
    """Encode a message of a worker, or an exception in its place if the main process would refuse the message."""
    frames = to_frames(sender, message)
    excess = _excess(frames[0], max_message_bytes)
    if (size := sum(len(frame) + FRAME_BYTES for frame in frames)) > max_message_bytes:
        excess = f"{size:,} bytes, more than RemotePlacement(max_message_bytes={max_message_bytes:,}) lets cross"
    if not excess:
        return frames
    call = message.sequence if isinstance(message, Reply) else -1
    doing = "commit" if isinstance(message, Commit) else "call"
    kind = ["parenv.errors", "NotDataError"]
    failure = Failure(call, 0, env_id=-1, doing=doing, kind=kind, message=f"one message has {excess}", traceback="")
    return to_frames(sender, failure)


def _excess(head: Buffer, max_message_bytes: int) -> str:
    """Describe what makes the JSON of a message too expensive to read."""
    text, limit = bytes(head), f"RemotePlacement(max_message_bytes={max_message_bytes:,}) lets cross"
    if len(text) > (most := max_head_bytes(max_message_bytes)):
        return f"{len(text):,} bytes beside arrays, more than the {most:,} that {limit}"
    if (brackets := text.count(b"[") + text.count(b"{")) > (most := max_brackets(max_message_bytes)):
        return f"{brackets:,} lists, dicts and arrays, more than the {most:,} that {limit}"
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
        raise ProtocolError("a worker has another task than was given to it")
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


def check_commit(commit: Commit, spec: SlotSpec, share: int, num_ends: int) -> None:
    """Check the part of a rollout that is not in its slot.

    Raises:
        ProtocolError: The message does not fit such a rollout.
    """
    if spec.rollout_length != WHOLE_EPISODES:
        fit(_objects(spec, share, num_ends), commit.objects, "Commit.objects")
    fit(_report(spec, share), commit.report, "Commit.report")


def _objects(spec: SlotSpec, share: int, num_ends: int) -> Form:
    if spec.is_named:
        return {}

    def rows(count: int) -> Form:
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
    most = share * (MAX_STEPS_OF_AN_EPISODE if whole else spec.groups[0].rollout_length)
    count = between(int(not spec.is_named), most) if spec.is_named or learns else NoneType
    metrics = METRICS if spec.is_named or learns else {}
    lengths = between(0, MAX_STEPS_OF_AN_EPISODE)
    episodes = columns(number, lengths, number, COUNT, most=share) if whole else NoneType
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


def _replies(asked: int, named: bool) -> dict[str, Form]:
    each = sized(list, asked, asked)
    return {
        "call": each,
        "get_attr": each,
        "is_wrapped": each,
        "set_attr": each,
        "reset": (),
        "load": int,
        "measure": (_duration,),
        "set_state": [COUNT],
        "get_state": _state_of_worker,
        "turn": _TURN,
        "evaluate": _evaluation_by_name if named else arrays(4),
    }


def _duration(value: Any, where: str) -> Any:
    return value if isinstance(value, float) and value >= 0 else refuse(where, "seconds", type(value).__name__)


def _state_of_worker(value: Any, where: str) -> Any:
    fit(int, fit(dict, value, where).get("generation"), where)
    return value if "random" in value else refuse(where, "random states", "none")


def _evaluation_by_name(value: Any, where: str) -> Any:
    """Check the episodes of sub-environments, and by policy those of agents with their names and episode numbers."""
    of_agents = {str: columns(*EPISODE_COLUMNS, str, COUNT)}
    *whole, by_policy = fit((*(list,) * 4, of_agents), value, where)
    return [*columns(*EPISODE_COLUMNS)(whole, where), by_policy]
