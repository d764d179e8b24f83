"""Messages between driver and workers, and the transitions of their conversation.

Messages are small: arrays stay in shared memory, and a message names a slot. Bytes fields hold cloudpickle and go from
driver to worker only. Workers send plain data. If a worker is on another machine, its fields must have the forms in
their metadata, see :mod:`parenv.protocol.forms`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, get_args

from parenv.memory.kinds import is_kind
from parenv.protocol.forms import between, of, refuse

MAX_ENVS = 1 << 20
"""Maximum number of sub-environments of one worker."""
RECORDS = [(int, str, str)]
"""Form of a list of env_ids with two texts each."""
FAILURES = [(int, str, str, str)]
"""Form of a list of env_ids with an activity, an exception and a traceback each."""
_SPACES = ([object], [int])


def _kind(value: Any, where: str) -> Any:
    return value if is_kind(value) else refuse(where, "a kind of info", repr(value)[:80])


@dataclass(frozen=True)
class Ready:
    """Worker: the sub-environments exist, and rollouts can be collected. Only worker 0 fills the last three fields.

    Args:
        spaces: Descriptions of the observation space and the action space.
        num_envs: Number of sub-environments in the worker.
        extras: ``[name, shape, dtype, postprocessed]`` of every extra that the policy and postprocess return. If
            policies have names: by policy, the extras and the carry that it adds to a group of agents.
        carry: ``[path, shape, dtype]`` of every leaf of the policy's carry.
        infos: ``[name, shape, dtype, acted_on]`` of every info that the user named.
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
        spaces: By name, descriptions of the distinct spaces, and the index of each sub-environment's space.
        num_envs: Number of sub-environments in the worker.
        metadata: Metadata of the first sub-environment.
        render_mode: Render mode of the first sub-environment, or ``None``.
        generators: Random generators of its spaces.
    """

    spaces: Any = field(metadata=of({"observation_space": _SPACES, "action_space": _SPACES}))
    num_envs: int = field(metadata=of(between(1, MAX_ENVS)))
    metadata: Any = field(metadata=of(dict))
    render_mode: Any = field(metadata=of(str | None))
    generators: Any = field(metadata=of({str: object}))


@dataclass(frozen=True)
class Layout:
    """Driver: the layout of the shared memory.

    Args:
        slots_offset: Offset of the rollout slots, in bytes.
        slot_bytes: Distance between two slots.
        slot_envs: Number of sub-environments per slot, ``B`` or ``num_envs``.
        slot_workers: Number of workers that write into one slot.
        first_column: First column of this worker in a slot.
        position: Index of this worker among those that write into one slot.
        first_env_id: The env_id of the first column.
        extras: Extras from the ``Ready`` of worker 0.
        carry: Carry from the ``Ready`` of worker 0.
        infos: Infos from the ``Ready`` of worker 0.
        device: Device with a part of every slot, such as ``"cuda:0"``; empty: no device.
        device_memory: Handle that opens the memory on the device.
        device_slot_bytes: Distance between two slots on the device.
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
    """Driver: the layout of the step buffer.

    Args:
        offset: Offset in shared memory, in bytes.
        num_envs: Number of rows.
        observations: ``[path, shape, dtype]`` of every leaf of the observations. Its order is independent of the
            worker's own spaces.
        actions: ``[path, shape, dtype]`` of every leaf of the actions.
        info_bytes: Maximum size of one info.
    """

    offset: int
    num_envs: int
    observations: Any
    actions: Any
    info_bytes: int


@dataclass(frozen=True)
class Actions:
    """Driver: the form of the actions of the next steps.

    Args:
        dtypes: Dtypes of the actions in the step buffer from now on, one per leaf; ``None``: unchanged.
        values: Pickled ``{env_id: action}`` of actions that do not fit into the step buffer; empty: there are none.
    """

    dtypes: Any
    values: bytes


