"""Step environments for parenv in an interpreter of their own, with the standard library and numpy only.

This file runs alone: the main process starts it as ``python stepper.py SOCKET``, in an interpreter from Python 3.8 on
that need not have parenv, Gymnasium or torch. It has the syntax of Python 3.6, so that an interpreter that is too old
can say so. It must not import anything of parenv: numbers that both sides share come with the first message.

The main process sends descriptors of its shared memory and wake-ups over the socket, so this process may also be in a
container. Nothing is unpickled: messages are JSON and raw buffers. A message is the number of its frames, their
lengths, and the frames.

A worker of parenv's own interpreter does the same with ``parenv/worker/step_task.py`` and
``parenv/envs/step_buffer_stepper.py``. Change both together; ``tests/process/test_interpreters.py`` compares them.
"""

import array
import bdb
import faulthandler
import fcntl
import importlib
import importlib.util
import inspect
import json
import mmap
import os
import platform
import signal
import socket
import struct
import sys
import traceback
from _thread import allocate_lock
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

MIN_VERSION = (3, 8)
HEADER = struct.Struct("!4sHHII")
COUNT, LENGTH = struct.Struct("<I"), struct.Struct("<Q")
DESCRIPTORS = 6
KINDS, RESET = 4, 2
"""Kinds of requests in the numbers of rows, see ``parenv/memory/step_buffer.py``."""
BY_MESSAGE = -1
MAX_DEPTH = 64


class RefusedError(Exception):
    """This interpreter, or an environment, cannot be used. The user gets a ConfigurationError."""


class UnfitError(Exception):
    """An observation does not fit its space. The user gets an ObservationError."""


class NotDataError(Exception):
    """A value is not plain data, so it cannot leave this process."""


class NoKindError(Exception):
    """An info has no kind, or a new kind has no room. It is sent in a message."""


class Connection:
    """The socket to the main process.

    Args:
        path: Path of the socket.
    """

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.kinds = {}  # type: Dict[str, int]
        self.version, self.worker, self.generation = 0, 0, 0

    def receive_descriptors(self) -> List[int]:
        """Receive the descriptors, which come with the first byte."""
        numbers = array.array("i")
        room = socket.CMSG_SPACE(DESCRIPTORS * numbers.itemsize)
        _, carried, _, _ = self.socket.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
        for _, _, data in carried:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
        return list(numbers)

    def receive(self) -> List[bytes]:
        """Receive a message."""
        (count,) = COUNT.unpack(self._read(COUNT.size))
        lengths = [LENGTH.unpack(self._read(LENGTH.size))[0] for _ in range(count)]
        return [self._read(length) for length in lengths]

    def send(self, kind: str, fields: List[Any]) -> None:
        """Send a message of one of parenv's classes."""
        buffers = []  # type: List[bytes]
        text = json.dumps(packed(fields, buffers), separators=(",", ":")).encode()
        header = HEADER.pack(b"PENV", self.version, self.kinds[kind], self.worker, self.generation)
        frames = [header + text] + buffers
        lengths = b"".join(LENGTH.pack(len(frame)) for frame in frames)
        self.socket.sendall(COUNT.pack(len(frames)) + lengths + b"".join(frames))

    def _read(self, length: int) -> bytes:
        parts, missing = [], length
        while missing:
            part = self.socket.recv(min(missing, 1 << 20))
            if not part:
                # The main process is gone.
                os._exit(1)
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


