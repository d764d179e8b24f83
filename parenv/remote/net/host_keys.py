"""Keys of the main process (the driver) and of the hosts that may join it.

Each side has a CURVE key pair. A host knows the driver's public key, so that no other program can pose as the driver.
The driver knows the public keys of its hosts, so that no other program can join. A key is Z85 text of 40 bytes. Keys
are stored in files that only their owner can read. They never appear in a ``repr``, an error or a log.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path
from typing import TypeVar

import zmq
from zmq.utils import z85

if sys.platform == "win32":
    raise ImportError("this module is for worker processes")

from parenv.errors import ConfigurationError
from parenv.platform import system

KEY_LENGTH = 40
DRIVER_FILE = "driver.key"
HOSTS_FILE = "hosts.pub"
Keys = TypeVar("Keys", bound="KeyPair")
_Z85 = frozenset(bytes(z85.Z85CHARS))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST_WORDS = ("public", "secret", "driver")
_DRIVER_TEXT = "# parenv: key of the driver. Keep this file secret: its reader can pose as the driver."
_HOST_TEXT = "# parenv: key of the host {}. Keep this file secret: its reader can join the driver."
_HOSTS_TEXT = "# parenv: public keys of the hosts that may join, a name and a key on each line. No secrets."


@dataclass(frozen=True, repr=False)
class KeyPair:
    """A public and a secret key, each Z85 text of 40 bytes.

    Raises:
        ConfigurationError: A key is malformed, or the keys do not belong together.
    """

    public: bytes
    secret: bytes

    def __post_init__(self) -> None:
        if not (is_key(self.public) and is_key(self.secret)):
            raise ConfigurationError("public and secret keys must be Z85 text of 40 bytes. Make keys again.")
        if zmq.curve_public(self.secret) != self.public:
            raise ConfigurationError("the public key must belong to the secret key, but does not. Make keys again.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(not shown)"


class DriverKeys(KeyPair):
    """The key pair of a driver, see :class:`KeyPair`."""


@dataclass(frozen=True, repr=False)
class HostKeys(KeyPair):
    """The key pair of a host, and the public key of its driver.

    Raises:
        ConfigurationError: A key is malformed, or the keys do not belong together.
    """

    driver_public: bytes

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_key(self.driver_public):
            raise ConfigurationError("the driver's public key must be Z85 text of 40 bytes. Make keys again.")


class AllowList:
    """Public keys of the hosts that may join.

    Args:
        source: Path of a file such as ``hosts.pub``, or a list of public keys as Z85 text. The file is read again when
            a host asks to join and at intervals, so that it can be changed while the driver runs. Hosts of a list are
            named ``host-0``, ``host-1`` and so on.

    Raises:
        ConfigurationError: The file cannot be used, or the list contains something else than keys.
    """

    def __init__(self, source: str | os.PathLike[str] | Sequence[str]) -> None:
        self._path = Path(source).absolute() if isinstance(source, str | os.PathLike) else None
        self._names = {} if isinstance(source, str | os.PathLike) else _named(source)
        self._missed: set[bytes] = set()
        self._current()

    def name_of(self, public: bytes) -> str | None:
        """Return the name of the host with this public key, or ``None`` if it may not join.

        Raises:
            ConfigurationError: The file cannot be used any more. No host may join for now.
        """
        return self._current().get(public)

    def removed(self, connected: Iterable[bytes]) -> set[bytes]:
        """Return the public keys of hosts that are no longer on the list; none while the file cannot be used.

        A host must be missing twice in a row: a file that is rewritten in place is incomplete for a moment.
        """
        try:
            current = self._current()
        except ConfigurationError:
            return set()
        before, self._missed = self._missed, {key for key in connected if key not in current}
        return self._missed & before

    def _current(self) -> Mapping[bytes, str]:
        return self._names if self._path is None else _read_hosts(self._path)


def create_keys(directory: str | os.PathLike[str], hosts: Sequence[str]) -> list[Path]:
    """Create the keys of a driver and of its hosts.

    Args:
        directory: Directory for the files. It is created if it is missing, for its owner only.
        hosts: Names of the hosts: letters, digits, dots, hyphens and underscores.

    Returns:
        Paths of the files: ``driver.key``, a key file for each host, and ``hosts.pub``, the list of hosts that may
        join. A key file of a host belongs on this host only.

    Raises:
        ConfigurationError: A name cannot be used, a file exists already, or the directory cannot be written.
    """
    for name in hosts:
        _check_name(name)
    if len({name.lower() for name in hosts}) < len(hosts):
        raise ConfigurationError(f"names of hosts must be unique, got {', '.join(hosts)}")
    folder = Path(directory)
    driver, pairs = DriverKeys(*zmq.curve_keypair()), {name: zmq.curve_keypair() for name in hosts}
    texts = {folder / DRIVER_FILE: _text(_DRIVER_TEXT, {"public": driver.public, "secret": driver.secret})}
    for name, (public, secret) in pairs.items():
        texts[folder / f"{name}.key"] = _host_text(name, HostKeys(public, secret, driver.public))
    texts[folder / HOSTS_FILE] = _text(_HOSTS_TEXT, {name: public for name, (public, _) in pairs.items()})
    write_new(folder, texts)
    return list(texts)


def add_host(directory: str | os.PathLike[str], name: str) -> Path:
    """Create the key of another host in a directory of :func:`create_keys`, and add the host to the list.

    Returns:
        Path of the key file of the host.

    Raises:
        ConfigurationError: The name cannot be used or is taken, or the directory has no keys.
    """
    _check_name(name)
    folder = Path(directory)
    driver = read_driver_keys(folder / DRIVER_FILE)
    listed = folder / HOSTS_FILE
    public, secret = zmq.curve_keypair()
    path = folder / f"{name}.key"
    with locked(listed):
        if name in _read_hosts(listed).values():
            raise ConfigurationError(f"{listed} has a host {name} already. Choose another name, or remove it first.")
        before = read_private(listed, Others.CANNOT_WRITE).rstrip("\n")
        write_new(folder, {path: _host_text(name, HostKeys(public, secret, driver.public))})
        try:
            replace(listed, f"{before}\n{name} {public.decode()}\n")
        except ConfigurationError:
            path.unlink(missing_ok=True)
            raise
    return path


def listed_hosts(directory: str | os.PathLike[str]) -> list[str]:
    """Return the names of the hosts that may join, in the order of the list."""
    return list(_read_hosts(Path(directory) / HOSTS_FILE).values())


def remove_host(directory: str | os.PathLike[str], name: str) -> Path:
    """Remove a host from the list and delete its key file. A driver that runs closes its connection.

    Returns:
        Path of the deleted key file.

    Raises:
        ConfigurationError: The host is not on the list, or the directory has no keys.
    """
    listed, path = Path(directory) / HOSTS_FILE, Path(directory) / f"{name}.key"
    with locked(listed):
        if name not in (names := listed_hosts(directory)):
            raise ConfigurationError(
                f"the host must be on the list {listed} ({', '.join(names) or 'empty'}), got {name}"
            )
        lines = read_private(listed, Others.CANNOT_WRITE).splitlines()
        replace(listed, "\n".join(line for line in lines if line.split()[:1] != [name]) + "\n")
        path.unlink(missing_ok=True)
    return path


def read_driver_keys(path: str | os.PathLike[str]) -> DriverKeys:
    """Read the key file of a driver.

    Raises:
        ConfigurationError: The file is missing or malformed, or other users may read it.
    """
    return _read_keys(path, DriverKeys, ("public", "secret"), "driver")


def read_host_keys(path: str | os.PathLike[str]) -> HostKeys:
    """Read the key file of a host.

    Raises:
        ConfigurationError: The file is missing or malformed, or other users may read it.
    """
    return _read_keys(path, HostKeys, _HOST_WORDS, "host")


def ephemeral_keys() -> tuple[DriverKeys, HostKeys]:
    """Create keys of a driver and of all its hosts, for one run and without files."""
    driver = DriverKeys(*zmq.curve_keypair())
    return driver, HostKeys(*zmq.curve_keypair(), driver.public)


def is_key(value: object) -> bool:
    """Return whether a value is a key in Z85 text.

    >>> is_key(b"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"), is_key(b"short")
    (True, False)
    """
    if not isinstance(value, bytes) or len(value) != KEY_LENGTH or not _Z85.issuperset(value):
        return False
    try:
        z85.decode(value)
    except struct.error:
        # Five characters of Z85 can encode more than four bytes can hold.
        return False
    return True


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"a host cannot be named {name!r}. Use at most 63 letters, digits, dots, hyphens and underscores."
        )
    if f"{name}.key".lower() == DRIVER_FILE:
        raise ConfigurationError(
            f"a host cannot be named {name!r}, because {DRIVER_FILE} is the driver's key file. Use another name."
        )


def _named(keys: Sequence[str]) -> dict[bytes, str]:
    encoded = [key.encode() if isinstance(key, str) else b"" for key in keys]
    for place, key in enumerate(encoded):
        if not is_key(key):
            raise ConfigurationError(
                f"hosts must be public keys of 40 characters of Z85, but entry {place} is not such a key. Copy it from "
                "the host's key file."
            )
    if not encoded:
        raise ConfigurationError("hosts must contain at least one public key, got none. Pass the keys of all hosts.")
    return {key: f"host-{place}" for place, key in enumerate(encoded)}


def _host_text(name: str, keys: HostKeys) -> str:
    return _text(_HOST_TEXT.format(name), {"public": keys.public, "secret": keys.secret, "driver": keys.driver_public})


def _text(title: str, values: Mapping[str, bytes]) -> str:
    return "\n".join([title, *(f"{word} {value.decode()}" for word, value in values.items())]) + "\n"


def _read_keys(path: str | os.PathLike[str], kind: type[Keys], words: Sequence[str], whose: str) -> Keys:
    if is_key(os.fsencode(path)):
        raise ConfigurationError(f"key must be the path of the key file of a {whose}, got a key. Pass the path.")
    values: dict[str, bytes] = {}
    for number, word, value in _lines(read_private(Path(path), Others.CANNOT_READ)):
        if word not in _HOST_WORDS or word in values or not is_key(value):
            raise ConfigurationError(
                f"{path}, line {number}: a line must be a word and a key in Z85 text. Copy the file again."
            )
        values[word] = value
    if set(values) != set(words):
        raise ConfigurationError(
            f"{path} must be the key file of a {whose} with the lines {', '.join(words)}, got "
            f"{', '.join(sorted(values)) or 'none of them'}"
        )
    try:
        return kind(*(values[word] for word in words))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _read_hosts(path: Path) -> dict[bytes, str]:
    """Return the names of hosts by public key."""
    names: dict[bytes, str] = {}
    for number, name, public in _lines(read_private(path, Others.CANNOT_WRITE)):
        if not (_NAME.fullmatch(name) and is_key(public)):
            raise ConfigurationError(
                f"{path}, line {number}: a line must be a name and a public key in Z85 text. Correct it."
            )
        if public in names or name in names.values():
            raise ConfigurationError(
                f"{path}, line {number}: the host {name} or its key is in the list twice. Remove one of them."
            )
        names[public] = name
    return names


def _lines(text: str) -> list[tuple[int, str, bytes]]:
    """Return the number, the first word and the rest of every line that is not a comment."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    words = [(number, line.split(None, 1)) for number, line in lines if line and not line.startswith("#")]
    return [(number, first, "".join(rest).encode()) for number, (first, *rest) in words]


