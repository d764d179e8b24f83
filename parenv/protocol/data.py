"""Plain values as JSON and raw buffers: what may leave a worker, since nothing it sends is ever unpickled.

``None``, booleans, numbers, strings, bytes, lists, tuples, dicts, numpy arrays and scalars, and Gymnasium's
``GraphInstance``, spaces and random generators, nested in any way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import GraphInstance

from parenv.errors import NotDataError, ProtocolError
from parenv.memory.spaces import describe, rebuild

Buffer = bytes | bytearray | memoryview
_PLAIN = (bool, int, float, str, type(None))
_BIT_GENERATORS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
MAX_DEPTH = 64
MAX_INTEGER_BITS = 4096
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def pack(value: Any) -> tuple[bytes, list[Buffer]]:
    """Encode a plain value.

    Returns:
        JSON text and the raw buffers that it refers to by index.

    Raises:
        NotDataError: the value holds something that is not plain data; the message says where.

    >>> unpack(*pack({"a": (1, None), "b": np.arange(3)}))
    {'a': (1, None), 'b': array([0, 1, 2])}
    """
    buffers: list[Buffer] = []
    return _ENCODE(_pack(value, buffers, "value", 0)).encode(), buffers


def unpack(text: Buffer, buffers: Sequence[Buffer]) -> Any:
    """Decode what :func:`pack` made. Arrays are read-only views of their buffers.

    Raises:
        ProtocolError: the text or a buffer is malformed.
    """
    try:
        return _unpack(json.loads(str(text, "utf-8")), buffers)
    except Exception as error:
        raise ProtocolError(f"malformed data in a message: {error}") from error


def _pack(value: Any, buffers: list[Buffer], where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise NotDataError(f"{where} is nested more than {MAX_DEPTH} deep")
    if type(value) in _PLAIN:
        if type(value) is int and value.bit_length() > MAX_INTEGER_BITS:
            raise NotDataError(
                f"{where} is an integer of {value.bit_length()} bits; at most {MAX_INTEGER_BITS} can travel"
            )
        return value
    if type(value) is list:
        return [_pack(item, buffers, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    return _pack_tagged(value, buffers, where, depth)


def _pack_tagged(value: Any, buffers: list[Buffer], where: str, depth: int) -> dict[str, Any]:
    def inner(item: Any, suffix: str) -> Any:
        return _pack(item, buffers, where + suffix, depth + 1)

    if isinstance(value, (np.ndarray, np.generic)):
        return _pack_array(value, buffers, where)
    if isinstance(value, GraphInstance):
        return {"graph": [inner(part, f".{name}") for name, part in zip(value._fields, value, strict=True)]}
    if isinstance(value, Space):
        return {"space": inner(describe(value), "")}
    if type(value) is np.random.Generator:
        return {"generator": inner(value.bit_generator.state, ".bit_generator.state")}
    if type(value) is tuple:
        return {"tuple": [inner(item, f"[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, dict):
        return {"dict": [[inner(k, ".key"), inner(item, f"[{k!r}]")] for k, item in value.items()]}
    if type(value) is memoryview:
        buffers.append(value)
        return {"memory": len(buffers) - 1}
    if isinstance(value, (bytes, bytearray)):
        if not value:
            return {"bytes": None}
        buffers.append(bytes(value))
        return {"bytes": len(buffers) - 1}
    raise NotDataError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which cannot leave a worker: only None, "
        f"bool, int, float, str, bytes, list, tuple, dict and numpy arrays do. Return plain data instead."
    )


def _pack_array(value: np.ndarray[Any, Any] | np.generic, buffers: list[Buffer], where: str) -> dict[str, Any]:
    array = np.asarray(value)
    if array.dtype.kind not in "?biufcSUmM":
        raise NotDataError(f"{where} is an array of dtype {array.dtype}, which cannot leave a worker as plain data")
    buffers.append(array.tobytes())
    tag = "scalar" if isinstance(value, np.generic) else "array"
    return {tag: [array.dtype.str, list(array.shape), len(buffers) - 1]}


def _unpack(node: Any, buffers: Sequence[Buffer]) -> Any:
    if type(node) is list:
        return [item if type(item) in _PLAIN else _unpack(item, buffers) for item in node]
    if type(node) is not dict:
        return node
    if len(node) != 1:
        raise ValueError("a tagged value has exactly one tag")
    ((tag, body),) = node.items()
    if tag == "tuple":
        return tuple(_unpack(item, buffers) for item in body)
    if tag == "dict":
        return {_unpack(key, buffers): _unpack(item, buffers) for key, item in body}
    if tag == "bytes":
        return b"" if body is None else bytes(buffers[body])
    if tag == "memory":
        return memoryview(buffers[body])
    if tag == "graph":
        return GraphInstance(*(_unpack(item, buffers) for item in body))
    if tag == "space":
        return rebuild(_unpack(body, buffers))
    if tag == "generator":
        return _generator(_unpack(body, buffers))
    if tag in ("array", "scalar"):
        dtype, shape, index = body
        array = np.frombuffer(buffers[index], dtype=np.dtype(str(dtype))).reshape(shape)
        return array[()] if tag == "scalar" else array
    raise ValueError(f"unknown tag {tag!r}")


def _generator(state: Any) -> np.random.Generator:
    bit_generator = _BIT_GENERATORS[state["bit_generator"]](0)
    bit_generator.state = state
    return np.random.Generator(bit_generator)
