"""Serve environments to another process, with the standard library only.

A worker starts this file in another interpreter, from Python 3.6 on, that need not have parenv, Gymnasium or numpy. So
it must not import anything of parenv. The worker imports this file too, for the channel and the encoding.

A request is a list, its method first. The answer is ``["done", value]``, ``["failed", failure]`` or, before the last
part of a batch of steps, ``["more", value]``. Nothing is unpickled: values are encoded as numbers, texts, bytes and
containers of these, for which ``marshal`` has a form that all versions of Python can read.

The worker does the rest: autoreset, seeds, checks of observations and rewards, infos, and time limits.
"""

import bdb
import collections
import datetime
import enum
import faulthandler
import importlib
import importlib.util
import inspect
import marshal
import mmap
import os
import pathlib
import select
import signal
import struct
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

NATIVE = {type(None), bool, int, float, complex, str, bytes}
"""Types that are encoded as they are. Each other value is a tuple that begins with ``...``."""
KINDS = "biufcSUmM"
FORMATS = {"|b1": "?", "|i1": "b", "|u1": "B", "<i2": "h", "<u2": "H", "<i4": "i", "<u4": "I", "<i8": "q", "<u8": "Q"}
FORMATS.update({"<f4": "f", "<f8": "d"})
VERSION = 2
"""Version of the format of ``marshal``."""
MAX_DEPTH = 64
FLUSH_S = 0.1
"""Seconds after which the results so far are sent, so that the worker's time limit is for one env step."""
SPACE_FIELDS = ("low", "high", "shape", "n", "nvec", "start")
HEAD = struct.Struct("<QQ")
STEP, RESET, STEP_AND_RESET, ODD_STEP, ODD_RESET, FAILED_STEP, FAILED_RESET = range(7)


class RefusedError(Exception):
    """This interpreter, or an environment, cannot be used. The user gets a ConfigurationError."""


class TooDeepError(Exception):
    """A value is nested too deep to be encoded, or contains itself."""


class Channel:
    """Messages over two pipes. A message has a value and some bytes.

    Args:
        source: Descriptor to read from.
        target: Descriptor to write to.
    """

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._buffer, self._filled = bytearray(1 << 16), 0

    def send(self, value: Any, more: Any = b"") -> None:
        """Send a message.

        Raises:
            ValueError: The value is too large.
        """
        if sys.platform == "win32":
            raise NotImplementedError
        body = marshal.dumps(value, VERSION)
        parts = [memoryview(part) for part in (HEAD.pack(len(body), len(more)) + body, more) if len(part)]
        while parts:
            sent = os.writev(self._target, parts)
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = parts[0][sent:]

    def receive(self) -> Tuple[Any, Any]:
        """Receive a message.

        Raises:
            EOFError: The other process is gone.
        """
        while self._filled < HEAD.size:
            self._filled += self._read(memoryview(self._buffer)[self._filled :])
        body, more = HEAD.unpack_from(self._buffer)
        whole = bytearray(HEAD.size + body + more)
        have = min(len(whole), self._filled)
        whole[:have] = self._buffer[:have]
        self._buffer[: self._filled - have] = self._buffer[have : self._filled]
        self._filled -= have
        view = memoryview(whole)
        while have < len(view):
            have += self._read(view[have:])
        return marshal.loads(view[HEAD.size : HEAD.size + body]), view[HEAD.size + body :]

    def _read(self, view: Any) -> int:
        if sys.platform == "win32":
            raise NotImplementedError
        count = os.readv(self._source, [view])
        if not count:
            raise EOFError
        return count


_scalar_tags = {}  # type: Dict[type, str]
"""Dtype of each class of numbers of numpy that has been encoded."""