def packed(value: Any, buffers: List[bytes], where: str = "value", depth: int = 0) -> Any:
    """Return the JSON form of a plain value, as ``parenv/protocol/data.py`` reads it; add raw buffers to a list."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth > MAX_DEPTH:
        raise NotDataError("%s is nested more than %d deep" % (where, MAX_DEPTH))

    def inner(item: Any, suffix: str) -> Any:
        return packed(item, buffers, where + suffix, depth + 1)

    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        found = numpy.asarray(value)
        if found.dtype.kind in "biufcSUmM":
            buffers.append(found.tobytes())
            tag = "scalar" if isinstance(value, numpy.generic) else "array"
            return {tag: [found.dtype.str, list(found.shape), len(buffers) - 1]}
    if isinstance(value, (bytes, bytearray)):
        if not value:
            return {"bytes": None}
        buffers.append(bytes(value))
        return {"bytes": len(buffers) - 1}
    if isinstance(value, dict):
        return {"dict": [[inner(key, ".key"), inner(item, "[%r]" % (key,))] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [inner(item, "[%d]" % i) for i, item in enumerate(value)]}
    if isinstance(value, list):
        return [inner(item, "[%d]" % i) for i, item in enumerate(value)]
    for base in (bool, int, float, str):
        # An IntEnum, for example.
        if isinstance(value, base):
            return base(value)
    raise NotDataError("%s is a %s.%s, which is not plain data" % (where, type(value).__module__, type(value).__name__))


def plain_parts(info: Dict[Any, Any], where: str, left_out: Dict[str, str]) -> Dict[Any, Any]:
    """Return the parts of an info that are plain data; add a description of each other part to a dict."""
    found = {}
    for key, value in info.items():
        place = "%s[%r]" % (where, key)
        if isinstance(value, dict):
            value = plain_parts(value, place, left_out)
        elif isinstance(value, (set, frozenset)):
            value = sorted(value, key=repr)
        try:
            packed([key, value], [], place)
        except NotDataError as error:
            left_out[place] = str(error)
        else:
            found[key] = value
    return found


def unpacked(node: Any, buffers: Sequence[bytes]) -> Any:
    """Return the value of a JSON form."""
    if isinstance(node, list):
        return [unpacked(item, buffers) for item in node]
    if not isinstance(node, dict):
        return node
    ((tag, body),) = node.items()
    if tag == "dict":
        return {unpacked(key, buffers): unpacked(item, buffers) for key, item in body}
    if tag == "tuple":
        return tuple(unpacked(item, buffers) for item in body)
    if tag == "bytes":
        return b"" if body is None else bytes(buffers[body])
    if tag in ("array", "scalar"):
        import numpy

        dtype, shape, index = body
        found = numpy.frombuffer(buffers[index], dtype=numpy.dtype(dtype)).reshape(shape).copy()
        return found if tag == "array" else found[()]
    raise ValueError("a value of the kind %r cannot be sent to another interpreter" % (tag,))


def full_fence() -> None:
    """Complete all reads and writes before the next ones, see ``parenv/memory/order.py``."""
    lock = allocate_lock()
    lock.acquire()
    lock.release()
    lock.acquire()


def fence() -> None:
    """Do the same between writes, and between reads. x86 does so by itself."""


if platform.machine() != "x86_64":
    fence = full_fence


class Status:
    """The status slot of this worker, and the numbers that all workers share with the main process.

    Args:
        memory: Shared memory.
        job: Job, with the offsets in bytes.
        answers: Eventfd of the main process.
    """

    def __init__(self, memory: mmap.mmap, job: Dict[str, Any], answers: int) -> None:
        head, at = memoryview(memory), job["offsets"]
        slot = head[at["slot"] : at["slot"] + 32].cast("q")
        self.cell, self.said, self.has_infos, self.heartbeat = (slot[i : i + 1] for i in range(4))
        self.any_infos, self.spoke, self._notified, self._sleeping = (
            head[at[name] : at[name] + 1] for name in ("any_infos", "spoke", "notified", "sleeping")
        )
        self._wanted, self.told = (head[at[name] : at[name] + 8].cast("q") for name in ("wanted", "told"))
        self._doing, self._answers = job["doing"], answers

    def begin(self, doing: str, env_id: int = -1) -> None:
        """Set the current activity."""
        self.cell[0] = self.code(doing, env_id)
        self.heartbeat[0] += 1

    def code(self, doing: str, env_id: int) -> int:
        """Encode an activity in a sub-environment as one number."""
        return int(self._doing.index(doing) + ((env_id + 1) << 8))

    @property
    def doing(self) -> str:
        """Return the current activity."""
        return str(self._doing[self.cell[0] & 255])

    @property
    def env_id(self) -> int:
        """Return the sub-environment of the current activity, or -1."""
        return (self.cell[0] >> 8) - 1

    def count_message(self) -> None:
        """Count a message that was sent. The main process receives all counted messages before it reads rows."""
        self.said[0] += 1
        fence()
        self.spoke[0] = 1

    def notify(self) -> None:
        """Notify the main process."""
        self._notified[0] = 1
        # The main process writes that it may sleep, and then looks whether it was notified. This is the other order.
        full_fence()
        if self._sleeping[0]:
            os.write(self._answers, struct.pack("=Q", 1))

    def notify_if_enough(self, requested: Any, finished: Any) -> None:
        """Notify the main process if as many rows are finished as it waits for, so that only the last worker does."""
        full_fence()
        if not self._notified[0] and int((requested == finished).sum()) >= self._wanted[0]:
            self.notify()


class Leaf:
    """One array of a space: keys from the root of the value to it, shape and dtype."""

    def __init__(self, path: Sequence[Any], shape: Sequence[int], dtype: str) -> None:
        import numpy

        self.path, self.shape, self.dtype = list(path), tuple(shape), numpy.dtype(dtype)

    def of(self, value: Any) -> Any:
        """Return the part of a value that this leaf has."""
        for key in self.path:
            value = value[key]
        return value


def nested(leaves: Sequence[Leaf], values: Sequence[Any], depth: int = 0) -> Any:
    """Nest values as the space does."""
    if len(leaves) == 1 and len(leaves[0].path) == depth:
        return values[0]
    groups = {}  # type: Dict[Any, Tuple[List[Leaf], List[Any]]]
    for leaf, value in zip(leaves, values):
        of_key = groups.setdefault(leaf.path[depth], ([], []))
        of_key[0].append(leaf)
        of_key[1].append(value)
    parts = {key: nested(mine, theirs, depth + 1) for key, (mine, theirs) in groups.items()}
    return tuple(parts.values()) if all(isinstance(key, int) for key in parts) else parts


def describe(space: Any, where: str) -> Any:
    """Describe a space by its fields, as ``parenv/memory/spaces.py`` reads it. The class of the space does not matter.

    Raises:
        RefusedError: No Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple has such fields.
    """
    import numpy

    parts = getattr(space, "spaces", None)  # type: Any
    named = {cls.__name__ for cls in type(space).__mro__}
    if hasattr(parts, "items") and "OneOf" not in named:
        return ["dict", {str(key): describe(part, where) for key, part in parts.items()}]
    if isinstance(parts, (list, tuple)) and "OneOf" not in named:
        return ["tuple", [describe(part, where) for part in parts]]
    if hasattr(space, "low") and hasattr(space, "high"):
        dtype = numpy.dtype(getattr(space, "dtype", None) or "float32")
        shape = [int(n) for n in getattr(space, "shape", None) or numpy.shape(space.low)]
        low, high = (_bound(numpy.asarray(bound, dtype)) for bound in (space.low, space.high))
        return ["box", low, high, shape, dtype.str]
    if hasattr(space, "nvec"):
        nvec = numpy.asarray(space.nvec)
        start = numpy.asarray(getattr(space, "start", numpy.zeros_like(nvec)))
        return ["multi_discrete", nvec, start, numpy.dtype(getattr(space, "dtype", None) or "int64").str]
    if hasattr(space, "n") and "MultiBinary" in named:
        return ["multi_binary", int(space.n) if numpy.ndim(space.n) == 0 else [int(n) for n in space.n]]
    if hasattr(space, "n"):
        dtype = numpy.dtype(getattr(space, "dtype", None) or "int64")
        return ["discrete", int(space.n), int(getattr(space, "start", 0)), dtype.str]
    raise RefusedError(
        "%s contains a %s, which another interpreter cannot describe: it must be a Box, Discrete, MultiDiscrete, "
        "MultiBinary, Dict or Tuple. Convert it in a wrapper" % (where, type(space).__name__)
    )


def _bound(bound: Any) -> Any:
    """Return one number if a bound is the same everywhere."""
    return bound.flat[0].reshape(()) if bound.size and (bound == bound.flat[0]).all() else bound


class Env:
    """One environment of Gymnasium, or of gym of any version, with the interface of Gymnasium.

    Args:
        inner: The environment.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        core = inner
        while core is not getattr(core, "unwrapped", core):
            core = core.unwrapped
        try:
            names = inspect.signature(core.reset).parameters
            takes_any = any(one.kind is one.VAR_KEYWORD for one in names.values())
        except (TypeError, ValueError):
            names, takes_any = inspect.signature(lambda: None).parameters, True
        # Before gym 0.22 there was env.seed(seed), and reset() returned the observation alone.
        self._seeds_by_method = "seed" not in names and not takes_any
        self._returns_on_request = "return_info" in names
        self.find_step()

    def find_step(self) -> None:
        """Read the ``step`` method again, because a call may have replaced it."""
        self.step = self._first_step  # type: Callable[[Any], Any]

    def reset(self, **keywords: Any) -> Tuple[Any, Dict[Any, Any]]:
        """Begin an episode."""
        if self._seeds_by_method:
            seed = keywords.pop("seed", None)
            if keywords.pop("options", None):
                raise TypeError("reset() of this environment cannot take options. Leave them out.")
            if seed is not None:
                self.inner.seed(seed)
        elif self._returns_on_request:
            keywords["return_info"] = True
        returned = self.inner.reset(**keywords)
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict):
            return returned
        if self._seeds_by_method:
            return returned, {}
        raise TypeError("reset must return (observation, info), but it returned %s" % shown(returned))

    def _first_step(self, action: Any) -> Any:
        """Step, and find out how many values the environment returns."""
        returned = self.inner.step(action)
        if not isinstance(returned, tuple) or len(returned) not in (4, 5):
            raise TypeError(
                "step must return (observation, reward, terminated, truncated, info), or (observation, reward, done, "
                "info) in an older gym, but it returned %s" % shown(returned)
            )
        self.step = self._step_of_old_gym if len(returned) == 4 else self.inner.step
        return self._five(returned) if len(returned) == 4 else returned

    def _step_of_old_gym(self, action: Any) -> Any:
        return self._five(self.inner.step(action))

    @staticmethod
    def _five(returned: Any) -> Any:
        observation, reward, done, info = returned
        truncated = bool(done and info.get("TimeLimit.truncated", False))
        return observation, reward, bool(done) and not truncated, truncated, info

    def get(self, name: str) -> Any:
        """Return an attribute of the environment, its wrappers first."""
        get = getattr(self.inner, "get_wrapper_attr", None)
        return getattr(self.inner, name) if get is None else get(name)

    def set(self, name: str, value: Any) -> None:
        """Set an attribute where it is, or else on the environment itself."""
        set_attribute = getattr(self.inner, "set_wrapper_attr", None)
        if set_attribute is not None:
            set_attribute(name, value)
            return
        layer = self.inner
        while name not in vars(layer) and getattr(layer, "env", None) is not None:
            layer = layer.env
        setattr(layer, name, value)

    def is_wrapped(self, module: str, name: str) -> bool:
        """Tell whether a wrapper is of a class with this name, or of a subclass."""
        layer = self.inner
        while getattr(layer, "env", None) is not None:
            if any((cls.__module__, cls.__qualname__) == (module, name) for cls in type(layer).__mro__):
                return True
            layer = layer.env
        return False

    def close(self) -> None:
        """Close the environment."""
        close = getattr(self.inner, "close", None)
        if close is not None:
            close()