@dataclass(frozen=True)
class SideData:
    """Worker: data of the last steps that do not fit into the step buffer.

    Args:
        kinds: ``[number, kind]`` of each new kind of infos in the step buffer.
        infos: ``[env_id, info]`` of each info.
        observations: ``[env_id, values]``, with one value per leaf without a fixed size.
        left_out: ``[env_id, where, what]`` of the first value at each place in infos that is not plain data.
    """

    kinds: Any = field(metadata=of([(int, _kind)]))
    infos: Any = field(metadata=of([(int, dict | None)]))
    observations: Any = field(metadata=of([(int, list | None)]))
    left_out: Any = field(default=(), metadata=of(RECORDS))


@dataclass(frozen=True)
class Credit:
    """Driver: permission to produce another rollout.

    Args:
        sequence: Number of the credit, for each worker.
        slot: Slot for the rollout.
        policy_version: Version of the policy that must act.
        weights_slot: Place of its weights.
        snapshot: Pickled settings, and the policy if it has no flat weights. Empty: no settings and the policy from the
            start of the pool. If policies have names: a table of all, and ``weights_slot`` is its number.
    """

    sequence: int
    slot: int
    policy_version: int
    weights_slot: int
    snapshot: bytes


@dataclass(frozen=True)
class Commit:
    """Worker: the rollout of a credit is complete in its slot.

    Args:
        sequence: Number of the credit.
        objects: Values of spaces without a fixed size, which are not in the slot.
        env_steps: Number of env steps; ``None`` if the slot has them all. For parts of whole episodes, the number of
            rows.
        metrics: Metrics of the loss by name.
        episodes: Returns, lengths, seconds, env_ids and reasons for the end of whole episodes in a gradient, else
            ``None``.
        table: Number of the table of versions, if policies have names.
        in_use: Indices of policies in use, if policies have names.
        replaced: ``[env_id, doing, exception, traceback]`` of each sub-environment that was replaced, as texts.
    """

    sequence: int
    objects: Any = field(default_factory=dict, metadata=of(dict))
    env_steps: Any = field(default=None, metadata=of(int | None))
    metrics: Any = field(default_factory=dict, metadata=of(dict))
    episodes: Any = None
    table: int = 0
    in_use: Any = field(default_factory=list, metadata=of([int]))
    replaced: Any = field(default_factory=list, metadata=of(FAILURES))


@dataclass(frozen=True)
class Call:
    """Driver: a call to answer between two rollouts, or for an evaluation beside the training when it is done.

    Args:
        sequence: Number of the call.
        method: ``"call"``, ``"get_attr"``, ``"set_attr"``, ``"evaluate"``, ``"load"``, ``"get_state"`` or
            ``"set_state"``; of a population ``"turn"``; of an evaluation ``"episode"``; for stepping ``"reset"``,
            ``"call"``, ``"set_attr"`` or ``"measure"``.
        arguments: Pickled arguments of the method.
        policy_version: Version of the policy that the call needs in shared memory, or -1.
        weights_slot: Place of its weights, or -1.
        asked: Number of sub-environments that the call names.
    """

    sequence: int
    method: str
    arguments: bytes
    policy_version: int = -1
    weights_slot: int = -1
    asked: int = 0


@dataclass(frozen=True)
class Reply:
    """Worker: the answer to the call with this number."""

    sequence: int
    value: Any


@dataclass(frozen=True)
class Failure:
    """Worker: an exception.

    Args:
        call: Number of the call that raised; 0 for a step of a vector env; -1 for anything else. After -1 the worker
            only waits to be closed.
        more: Number of failures of the same call that follow.
        env_id: The sub-environment at work, or -1.
        doing: Activity of the worker.
        kind: ``[module, qualified name]`` of the exception. A kind of warning is reported to the user as a warning.
        message: Text of the exception.
        traceback: Traceback as text.
        attributes: Other attributes of the exception, by name.
    """

    call: int
    more: int
    env_id: int
    doing: str
    kind: Any = field(metadata=of((str, str)))
    message: str
    traceback: str
    attributes: Any = field(default_factory=dict, metadata=of({str: object}))