def encode(value: Any, odd: Callable[[Any], Any], depth: int = 0) -> Any:
    """Return the encoded form of a value.

    Args:
        value: Any value.
        odd: Function that returns the form of a value that is not plain data, or raises.
        depth: Number of containers around the value.

    Raises:
        TooDeepError: A list or tuple is nested too deep. A part of a dict is odd then.
    """
    kind = type(value)
    if kind in NATIVE:
        return value
    if kind in _scalar_tags:
        return ..., _scalar_tags[kind], value.item()
    if depth > MAX_DEPTH:
        raise TooDeepError("a value must be nested at most %d deep" % MAX_DEPTH)
    if kind is list or kind is tuple:
        return kind([item if type(item) in NATIVE else encode(item, odd, depth + 1) for item in value])
    if kind is dict:
        tags, found = _scalar_tags, {}
        for key, item in value.items():
            of_item = type(item)
            if of_item in tags:
                item = ..., tags[of_item], item.item()
            elif of_item not in NATIVE:
                item = _part(item, odd, depth + 1)
            found[key if type(key) is str else encode(key, odd, depth + 1)] = item
        return found
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype.kind in KINDS:
        if isinstance(value, numpy.ndarray):
            return ..., value.dtype.str, value.shape, value.tobytes()
        if value.dtype.kind not in "biufc" or type(value.item()) not in NATIVE:
            return ..., value.dtype.str, None, value.tobytes()
        _scalar_tags[kind] = value.dtype.str
        return ..., value.dtype.str, value.item()
    try:
        tag, plain = _plain_form(value)
    except Exception:
        return odd(value)
    found = encode(plain, odd, depth + 1)
    return (..., tag, found) if tag else found


def _part(value: Any, odd: Callable[[Any], Any], depth: int) -> Any:
    try:
        return encode(value, odd, depth)
    except TooDeepError:
        if depth > 1:
            raise
        return odd(value)


def _plain_form(value: Any) -> Tuple[str, Any]:
    """Return a tag and the value in its place, as ``parenv/protocol/plain.py`` does; no tag if it becomes the value.

    Raises:
        Exception: There is none.
    """
    if isinstance(value, (bytearray, bytes)):
        return "", bytes(value)
    if isinstance(value, memoryview):
        return "memory", value.tobytes()
    if isinstance(value, (set, frozenset)):
        return "frozenset" if isinstance(value, frozenset) else "set", tuple(value)
    if isinstance(value, tuple):
        return "", tuple(value)
    if isinstance(value, (list, range, collections.deque)):
        return "", list(value)
    if isinstance(value, collections.abc.Mapping):
        return "", dict(value.items())
    bases = (int, float, str, complex)  # type: Any
    for base in bases:
        if isinstance(value, base):
            return "", base(value)
    if isinstance(value, datetime.timedelta):
        return "timedelta", (value.days, value.seconds, value.microseconds)
    if isinstance(value, (datetime.date, datetime.time)):
        return "", value.isoformat()
    if isinstance(value, pathlib.PurePath):
        return "", str(value)
    if isinstance(value, enum.Enum):
        return "", value.value
    if not hasattr(type(value), "__array__"):
        raise TypeError("not plain data")
    import numpy

    value = value.detach().cpu() if hasattr(value, "detach") else value
    if "bfloat16" in str(value.dtype) or "float8" in str(value.dtype):
        value = value.float() if hasattr(value, "float") else value.astype("float32")
    array = numpy.asarray(value)
    if array.dtype.kind not in KINDS:
        raise TypeError("not plain data")
    return "", array


def foreign(value: Any) -> Any:
    """Return the form of a value that cannot be sent: the name of its class, which the user gets to see."""
    return ..., "foreign", (str(type(value).__module__), type(value).__qualname__)


def decode(node: Any) -> Any:
    """Return the value of an encoded form. Arrays are writable, or nested lists in an interpreter without numpy."""
    kind = type(node)
    if kind in NATIVE:
        return node
    if kind is list or (kind is tuple and (not node or node[0] is not ...)):
        return kind([item if type(item) in NATIVE else decode(item) for item in node])
    if kind is dict:
        return {
            key if type(key) is str else decode(key): item if type(item) in NATIVE else decode(item)
            for key, item in node.items()
        }
    tag, body = node[1], node[2]
    if tag in _scalar_types and len(node) == 3:
        return _scalar_types[tag](body)
    if tag[0] in "<>|":
        return _array(tag, body, node[3]) if len(node) == 4 else _scalar(tag, body)
    if tag == "foreign":
        return type(body[1], (), {"__module__": body[0], "__qualname__": body[1]})()
    body = decode(body)
    if tag == "timedelta":
        return datetime.timedelta(*body)
    return {"set": set, "frozenset": frozenset, "memory": memoryview}[tag](body)


def _array(dtype: str, shape: Any, data: Any) -> Any:
    numpy = _numpy()
    if numpy is None:
        numbers = memoryview(data).cast("B").cast(FORMATS[dtype], shape)  # type: ignore[call-overload]
        return numbers.tolist()
    array = numpy.frombuffer(data, numpy.dtype(dtype)).reshape(shape or ()).copy()
    return array[()] if shape is None else array