def shown(value: Any) -> str:
    """Shorten the text of a value for a message."""
    text = repr(value)
    return text if len(text) < 200 else text[:200] + "..."


def explain_step(error: BaseException, returned: Any, env_id: int) -> None:
    """Explain an error by the result of ``step``, if that result has the wrong form. ``None``: there is no result."""
    import numpy

    if returned is None:
        return
    if len(returned) != 5:
        must = "step must return (observation, reward, terminated, truncated, info), got %d values" % len(returned)
        error.args = (must,)
        return
    _, reward, terminated, truncated, _ = returned
    kind = numpy.asarray(reward, None if numpy.isscalar(reward) else object)
    if kind.ndim or reward is None or isinstance(reward, (str, bytes, complex, dict)):
        got = "a sequence" if kind.ndim else shown(reward)
        error.args = ("the reward of env_id %d must be a number, got %s. Return a float." % (env_id, got),)
        return
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not is_flag(flag):
            error.args = ("%s of env_id %d must be a boolean, got %s" % (name, env_id, shown(flag)),)
            return


def check_flags(*flags: Any) -> None:
    """Refuse objects such as lists and text, which count as true unless they are empty."""
    if not all(map(is_flag, flags)):
        raise TypeError("terminated and truncated must be booleans")


def is_flag(flag: Any) -> bool:
    """Tell whether an object has a truth value of its own, and not the one of its length."""
    try:
        return not hasattr(type(flag), "__len__") or (hasattr(type(flag), "__bool__") and bool(flag) in (True, False))
    except Exception:
        return False


