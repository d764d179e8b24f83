"""Checkpoint files of plain data and arrays, which are written completely or not at all."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from parenv.errors import ConfigurationError, NotDataError, ProtocolError, embedded
from parenv.process.whole_files import make_folder_of, replacing
from parenv.protocol.data import pack, unpack
from parenv.protocol.digests import SIZE, new_digest
from parenv.protocol.tensors import with_tensors, without_tensors

_MAGIC = b"parenv checkpoint 2\n"
_WITHOUT_DIGEST = b"parenv checkpoint 1\n"
_LENGTH = struct.Struct("<Q")


def save_checkpoint(path: str | os.PathLike[str], data: Any) -> None:
    """Write a checkpoint file. It replaces an existing file only when it is complete.

    The file ends in a digest of its content, by which :func:`load_checkpoint` notices damage.

    Args:
        path: Path of the file. A missing folder is made.
        data: Numbers, strings, bytes, numpy arrays and torch tensors in dicts, lists and tuples, such as
            ``{"pool": pool.state_dict(), "agent": agent.state_dict(), "optimizer": optimizer.state_dict()}``.

    Raises:
        NotDataError: The data has another type. The message says where.
        ConfigurationError: The folder cannot be made.
        OSError: The file cannot be written. An existing file stays as it was.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     save_checkpoint(file.name, {"env_steps": 1024, "weights": (1.0, 2.5)})
    ...     load_checkpoint(file.name)
    {'env_steps': 1024, 'weights': (1.0, 2.5)}
    """
    text, buffers = pack(without_tensors(data, "value", _without_state_dict))
    target, digest = Path(path), new_digest()
    make_folder_of(target)
    try:
        with replacing(target) as draft, draft.open("wb") as file:
            file.write(_MAGIC)
            for part in (text, *buffers):
                for piece in (_LENGTH.pack(memoryview(part).nbytes), part):
                    file.write(piece)
                    digest.update(piece)
            file.write(digest.digest())
    except OSError as error:
        why = f"{error.strerror}, so the checkpoint was not written, and an older file is unchanged"
        raise OSError(error.errno, why, str(target)) from None


def load_checkpoint(path: str | os.PathLike[str]) -> Any:
    """Read a file of :func:`save_checkpoint`. Tensors are on the CPU.

    Raises:
        ConfigurationError: The file is not a checkpoint, or is damaged.
    """
    try:
        content = _checked(memoryview(Path(path).read_bytes()))
        parts, at = [], 0
        while at < len(content):
            (length,) = _LENGTH.unpack_from(content, at)
            at += _LENGTH.size + length
            if at > len(content):
                raise ProtocolError("the file is cut off")
            parts.append(content[at - length : at])
        return with_tensors(unpack(parts[0], parts[1:], writable=True))
    except (ProtocolError, struct.error, IndexError) as error:
        raise ConfigurationError(
            f"{path} cannot be read as a checkpoint: {embedded(error)}. Load a checkpoint that is not damaged."
        ) from error


def _without_state_dict(value: Any, where: str) -> Any:
    if hasattr(value, "state_dict"):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise NotDataError(f"{where} is a {kind}, which is not plain data. Save its state_dict() instead.")
    return value


def _checked(content: memoryview) -> memoryview:
    """Return the content between the magic and the digest. Files of the former format have no digest."""
    magic, rest = content[: len(_MAGIC)], content[len(_MAGIC) :]
    if magic == _WITHOUT_DIGEST:
        return rest
    if magic != _MAGIC:
        raise ProtocolError("the file was not written by save_checkpoint")
    if new_digest(rest[:-SIZE]).digest() != rest[-SIZE:]:
        raise ProtocolError("the content does not match its digest")
    return rest[:-SIZE]
