"""Checkpoint files of plain data and arrays, which are written completely or not at all, and the state of a pool."""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from parenv.errors import ConfigurationError, NotDataError, ProtocolError, embedded
from parenv.process.whole_files import make_folder_of, replacing
from parenv.protocol.data import pack, unpack
from parenv.protocol.digests import SIZE, new_digest
from parenv.protocol.tensors import with_tensors, without_tensors

if TYPE_CHECKING:
    from parenv.pool.pool_session import PoolSession


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


STATE_FORMAT = 2

_log = logging.getLogger("parenv")


def pool_state(session: PoolSession) -> dict[str, Any]:
    """Return everything but the policy that a resumed run needs, as plain data."""
    everybody = dict.fromkeys(range(len(session.workers.shares)), ())
    states, under_way = session.ask_workers("get_state", everybody), session.under_way()
    return {
        **session.identity,
        **session.state(),
        "format": STATE_FORMAT,
        "under_way": {worker: under_way.get(worker, 0) for worker in states},
        "workers": [states[worker] for worker in sorted(states)],
    }


def resume_pool(
    session: PoolSession, state: Mapping[str, Any], policies: Mapping[str, Any] = MappingProxyType({})
) -> list[str]:
    """Have a new pool continue from a state, and return sentences about everything that could not be restored.

    Args:
        session: Session of the new pool.
        state: State of the former pool.
        policies: State dicts by name of policies with a module, and policies without a module. Default for each: the
            policy that the new pool was made with.

    Raises:
        ConfigurationError: The state is from another kind of pool, or the pool is not new.
    """
    _check(state, session.identity)
    session.resume(state, policies)
    missing = _restore_workers(session, state)
    for words in missing:
        _log.warning("not restored: %s", words)
    return missing


def _check(state: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    if state.get("format") != STATE_FORMAT:
        raise ConfigurationError(
            f"the state of a pool must have format {STATE_FORMAT}, got {state.get('format')!r}. Pass the result of "
            "pool.state_dict()."
        )
    for name, value in mine["layout"].items():
        if state["layout"][name] != value:
            raise ConfigurationError(
                f"{name} must be {state['layout'][name]!r} as in the state, but the pool has {value!r}. Make the pool "
                "with the same arguments."
            )
    if state["seed"] != mine["seed"]:
        raise ConfigurationError(
            f"seed must be {state['seed']} as in the state, but the pool has {mine['seed']}. Pass "
            'AsyncWorkerPool(..., seed=state["seed"]).'
        )


def _restore_workers(session: PoolSession, state: Mapping[str, Any]) -> list[str]:
    workers, missing, questions = session.workers, [], {}
    for worker, found in enumerate(state["workers"]):
        under_way, env_ids = state["under_way"][worker], workers.env_ids(worker)
        generation = workers.skip_generations(worker, found["generation"])
        questions[worker] = (found, generation, under_way > 0)
        if under_way:
            missing.append(f"{under_way} rollouts of worker {worker}, which were in progress or not yet delivered")
        missing += [
            f"the state of the wrapper {wrapper} of env_id {env_id}, which has no get_state"
            for env_id, env in zip(env_ids, found["envs"], strict=True)
            for wrapper in (env["unknown"] if env is not None else ())
        ]
    why = "whose environment has no get_state and begins a new episode"
    if session.plan.job.in_parts:
        why = "because a state has no part of an episode, and a new one begins"
    for worker, anew in session.ask_workers("set_state", questions).items():
        first = workers.env_ids(worker).start
        missing += [f"the episode of env_id {first + column}, {why}" for column in anew]
    return missing