def own_copy(value: Any, depth: int = 0) -> Any:
    """Copy containers and arrays with everything that they hold, because a reset may change them."""
    import numpy

    if isinstance(value, dict) and depth < MAX_DEPTH:
        return {key: own_copy(item, depth + 1) for key, item in value.items()}
    if type(value) in (list, tuple) and depth < MAX_DEPTH:
        return type(value)([own_copy(item, depth + 1) for item in value])
    return value.copy() if isinstance(value, (set, bytearray, numpy.ndarray)) else value


def make(name: str, arguments: Dict[str, Any]) -> Any:
    """Make an environment from the name of its factory, see ``parenv.entry_point``."""
    place, _, attribute = name.rpartition(":")
    if not place or not all(part.isidentifier() for part in attribute.split(".")):
        return _gym().make(name, **arguments)
    if place.endswith(".py"):
        path = os.path.abspath(place)
        found = sys.modules.get(path)
        if found is None:
            spec = importlib.util.spec_from_file_location(path, path)
            if spec is None or spec.loader is None:
                raise ImportError("%s cannot be imported" % place)
            found = sys.modules[path] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(found)
    else:
        found = importlib.import_module(place)
    made = found  # type: Any
    for part in attribute.split("."):
        made = getattr(made, part)
    return made(**arguments)


def _gym() -> Any:
    for name in ("gymnasium", "gym"):
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name)
    raise RefusedError("an env id needs Gymnasium or gym in the other interpreter. Install one, or name a function.")


class InfoWriter:
    """Writes infos to the rows of the step buffer, in the forms of ``parenv/memory/kinds.py``.

    Args:
        kinds: Number of the kind of each info, int32 ``[N]``.
        infos: Bytes of each info, uint8 ``[N, info_bytes]``.
        job: Job, with the formats of scalars and the numbers of this worker's kinds.
    """

    def __init__(self, kinds: Any, infos: Any, job: Dict[str, Any]) -> None:
        import numpy

        self._kinds, self._row_bytes = kinds, infos.shape[1]
        self._buffer = memoryview(infos.reshape(-1))
        self._formats = job["formats"]
        self._numbers = job["numbers"]  # type: List[int]
        self._known = {}  # type: Dict[Any, Tuple[int, Any]]
        self._flat = {}  # type: Dict[Any, Tuple[int, Any]]
        self.new = []  # type: List[List[Any]]
        self._scalars = {int: "int", float: "float", bool: "bool", type(None): "none"}  # type: Dict[type, str]
        self._scalars.update((numpy.dtype(name).type, name) for name in self._formats if name[0] in "<|")

    def write(self, env_id: int, info: Dict[Any, Any]) -> bool:
        """Write a non-empty info; return whether it fits."""
        shape = (tuple(info), tuple(map(type, info.values())))
        known = self._flat.get(shape)
        try:
            if known is None:
                values = []  # type: List[Any]
                kind, form = self._kind(info, values, False)
                known = self._known.get(kind) or self._learn(kind, form)
                if all(isinstance(part, str) and part != "none" for _, part in kind[1]):
                    self._flat[shape] = known
            else:
                values = list(info.values())
            known[1](self._buffer, env_id * self._row_bytes, *values)
        except (NoKindError, struct.error, OverflowError):
            self._kinds[env_id] = BY_MESSAGE
            return False
        self._kinds[env_id] = known[0]
        return True

    def _learn(self, kind: Any, form: str) -> Tuple[int, Any]:
        packer = struct.Struct("<" + form)
        if packer.size > self._row_bytes or len(self._known) == len(self._numbers):
            raise NoKindError
        known = self._known[kind] = (self._numbers[len(self._known)], packer.pack_into)
        self.new.append([known[0], kind])
        return known

    def _kind(self, value: Any, values: List[Any], in_observation: bool) -> Tuple[Any, str]:
        """Return the kind of a value and its format; append the values to pack."""
        import numpy

        scalar = self._scalars.get(type(value))
        if scalar is not None:
            if scalar != "none":
                values.append(value)
            return scalar, self._formats[scalar]
        if type(value) is dict:
            parts = []
            for key, part in value.items():
                if type(key) is not str:
                    raise NoKindError
                parts.append((key, self._kind(part, values, in_observation or key == "final_obs")))
            return ("dict", tuple((key, kind) for key, (kind, _) in parts)), "".join(form for _, (_, form) in parts)
        if type(value) is numpy.ndarray and value.dtype.kind in "?biuf":
            values.append(value.tobytes())
            return ("array", value.dtype.str, value.shape), "%ds%dx" % (value.nbytes, -value.nbytes % 8)
        if type(value) is tuple and in_observation:
            found = [self._kind(part, values, True) for part in value]
            return ("tuple", tuple(kind for kind, _ in found)), "".join(form for _, form in found)
        raise NoKindError