_scalar_types = {}  # type: Dict[str, Any]


def _scalar(dtype: str, item: Any) -> Any:
    numpy = _numpy()
    kind = _scalar_types[dtype] = type(item) if numpy is None else numpy.dtype(dtype).type
    return kind(item)


def _numpy() -> Any:
    """Import numpy; return ``None`` if it is not installed."""
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None


def joined(observations: Sequence[Any]) -> Tuple[Any, Any]:
    """Encode observations: dtype, shape and bytes of all if they are arrays of one kind, or else a list of forms."""
    numpy = sys.modules.get("numpy")
    first = observations[0] if observations else None  # type: Any
    if numpy is not None and type(first) is numpy.ndarray and first.ndim and first.dtype.kind in KINDS:
        array, dtype, shape = numpy.ndarray, first.dtype, first.shape
        if all(type(one) is array and one.dtype is dtype and one.shape == shape for one in observations):
            together = numpy.concatenate(observations)
            return (dtype.str, shape), memoryview(together).cast("B") if together.size else b""
    return [encode(one, foreign) for one in observations], b""


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

    def reset(self, **keywords: Any) -> Any:
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
        is_pair = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)
        return (returned, {}) if self._seeds_by_method and not is_pair else returned

    def _first_step(self, action: Any) -> Any:
        """Step, and find out how many values the environment returns."""
        returned = self.inner.step(action)
        if not isinstance(returned, tuple) or len(returned) != 4:
            self.step = self.inner.step
            return returned
        self.step = self._step_of_old_gym
        return self._five(returned)

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


def space_fields(space: Any) -> Dict[str, Any]:
    """Return the fields of a space, and the names of its classes. The class itself does not matter."""
    numpy, dtype = sys.modules.get("numpy"), getattr(space, "dtype", None)
    fields = {name: getattr(space, name) for name in SPACE_FIELDS if hasattr(space, name)}
    if dtype is not None:
        fields["dtype"] = str(getattr(dtype, "__name__", dtype)) if numpy is None else numpy.dtype(dtype).str
    fields["names"] = [cls.__name__ for cls in type(space).__mro__]
    parts = getattr(space, "spaces", None)  # type: Any
    if hasattr(parts, "items"):
        fields["spaces"] = {str(key): space_fields(part) for key, part in parts.items()}
    elif isinstance(parts, (list, tuple)):
        fields["spaces"] = [space_fields(part) for part in parts]
    return fields