def as_warning(text: str) -> Failure:
    """Return a message that the user gets as a warning."""
    return Failure(0, 0, -1, "", ["builtins", "UserWarning"], text, "")


@dataclass(frozen=True)
class Logged:
    """Worker: records of :mod:`logging` since its last message. Hosts must not send it.

    Args:
        records: Records as :class:`~parenv.worker.log_records.RecordQueue` makes them, a dict of attributes each.
        dropped: Number of further records, which were too many.
    """

    records: Any
    dropped: int


@dataclass(frozen=True)
class FirstMade:
    """Worker 0 of a vector env whose number of workers is not chosen yet: it has made its first sub-environment.

    Args:
        native: Package with native code that it uses, or empty.
        env_bytes: Bytes by which the worker has grown.
        make_s: Seconds of making it, without the time in the queue for a core.
        cost: The fields of :class:`~parenv.envs.step_cost.StepCost`, or ``None`` if a step could not be measured.
    """

    native: str
    env_bytes: int
    make_s: Any = field(metadata=of(float))
    cost: Any = field(metadata=of(list | None))


@dataclass(frozen=True)
class Shares:
    """Driver: the number of workers is chosen. The worker makes the rest of its sub-environments.

    Args:
        shares: Number of sub-environments of each worker.
        cores: Cores of the worker, or ``None`` for all.
        spinning: The fields of :class:`~parenv.process.spinning.Spinning`, or ``None``.
    """

    shares: Any
    cores: Any
    spinning: Any


@dataclass(frozen=True)
class Close:
    """Driver: clean up and end."""


Message = (
    Ready
    | Layout
    | Credit
    | Commit
    | Call
    | Reply
    | Failure
    | Close
    | Rows
    | Actions
    | SideData
    | StepReady
    | Logged
    | FirstMade
    | Shares
)
KINDS: tuple[type[Message], ...] = get_args(Message)
"""Classes of messages, in the order of their numbers in frames."""


class State(Enum):
    """State of the conversation with one worker."""

    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    STEPPING = "stepping"
    FAILED = "failed"
    CLOSING = "closing"


DRIVER, WORKER = "driver", "worker"

_ALLOWED: list[tuple[State, str, tuple[type[Message], ...], State]] = [
    (State.STARTING, WORKER, (FirstMade,), State.STARTING),
    (State.STARTING, DRIVER, (Shares,), State.STARTING),
    (State.STARTING, WORKER, (Ready, StepReady), State.READY),
    (State.READY, DRIVER, (Layout,), State.RUNNING),
    (State.READY, DRIVER, (Rows,), State.STEPPING),
    (State.RUNNING, DRIVER, (Credit, Call), State.RUNNING),
    (State.RUNNING, WORKER, (Commit, Reply), State.RUNNING),
    (State.STEPPING, DRIVER, (Actions, Call), State.STEPPING),
    (State.STEPPING, WORKER, (SideData, Reply), State.STEPPING),
    (State.FAILED, DRIVER, (Actions, Credit, Call), State.FAILED),
    (State.CLOSING, WORKER, (FirstMade, Ready, StepReady, Commit, SideData, Reply, Failure), State.CLOSING),
    *((state, WORKER, (Failure,), State.FAILED) for state in State if state not in (State.FAILED, State.CLOSING)),
    *((state, WORKER, (Logged,), state) for state in State),
    *((state, DRIVER, (Close,), State.CLOSING) for state in State if state is not State.CLOSING),
]
TRANSITIONS = {(state, role, kind): following for state, role, kinds, following in _ALLOWED for kind in kinds}
"""``(state, sender, class of message) -> next state``. Any other message is an error."""