class Rows:
    """The rows of this worker in the step buffer.

    Args:
        memory: Shared memory.
        layout: Arrays with their offsets, and the leaves of observations and actions.
    """

    def __init__(self, memory: mmap.mmap, layout: Dict[str, Any]) -> None:
        import numpy

        found = {}
        for name, i, offset, shape, dtype in layout["fields"]:
            found[name, i] = numpy.ndarray(tuple(shape), numpy.dtype(dtype), memory, offset)
        self.rewards, self.terminated, self.truncated, self.requested, self.finished, self.kinds = (
            found[name, 0] for name in ("rewards", "terminated", "truncated", "requested", "finished", "info_kinds")
        )
        self.infos = found["infos", 0]
        self.observed = [Leaf(*leaf) for leaf in layout["observations"]]
        self.acted = [Leaf(*leaf) for leaf in layout["actions"]]
        self.observations = [found["observations", i] for i in range(len(self.observed))]
        self._raw = [found["actions", i] for i in range(len(self.acted))]
        self.view_actions([leaf.dtype for leaf in self.acted])

    def view_actions(self, dtypes: Sequence[Any]) -> None:
        """Set the dtypes of the actions, which may differ from the dtypes of the space."""
        import numpy

        self.actions = []
        for leaf, raw, dtype in zip(self.acted, self._raw, dtypes):
            one = numpy.empty(leaf.shape, numpy.dtype(dtype))
            strides = (raw.strides[0],) + one.strides
            self.actions.append(numpy.ndarray((len(raw),) + leaf.shape, one.dtype, raw, 0, strides))

    def read_actions(self, where: Any) -> Any:
        """Return a copy of the actions of some rows, because an environment may keep or change its action."""
        arrays = [of_leaf[where].copy() for of_leaf in self.actions]
        if len(arrays) == 1 and not self.acted[0].path:
            return arrays[0]
        return [nested(self.acted, values) for values in zip(*arrays)]


class Output:
    """Messages of this worker, for data that is not in the rows of the step buffer.

    Args:
        connection: Connection to the main process.
        job: Description of the work.
        status: Status slot.

    Attributes:
        errors: ``(env_id, doing, exception)`` of each exception that was not reported yet.
    """

    def __init__(self, connection: Connection, job: Dict[str, Any], status: Status) -> None:
        self._connection, self._job, self._status = connection, job, status
        self.errors = []  # type: List[Tuple[int, str, BaseException]]
        self._infos = []  # type: List[List[Any]]
        self._writer = None  # type: Any
        self.any_infos = False

    def use(self, rows: Rows) -> None:
        """Write infos to these rows."""
        self._writer = InfoWriter(rows.kinds, rows.infos, self._job)

    def note(self, env_id: int, info: Any) -> None:
        """Write a non-empty info to its row, or keep it if it does not fit."""
        self.any_infos = True
        self._status.has_infos[0] = 1
        if not self._writer.write(env_id, info):
            self._infos.append([env_id, info])

    def fail(self, env_id: int, error: BaseException) -> None:
        """Keep an exception."""
        self.errors.append((env_id, self._status.doing, error))

    def send_side_data(self) -> None:
        """Send infos that did not fit into their rows, and new kinds of infos."""
        new, self._writer.new = self._writer.new, []
        infos, self._infos = self._infos, []
        if not new and not infos:
            return
        kept, all_left_out = [], {}  # type: List[Any], Dict[str, List[Any]]
        for env_id, info in infos:
            left_out = {}  # type: Dict[str, str]
            kept.append([env_id, plain_parts(info, "infos", left_out)])
            for where, what in left_out.items():
                all_left_out.setdefault(where, [env_id, where, what])
        self.say("SideData", [new, kept, [], list(all_left_out.values())])

    def report(self, call: int) -> None:
        """Send the exceptions, as an answer to a call; 0: of a step; -1: this process only waits for its end."""
        errors, self.errors = self.errors, []
        for left, (env_id, doing, error) in zip(reversed(range(len(errors))), errors):
            self.say("Failure", failure(call, left, env_id, doing, error))

    def say(self, kind: str, fields: List[Any]) -> None:
        """Send a message, and count it."""
        self._connection.send(kind, fields)
        self._status.count_message()