def _flag(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    return bool(value) if numpy is not None and isinstance(value, numpy.bool_) else encode(value, foreign)


def failure(error: BaseException) -> List[Any]:
    """Return class, text, traceback and attributes of an exception. The traceback begins outside this file."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_globals is globals():
        frames = frames.tb_next
    kind = [str(type(error).__module__), type(error).__qualname__]
    if isinstance(error, RefusedError):
        kind = ["parenv.errors", "ConfigurationError"]
    try:
        # str() of a KeyError would add quotes, and the main process adds them too.
        is_key = isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str)
        text = error.args[0] if is_key else str(error)
    except Exception as another:
        text = "<%s, which cannot say what it is: %s>" % (type(error).__name__, type(another).__name__)
    trace = "".join(traceback.format_exception(type(error), error, frames))
    attributes = {}
    for name, value in vars(error).items():
        try:
            attributes[name] = encode(value, _drop)
        except Exception:
            continue
    return [kind, str(text), trace, attributes]


def _drop(value: Any) -> Any:
    raise TypeError("not plain data")


def limit_memory(more: int) -> None:
    """Have the kernel refuse allocations beyond the present size of this process plus ``more`` bytes."""
    if sys.platform == "win32":
        raise NotImplementedError
    import resource

    with open("/proc/self/status") as lines:
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (kilobytes * 1024 + more, resource.RLIM_INFINITY))


def refuse_debugger(debugger: Any, frame: Any = None) -> None:
    """Raise an error in the place of ``bdb.Bdb.set_trace``, because this process has no terminal."""
    raise RefusedError(
        "breakpoint() and pdb.set_trace() cannot be used in another interpreter, which has no terminal. Leave "
        "WorkerOptions(python=...) out and use num_workers=0, so that everything runs in your process."
    )


class Server:
    """The environments of this process, and everything that the worker asks of them.

    Args:
        channel: Channel to the worker.
        at: Number that the worker can read: twice the index of the environment of a batch that is at work, and one more
            in a reset.
    """

    def __init__(self, channel: Channel, at: Any) -> None:
        self._channel, self._at = channel, at
        self._envs = {}  # type: Dict[int, Env]
        self._orders = []  # type: List[Tuple[int, int, Env]]
        self._made = 0

    def serve(self) -> None:
        """Answer requests until the worker is gone."""
        while True:
            try:
                (method, arguments), more = self._channel.receive()
            except EOFError:
                return
            try:
                if method == "run":
                    self._channel.send(*self._run(more, *arguments))
                else:
                    self._channel.send(["done", getattr(self, "_" + method)(*arguments)])
            except BaseException as error:
                self._channel.send(["failed", failure(error)])

    def close(self) -> None:
        """Close all environments."""
        for index in list(self._envs):
            try:
                self._close(index)
            except Exception:
                traceback.print_exc()

    def _start(self, paths: List[str], environment: Dict[str, str], max_memory_bytes: Optional[int]) -> None:
        os.environ.update(environment)
        sys.path[:1] = [path for path in paths if os.path.isdir(path)]
        if max_memory_bytes is not None:
            _numpy()
            limit_memory(max_memory_bytes)

    def _make(self, name: str, arguments: Any) -> Any:
        made = make(name, decode(arguments))
        if any(made is other.inner for other in self._envs.values()):
            raise RefusedError("%s returned the same environment twice. Make a new one in each call." % name)
        for kind in ("observation_space", "action_space"):
            if not hasattr(made, kind):
                raise RefusedError("%s made a %s without %s. Set it." % (name, type(made).__name__, kind))
        self._made += 1
        self._envs[self._made] = Env(made)
        mode = getattr(made, "render_mode", None)
        about = {
            "spaces": [space_fields(made.observation_space), space_fields(made.action_space)],
            "metadata": dict(getattr(made, "metadata", None) or {}),
            "render_mode": mode if isinstance(mode, str) else None,
        }
        return self._made, encode(about, foreign)

    def _reset(self, index: int, keywords: Any) -> Any:
        returned = self._envs[index].reset(**decode(keywords))
        return self._pair(returned) or encode(returned, foreign)

    def _get(self, index: int, name: str) -> Any:
        found = self._envs[index].get(name)
        return callable(found), None if callable(found) else encode(found, foreign)

    def _call(self, index: int, name: str, args: Any, kwargs: Any) -> Any:
        env = self._envs[index]
        try:
            return encode(env.get(name)(*decode(args), **decode(kwargs)), foreign)
        finally:
            env.find_step()

    def _set(self, index: int, name: str, value: Any) -> None:
        self._envs[index].set(name, decode(value))
        self._envs[index].find_step()

    def _is_wrapped(self, index: int, module: str, name: str) -> bool:
        return self._envs[index].is_wrapped(module, name)

    def _close(self, index: int) -> None:
        close = getattr(self._envs.pop(index).inner, "close", None)
        if close is not None:
            close()

    def _run(self, more: Any, orders: Optional[Sequence[Tuple[int, int]]], actions: Any) -> Any:
        """Step and reset environments in turn; return the message with the results that were not sent yet.

        The results are a list of rewards, an observation of each order, and a list of other results by their position.
        The reward is ``None`` if there is another result. An order without an observation repeats the one before.

        Args:
            more: Bytes of the actions, if they are arrays of one kind.
            orders: Index of each environment, and what to do. ``None``: the same as in the last batch.
            actions: Dtype and shape of all actions together, or a list.
        """
        if orders is not None:
            self._orders = [(2 * index + (order == RESET), order, self._envs[index]) for index, order in orders]
        actions = _array(actions[0], actions[1], more) if type(actions) is tuple else decode(actions)
        rewards, observations, others, at = [], [], [], self._at  # type: List[Any], List[Any], List[Any], Any
        keep, pay, clock, due = observations.append, rewards.append, time.monotonic, time.monotonic() + FLUSH_S
        for (code, order, env), action in zip(self._orders, actions):
            at[0] = code
            try:
                returned = None if order == RESET else env.step(action)
                if type(returned) is tuple and len(returned) == 5:
                    observation, reward, terminated, truncated, info = returned
                    if terminated is truncated is False and type(reward) is float and type(info) is dict and not info:
                        keep(observation)
                        pay(reward)
                        if clock() < due:
                            continue
                        due = self._flush(rewards, observations, others)
                        continue
                observation, other = self._other(code, order, env, returned)
            except BaseException as error:
                observation, other = None, (FAILED_RESET if at[0] & 1 else FAILED_STEP, failure(error))
            others.append((len(rewards),) + other)
            pay(None)
            keep(observations[-1] if observation is None and observations else observation)
            if clock() > due:
                due = self._flush(rewards, observations, others)
        at[0] = -1
        together, more = joined(observations)
        return ["done", (rewards, together, others)], more

    def _flush(self, *results: List[Any]) -> float:
        """Send the results so far, and return the time of the next flush."""
        rewards, observations, others = results
        together, more = joined(observations)
        self._channel.send(["more", (rewards, together, others)], more)
        for one in results:
            del one[:]
        return time.monotonic() + FLUSH_S

    def _other(self, code: int, order: int, env: Env, returned: Any) -> Tuple[Any, Any]:
        """Return an observation and the encoded result of a reset, or of a step that is not plain.

        If a reset follows the step, its result comes after the encoded observation of the step.
        """
        if order == RESET:
            return self._begun(env)
        if not isinstance(returned, (tuple, list)) or len(returned) != 5:
            return None, (ODD_STEP, encode(returned, foreign))
        observation, reward, terminated, truncated, info = returned
        if type(reward) is not float:
            reward = float(reward) if isinstance(reward, float) else encode(reward, foreign)
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated, truncated = _flag(terminated), _flag(truncated)
        # The environment may keep its info and its observation, and change them in the next reset.
        found = (STEP, reward, terminated, truncated, encode(info, foreign))
        if order == STEP or not (terminated is True or truncated is True):
            return observation, found
        self._at[0] = code + 1
        final = encode(observation, foreign)
        try:
            observation, begun = self._begun(env)
        except BaseException as error:
            observation, begun = None, (FAILED_RESET, failure(error))
        return observation, found + (final,) + begun

    @staticmethod
    def _begun(env: Env) -> Tuple[Any, Any]:
        returned = env.reset()
        if isinstance(returned, (tuple, list)) and len(returned) == 2:
            return returned[0], (RESET, encode(returned[1], foreign))
        return None, (ODD_RESET, encode(returned, foreign))

    @staticmethod
    def _pair(returned: Any) -> Any:
        """Encode observation and info one by one, so that only parts of the info are left out."""
        if isinstance(returned, (tuple, list)) and len(returned) == 2:
            return tuple([encode(part, foreign) for part in returned])
        return None


def end_with_input(source: int) -> int:
    """Fork a process that kills this one when the worker is gone; return its process id.

    It does so even if native code holds the interpreter, and in a container, which no signal of the worker reaches.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    ended, ours = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child:
        os.close(ended)
        return child
    os.close(ours)
    poll = select.poll()
    # A poll for no event still reports that the other end is closed.
    for descriptor in (source, ended):
        poll.register(descriptor, 0)
    if ended not in dict(poll.poll()) and os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)
    os._exit(0)


