"""Environments in another Python interpreter, with the interface of Gymnasium.

A worker steps and resets them as its own. Only :class:`StepBatch` is special: it sends the actions of many of them in
one message, before the worker takes the results one by one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np

from parenv.errors import ConfigurationError, NotDataError, SubEnvironmentError, embedded
from parenv.memory.spaces import rebuild
from parenv.memory.status_slot import StatusSlot
from parenv.options import WorkerOptions
from parenv.process.cores import thread_variables
from parenv.process.served_envs import (
    FAILED_RESET,
    FAILED_STEP,
    ODD_RESET,
    ODD_STEP,
    RESET,
    STEP,
    TooDeepError,
    decode,
    encode,
)
from parenv.protocol.exceptions import rebuilt_error


@dataclass(frozen=True)
class OtherPlace:
    """Another interpreter, and the settings of its processes.

    Args:
        python: Path of the interpreter, or a command.
        environment: Environment variables.
        paths: Folders in which modules are searched first.
        max_memory_bytes: Memory limit, or ``None``.
        processes: Number of interpreters that share the sub-environments of a worker.
    """

    python: str | tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    paths: tuple[str, ...]
    max_memory_bytes: int | None
    processes: int

    @classmethod
    def of(cls, options: WorkerOptions) -> OtherPlace:
        """Return the place that the user has set."""
        assert options.python is not None
        variables = {**thread_variables(options.threads), **options.environment}
        # The threads of a worker would wait for each other if they shared an interpreter.
        return cls(options.python, tuple(variables.items()), _paths(), options.max_memory_bytes, options.step_threads)

    def make(self, name: str, arguments: Mapping[str, Any]) -> EnvElsewhere:
        """Make an environment in an interpreter of this process that has fewest of them, or in a new one."""
        with _making:
            mine = [one for one in _interpreters if one.place == self and one.users]
            found = min(mine, key=lambda one: one.users) if len(mine) >= self.processes else Interpreter(self)
            _interpreters.add(found)
            return EnvElsewhere(found, name, arguments)


class Interpreter:
    """One process of another interpreter, shared by some environments.

    Args:
        place: Interpreter and settings.

    Attributes:
        users: Number of its environments. The process ends with the last one.
    """

    def __init__(self, place: OtherPlace) -> None:
        self.place, self.users = place, 0
        self._lock = threading.RLock()
        self._last: tuple[Sequence[EnvElsewhere], Sequence[int]] = [], []
        """Environments and orders of the last batch."""
        self._waiting: Sequence[EnvElsewhere] = []
        """Environments of the present batch whose results have not arrived."""
        self._is_running = False
        """Whether the results of a batch have not all arrived."""
        # Only here, because Windows has no such processes.
        from parenv.process.other_python import OtherPython

        self._python = OtherPython(place.python, dict(place.environment))
        self._python.look = self._look
        self.ask("start", list(place.paths), dict(place.environment), place.max_memory_bytes)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Make a request, and return its answer.

        Raises:
            Exception: The request has failed there.
        """
        with self._lock:
            self.collect()
            return self._exchange([method, arguments])[0]

    def begin(self, envs: Sequence[EnvElsewhere], orders: Sequence[int], actions: Sequence[Any]) -> None:
        """Begin steps and resets of environments. None of them may have a result that was not taken."""
        with self._lock:
            self.collect()
            content, more = _joined(actions)
            if is_new := (envs, orders) != self._last:
                self._last = envs, orders
            self._waiting, self._is_running = envs, True
            ordered = [(env.index, order) for env, order in zip(*self._last, strict=True)] if is_new else None
            self._send(["run", (ordered, content)], more)

    def run(self, envs: Sequence[EnvElsewhere], orders: Sequence[int], actions: Any) -> tuple[Any, list[float | None]]:
        """Run a batch; return observations and rewards. Where the reward is ``None``, the environment has the result.

        Observations are one array if they are arrays of one kind, and else a list.
        """
        parts, rewards = list[Any](), list[float | None]()
        with self._lock:
            self.begin(envs, orders, actions)
            while self._is_running:
                (kind, answer), more = self._receive()
                self._is_running = kind == "more"
                parts.append(self._share_out(answer, more))
                rewards += answer[0]
        return parts[0] if len(parts) == 1 else [one for part in parts for one in part], rewards

    def collect(self, env: EnvElsewhere | None = None) -> None:
        """Receive the results of the present batch, all of them or until an environment has one."""
        with self._lock:
            while self._is_running and (env is None or not env.has_result):
                (kind, answer), more = self._receive()
                self._is_running, waiting = kind == "more", self._waiting
                observations = self._share_out(answer, more)
                for one, observation, reward in zip(waiting, observations, answer[0], strict=False):
                    if reward is not None:
                        one.stepped = observation, reward, False, False, {}

    def leave(self) -> None:
        """Note that an environment is closed."""
        self.users -= 1
        if not self.users:
            self._python.end()

    def _share_out(self, answer: Any, more: Any) -> Any:
        """Give environments the results that are not plain. Return all observations, in the order of the batch."""
        rewards, together, others = answer
        if type(together) is tuple:
            dtype, shape = together
            observations: Any = np.frombuffer(more, np.dtype(dtype)).reshape(len(rewards), *shape)
        else:
            observations = list(map(decode, together))
        envs, self._waiting = self._waiting[: len(rewards)], self._waiting[len(rewards) :]
        for position, kind, *found in others:
            env, observation = envs[position], observations[position]
            if kind == STEP:
                reward, terminated, truncated, info, *ended = found
                if ended:
                    env.take_begun(observation, *ended[1:])
                    observation = decode(ended[0])
                env.stepped = observation, decode(reward), decode(terminated), decode(truncated), decode(info)
            elif kind in (ODD_STEP, FAILED_STEP):
                env.stepped = decode(found[0]) if kind == ODD_STEP else _error(found[0])
            else:
                env.take_begun(observation, kind, found[0])
        return observations

    def _exchange(self, request: Any) -> Any:
        self._send(request)
        (kind, answer), more = self._receive()
        if kind == "failed":
            raise _error(answer)
        return answer, more

    def _send(self, request: Any, more: Any = b"") -> None:
        try:
            self._python.send(request, more)
        except OSError:
            self._end()

    def _receive(self) -> Any:
        try:
            return self._python.receive()
        except (EOFError, OSError):
            self._end()

    def _look(self) -> None:
        """Show the environment that is at work in the status slot."""
        at = self._python.at[0]
        env = next((env for env in self._waiting if env.index == at >> 1), None)
        if env is not None and env.status is not None and env.status.cell[0] != env.codes[at & 1]:
            env.status.cell[0] = env.codes[at & 1]
            env.status.heartbeat[0] += 1

    def _end(self) -> NoReturn:
        """End this process if it is a worker, as the interpreter has ended.

        Raises:
            SubEnvironmentError: This process is not a worker.
        """
        self._look()
        self._is_running = False
        how = self._python.end_alike()
        raise SubEnvironmentError(f"the interpreter {self.place.python!r} {how}. Use worker processes to replace it.")