class Stepper:
    """Steps environments on the step buffer.

    Args:
        envs: The environments.
        job: Description of the work.
        status: Status slot.
        output: Receiver of infos and exceptions.
    """

    def __init__(self, envs: List[Env], job: Dict[str, Any], status: Status, output: Output) -> None:
        self._envs, self._job, self._status, self._output = envs, job, status, output
        self._first = job["env_ids"][0]
        self._own = slice(self._first, self._first + len(envs))
        self._codes = [status.code("step", env_id) for env_id in range(self._own.start, self._own.stop)]
        self._seeds = dict(enumerate(job["seeds"] or ()))
        self._fresh = [self._beginner(column) for column in range(len(envs))]
        # The first step of a process that replaces another one begins an episode.
        begins = bool(job["seeds"]) and job["mode"] != "DISABLED"
        self._steps = list(self._fresh) if begins else [env.step for env in envs]
        self._rows = None  # type: Any
        self._answered = self._own, 0  # type: Tuple[Any, Any]

    def use(self, rows: Rows) -> None:
        """Use these rows."""
        self._rows = rows
        self._fit = Fit(rows.observed, self._job)

    def due(self) -> List[Tuple[int, List[int]]]:
        """Return the requests that are to be served, the oldest first: the number of each, and its columns."""
        if self._rows is None:
            return []
        requested, finished = self._rows.requested[self._own].copy(), self._rows.finished[self._own]
        fence()
        due = ((requested != finished) & (requested % KINDS != 0)).nonzero()[0]
        numbers = sorted(set(requested[due].tolist()))
        return [(number, due[requested[due] == number].tolist()) for number in numbers]

    def serve(self, number: int, columns: List[int]) -> None:
        """Serve a request to some rows."""
        if number % KINDS == RESET:
            self.reset(columns, [None] * len(columns), {})
        elif len(columns) == len(self._envs):
            self._status.has_infos[0] = 0
            self._run(range(len(columns)), self._own)
        else:
            self._run(columns, self._where(columns))
        self._answered = self._answered[0], number

    def reset(self, columns: Sequence[int], seeds: Sequence[Optional[int]], options: Any) -> None:
        """Begin an episode in some environments."""
        where = self._where(columns)
        numbers = self._begin(where)
        each = options if isinstance(options, list) else [options] * len(columns)
        for column, seed, of_one in zip(columns, seeds, each):
            try:
                keywords = {} if of_one is False else {"options": of_one}
                observation, info = self._reset(column, seed, **keywords)
                if info:
                    self._output.note(self._first + column, info)
                self._write(column, observation)
            except BaseException as error:
                self._output.fail(self._first + column, error)
        self._answered = where, numbers

    def find_step(self, column: int) -> None:
        """Read the ``step`` method again, because a call may have replaced it."""
        self._envs[column].find_step()
        if self._steps[column] is not self._fresh[column]:
            self._steps[column] = self._envs[column].step

    def finish(self) -> None:
        """Mark the last request as finished, and notify the main process if that was the last row."""
        if self._status.has_infos[0]:
            self._status.any_infos[0] = 1
        where, numbers = self._answered
        # The main process may read the number when another worker wakes it, so the rows must be written first.
        fence()
        self._rows.finished[where] = numbers
        self._status.notify_if_enough(self._rows.requested, self._rows.finished)

    def _beginner(self, column: int) -> Callable[[Any], Any]:
        def begin(action: Any) -> Any:
            observation, info = self._reset(column, None)
            return observation, 0.0, False, False, info

        return begin

    def _run(self, columns: Sequence[int], where: Any) -> None:
        cell, codes, steps, write = self._status.cell, self._codes, self._steps, self._write
        array, dtype, shape = self._fit.plain
        row, first, rewards = self._rows.observations[0], self._first, []  # type: Any, int, List[Any]
        numbers = self._begin(where)
        for column, action in zip(columns, self._rows.read_actions(where)):
            cell[0] = codes[column]
            reward, returned = 0.0, None  # type: Any, Any
            try:
                returned = observation, reward, terminated, truncated, info = steps[column](action)
                if reward is None:  # numpy would store NaN.
                    raise TypeError
                if terminated or truncated:
                    reward = own_copy(reward)
                    observation, info = self._end(column, observation, terminated, truncated, info)
                if info:
                    self._output.note(first + column, info)
                if type(observation) is array and observation.dtype is dtype and observation.shape == shape:
                    row[first + column] = observation
                else:
                    write(column, observation)
            except BaseException as error:
                explain_step(error, returned, first + column)
                self._output.fail(first + column, error)
                reward = 0.0
            rewards.append(reward)
        self._write_rewards(columns, where, rewards)
        self._answered = where, numbers

    def _reset(self, column: int, seed: Optional[int], **keywords: Any) -> Any:
        self._status.begin("reset", self._first + column)
        own = self._seeds.pop(column, None)
        seed = own if seed is None else seed
        if seed is not None or keywords:
            keywords["seed"] = seed
        returned = self._envs[column].reset(**keywords)
        self._steps[column] = self._envs[column].step
        return returned

    def _begin(self, where: Any) -> Any:
        """Clear rows; return the numbers of their requests."""
        self._rows.terminated[where] = False
        self._rows.truncated[where] = False
        if self._output.any_infos:
            self._rows.kinds[where] = 0
        return self._rows.requested[where].copy()

    def _end(self, column: int, observation: Any, terminated: Any, truncated: Any, info: Any) -> Tuple[Any, Any]:
        check_flags(terminated, truncated)
        env_id, mode = self._first + column, self._job["mode"]
        self._rows.terminated[env_id], self._rows.truncated[env_id] = bool(terminated), bool(truncated)
        if mode == "NEXT_STEP":
            self._steps[column] = self._fresh[column]
        elif mode == "SAME_STEP":
            leaves = self._rows.observed
            final = nested(leaves, [self._fit.array(leaf, leaf.of(observation)).copy() for leaf in leaves])
            info = own_copy(info)
            observation, of_reset = self._reset(column, None)
            info = dict({"final_obs": final, "final_info": info}, **of_reset)
        return observation, info

    def _write(self, column: int, observation: Any) -> None:
        """Write an observation to its row, after its check."""
        row = self._first + column
        for leaf, of_leaf in zip(self._rows.observed, self._rows.observations):
            of_leaf[row] = self._fit.array(leaf, leaf.of(observation))

    def _write_rewards(self, columns: Sequence[int], where: Any, rewards: List[Any]) -> None:
        try:
            self._rows.rewards[where] = rewards
        except Exception:
            for column, reward in zip(columns, rewards):
                try:
                    self._rows.rewards[self._first + column] = reward
                except Exception as error:
                    explain_step(error, (None, reward, False, False, None), self._first + column)
                    self._output.fail(self._first + column, error)

    def _where(self, columns: Sequence[int]) -> Any:
        first, n = columns[0], len(columns)
        if list(columns) == list(range(first, first + n)):
            return slice(self._first + first, self._first + first + n)
        import numpy

        return numpy.array(columns) + self._first


