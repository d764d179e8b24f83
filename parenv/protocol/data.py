"""Encoding of plain values as JSON and raw buffers. Nothing that a worker sends is unpickled.

Plain values are ``None``, booleans, numbers, strings, bytes, lists, tuples, dicts, numpy arrays and scalars, and
Gymnasium's ``GraphInstance``, spaces, random generators and environment specs. They can be nested in any way.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import GraphInstance

from parenv.errors import NotDataError, ProtocolError
from parenv.memory.spaces import MAX_SPACE_BYTES, cost, describe, rebuild

Buffer = bytes | bytearray | memoryview
MAX_DEPTH = 64
"""Maximum depth of nesting, of lists, tuples and dicts."""
MAX_INTEGER_DIGITS = 4300
"""Maximum number of digits of an integer. Python refuses to parse longer ones."""
MAX_KEYS_OF_ONE_HASH = 256
"""Maximum number of keys with one hash in a dict. A grid of coordinates in ``n`` dimensions can have ``2**n`` of them,
because -1 and -2 have the same hash."""
_PLAIN = (bool, int, float, str, type(None))
_BIT_GENERATORS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
_LARGEST_INTEGER = 10**MAX_INTEGER_DIGITS - 1
_LEAST_INTEGER = -_LARGEST_INTEGER
_KINDS = "biufcSUmM"
_DTYPE = re.compile(r"[|<>](?:[biufc][0-9]{1,2}|[SU][1-9][0-9]{0,9}|[mM]8(?:\[[0-9]{0,10}[a-zA-Z]{1,2}\])?)")
_SPEC = (
    "id", "reward_threshold", "nondeterministic", "max_episode_steps", "order_enforce", "disable_env_checker"
)  # fmt: skip
_LAST_POSITION = {"MT19937": 624, "Philox": 4}
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def pack(value: Any, views: bool = False) -> tuple[bytes, list[Buffer]]:
    """Encode a plain value.

    Args:
        value: Plain value.
        views: Whether to return the memory of C-contiguous arrays itself as their buffers. Default: no, return copies.

    Returns:
        JSON text and the raw buffers that it refers to by index.

    Raises:
        NotDataError: A part of the value is not plain data. The message contains the place.

    >>> unpack(*pack({"a": (1, None), "b": np.arange(3)}))
    {'a': (1, None), 'b': array([0, 1, 2])}
    """
    buffers = _Buffers()
    buffers.views = views
    return _ENCODE(_pack(value, buffers, "value", 0)).encode(), buffers


def is_data(value: Any, most_bytes: float = math.inf) -> bool:
    """Return whether a value can be encoded in at most this many bytes."""
    try:
        text, buffers = pack(value)
    except NotDataError:
        return False
    return len(text) + sum(memoryview(buffer).nbytes for buffer in buffers) <= most_bytes


def unpack(text: Buffer, buffers: Sequence[Buffer], writable: bool = False) -> Any:
    """Decode the result of :func:`pack`.

    Args:
        text: JSON text of :func:`pack`.
        buffers: Buffers of :func:`pack`.
        writable: Whether to return writable arrays, which are copies if their buffer is read-only. Default: no, return
            views.

    Raises:
        ProtocolError: The text or a buffer is malformed, or the spaces in it take more than
            :data:`~parenv.memory.spaces.MAX_SPACE_BYTES` bytes.
    """
    try:
        if not buffers and b"{" not in (plain := bytes(text)) and plain.count(b"[") < MAX_DEPTH:
            return json.loads(plain)  # There is no tag to look for.
        taking = _Buffers(buffers)
        taking.writable = writable
        value = _unpack(json.loads(str(text, "utf-8")), taking, 0)
        if taking.taken != len(buffers):
            raise ValueError(f"the text refers to {taking.taken} buffers, but the message has {len(buffers)}")
        return value
    except Exception as error:
        raise ProtocolError(f"malformed data in a message: {error}") from error


def _pack(value: Any, buffers: _Buffers, where: str, depth: int) -> Any:
    if type(value) in _PLAIN:
        if type(value) is int and not _LEAST_INTEGER <= value <= _LARGEST_INTEGER:
            raise NotDataError(f"{where} must be an integer of at most {MAX_INTEGER_DIGITS} digits to be sent")
        return value
    if depth > MAX_DEPTH:
        raise NotDataError(f"{where} must be nested at most {MAX_DEPTH} deep")
    if type(value) is list:
        return [_pack(item, buffers, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    return _pack_tagged(value, buffers, where, depth)


def _pack_tagged(value: Any, buffers: _Buffers, where: str, depth: int) -> dict[str, Any]:
    def inner(item: Any, suffix: str) -> Any:
        return _pack(item, buffers, where + suffix, depth + 1)

    if isinstance(value, (np.ndarray, np.generic)):
        return _pack_array(value, buffers, where)
    if isinstance(value, (bytes, bytearray)):
        if not value:
            return {"bytes": None}
        buffers.append(bytes(value))
        return {"bytes": len(buffers) - 1}
    if isinstance(value, dict):
        return {"dict": [[inner(k, ".key"), inner(item, f"[{k!r}]")] for k, item in value.items()]}
    if isinstance(value, GraphInstance):
        return {"graph": [inner(part, f".{name}") for name, part in zip(value._fields, value, strict=True)]}
    if isinstance(value, Space):
        return {"space": inner(describe(value), "")}
    if type(value) is np.random.Generator and type(value.bit_generator) in _BIT_GENERATORS.values():
        return {"generator": inner(value.bit_generator.state, ".bit_generator.state")}
    if isinstance(value, EnvSpec):
        kwargs = {name: of for name, of in value.kwargs.items() if is_data(of)}
        return {"spec": [*(inner(getattr(value, name), f".{name}") for name in _SPEC), inner(kwargs, ".kwargs")]}
    if type(value) is tuple:
        return {"tuple": [inner(item, f"[{i}]") for i, item in enumerate(value)]}
    if type(value) is memoryview:
        buffers.append(value)
        return {"memory": len(buffers) - 1}
    raise NotDataError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which is not plain data. "
        "Use None, bool, int, float, str, bytes, list, tuple, dict or numpy arrays."
    )


def _pack_array(value: np.ndarray[Any, Any] | np.generic, buffers: _Buffers, where: str) -> dict[str, Any]:
    array = np.asarray(value)
    if array.dtype.kind not in _KINDS:
        raise NotDataError(
            f"{where} is an array of dtype {array.dtype}, which is not plain data. Convert it to numbers or strings."
        )
    can_be_viewed = buffers.views and array.size and array.flags.c_contiguous
    buffers.append(array.reshape(-1).view(np.uint8).data if can_be_viewed else array.tobytes())
    tag = "scalar" if isinstance(value, np.generic) else "array"
    return {tag: [array.dtype.str, list(array.shape), len(buffers) - 1]}


class _Buffers(list[Buffer]):
    """The buffers of a message. Each is taken once and in order, so that few bytes cannot stand for many copies."""

    taken = 0
    space_bytes = 0
    writable = False
    views = False

    def take(self, index: Any) -> Buffer:
        if index != self.taken:
            raise ValueError(f"buffers must be referred to in order: expected buffer {self.taken}, got {index!r}")
        buffer = self[self.taken]
        self.taken += 1
        return buffer


def _unpack(node: Any, buffers: _Buffers, depth: int) -> Any:
    if type(node) is not list and type(node) is not dict:
        return node
    if depth > MAX_DEPTH:
        raise ValueError(f"a value must be nested at most {MAX_DEPTH} deep")
    if isinstance(node, list):
        return [item if type(item) in _PLAIN else _unpack(item, buffers, depth + 1) for item in node]
    if len(node) != 1:
        raise ValueError(f"a tagged value must have exactly one tag, got {len(node)}")
    ((tag, body),) = node.items()
    if tag == "dict":
        return _dict(body, buffers, depth + 1)
    if tag == "array":
        return _array(body, buffers)
    if tag == "bytes":
        return b"" if body is None else bytes(buffers.take(body))
    if tag == "memory":
        return memoryview(buffers.take(body))
    if tag == "tuple" and type(body) is list:
        return tuple([item if type(item) in _PLAIN else _unpack(item, buffers, depth + 1) for item in body])
    if tag == "scalar":
        return _scalar(body, buffers)
    if tag == "graph":
        return GraphInstance(*(_unpack(item, buffers, depth + 1) for item in body))
    if tag == "space":
        return _space(_unpack(body, buffers, depth + 1), buffers)
    if tag == "spec":
        return _spec([_unpack(item, buffers, depth + 1) for item in body])
    if tag == "generator":
        return _generator(_unpack(body, buffers, depth + 1))
    raise ValueError(f"unknown tag {tag!r}")


def _dict(body: Any, buffers: _Buffers, depth: int) -> dict[Any, Any]:
    if len(body) > MAX_KEYS_OF_ONE_HASH:
        found = _large_dict(body, buffers, depth)
    else:
        found = {_unpack(key, buffers, depth): _unpack(item, buffers, depth) for key, item in body}
    if len(found) != len(body):
        raise ValueError("a dict contains the same key twice")
    return found


def _large_dict(body: Any, buffers: _Buffers, depth: int) -> dict[Any, Any]:
    """Decode a dict of many keys, and check their hashes first.

    Keys that were made to collide would take a time that is quadratic in their number.
    """
    pairs = [(_unpack(key, buffers, depth), _unpack(item, buffers, depth)) for key, item in body]
    if max(Counter(hash(key) for key, _ in pairs).values()) > MAX_KEYS_OF_ONE_HASH:
        raise ValueError(f"more than {MAX_KEYS_OF_ONE_HASH} keys of a dict have the same hash")
    return dict(pairs)


@lru_cache(maxsize=256)
def _dtype(text: str) -> np.dtype[Any]:
    """Return the dtype of a text that ``dtype.str`` can return. numpy also accepts texts for structures and objects."""
    if _DTYPE.fullmatch(text) and (dtype := np.dtype(text)).str == text:
        return dtype
    raise ValueError(f"{text!r} is not a dtype of plain data")


def _array(body: Any, buffers: _Buffers) -> np.ndarray[Any, Any]:
    dtype, shape, index = body
    array = np.frombuffer(buffers.take(index), dtype=_dtype(dtype)).reshape(shape)
    if list(array.shape) != shape:
        raise ValueError(f"{shape} is not the shape of an array")
    return array.copy() if buffers.writable and not array.flags.writeable else array


def _scalar(body: Any, buffers: _Buffers) -> Any:
    array = _array(body, buffers)
    if array.shape:
        raise ValueError(f"a scalar must have the shape (), got {array.shape}")
    return array[()]


def _space(description: Any, buffers: _Buffers) -> Space[Any]:
    buffers.space_bytes += cost(description)
    if buffers.space_bytes > MAX_SPACE_BYTES:
        raise ValueError(f"the spaces of a message must take at most {MAX_SPACE_BYTES} bytes")
    return rebuild(description)


def _spec(values: list[Any]) -> EnvSpec:
    """Rebuild the spec of an environment id. Its entry points come from this process's registry only."""
    *said, kwargs = values
    known = gym.registry.get(values[0])
    entries: dict[str, Any] = {name: getattr(known, name, None) for name in ("entry_point", "vector_entry_point")}
    return EnvSpec(**dict(zip(_SPEC, said, strict=True)), **entries, kwargs=dict(kwargs))


def _generator(state: Any) -> np.random.Generator:
    name = state["bit_generator"]
    bit_generator = _BIT_GENERATORS[name](0)
    # Numpy checks neither of the two positions, and reads memory outside the state with another one.
    position = state["state"]["pos"] if name == "MT19937" else state.get("buffer_pos", 0)
    if type(position) is not int or not 0 <= position <= _LAST_POSITION.get(name, 0):
        raise ValueError(f"the position of a {name} must be 0 to {_LAST_POSITION.get(name, 0)}, got {position!r}")
    bit_generator.state = state
    return np.random.Generator(bit_generator)
