"""The words of the protocol, as frozen messages, and who may say which when.

They are small: arrays stay in shared memory, a message names a slot. Bytes fields hold cloudpickle and go from driver
to worker only. What comes from a worker is plain data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, get_args

from parenv.protocol.forms import between, of, shown, shown_data

MAX_ENVS = 1 << 20
"""Most sub-environments of one worker."""
RECORDS = [(int, shown, shown)]
"""The form of env_ids, each with two texts."""
_SPACES = ([object], [int])


@dataclass(frozen=True)
class Ready:
    """Worker: the sub-environments exist, and rollouts can be collected.

    Args:
        spaces: described observation and action space.
        num_envs: sub-environments in this worker.
        extras: ``[name, shape, dtype, postprocessed]`` of every extra that policy and postprocess return; empty from
            all workers but the first. Where policies have names, what each adds to the rows of which agents.
        carry: ``[path, shape, dtype]`` of every leaf of the policy's carry, likewise.
        infos: ``[name, shape, dtype, acted_on]`` of every info that the user named, likewise.
    """

    spaces: Any = field(metadata=of((object, object)))
    num_envs: int = field(metadata=of(between(1, MAX_ENVS)))
    extras: Any
    carry: Any
    infos: Any = field(default_factory=list)


@dataclass(frozen=True)
class StepReady:
    """Worker: the sub-environments exist, and can be stepped.

    Args:
        spaces: by name, described spaces of the sub-environments, equal ones said once, and which of them each has.
        num_envs: sub-environments in this worker.
        metadata: of the first one.
        render_mode: likewise, or ``None``.
        generators: with which its spaces are sampled.
    """

    spaces: Any = field(metadata=of({"observation_space": _SPACES, "action_space": _SPACES}))
    num_envs: int = field(metadata=of(between(1, MAX_ENVS)))
    metadata: Any = field(metadata=of(dict))
    render_mode: Any = field(metadata=of(str | None))
    generators: Any = field(metadata=of({str: object}))


@dataclass(frozen=True)
class Layout:
    """Driver: where everything lies in shared memory.

    Args:
        slots_offset: where the rollout slots begin, in bytes.
        slot_bytes: distance between two slots.
        slot_envs: sub-environments per slot, ``B`` or ``num_envs``.
        slot_workers: workers that write into one slot.
        first_column: this worker's first column in a slot.
        position: of this worker among those that write into one slot.
        first_env_id: the env_id of that column.
        extras: as the first worker said.
        carry: likewise.
        infos: likewise.
        device: where a part of every slot lies in memory of its own, such as ``"cuda:0"``; empty: nowhere.
        device_memory: by which that is opened.
        device_slot_bytes: distance between two slots there.
    """

    slots_offset: int
    slot_bytes: int
    slot_envs: int
    slot_workers: int
    first_column: int
    position: int
    first_env_id: int
    extras: Any
    carry: Any
    infos: Any = field(default_factory=list)
    device: str = ""
    device_memory: bytes = b""
    device_slot_bytes: int = 0


@dataclass(frozen=True)
class Rows:
    """Driver: where the step buffer for stepping lies in shared memory, and which rows are yours.

    Args:
        offset: where it begins, in bytes.
        num_envs: its rows.
        observations: ``[path, shape, dtype]`` of every leaf, in the order in which they lie there, whatever that of
            your own spaces.
        actions: likewise.
        info_bytes: room for one info.
    """

    offset: int
    num_envs: int
    observations: Any
    actions: Any
    info_bytes: int


@dataclass(frozen=True)
class Actions:
    """Driver: about the actions of the next steps.

    Args:
        dtypes: those in which they lie on the step buffer from now on, one per leaf; ``None``: as before.
        values: pickled ``{env_id: action}`` where they do not lie on the step buffer; empty for none.
    """

    dtypes: Any
    values: bytes


@dataclass(frozen=True)
class SideData:
    """Worker: what would not go on the step buffer with the last steps.

    Args:
        kinds: ``[number, kind]`` of infos that are written from now on.
        infos: ``[env_id, info]``.
        observations: ``[env_id, values]``: one value per leaf without a fixed size.
        left_out: ``[env_id, where, what]`` of the first value in each place in infos that has no plain form.
    """

    kinds: Any = field(metadata=of([(int, object)]))
    infos: Any = field(metadata=of([(int, dict | None)]))
    observations: Any = field(metadata=of([(int, list | None)]))
    left_out: Any = field(default=(), metadata=of(RECORDS))


@dataclass(frozen=True)
class Credit:
    """Driver: you may produce one more rollout.

    Args:
        sequence: counts the credits of one worker.
        slot: where to write it.
        policy_version: the version that must act.
        weights_slot: where its weights lie.
        snapshot: pickled settings, and the policy where it has no flat weights; empty for no settings and the policy
            that the pool was made with. Where policies have names, a table of all, which ``weights_slot`` counts.
    """

    sequence: int
    slot: int
    policy_version: int
    weights_slot: int
    snapshot: bytes


@dataclass(frozen=True)
class Commit:
    """Worker: the rollout of this credit is complete in its slot.

    Args:
        sequence: that of the credit.
        objects: values of spaces without a fixed size, which do not lie in the slot.
        report: for gradients: samples, metrics, and, of whole episodes, their returns, lengths, seconds and env_ids.
            Where policies have names: env steps, the count of the table, which policies still play, and metrics.
        replaced: ``[env_id, doing, exception as text]`` of sub-environments that were replaced meanwhile.
    """

    sequence: int
    objects: Any = field(metadata=of(dict))
    report: Any
    replaced: Any = field(metadata=of(RECORDS))


@dataclass(frozen=True)
class Call:
    """Driver: do this between two rollouts and answer; what is evaluated beside the training is answered in the end.

    Args:
        sequence: counts the calls.
        method: ``"call"``, ``"get_attr"``, ``"set_attr"``, ``"evaluate"``, ``"load"``, ``"get_state"`` or
            ``"set_state"``; of a population ``"turn"``; for stepping ``"reset"``,
            ``"call"``, ``"set_attr"`` or ``"measure"``.
        arguments: pickled arguments of that method.
        policy_version: the version that must be in shared memory for it, or -1.
        weights_slot: where its weights lie, or -1.
        asked: how many sub-environments it is about; 0 where it names none.
    """

    sequence: int
    method: str
    arguments: bytes
    policy_version: int = -1
    weights_slot: int = -1
    asked: int = 0


@dataclass(frozen=True)
class Reply:
    """Worker: the answer to the call of this sequence."""

    sequence: int
    value: Any


@dataclass(frozen=True)
class Failure:
    """Worker: an exception.

    Args:
        call: Sequence number of the call that raised; 0 for a step of a vector env; -1 for anything else. After -1 the
            worker only waits to be closed.
        more: how many more failures of the same call follow.
        env_id: the sub-environment at work, or -1.
        doing: what was being done.
        kind: ``[module, qualified name]`` of the exception; that of a warning is no failure, and warned of.
        message: its text.
        traceback: its traceback as text.
        attributes: what it has beside its text, by name.
    """

    call: int
    more: int
    env_id: int
    doing: str = field(metadata=of(shown))
    kind: Any = field(metadata=of((shown, shown)))
    message: str = field(metadata=of(shown))
    traceback: str = field(metadata=of(shown))
    attributes: Any = field(default_factory=dict, metadata=of({str: shown_data}))


def as_warning(text: str) -> Failure:
    """Something that the user is to be warned of."""
    return Failure(0, 0, -1, "", ["builtins", "UserWarning"], text, "")


@dataclass(frozen=True)
class Close:
    """Driver: clean up and end."""


Message = Ready | Layout | Credit | Commit | Call | Reply | Failure | Close | Rows | Actions | SideData | StepReady
KINDS: tuple[type[Message], ...] = get_args(Message)
"""In the order of the numbers that they have in frames."""


class State(Enum):
    """Where the conversation with one worker stands."""

    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    STEPPING = "stepping"
    FAILED = "failed"
    CLOSING = "closing"


DRIVER, WORKER = "driver", "worker"

_ALLOWED: list[tuple[State, str, tuple[type[Message], ...], State]] = [
    (State.STARTING, WORKER, (Ready, StepReady), State.READY),
    (State.READY, DRIVER, (Layout,), State.RUNNING),
    (State.READY, DRIVER, (Rows,), State.STEPPING),
    (State.RUNNING, DRIVER, (Credit, Call), State.RUNNING),
    (State.RUNNING, WORKER, (Commit, Reply), State.RUNNING),
    (State.STEPPING, DRIVER, (Actions, Call), State.STEPPING),
    (State.STEPPING, WORKER, (SideData, Reply), State.STEPPING),
    (State.FAILED, DRIVER, (Actions, Credit, Call), State.FAILED),
    (State.CLOSING, WORKER, (Ready, StepReady, Commit, SideData, Reply, Failure), State.CLOSING),
    *((state, WORKER, (Failure,), State.FAILED) for state in State if state not in (State.FAILED, State.CLOSING)),
    *((state, DRIVER, (Close,), State.CLOSING) for state in State if state is not State.CLOSING),
]
TRANSITIONS = {(state, role, kind): following for state, role, kinds, following in _ALLOWED for kind in kinds}
"""``(state, who speaks, what) -> next state``; any other triple is an error."""