MAX_FILE_BYTES = 1 << 20


class Others(IntFlag):
    """Permission bits that the mode of a file must not have."""

    CANNOT_READ = stat.S_IRWXG | stat.S_IRWXO
    CANNOT_WRITE = stat.S_IWGRP | stat.S_IWOTH


def write_new(folder: Path, texts: Mapping[Path, str]) -> None:
    """Create files that only their owner can read: all of them, or none.

    Args:
        folder: Directory of the files. It is created if it is missing, for its owner only.
        texts: Content of the files by path.

    Raises:
        ConfigurationError: A file exists already or cannot be written.
    """
    for path in texts:
        if os.path.lexists(path):
            raise ConfigurationError(
                f"{path} exists already, and keys are never overwritten. Choose another directory."
            )
    written: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, text in texts.items():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            written.append(path)
            with open(descriptor, "w") as file:
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigurationError(f"keys cannot be written to {folder}: {error.strerror}") from None


def replace(path: Path, text: str) -> None:
    """Replace the content of a file. A reader gets the old content or the new content, never a mixture.

    Raises:
        ConfigurationError: The file cannot be written. It is unchanged.
    """
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with open(descriptor, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file against changes by other processes and threads that use this lock.

    Raises:
        ConfigurationError: The file cannot be opened for writing.
    """
    with contextlib.ExitStack() as stack:
        try:
            while True:
                file = stack.enter_context(open(path, "rb+", buffering=0))
                system.take_lock(file.fileno(), wait=True)
                # During the wait for the lock, another process may have replaced the file.
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    break
                stack.close()
        except OSError as error:
            raise ConfigurationError(
                f"{path} cannot be changed: {error.strerror}. Make key files with the command parenv keys create."
            ) from None
        yield


def read_private(path: Path, others: Others) -> str:
    """Read a text file that other users cannot access.

    Raises:
        ConfigurationError: The file is missing, not text, too large, or other users can access it.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe in place of the file would block forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check(path, os.fstat(descriptor), others)
            return os.read(descriptor, MAX_FILE_BYTES).decode()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}. Make key files with the command parenv keys create."
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} must be a text file, got other bytes. Correct the path.") from None


def _check(path: Path, status: os.stat_result, others: Others) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f"{path} must be a regular file. Correct the path.")
    if status.st_size > MAX_FILE_BYTES:
        raise ConfigurationError(f"{path} must have at most {MAX_FILE_BYTES} bytes, got {status.st_size}")
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(f"{path} belongs to another user and cannot be trusted. Change its owner to yourself.")
    if status.st_mode & others:
        can = "read or write" if others == Others.CANNOT_READ else "write"
        raise ConfigurationError(
            f"{path} cannot be trusted, because other users may {can} it (mode {stat.S_IMODE(status.st_mode):04o}). If "
            f"no other user has done so, run: chmod 600 {path}"
        )
