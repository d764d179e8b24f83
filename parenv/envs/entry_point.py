"""Factories of environments by name, for interpreters to which functions cannot be sent."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym

from parenv.envs.elsewhere import EnvElsewhere, OtherPlace
from parenv.envs.factories import Factories, as_factories
from parenv.errors import ConfigurationError, NotDataError
from parenv.options import WorkerOptions
from parenv.protocol.data import pack

_IDENTIFIERS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_importing = threading.RLock()
_ENV_ID = re.compile(r"[\w:./-]+")


@dataclass(frozen=True)
class EntryPoint:
    """A factory of environments by name, made by :func:`parenv.entry_point`.

    Args:
        name: ``"module:attribute"``, ``"path/to/file.py:attribute"``, or an env id.
        arguments: Keyword arguments.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        """Make an environment in this interpreter."""
        place, attribute = self.place
        if not attribute:
            return gym.make(self.name, **self.arguments)
        made: Any = _module(place)
        for part in attribute.split("."):
            made = getattr(made, part)
        return made(**self.arguments)

    @property
    def place(self) -> tuple[str, str]:
        """Module or file, and attribute. Without an attribute, the name is an env id."""
        place, _, attribute = self.name.rpartition(":")
        return (place, attribute) if place and _IDENTIFIERS.fullmatch(attribute) else (self.name, "")


def entry_point(name: str, /, **kwargs: Any) -> EntryPoint:
    """Name a factory of environments that another interpreter can find.

    Use it with :class:`WorkerOptions(python=...) <parenv.WorkerOptions>`, whose processes cannot receive functions. The
    result is a factory, so it can be used in this interpreter too.

    Args:
        name: ``"module:attribute"``, ``"path/to/file.py:attribute"`` relative to the working directory, or an env id
            such as ``"CartPole-v1"``. For an env id, ``gymnasium.make`` is called, or ``gym.make`` in an interpreter
            without Gymnasium. ``"module:Name-v0"`` imports the module first.
        **kwargs: Keyword arguments of the factory, of plain data: ``None``, numbers, strings, bytes, lists, tuples,
            dicts and numpy arrays.

    Raises:
        ConfigurationError: The name has another form, or an argument is not plain data.

    >>> make = entry_point("gymnasium.envs.classic_control:CartPoleEnv", render_mode="rgb_array")
    >>> make().render_mode
    'rgb_array'
    """
    if not isinstance(name, str) or not _ENV_ID.fullmatch(name) or name.startswith(":") or name.endswith(":"):
        raise ConfigurationError(
            'the name of an entry point must be "module:attribute", "path/to/file.py:attribute" or an env id, '
            f"got {name!r}. Correct it."
        )
    made = EntryPoint(name, kwargs)
    if not made.place[1] and (name.endswith(".py") or ".py:" in name):
        raise ConfigurationError(
            f'an entry point in a file must name an attribute, got {name!r}. Write "file.py:make".'
        )
    try:
        pack(kwargs)
    except NotDataError as error:
        raise ConfigurationError(
            f"the arguments of entry_point({name!r}) must be plain data, because they are sent to another interpreter: "
            f"{error}"
        ) from None
    return made


@dataclass(frozen=True)
class FactoryElsewhere:
    """A factory of environments in another interpreter.

    Args:
        entry: Entry point there.
        place: Interpreter.
    """

    entry: EntryPoint
    place: OtherPlace

    def __call__(self) -> EnvElsewhere:
        """Make an environment."""
        return self.place.make(self.entry.name, self.entry.arguments)


def factories_of(env_fn: Any, options: WorkerOptions | None, is_local: bool = True) -> Factories:
    """Make factories of environments in this interpreter, or in the one of ``WorkerOptions.python``.

    Args:
        env_fn: Factories; for another interpreter an entry point, an env id, or a sequence of those.
        options: Options of the workers.
        is_local: Whether the other interpreter is on this machine.

    Raises:
        ConfigurationError: A factory cannot be used, or there is no such interpreter.
    """
    if options is None or options.python is None:
        return as_factories(env_fn)
    command = (options.python,) if isinstance(options.python, str) else options.python
    if is_local and shutil.which(command[0]) is None:
        raise ConfigurationError(
            f"WorkerOptions.python must be an interpreter or a command that exists, got {command[:1]!r}. Correct it."
        )
    several = isinstance(env_fn, Sequence) and not isinstance(env_fn, str)
    named = tuple(EntryPoint(one) if isinstance(one, str) else one for one in (env_fn if several else [env_fn]))
    for one in named:
        if not isinstance(one, EntryPoint):
            raise ConfigurationError(
                "environments for WorkerOptions(python=...) must be named, because functions cannot be sent to another "
                f'interpreter, got {one!r}. Pass parenv.entry_point("module:attribute", ...) or an env id.'
            )
    if not named:
        raise ConfigurationError("env_fn must have at least one factory, got an empty sequence. Pass one per env.")
    place = OtherPlace.of(options)
    return Factories(tuple(FactoryElsewhere(one, place) for one in named), len(named) if several else None, ())


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = str(Path(place).resolve())
    # The environments of a worker may be made in several threads, which must not see a part of the module.
    with _importing:
        if path not in sys.modules:
            _import_file(place, path)
    return sys.modules[path]


def _import_file(place: str, path: str) -> None:
    spec = importlib.util.spec_from_file_location(path, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path]
        raise