_interpreters: weakref.WeakSet[Interpreter] = weakref.WeakSet()
_making = threading.Lock()


class EnvElsewhere(gym.Env[Any, Any]):
    """An environment in another interpreter.

    Args:
        interpreter: Interpreter in which it is made.
        name: Name of the factory, see :func:`parenv.entry_point`.
        arguments: Keyword arguments of the factory.

    Attributes:
        index: Number of the environment there.
        stepped: Result of a step that the worker has not taken: a tuple, or what else ``step`` returned or raised.
        begun: The same of a reset.
        status: Status slot of the worker, once the environment was part of a batch.
        codes: Codes of a step and a reset in the status slot.
    """

    status: StatusSlot | None = None
    codes = (0, 0)

    def __init__(self, interpreter: Interpreter, name: str, arguments: Mapping[str, Any]) -> None:
        self._interpreter: Interpreter | None = interpreter
        self.stepped: Any = _NOTHING
        self.begun: Any = _NOTHING
        interpreter.users += 1
        try:
            self.index, about = interpreter.ask("make", name, _sendable("the arguments of entry_point", arguments))
            found = decode(about)
            self.observation_space, self.action_space = (
                rebuild(_description(fields, f"the {kind}_space of {name}"))
                for kind, fields in zip(("observation", "action"), found["spaces"], strict=True)
            )
        except BaseException:
            interpreter.leave()
            raise
        self.metadata, self.render_mode = found["metadata"], found["render_mode"]

    @property
    def interpreter(self) -> Interpreter:
        """The interpreter, while the environment is open."""
        if self._interpreter is None:
            raise ValueError("the environment is closed")
        return self._interpreter

    def take_begun(self, observation: Any, kind: int, form: Any) -> None:
        """Keep the result of a reset until :meth:`reset` is called."""
        if kind == FAILED_RESET:
            self.begun = _error(form)
        else:
            self.begun = decode(form) if kind == ODD_RESET else (observation, decode(form))

    @property
    def has_result(self) -> bool:
        """True if the environment keeps a result of a step or a reset."""
        return self.stepped is not _NOTHING or self.begun is not _NOTHING

    def step(self, action: Any) -> Any:
        """Take a step, or take the result of the step that has begun."""
        if self.stepped is _NOTHING:
            self.interpreter.collect(self)
            if self.stepped is _NOTHING:
                self.begun = _NOTHING
                self.interpreter.begin([self], [STEP], [action])
                self.interpreter.collect(self)
        result, self.stepped = self.stepped, _NOTHING
        if type(result) is not tuple and isinstance(result, BaseException):
            raise result
        return result

    def reset(self, **keywords: Any) -> Any:
        """Begin an episode, or take the beginning of the episode that has begun after the last step."""
        if self.begun is _NOTHING:
            self.interpreter.collect()
        begun, self.begun, self.stepped = self.begun, _NOTHING, _NOTHING
        if keywords or begun is _NOTHING:
            return decode(self.interpreter.ask("reset", self.index, _sendable("the arguments of reset", keywords)))
        if isinstance(begun, BaseException):
            raise begun
        return begun

    def render(self) -> Any:
        """Return a frame or what else the environment renders."""
        return self._call("render")

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute, or a function that calls a method.

        Raises:
            NotDataError: The attribute is not plain data.
        """
        is_callable, value = self.interpreter.ask("get", self.index, name)
        return partial(self._call, name) if is_callable else _received(name, value)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute where it is, or else on the environment itself."""
        self.interpreter.ask("set", self.index, name, _sendable(f"the value of {name}", value))
        return True

    def is_wrapped(self, module: str, name: str) -> bool:
        """Return whether a wrapper there is of a class with this name, or of a subclass."""
        return bool(self.interpreter.ask("is_wrapped", self.index, module, name))

    def close(self) -> None:
        """Close the environment. Idempotent."""
        interpreter, self._interpreter = self._interpreter, None
        if interpreter is not None:
            try:
                # An interpreter that has ended has nothing to close.
                with contextlib.suppress(SubEnvironmentError):
                    interpreter.ask("close", self.index)
            finally:
                interpreter.leave()

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("an environment in another interpreter cannot be copied")

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        what = f"the arguments of {name}"
        given = _sendable(what, args), _sendable(what, kwargs)
        return _received(f"the result of {name}", self.interpreter.ask("call", self.index, name, *given))