class Fit:
    """Checks how observations fit their space.

    Args:
        leaves: Leaves of the space.
        job: Job, with the options ``strict_dtype`` and ``check_finite``.

    Attributes:
        plain: Type, dtype and shape of an observation that needs no check. A dtype ``None`` matches none.
    """

    def __init__(self, leaves: List[Leaf], job: Dict[str, Any]) -> None:
        import numpy

        self._strict, self._finite = job["strict_dtype"], job["check_finite"]
        single = len(leaves) == 1 and not leaves[0].path and not self._finite
        self.plain = numpy.ndarray, leaves[0].dtype if single else None, leaves[0].shape

    def array(self, leaf: Leaf, value: Any) -> Any:
        """Return the array of one leaf, cast to its dtype if it is of the same kind.

        Raises:
            UnfitError: The value does not fit the space.
        """
        import numpy

        found, wanted = numpy.asarray(value), leaf.dtype
        fits = numpy.can_cast(found.dtype, wanted, "same_kind") or (
            wanted.kind in "iuf" and found.dtype.kind in "iub" and not self._strict
        )
        if self._strict and isinstance(value, numpy.ndarray):
            fits = found.dtype == wanted
        if found.shape != leaf.shape or not fits:
            raise UnfitError(
                "the observation%s has shape %s and dtype %s, but its space has %s and %s. Convert it in the "
                "environment, or correct the observation space"
                % ("".join("[%r]" % (key,) for key in leaf.path), found.shape, found.dtype, leaf.shape, wanted)
            )
        if self._finite and found.dtype.kind == "f" and not numpy.isfinite(found).all():
            raise UnfitError("the observation is not finite: %s" % shown(value))
        return found.astype(wanted, copy=False)


class Worker:
    """The environments of this process, and everything that the main process asks of them.

    Args:
        connection: Connection to the main process.
        job: Description of the work.
        status: Status slot.
    """

    def __init__(self, connection: Connection, job: Dict[str, Any], status: Status) -> None:
        self._status, self._output = status, Output(connection, job, status)
        self._env_ids = range(*job["env_ids"])
        self._envs = []  # type: List[Env]
        self._rows = None  # type: Any
        for env_id, (name, arguments) in zip(self._env_ids, job["factories"]):
            status.begin("making the environment", env_id)
            made = make(name, arguments)
            if any(made is other.inner for other in self._envs):
                raise RefusedError("%s returned the same environment twice. Make a new one in each call." % name)
            for kind in ("observation_space", "action_space"):
                if not hasattr(made, kind):
                    raise RefusedError("%s made a %s without %s. Set it." % (name, type(made).__name__, kind))
            self._envs.append(Env(made))
        self._stepper = Stepper(self._envs, job, status, self._output)

    def ready(self) -> None:
        """Describe the environments for the main process."""
        spaces = {}
        for kind in ("observation_space", "action_space"):
            distinct, which, texts = [], [], []  # type: List[Any], List[int], List[str]
            for env_id, env in zip(self._env_ids, self._envs):
                found = describe(getattr(env.inner, kind), "the %s of env_id %d" % (kind, env_id))
                buffers = []  # type: List[bytes]
                text = json.dumps(packed(found, buffers)) + repr(buffers)
                if text not in texts:
                    texts.append(text)
                    distinct.append(found)
                which.append(texts.index(text))
            spaces[kind] = [distinct, which]
        first = self._envs[0].inner
        metadata = plain_parts(dict(getattr(first, "metadata", None) or {}), "metadata", {})
        mode = getattr(first, "render_mode", None)
        self._output.say("StepReady", [spaces, len(self._envs), metadata, mode if isinstance(mode, str) else None, {}])

    def take(self, kind: str, value: Any, memory_fd: int) -> None:
        """Do what a message asks for."""
        if kind == "rows":
            # The main process has extended its memory by the step buffer.
            self._rows = Rows(mmap.mmap(memory_fd, os.fstat(memory_fd).st_size), value)
            self._output.use(self._rows)
            self._stepper.use(self._rows)
        elif kind == "actions":
            self._rows.view_actions(value)
        else:
            self._answer(*value)

    def due(self) -> List[Tuple[int, List[int]]]:
        """Return the requests that are to be served."""
        return self._stepper.due()

    def step(self, due: List[Tuple[int, List[int]]]) -> None:
        """Serve requests."""
        for number, columns in due:
            self._stepper.serve(number, columns)
            self._finish()

    def _answer(self, number: int, method: str, arguments: Sequence[Any]) -> None:
        """Answer a call."""
        answers = []  # type: List[Any]
        if method == "reset":
            self._stepper.reset(*arguments)
            self._output.send_side_data()
            self._stepper.finish()
        else:
            answers = [
                self._answer_of(position, column, method, arguments) for position, column in enumerate(arguments[0])
            ]
        if self._output.errors:
            self._output.report(number)
        else:
            self._output.say("Reply", [number, answers])

    def fail(self, error: BaseException) -> None:
        """Report an exception after which this process only waits for its end."""
        self._output.fail(self._status.env_id, error)
        self._output.report(-1)

    def close(self) -> None:
        """Close the environments."""
        self._status.begin("closing")
        for env in self._envs:
            try:
                env.close()
            except Exception:
                traceback.print_exc()

    def _finish(self) -> None:
        """Send the side data of a step, and then mark it as finished."""
        self._output.send_side_data()
        self._output.report(0)
        self._stepper.finish()

    def _answer_of(self, position: int, column: int, method: str, arguments: Sequence[Any]) -> Any:
        env, env_id, values = self._envs[column], self._env_ids[column], arguments[1:]
        self._status.begin("call", env_id)
        answer = None
        try:
            if method == "call":
                found, args, kwargs = env.get(values[0]), values[1], values[2]
                answer = found(*args, **kwargs) if callable(found) else found
            elif method == "set_attr":
                env.set(values[1], values[0][position])
            else:
                answer = env.get(*values) if method == "get_attr" else env.is_wrapped(*values)
            packed(answer, [])
        except BaseException as error:
            self._output.fail(env_id, error)
            answer = None
        self._stepper.find_step(column)
        return answer