def inherited(place: str) -> Optional[int]:
    """Return a descriptor from its number and inode, or ``None`` in a container that has not inherited it."""
    number, inode = map(int, place.split(":"))
    try:
        return number if os.fstat(number).st_ino == inode else None
    except OSError:
        return None


def main(target: str, cell: str, stacks: str) -> None:
    """Serve the worker until it is gone.

    Args:
        target: Descriptor to write to.
        cell: Descriptor of the memory for the environment at work, with its inode.
        stacks: Descriptor of the pipe for stacks, with its inode.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bdb.Bdb.set_trace = refuse_debugger  # type: ignore
    source, written = os.dup(0), os.dup(int(target))
    os.close(int(target))
    channel = Channel(source, written)
    # What environments read and print must not be mixed with messages.
    empty, writer = os.pipe()
    os.close(writer)
    os.dup2(empty, 0)
    if target == "1":
        os.dup2(2, 1)
    faulthandler.enable()
    pipe, memory = inherited(stacks), inherited(cell)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr if pipe is None else pipe)
    watch = end_with_input(source)
    server = Server(channel, memoryview(mmap.mmap(-1 if memory is None else memory, 8)).cast("q"))
    server.serve()
    server.close()
    os.kill(watch, signal.SIGKILL)
    os.waitpid(watch, 0)
    sys.stdout.flush()
    sys.stderr.flush()
    # An environment may have left threads behind, which would keep the process alive.
    os._exit(0)