_NOTHING = object()


class StepBatch:
    """The environments of a worker of which some live in other interpreters, for steps of many of them at once.

    Args:
        envs: All environments of the worker. The list may change.
        status: Status slot of the worker.
        codes: Codes of a step and a reset of each in the status slot.
    """

    def __init__(self, envs: list[Any], status: StatusSlot, codes: Sequence[tuple[int, int]]) -> None:
        self._envs, self._status, self._codes = envs, status, codes
        self._only: Interpreter | None = None
        """The interpreter, if all environments are in one, without wrappers in this one."""
        if all(type(env) is EnvElsewhere and env.interpreter is envs[0].interpreter for env in envs):
            self._only = envs[0].interpreter
            for env, of_env in zip(envs, codes, strict=True):
                env.status, env.codes = status, of_env

    @classmethod
    def of(cls, envs: list[Any], status: StatusSlot, codes: Sequence[tuple[int, int]]) -> StepBatch | None:
        """Make one, or return ``None`` if all environments are in this interpreter."""
        is_elsewhere = any(type(env.unwrapped) is EnvElsewhere for env in envs if isinstance(env, gym.Env))
        return cls(envs, status, codes) if is_elsewhere else None

    def run(self, columns: Sequence[int], orders: Sequence[Any], actions: Any) -> Any:
        """Take plain steps, or :meth:`begin` them.

        Returns:
            Lists of observations and rewards in which the reward is ``None`` where the environment has another result;
            or ``None`` if the environments have all results.
        """
        if self._only is None or None in orders:
            return self.begin(columns, orders, actions)
        envs = self._envs if type(columns) is range else [self._envs[column] for column in columns]
        for env in envs:
            if env.stepped is not _NOTHING:
                return self.begin(columns, orders, actions)
            env.begun = _NOTHING
        return self._only.run(envs, orders, actions)

    def begin(self, columns: Sequence[int], orders: Sequence[int | None], actions: Any) -> None:
        """Begin steps and resets, with one message for each interpreter. The environments keep the results.

        Args:
            columns: Indices of environments.
            orders: What the worker does with each: ``STEP``, ``RESET``, or ``STEP_AND_RESET`` if a reset without
                arguments follows the end of an episode at once. ``None``: it is not known.
            actions: Sequence with the action of each.
        """
        batches: dict[Interpreter, tuple[list[Any], list[Any], list[Any]]] = {}
        for column, order, action in zip(columns, orders, actions, strict=True):
            env = self._envs[column]
            there = env if type(env) is EnvElsewhere else env.unwrapped
            if type(there) is not EnvElsewhere or order is None or there.stepped is not _NOTHING:
                continue
            if there is not env:
                # A wrapper of this package may reset with a seed, or an environment of its own.
                if order == RESET:
                    continue
                order = STEP
            there.status, there.codes, there.begun = self._status, self._codes[column], _NOTHING
            envs, ordered, given = batches.setdefault(there.interpreter, ([], [], []))
            envs.append(there)
            ordered.append(order)
            given.append(action)
        for interpreter, (envs, ordered, given) in batches.items():
            interpreter.begin(envs, ordered, actions if len(given) == len(actions) else given)


