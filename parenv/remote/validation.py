"""What workers on hosts say, where a message leaves its form open: nothing is used that was not checked here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from parenv.errors import ProtocolError
from parenv.memory.layout import MAX_EPISODE_STEPS, WHOLE_EPISODES, RolloutSpec, extras_and_carry, infos_from_data
from parenv.memory.spaces import leaves, rebuild
from parenv.protocol.frames import build
from parenv.protocol.messages import Commit, Failure, Ready, StepReady
from parenv.protocol.tensors import with_tensors

MAX_ENVS = 1 << 20
"""Sub-environments of one worker."""
MAX_STEPS_OF_AN_EPISODE = 2 * MAX_EPISODE_STEPS
"""A worker looks only now and then whether one is too long."""
_LARGEST_NUMBER = (1 << 63) - 1


def check_ready(ready: Ready | StepReady, steps: bool) -> None:
    """Check what a worker says of its sub-environments.

    Args:
        ready: as it came.
        steps: whether the worker answers on a step buffer.

    Raises:
        ProtocolError: no worker says so.
    """
    require(ready.num_envs > 0, "has no sub-environments")
    require(ready.num_envs <= MAX_ENVS, f"has more than {MAX_ENVS:,} sub-environments")
    require(isinstance(ready, StepReady) == steps, "has another task than was given to it")
    if isinstance(ready, StepReady):
        _check_step_ready(ready)
        return
    require(type(ready.spaces) is list and len(ready.spaces) == 2, "does not say its spaces")
    extras_and_carry(ready.extras, ready.carry)
    infos_from_data(ready.infos)
    for space in ready.spaces:
        leaves(rebuild(space))


def _check_step_ready(ready: StepReady) -> None:
    require(type(ready.spaces) is dict, "does not say its spaces")
    for name in ("observation_space", "action_space"):
        described = ready.spaces.get(name)
        require(type(described) is list and [type(part) for part in described] == [list, list], f"has no {name}")
        distinct, which = described
        require(len(which) == ready.num_envs and _are(int, which), f"does not say whose each {name} is")
        require(set(which) == set(range(len(distinct))), f"does not say whose each {name} is")
        for space in distinct:
            leaves(rebuild(space))
    require(type(ready.metadata) is dict, "does not say its metadata")
    require(type(ready.render_mode) in (str, type(None)), "does not say its render_mode")
    require(type(ready.generators) is dict, "does not say how its spaces are sampled")


def check_reply(method: str, asked: int, value: Any) -> None:
    """Check the answer to a call.

    Args:
        method: that was called, see :class:`~parenv.protocol.messages.Call`.
        asked: how many sub-environments it was about.
        value: the answer.

    Raises:
        ProtocolError: no worker answers so.
    """
    if method in ("call", "get_attr", "is_wrapped", "set_attr"):
        fits = _is_list_of(object, value, asked) or (method == "set_attr" and value is None)
    elif method == "measure":
        fits = _is_list_of(float, value, 1) and value[0] >= 0
    elif method == "evaluate":
        fits = (
            type(value) is tuple and len(value) == 4 and all(map(_is_column, value)) and len(set(map(len, value))) == 1
        )
    elif method == "evaluate by name":
        fits = type(value) is tuple and len(value) == 5 and _are_episodes(value[:4]) and _are_by_name(value[4])
    elif method == "turn":
        fits = type(value) is dict and (_is_turn(value) or list(value) == ["failure"])
    elif method == "set_state":
        fits = type(value) is list and _are_counts(value)
    elif method == "get_state":
        fits = type(value) is dict and type(value.get("generation")) is int and "random" in value
    else:
        fits = {"reset": value == [], "load": type(value) is int}.get(method, True)
    require(fits, f"answers to {method} what was not asked for")


def harmless_turn(value: dict[str, Any]) -> dict[str, Any]:
    """What came of a turn, already checked; of one that raised, with texts that people can be shown.

    Raises:
        ProtocolError: no worker says so of what it raised, or of the state of a member.
    """
    if "failure" not in value:
        with_tensors(value["state"])  # The main process reads a member much later, when the host is forgotten.
        return value
    require(type(value["failure"]) is list, "does not say what was raised")
    failure = harmless_failure(build(Failure, value["failure"]))
    return {"failure": [getattr(failure, one.name) for one in fields(Failure)]}


def harmless(text: str) -> str:
    r"""A text of a host that people will see: what would move their terminal is written out.

    >>> print(harmless("\x1b[2Jgone"))
    \x1b[2Jgone
    """
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


def harmless_failure(failure: Failure) -> Failure:
    """An exception with texts that people can be shown.

    Raises:
        ProtocolError: no worker says so.
    """
    require(_is_list_of(str, failure.kind, 2), "does not say what was raised")
    named = type(failure.attributes) is dict and _are(str, failure.attributes)
    require(named, "does not name the attributes of what was raised")
    return replace(
        failure,
        doing=harmless(failure.doing),
        kind=[harmless(part) for part in failure.kind],
        message=harmless(failure.message),
        traceback=harmless(failure.traceback),
        attributes={name: _harmless_data(value) for name, value in failure.attributes.items()},
    )


def harmless_commit(commit: Commit) -> Commit:
    """A commit, already checked, with texts that people can be shown."""
    return replace(commit, replaced=_harmless_data(commit.replaced))


def _harmless_data(value: Any) -> Any:
    """Plain data in which texts are harmless: an exception may be shown by any of its attributes."""
    if type(value) is str:
        return harmless(value)
    if type(value) in (list, tuple):
        return type(value)(map(_harmless_data, value))
    return {key: _harmless_data(one) for key, one in value.items()} if type(value) is dict else value


def check_commit(commit: Commit, spec: RolloutSpec, share: int, num_ends: int) -> None:
    """Check what a worker says of a rollout beside what lies in its slot.

    Args:
        commit: as it came.
        spec: what a rollout consists of.
        share: sub-environments of the worker.
        num_ends: how many episodes have ended in it.

    Raises:
        ProtocolError: no worker says so.
    """
    require(type(commit.objects) is dict, "has no objects")
    for name, of, length in (
        ("observations", spec.observations, spec.rollout_length + 1),
        ("actions", spec.actions, spec.rollout_length),
        ("finals", spec.observations, num_ends),
    ):
        for i, leaf in enumerate(of):
            if leaf.dtype is None and spec.rollout_length != WHOLE_EPISODES:
                rows = commit.objects.get((name, i))
                require(type(rows) is list and len(rows) == length, f"does not have {length} {name}")
                if name != "finals":
                    require(all(type(row) is list and len(row) == share for row in rows), f"lacks some {name}")
    check_replaced(commit.replaced)
    if commit.report is not None or spec.gradient_bytes:
        require(bool(spec.gradient_bytes) and type(commit.report) is list, "reports what it was not asked for")
        _check_report(commit.report, spec.rollout_length, share)


def check_replaced(replaced: Any) -> None:
    """Check what a worker says of sub-environments that were replaced.

    Raises:
        ProtocolError: no worker says so.
    """
    require(are_records(replaced, int, str, str), "does not say what was replaced")


def _check_report(report: Sequence[Any], rollout_length: int, share: int) -> None:
    has_episodes = rollout_length == WHOLE_EPISODES
    most_steps = MAX_STEPS_OF_AN_EPISODE if has_episodes else rollout_length
    require(len(report) == 3, "does not report samples, metrics and episodes")
    samples, metrics, columns = report
    # By their number the gradient of one worker weighs against those of others.
    require(type(samples) is int and 0 < samples <= most_steps * share, "does not have as many samples as it says")
    check_metrics(metrics)
    if not has_episodes:
        require(columns is None, "reports what it was not asked for")
        return
    fits = _is_list_of(list, columns, 4) and len(columns[0]) <= share and _are_episodes(columns)
    require(fits and _are_counts(columns[1], most_steps), "does not say how its episodes went")


def check_metrics(metrics: Any) -> None:
    """Check what ``loss_fn`` has returned beside a loss.

    Raises:
        ProtocolError: these are no numbers by name.
    """
    require(type(metrics) is dict and _are(str, metrics) and _are_numbers(metrics.values()), "has other metrics")


def _is_turn(value: dict[Any, Any]) -> bool:
    kinds = {"score": float, "env_steps": int, "mean_return": float, "metrics": dict, "episodes": list}
    kinds |= {"seconds": list, "state": dict}
    if {name: type(part) for name, part in value.items()} != kinds:
        return False
    state = {name: type(part) for name, part in value["state"].items() if name != "policy"}
    return (
        _are(str, value["metrics"])
        and _are_numbers([value["env_steps"], *value["metrics"].values()])
        and _is_list_of(list, value["episodes"], 4)
        and _are_episodes(value["episodes"])
        and _is_list_of(float, value["seconds"], 3)
        and state == {"hyperparameters": dict, "tensors": dict, "parts": dict, "normalising": list}
    )


def _are_by_name(value: Any) -> bool:
    """Whether these are the episodes of agents by policy, with whose they are and the numbers of the episodes."""
    return type(value) is dict and all(
        type(name) is str
        and _is_list_of(list, columns, 6)
        and len(columns[4]) == len(columns[5]) == len(columns[0])
        and _are_episodes(columns[:4])
        and _are(str, columns[4])
        and _are_counts(columns[5])
        for name, columns in value.items()
    )


def _are_episodes(columns: Any) -> bool:
    """Whether these are returns, lengths, seconds and env_ids."""
    return (
        _are(list, columns)
        and len(set(map(len, columns))) == 1
        and all(map(_are_numbers, columns))
        and _are_counts([*columns[1], *columns[3]])
    )


def _is_list_of(kind: Any, values: Any, length: int) -> bool:
    return type(values) is list and len(values) == length and _are(kind, values)


def _are(kind: Any, values: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _is_column(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iuf"


def _are_counts(values: Any, most: int = _LARGEST_NUMBER) -> bool:
    return all(type(value) is int and 0 <= value <= most for value in values)


def _are_numbers(values: Any) -> bool:
    """Whether these are numbers that numpy can hold: the integers of a message may have thousands of digits."""
    return all(type(value) is float or (isinstance(value, int) and abs(value) <= _LARGEST_NUMBER) for value in values)


def are_records(values: Any, *kinds: type) -> bool:
    """Whether this is a list of lists with one value of each of these kinds."""
    return type(values) is list and all(type(one) is list and list(map(type, one)) == [*kinds] for one in values)


def require(holds: bool, otherwise: str) -> None:
    """Refuse what a worker on a host has said, unless that holds.

    Raises:
        ProtocolError: it does not.
    """
    if not holds:
        raise ProtocolError(f"a worker {otherwise}")
