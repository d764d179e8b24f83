"""Check the messages, attributes and types of errors, and of exceptions that a worker sends."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import signal
import sys
import threading
import traceback
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import assert_same

from parenv import errors
from parenv.crew.failures import from_failure
from parenv.envs.factories import as_factories
from parenv.errors import (
    ConfigurationError,
    NotDataError,
    ObservationError,
    ParenvError,
    SubEnvironmentError,
    WorkerDiedError,
    WorkerError,
    WorkerMemoryError,
    WorkerTimeoutError,
    during,
)
from parenv.memory.status_slot import DOING
from parenv.worker.failures import failure_of


def died(**how: Any) -> WorkerDiedError:
    return WorkerDiedError(worker=2, env_ids=range(8, 12), pid=4321, doing="step of env_id 9", **how)


@pytest.mark.parametrize(
    ("how", "said", "advice"),
    [
        ({"exit_code": 3}, "exited with code 3", "has called os._exit or sys.exit"),
        ({"exit_code": 0}, "exited with code 0", "has called os._exit or sys.exit"),
        ({"signal": signal.SIGKILL}, "was killed by SIGKILL", "the kernel ran out of memory (see dmesg)"),
        ({"signal": 11}, "was killed by SIGSEGV", "Native code crashed: run with num_workers=0 under a debugger"),
        ({"signal": signal.SIGABRT}, "was killed by SIGABRT", "Native code crashed"),
        ({"signal": signal.SIGTERM}, "was killed by SIGTERM", "Run with num_workers=0"),
        ({"signal": 99}, "was killed by signal 99", "Run with num_workers=0"),
        ({}, "is gone", "Run with num_workers=0"),
    ],
)
def test_the_error_for_a_dead_worker_has_its_cause_and_a_fix(how: dict[str, Any], said: str, advice: str) -> None:
    error = died(**how)
    assert str(error).startswith(f"worker 2 (pid 4321, env_ids 8-11) {said} during env.step() of env_id 9. ")
    assert advice in str(error)
    assert str(error).endswith(".")
    assert (error.worker, error.env_ids, error.pid, error.doing) == (2, (8, 9, 10, 11), 4321, "step of env_id 9")
    assert (error.exit_code, error.signal) == (how.get("exit_code"), how.get("signal"))


def test_a_sub_environment_error_shows_the_remote_traceback() -> None:
    error = SubEnvironmentError("in worker 1", worker=1, env_id=4, doing="step", remote_traceback="Traceback ...")
    assert str(error) == "in worker 1\n\nTraceback ..."
    assert (error.worker, error.env_id, error.doing) == (1, 4, "step")
    assert str(SubEnvironmentError("in worker 1")) == "in worker 1"


def test_every_status_of_a_worker_has_a_phrase_for_error_messages() -> None:
    assert [doing for doing in DOING if during(doing).startswith("while doing:")] == []


def test_the_message_of_an_error_of_a_worker_is_not_repeated() -> None:
    try:
        raise ValueError("the motor is hot")
    except ValueError as error:
        error.add_note("let it cool")
        came = from_failure(failure_of(error, "step", 3), 0, 1, [3])
    shown = "".join(traceback.format_exception(came))
    # The message occurs a second time in the source line that the traceback shows.
    assert (shown.count("the motor is hot"), shown.count("let it cool")) == (2, 1), shown
    assert "in worker 0 (pid 1), env_id 3, during env.step()" in shown
    assert isinstance(came.__cause__, SubEnvironmentError)
    assert "ValueError: the motor is hot" in came.__cause__.remote_traceback


@pytest.mark.parametrize(
    ("error", "arg"),
    [
        (KeyError("foo"), "foo"),
        (KeyError(3), "3"),  # Only the text is sent, and KeyError shows the repr of its argument.
        (KeyError("a", "b"), "('a', 'b')"),
        (ValueError("foo"), "foo"),
        (OSError("'"), "'"),
    ],
    ids=repr,
)
def test_an_error_has_its_type_and_its_text_from_the_worker(error: Exception, arg: str) -> None:
    came = from_failure(failure_of(error, "step", 0), 0, 1, [0])
    assert type(came) is type(error)
    assert (str(came), came.args) == (str(type(error)(arg)), (arg,))


class MotorError(Exception):
    """Exception with attributes that its message does not contain."""

    def __init__(self, motor: int, **more: Any) -> None:
        self.motor, self.more = motor, more

    def __str__(self) -> str:
        return f"motor {self.motor} is hot"


def test_plain_attributes_of_an_error_are_sent_with_it() -> None:
    error = MotorError(3, degrees=(90.5, None), limits=np.arange(3))
    error.args, error.lock, error.history = (3,), threading.Lock(), np.zeros(100_000)  # type: ignore[attr-defined]
    error.add_note("while climbing")
    came = from_failure(failure_of(error, "step", 0), 0, 1, [0])
    assert type(came) is MotorError
    assert str(came) == "motor 3 is hot"
    assert_same(came.more, {"degrees": (90.5, None), "limits": np.arange(3)})
    assert set(vars(came)) == {"motor", "more", "__notes__"}
    assert came.__notes__ == ["while climbing"]


def test_worker_and_env_id_are_not_taken_from_attributes_of_the_error() -> None:
    failure = failure_of(ObservationError("too long", worker=7, env_id=9), "step", 0)
    came = from_failure(failure, 1, 1, [0])
    assert isinstance(came, ObservationError)
    assert (came.worker, came.env_id) == (1, 0)


class Lazy(types.ModuleType):
    """Module that fails when a missing attribute is looked up, as a lazy module would import there."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the attribute {name} was looked up")