def _joined(actions: Any) -> tuple[Any, Any]:
    """Encode actions: dtype and shape of an array of all, and its bytes; or a list of the encoded forms."""
    if type(actions) is not np.ndarray:
        first = actions[0]
        kind = type(first)
        if not isinstance(first, np.ndarray | np.generic) or not all(
            type(one) is kind and one.dtype == first.dtype and one.shape == first.shape for one in actions
        ):
            return _sendable("actions", list(actions)), b""
        actions = np.array(actions)
    if actions.dtype.kind in "biufc":
        return (actions.dtype.str, actions.shape), actions.tobytes()
    return _sendable("actions", list(actions)), b""


def _sendable(what: str, value: Any) -> Any:
    """Encode a value.

    Raises:
        NotDataError: It is not plain data.
    """

    def refuse(part: Any) -> Any:
        raise NotDataError(
            f"{what} must be plain data, because they are sent to another interpreter, got a "
            f"{type(part).__module__}.{type(part).__qualname__}. Convert it."
        )

    try:
        return encode(value, refuse)
    except TooDeepError as error:
        raise NotDataError(f"{what} must be plain data: {embedded(error)}. Flatten them.") from None


def _received(what: str, form: Any) -> Any:
    """Decode a value.

    Raises:
        NotDataError: It is not plain data.
    """
    if type(form) is tuple and form[:2] == (..., "foreign"):
        raise NotDataError(f"{what} is a {'.'.join(form[2])}, which is not plain data. Convert it in the environment.")
    return decode(form)


def _error(form: Any) -> BaseException:
    """Return an exception that was raised in another interpreter."""
    kind, message, trace, attributes = form
    return rebuilt_error(kind, message, trace, decode(attributes))


def _paths() -> tuple[str, ...]:
    """Return where the other interpreter looks for modules first: here, and where the script is."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    paths = [os.getcwd()] + ([] if script is None else [str(Path(script).resolve().parent)])
    return tuple(dict.fromkeys(paths))


def _description(fields: Mapping[str, Any], where: str) -> Any:
    """Return the description of a space from its fields, as :func:`~parenv.memory.spaces.rebuild` reads it.

    Raises:
        ConfigurationError: No Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple has such fields.
    """
    names, parts = fields["names"], fields.get("spaces")

    def dtype(default: str) -> np.dtype[Any]:
        return np.dtype(str(fields.get("dtype", default)))

    def numbers(name: str, default: Any = 0) -> Any:
        return np.asarray(fields.get(name, default))

    if "OneOf" in names or "Text" in names:
        pass
    elif isinstance(parts, dict):
        return ["dict", {key: _description(part, where) for key, part in parts.items()}]
    elif isinstance(parts, list):
        return ["tuple", [_description(part, where) for part in parts]]
    elif "low" in fields and "high" in fields:
        of = dtype("float32")
        shape = fields.get("shape") or numbers("low").shape
        bounds = (_bound(numbers(name).astype(of)) for name in ("low", "high"))
        return ["box", *bounds, [int(n) for n in shape], of.str]
    elif "nvec" in fields:
        nvec = numbers("nvec")
        return ["multi_discrete", nvec, numbers("start", np.zeros_like(nvec)), dtype("int64").str]
    elif "n" in fields and "MultiBinary" in names:
        return ["multi_binary", numbers("n").tolist()]
    elif "n" in fields:
        return ["discrete", int(fields["n"]), int(fields.get("start", 0)), dtype("int64").str]
    raise ConfigurationError(
        f"{where} contains a {names[0]}, which another interpreter cannot describe: it must be a Box, Discrete, "
        "MultiDiscrete, MultiBinary, Dict or Tuple. Convert it in a wrapper."
    )


def _bound(bound: Any) -> Any:
    """Return one number if a bound is the same everywhere."""
    return bound.flat[0].reshape(()) if bound.size and (bound == bound.flat[0]).all() else bound
