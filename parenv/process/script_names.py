"""The ``__main__`` module of workers, in which names of the user's script are found without running the script again.

Registrations such as ``entry_point="__main__:MyEnv"``, :mod:`pickle` and :mod:`multiprocessing` look names up in
``__main__``. A pickle for workers by :func:`parenv.process.user_code.dumps` therefore ends with names and their values:
classes and functions that it contains, variables that these functions use, and names that it mentions as texts.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_MENTION = re.compile(r"__main__[:.]([^\W\d]\w*)")
_MAIN = {"__main__", "__mp_main__"}
"""Names of the script's module. The second one is its name in children that multiprocessing has spawned."""
MAX_ITEMS = 1000
"""Maximum number of values that are searched for texts in one object."""


class MentionedNames:
    """Names of the script that a pickle contains or mentions, collected while it is written.

    Args:
        problem: Function that returns why a value cannot be pickled, or an empty text.
    """

    def __init__(self, problem: Callable[[Any], str]) -> None:
        self._problem = problem
        self._script = vars(sys.modules["__main__"])
        self._names: set[str] = set()
        self._done: set[str] = set()
        self._contained: set[str] = set()
        """Names whose values are part of the pickle anyway."""

    def note(self, value: Any, reduced: Any) -> None:
        """Note an object that is being pickled, with what the pickler has reduced it to."""
        if isinstance(value, CodeType):
            self._note_code(value)
        elif isinstance(value, functools.partial):
            self._note_texts((value.args, value.keywords))
        elif not isinstance(value, type | FunctionType):
            # Objects of the user may raise anything here.
            with contextlib.suppress(Exception):
                self._note_texts(vars(value))
        elif isinstance(reduced, tuple) and getattr(value, "__module__", None) in _MAIN:
            self._note_by_value(value, reduced[2])

    def __reduce__(self) -> Any:
        names = {name for name in self._names - self._done if name in self._script}
        self._done |= names
        values, refused = {}, {}
        for name in sorted(names):
            problem = "" if name in self._contained else self._problem(self._script[name])
            if problem:
                refused[name] = problem
            else:
                values[name] = self._script[name]
        # Pickling the values may add further names, so this object comes again behind them, until there are none.
        return define, (values, refused, _Again(self) if names else None)

    def _note_by_value(self, value: Any, state: Any) -> None:
        outer, *inner = value.__qualname__.split(".")
        if isinstance(value, type):
            # cloudpickle leaves it out, without which a class in a class is not found.
            state[0]["__qualname__"] = value.__qualname__
        elif value.__globals__ is self._script:
            for name, used in state[1]["__globals__"].items():
                self._note_contained(name, used)
        if not inner or (isinstance(value, type) and "<locals>" not in inner):
            self._note_contained(outer, value)

    def _note_contained(self, name: str, value: Any) -> None:
        self._names.add(name)
        if self._script.get(name) is value:
            self._contained.add(name)

    def _note_code(self, code: CodeType) -> None:
        texts = {text for text in code.co_consts if isinstance(text, str)}
        if "__main__" in code.co_names or "__main__" in texts:
            self._names |= {*code.co_names, *texts} & self._script.keys()
        self._note_texts(code.co_consts)

    def _note_texts(self, value: Any) -> None:
        for text in _texts(value):
            if isinstance(text, str):
                self._names.update(_MENTION.findall(text))
            else:
                # This may be a pickle, which has the names of its classes and functions as texts.
                for name, one in list(self._script.items()):
                    if isinstance(one, type | FunctionType) and one.__module__ in _MAIN and name.encode() in text:
                        self._names.add(name)


class _Again:
    def __init__(self, names: MentionedNames) -> None:
        self._names = names

    def __reduce__(self) -> Any:
        return self._names.__reduce__()


def _texts(value: Any) -> Iterator[str | bytes]:
    """Yield the texts in lists, dicts and tuples that mention the script. Only the first items are looked at."""
    found = deque([value])
    for _ in range(MAX_ITEMS):
        if not found:
            return
        one = found.popleft()
        if isinstance(one, str | bytes):
            if (b"__main__" if isinstance(one, bytes) else "__main__") in one:  # type: ignore[operator]
                yield one
        elif isinstance(one, tuple) or type(one) in (list, dict):
            found.extend(islice(one.values() if type(one) is dict else one, MAX_ITEMS))


class _ScriptModule(ModuleType):
    """Module with the names of the script that were sent."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module '__main__' has no attribute {name!r}")
        problem = _refused.get(name)
        why = "no argument and no registered environment refers to it" if problem is None else problem
        raise AttributeError(
            f"__main__.{name} cannot be used in a worker: {why}. Move it to a module that workers can import."
        )


_refused: dict[str, str] = {}
"""Reasons why names could not be sent."""
_former: list[ModuleType] = []


def define(values: dict[str, Any], refused: dict[str, str], _: None) -> None:
    """Give names of the script their values in ``__main__`` of a worker. Elsewhere, do nothing."""
    main = sys.modules["__main__"]
    if isinstance(main, _ScriptModule):
        _refused.update(refused)
        for name, value in values.items():
            # A job that is unpickled again gives its classes new methods, which use the new functions. Other values
            # stay, because environments may have changed them.
            if isinstance(value, FunctionType) or name not in vars(main):
                vars(main)[name] = value


def place_of_script() -> list[str]:
    """Return the file and the module name of the script, which multiprocessing needs to spawn children."""
    main = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None) or "", getattr(main, "__spec__", None)
    try:
        # A script without a guard would run again as a whole in each child that an environment spawns.
        is_guarded = "__name__" in Path(file).read_text(errors="replace")
    except (OSError, ValueError):
        is_guarded = False
    return [str(Path(file).absolute()), getattr(spec, "name", "")] if is_guarded else ["", ""]


def replace_main(file: str, module_name: str) -> None:
    """Make the ``__main__`` module of a worker, see :func:`place_of_script`."""
    main = _ScriptModule("__main__")
    if file:
        main.__file__ = file
    if module_name:
        main.__spec__ = ModuleSpec(module_name, None, origin=file)
    # The code of the former module is still running.
    _former.append(sys.modules["__main__"])
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