def failure(call: int, more: int, env_id: int, doing: str, error: BaseException) -> List[Any]:
    """Return the fields of a message about an exception. The traceback begins at the first frame outside this file."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    kind = [type(error).__module__, type(error).__qualname__]
    if isinstance(error, RefusedError):
        kind = ["parenv.errors", "ConfigurationError"]
    elif isinstance(error, (NotDataError, UnfitError)):
        kind = ["parenv.errors", "NotDataError" if isinstance(error, NotDataError) else "ObservationError"]
    message = error.args[0] if isinstance(error, KeyError) and len(error.args) == 1 else str(error)
    return [call, more, env_id, doing, kind, str(message), text, {}]


def limit_memory(more: int) -> None:
    """Have the kernel refuse allocations beyond the present size of this process plus ``more`` bytes."""
    import resource

    with open("/proc/self/status") as lines:
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (kilobytes * 1024 + more, resource.RLIM_INFINITY))


def signal_when_readable(descriptor: int, signum: int) -> None:
    """Have the kernel send a signal to this process when a descriptor becomes readable or its other end closes.

    The kernel does so even if native code holds the interpreter, and it reaches into a container, in which the main
    process knows no process id.
    """
    fcntl.fcntl(descriptor, 10, int(signum))  # F_SETSIG
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | fcntl.FASYNC)


def refuse_debugger(debugger: Any, frame: Any = None) -> None:
    """Raise an error in the place of ``bdb.Bdb.set_trace``, because this process has no terminal."""
    raise RefusedError(
        "breakpoint() and pdb.set_trace() cannot be used in another interpreter, which has no terminal. Leave "
        "WorkerOptions(python=...) out and use num_workers=0, so that everything runs in your process."
    )


def set_up(job: Dict[str, Any]) -> None:
    """Set up the process, before numpy is imported.

    Raises:
        RefusedError: The interpreter is too old, or has no numpy.
    """
    bdb.Bdb.set_trace = refuse_debugger  # type: ignore[assignment]
    os.environ.update(job["environment"])
    sys.path[:1] = [path for path in job["paths"] if os.path.isdir(path)]
    have = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < MIN_VERSION:
        raise RefusedError("%s must be Python 3.8 or later, got Python %s. Install one." % (sys.executable, have))
    try:
        importlib.import_module("numpy")
    except ImportError as error:
        raise RefusedError("%s (Python %s) has no numpy: %s. Install it there." % (sys.executable, have, error))
    if job["max_memory_bytes"] is not None:
        limit_memory(job["max_memory_bytes"])


def main(path: str) -> None:
    """Serve the main process until it sends ``close`` or is gone."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(path)
    memory_fd, wake_up, answers, stacks, stack_requests, lifeline = connection.receive_descriptors()
    faulthandler.register(signal.SIGUSR1, file=stacks)
    signal_when_readable(lifeline, signal.SIGKILL)
    signal_when_readable(stack_requests, signal.SIGUSR1)
    job = next_message(connection)[1]
    connection.kinds, connection.version = job["kinds"], job["version"]
    connection.worker, connection.generation = job["worker"], job["generation"]
    memory = mmap.mmap(memory_fd, os.fstat(memory_fd).st_size)
    status = Status(memory, job, answers)
    worker = None  # type: Optional[Worker]
    try:
        status.begin("starting")
        set_up(job)
        worker = Worker(connection, job, status)
        worker.ready()
    except BaseException as error:
        connection.send("Failure", failure(-1, 0, status.env_id, status.doing, error))
        status.count_message()
    status.notify()
    serve(connection, status, worker, memory_fd, wake_up)


def serve(connection: Connection, status: Status, worker: Optional[Worker], memory_fd: int, wake_up: int) -> None:
    """Do what the main process asks for, until it sends ``close``. Without a worker, only wait for that."""
    received = 0
    while True:
        status.cell[0] = status.code("waiting", -1)
        os.read(wake_up, 8)
        try:
            due = [] if worker is None else worker.due()
            while status.told[0] != received:
                received += 1
                kind, value = next_message(connection)
                if kind == "close":
                    if worker is not None:
                        worker.close()
                    return
                if worker is not None:
                    worker.take(kind, value, memory_fd)
                status.notify()
                due = [] if worker is None else worker.due()
            if worker is not None:
                said = status.said[0]
                worker.step(due)
                if status.said[0] != said:
                    status.notify()
        except BaseException as error:
            if worker is not None:
                worker.fail(error)
                worker = None
            status.notify()


def next_message(connection: Connection) -> Tuple[str, Any]:
    """Receive a message of the main process: its kind and its value."""
    frames = connection.receive()
    kind, value = unpacked(json.loads(frames[0].decode()), frames[1:])
    return kind, value


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    # An environment may have left threads behind, which would keep the process alive.
    sys.stderr.flush()
    os._exit(0)