@pytest.mark.parametrize("name", ["Error", "Error.Inner", "SubEnvironmentError.__init__.__globals__"])
def test_the_type_of_an_error_is_looked_up_without_running_anything(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lazy_to_import", Lazy("lazy_to_import"))
    for module in ("lazy_to_import", "parenv.errors"):
        failure = replace(failure_of(ValueError("no"), "step", 0), kind=[module, name])
        assert type(from_failure(failure, 0, 1, [0])) is WorkerError


def test_the_type_of_an_error_may_be_nested_in_a_class() -> None:
    class_ = type("Outer", (), {"InnerError": type("InnerError", (Exception,), {})})
    module = types.ModuleType("has_an_outer")
    module.Outer = class_  # type: ignore[attr-defined]
    failure = replace(failure_of(ValueError("no"), "step", 0), kind=["has_an_outer", "Outer.InnerError"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "has_an_outer", module)
        assert type(from_failure(failure, 0, 1, [0])) is class_.InnerError  # type: ignore[attr-defined]


def test_errors_are_subclasses_of_builtin_exceptions() -> None:
    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(NotDataError, TypeError)
    assert issubclass(WorkerTimeoutError, TimeoutError)
    assert issubclass(ObservationError, SubEnvironmentError)


def test_every_error_is_in_the_tree_of_the_docstring() -> None:
    defined = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception) and kind.__module__ == errors.__name__
    }
    assert errors.__doc__ is not None
    for name, kind in defined.items():
        assert issubclass(kind, ParenvError)
        assert f" {name} " in errors.__doc__.replace("\n", " ") + " ", f"{name} is not in the tree"


def test_a_memory_error_of_a_worker_with_a_limit_has_the_limit_and_its_cause() -> None:
    failure = failure_of(MemoryError("512 MiB"), "step", 3)
    assert type(from_failure(failure, 1, 7, [2, 3])) is MemoryError
    error = from_failure(failure, 1, 7, [2, 3], max_memory_bytes=5_000)
    assert isinstance(error, WorkerMemoryError)
    assert str(error).startswith(
        "worker 1 (env_ids 2-3) has probably reached max_memory_bytes=5,000 during env.step()."
    )
    assert str(error).endswith(" MemoryError: 512 MiB")
    assert (error.worker, error.env_ids, error.pid, error.doing) == (1, (2, 3), 7, "step")


def test_an_error_of_a_step_worker_is_about_the_worker_to_which_it_belongs() -> None:
    inner = WorkerMemoryError("the step worker is full", worker=5, env_ids=[0], pid=9, doing="reset")
    error = from_failure(failure_of(inner, "step", -1), 1, 7, [2, 3], max_memory_bytes=5_000)
    assert isinstance(error, WorkerMemoryError)
    assert str(error) == "the step worker is full"
    assert (error.worker, error.env_ids, error.pid, error.doing) == (1, (2, 3), 7, "step")


def test_a_message_inside_another_one_has_no_full_stop_of_its_own() -> None:
    with pytest.raises(ConfigurationError) as raised:
        as_factories("NoSuchThing-v0")
    assert ".." not in str(raised.value)
    missed = []
    for path in Path(errors.__file__).parent.rglob("*.py"):
        for text in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.JoinedStr)):
            for part, after in itertools.pairwise(text.values):
                embeds = isinstance(part, ast.FormattedValue) and part.conversion == -1
                embeds = embeds and ast.unparse(part.value) in ("error", "reason", "text")
                if embeds and isinstance(after, ast.Constant) and re.match(r"\.( |$)|,", str(after.value)):
                    missed.append(f"{path}:{text.lineno}: {ast.unparse(text)}")
    assert missed == [], "use errors.embedded()"
