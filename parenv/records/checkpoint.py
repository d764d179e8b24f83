"""Checkpoint files: plain data, arrays and tensors, written at once or not at all, and never unpickled."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from parenv.errors import ConfigurationError, ProtocolError
from parenv.protocol.data import pack, unpack
from parenv.protocol.tensors import with_tensors, without_tensors

_MAGIC = b"parenv checkpoint 1\n"
_LENGTH = struct.Struct("<Q")


def save_checkpoint(path: str | os.PathLike[str], data: Any) -> None:
    """Write a file that replaces the one before only when it is complete.

    Args:
        path: where to.
        data: numbers, strings, bytes, numpy arrays and torch tensors in dicts, lists and tuples, such as
            ``{"pool": pool.state_dict(), "agent": agent.state_dict(), "optimizer": optimizer.state_dict()}``.

    Raises:
        NotDataError: there is something else in it; the message says where.
        OSError: it cannot be written; the file before is as it was.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     save_checkpoint(file.name, {"env_steps": 1024, "weights": (1.0, 2.5)})
    ...     load_checkpoint(file.name)
    {'env_steps': 1024, 'weights': (1.0, 2.5)}
    """
    text, buffers = pack(without_tensors(data, "value"))
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(_MAGIC)
            for part in (text, *buffers):
                file.write(_LENGTH.pack(memoryview(part).nbytes))
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as error:
        why = f"{error.strerror}, so that the checkpoint is not written; what was there is as it was"
        raise OSError(error.errno, why, str(target)) from None
    finally:
        draft.unlink(missing_ok=True)


def load_checkpoint(path: str | os.PathLike[str]) -> Any:
    """Read what :func:`save_checkpoint` has written; tensors are on the CPU.

    Raises:
        ConfigurationError: the file is none of these, or is damaged.
    """
    content = memoryview(Path(path).read_bytes())
    try:
        if content[: len(_MAGIC)] != _MAGIC:
            raise ProtocolError("it does not begin as one")
        parts, at = [], len(_MAGIC)
        while at < len(content):
            (length,) = _LENGTH.unpack_from(content, at)
            at += _LENGTH.size + length
            if at > len(content):
                raise ProtocolError("it is cut off")
            parts.append(content[at - length : at])
        return with_tensors(unpack(parts[0], parts[1:], writable=True))
    except (ProtocolError, struct.error, IndexError) as error:
        raise ConfigurationError(f"{path} is no checkpoint that can be read: {error}") from error
