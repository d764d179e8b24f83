"""Check what workers have in common with the user's script: its names, its keys and its settings."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from inside import pid_of
from policies import zeros
from scripts import printed_by

from parenv import AsyncWorkerPool, ParallelVectorEnv, WorkerOptions, evaluate
from parenv.errors import NotPicklableError
from parenv.worker.log_records import MAX_RECORDS

pytestmark = pytest.mark.timeout(200)
START_METHODS = ("fork", "spawn")


class Base(gym.Env[Any, Any]):
    """Environment without content."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, False, False, {}


MANAGED = """
import contextlib, logging, multiprocessing, os, signal, sys
import gymnasium as gym, numpy as np
from parenv import AsyncWorkerPool, ParallelVectorEnv, WorkerOptions

class Shared(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)
    def __init__(self, counts, log, lock):
        self.counts, self.log, self.lock = counts, log, lock
    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        with self.lock:
            self.counts["steps"] = self.counts.get("steps", 0) + 1
            self.log.append(int(action))
        return np.zeros(1, np.float32), 0.0, False, False, {}

if __name__ == "__main__":
    multiprocessing.current_process().authkey = b"of the script"
    with multiprocessing.Manager() as manager:
        counts, log, lock = manager.dict(), manager.list(), manager.Lock()
"""
IN_A_VECTOR_ENV = """
        workers = WorkerOptions(start_method=sys.argv[1])
        with contextlib.closing(
            ParallelVectorEnv([lambda: Shared(counts, log, lock)] * 4, num_workers=2, workers=workers)
        ) as envs:
            envs.reset()
            for _ in range(10):
                envs.step(np.array([0, 1, 0, 1]))
        print(counts["steps"], sorted(log) == [0] * 20 + [1] * 20)
"""
IN_A_POOL = """
        logging.disable()
        # A worker that dies while it waits for a lock of a manager would keep it.
        lock = contextlib.nullcontext()
        def zeros(observations):
            return np.zeros(len(observations), int)
        make = lambda: Shared(counts, log, lock)
        with AsyncWorkerPool(make, zeros, num_workers=1, num_envs=1, rollout_length=4) as pool:
            stream = pool.rollouts()
            next(stream)
            os.kill(pool._session.workers.pid(0), signal.SIGKILL)
            while not next(stream).restarted.any():
                pass
            before = len(log)
            next(stream)
            next(stream)
            print(len(log) > before)
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_environments_share_objects_of_a_manager_with_the_main_process(start_method: str) -> None:
    assert printed_by(MANAGED + IN_A_VECTOR_ENV, start_method) == "40 True\n"


@pytest.mark.more
def test_a_worker_that_is_replaced_shares_objects_of_a_manager_too() -> None:
    assert printed_by(MANAGED + IN_A_POOL) == "True\n"


def test_the_key_of_managers_is_on_no_command_line_and_in_no_environment() -> None:
    envs = ParallelVectorEnv([Base], num_workers=1, workers=WorkerOptions(start_method="spawn"))
    with contextlib.closing(envs):
        envs.reset()
        key = bytes(multiprocessing.current_process().authkey)
        seen = b"".join(Path(f"/proc/{pid_of(envs, 0)}/{name}").read_bytes() for name in ("cmdline", "environ"))
        assert seen
        assert key not in seen
        assert key.hex().encode() not in seen


def test_an_object_that_only_children_inherit_is_refused_with_a_way_out_in_arguments_of_calls_too() -> None:
    with contextlib.closing(ParallelVectorEnv([Base], num_workers=1)) as envs:
        envs.reset()
        with pytest.raises(NotPicklableError, match=r"Queue\) cannot be sent .*Share a multiprocessing.Manager"):
            envs.set_attr("queue", [multiprocessing.Queue()])
        envs.step(np.zeros(1, int))


LOOKED_UP = """
import contextlib, functools, importlib, inspect, multiprocessing, pickle, sys
import concurrent.futures as futures
import gymnasium as gym, numpy as np
from gymnasium.envs.registration import WrapperSpec
from parenv import AsyncWorkerPool, ParallelVectorEnv, WorkerOptions

LEVEL = 3

class Outer:
    class Inner:
        pass

class Reward(gym.RewardWrapper, gym.utils.RecordConstructorArgs):
    def __init__(self, env):
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.RewardWrapper.__init__(self, env)
    def reward(self, reward):
        return 2 * reward

def double(x):
    return 2 * x

class Lever(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(3), gym.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        return 1, {}
    def step(self, action):
        return 1, self.reward(), False, False, {}
    def reward(self):
        return 1.0

class Pickling(Lever):
    def reward(self):
        one, *others = pickle.loads(pickle.dumps([self, double, Outer.Inner(), Outer]))
        assert type(one) is Pickling and others[0] is double and type(others[1]) is Outer.Inner and others[2] is Outer
        return 1.0

class Importing(Lever):
    def reward(self):
        import __main__
        return float(__main__.LEVEL)

class Named(Lever):
    def reward(self):
        main = sys.modules["__main__"]
        return float(main.LEVEL + getattr(main, "double")(1))

class Missing(Lever):
    def reward(self):
        return importlib.import_module("__{}__".format("main")).LEVEL

class Pooling(Lever):
    def __init__(self, method):
        self.method = method
    def reward(self):
        context = multiprocessing.get_context(self.method)
        with futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(double, LEVEL).result()

class Read(Lever):
    def reward(self):
        return float("class Read" in inspect.getsource(Read))

REWARD = (WrapperSpec("Reward", "__main__:Reward", {}),)
gym.register("Lever-v0", entry_point="__main__:Lever")
gym.register("Wrapped-v0", entry_point="__main__:Lever", additional_wrappers=REWARD)
gym.register("Function-v0", entry_point="__main__:make_pickling")

def make_pickling(**kwargs):
    return Pickling()

def rewards(make, start_method="fork"):
    workers = WorkerOptions(start_method=start_method)
    with contextlib.closing(ParallelVectorEnv([make] * 2, num_workers=1, workers=workers)) as envs:
        envs.reset()
        return envs.step(np.zeros(2, int))[1].tolist()

def zeros(observations):
    return np.zeros(len(observations), int)
"""
CASES = {
    "an id": 'rewards(lambda: gym.make("Lever-v0"))',
    "an id of a wrapped environment": 'rewards(lambda: gym.make("Wrapped-v0"))',
    "a spec": 'rewards(lambda: gym.make(gym.spec("Wrapped-v0")))',
    "an id of a function": 'rewards(lambda: gym.make("Function-v0"))',
    "an id with its module": 'rewards(lambda: gym.make("__main__:Lever-v0"))',
    "an id in a fresh interpreter": 'rewards(lambda: gym.make("Lever-v0"), "spawn")',
    "pickles": "rewards(Pickling)",
    "pickles in a fresh interpreter": 'rewards(Pickling, "spawn")',
    "a pickle": "rewards(functools.partial(pickle.loads, pickle.dumps(Lever())))",
    "an import": "rewards(Importing)",
    "an attribute": "rewards(Named)",
    "the source": "rewards(Read)",
    "a forked pool": 'rewards(functools.partial(Pooling, "fork"))',
    "a spawned pool": 'rewards(functools.partial(Pooling, "spawn"))',
    "a pool of a fork server": 'rewards(functools.partial(Pooling, "forkserver"))',
    "a spawned pool in a fresh interpreter": 'rewards(functools.partial(Pooling, "spawn"), "spawn")',
}
EXPECTED = {
    "an id of a wrapped environment": 2.0,
    "a spec": 2.0,
    "an import": 3.0,
    "an attribute": 5.0,
    **dict.fromkeys([case for case in CASES if "pool" in case], 6.0),
}
ESSENTIAL = {"an id", "pickles"}


def printed_by_file(text: str, path: Path, *command: str) -> str:
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, *(command or [path.name])], cwd=path.parent, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "case", [case if case in ESSENTIAL else pytest.param(case, marks=pytest.mark.more) for case in CASES]
)
def test_names_of_the_script_are_found_by_whatever_looks_them_up(case: str, tmp_path: Path) -> None:
    script = f'{LOOKED_UP}\nif __name__ == "__main__":\n    print({CASES[case]})\n'
    assert printed_by_file(script, tmp_path / "script.py") == f"{[EXPECTED.get(case, 1.0)] * 2}\n"


@pytest.mark.more
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_names_are_found_in_a_module_that_is_run(start_method: str, tmp_path: Path) -> None:
    cases = f'rewards(Pickling, "{start_method}"), rewards(functools.partial(Pooling, "spawn"), "{start_method}")'
    script = f'{LOOKED_UP}\nif __name__ == "__main__":\n    print({cases})\n'
    assert printed_by_file(script, tmp_path / "module.py", "-m", "module") == "[1.0, 1.0] [6.0, 6.0]\n"


@pytest.mark.more
def test_names_are_found_without_a_file() -> None:
    assert printed_by(f"{LOOKED_UP}\nprint({CASES['an id']}, {CASES['pickles']})") == "[1.0, 1.0] [1.0, 1.0]\n"


@pytest.mark.more
def test_names_are_found_in_a_child_that_multiprocessing_has_spawned(tmp_path: Path) -> None:
    script = f"""{LOOKED_UP}
def work():
    print({CASES["an id"]}, {CASES["pickles"]}, flush=True)

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
"""
    assert printed_by_file(script, tmp_path / "script.py") == "[1.0, 1.0] [1.0, 1.0]\n"


@pytest.mark.more
def test_names_are_found_in_pools_evaluations_and_replaced_workers(tmp_path: Path) -> None:
    script = f"""{LOOKED_UP}
import logging, os, parenv, signal
if __name__ == "__main__":
    logging.disable()
    with AsyncWorkerPool("Function-v0", zeros, num_workers=1, num_envs=2, rollout_length=4) as pool:
        stream = pool.rollouts()
        print(next(stream).rewards.sum())
        os.kill(pool._session.workers.pid(0), signal.SIGKILL)
        while not next(stream).restarted.any():
            pass
        print(next(stream).rewards.sum())
    make = lambda: gym.wrappers.TimeLimit(gym.make("Function-v0"), 5)
    print(len(parenv.evaluate(zeros, make, episodes=2, num_workers=1).episodes))
"""
    assert printed_by_file(script, tmp_path / "script.py") == "8.0\n8.0\n2\n"


@pytest.mark.more
def test_the_error_for_a_name_that_was_not_sent_has_a_way_out(tmp_path: Path) -> None:
    script = f"""{LOOKED_UP}
lock = __import__("threading").Lock()
gym.register("Locked-v0", entry_point="__main__:make_locked")
def make_locked(**kwargs):
    return lock
if __name__ == "__main__":
    for make in (Missing, lambda: gym.make("Locked-v0")):
        try:
            rewards(make)
        except AttributeError as error:
            print(error)
"""
    reasons = {
        "LEVEL": "no argument and no registered environment refers to it",
        "make_locked": "TypeError: cannot pickle '_thread.lock' object",
    }
    assert printed_by_file(script, tmp_path / "script.py") == "".join(
        f"__main__.{name} cannot be used in a worker: {why}. Move it to a module that workers can import.\n"
        for name, why in reasons.items()
    )


@pytest.mark.more
def test_a_script_without_a_guard_is_run_once_also_if_environments_spawn_children(tmp_path: Path) -> None:
    script = LOOKED_UP.replace("pool.submit(double, LEVEL)", "pool.submit(abs, -6.0)")
    script += '\nprint("begins", flush=True)\nprint(rewards(functools.partial(Pooling, "spawn")))\n'
    assert printed_by_file(script, tmp_path / "script.py") == "begins\n[6.0, 6.0]\n"


@pytest.mark.more
def test_a_script_that_starts_workers_in_a_child_of_an_environment_is_refused_with_a_way_out(tmp_path: Path) -> None:
    script = f"""{LOOKED_UP}
try:
    print(rewards(functools.partial(Pooling, "spawn")), flush=True)
except RuntimeError as error:
    print(__name__, error, flush=True)
    raise
"""
    path = tmp_path / "script.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=150)
    assert "__mp_main__ a worker cannot be started while a process that an environment has spawned" in done.stdout
    assert 'below `if __name__ == "__main__":`' in done.stdout


LOG = logging.getLogger("an.environment")


class Unprintable:
    """Object without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Logging(Base):
    """Environment that logs in each method."""

    def __init__(self, also: str = "") -> None:
        self.also = also
        LOG.info("made")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        LOG.info("reset with %s", seed, extra={"seed": seed, "env": self})
        return super().reset()

    def step(self, action: Any) -> Any:
        LOG.debug("a step")
        if self.also:
            getattr(self, self.also)()
        return super().step(action)

    def close(self) -> None:
        LOG.info("closed")

    def many(self) -> None:
        """Log more records than are kept."""
        for number in range(MAX_RECORDS + 10):
            LOG.info("record %d", number)

    def in_a_thread(self) -> None:
        """Log in another thread."""
        thread = threading.Thread(target=LOG.info, args=("in a thread",), name="mine")
        thread.start()
        thread.join()

    def in_a_fork(self) -> None:
        """Log in a child process."""
        if not (pid := os.fork()):
            LOG.info("in a fork")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    def badly(self) -> None:
        """Log with wrong arguments."""
        LOG.info("two of %d", "one")
        LOG.info("%s", Unprintable())
        LOG.info(Unprintable(), extra={"object": Unprintable()})

    def a_failure(self) -> None:
        """Log an exception."""
        try:
            raise OSError("broken")
        except OSError:
            LOG.exception("it fails")

    def and_raises(self) -> None:
        """Log, and then fail."""
        LOG.error("before the end")
        raise OSError("the end")


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any, Any]]:
    return [(one.getMessage(), one.__dict__["worker"], one.__dict__["env_id"]) for one in caplog.records]


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.more)])
def test_records_of_a_vector_env_reach_the_handlers_of_the_main_process(
    start_method: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    options = WorkerOptions(start_method=start_method)
    envs = ParallelVectorEnv([Logging] * 2, num_workers=2, workers=options)
    assert sorted(logged(caplog)) == [("made", 0, 0), ("made", 1, 1)]
    caplog.clear()
    envs.reset(seed=5)
    assert sorted(logged(caplog)) == [("reset with 5", 0, 0), ("reset with 6", 1, 1)]
    (record,) = [one for one in caplog.records if one.__dict__["worker"] == 1]
    attributes = record.__dict__
    assert (attributes["seed"], attributes["processName"], attributes["process"]) == (6, "worker 1", pid_of(envs, 1))
    assert "Logging" in attributes["env"]
    assert (record.name, record.levelname, record.funcName) == ("an.environment", "INFO", "reset")
    assert (record.pathname, record.module) == (__file__, "test_script_in_workers")
    caplog.clear()
    envs.step(np.zeros(2, int))
    assert not caplog.records
    envs.close()
    assert sorted(text for text, _, _ in logged(caplog)) == ["closed", "closed"]


@pytest.mark.parametrize("kind", ["pool", pytest.param("evaluation", marks=pytest.mark.more)])
def test_records_of_pools_and_evaluations_reach_the_handlers_of_the_main_process(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "an.environment")
    if kind == "pool":
        with AsyncWorkerPool(Logging, zeros, num_workers=2, num_envs=2, rollout_length=4, mode="sync") as pool:
            next(pool.rollouts())
            assert [text.partition(" ")[0] for text, _, _ in logged(caplog)].count("reset") == 2
    else:
        evaluate(zeros, lambda: TimeLimit(Logging(), 3), episodes=2, num_workers=1)
    assert {"made", "closed"} < {text for text, _, _ in logged(caplog)}


class Levels(Base):
    """Environment whose reward shows which levels are enabled."""

    def step(self, action: Any) -> Any:
        enabled = [logging.getLogger(name).isEnabledFor(logging.DEBUG) for name in ("an", "an.environment", "another")]
        return (*super().step(action)[:1], float(sum(one << i for i, one in enumerate(enabled))), False, False, {})


@pytest.mark.parametrize(("disabled", "reward"), [(logging.NOTSET, 3.0), (logging.DEBUG, 0.0)])
def test_a_record_below_the_level_of_the_main_process_is_not_made(
    disabled: int, reward: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "an")
    caplog.set_level(logging.INFO, "another")
    logging.disable(disabled)
    try:
        with contextlib.closing(ParallelVectorEnv([Levels], num_workers=1)) as envs:
            envs.reset()
            assert envs.step(np.zeros(1, int))[1] == reward
    finally:
        logging.disable(logging.NOTSET)


def stepped(also: str, caplog: pytest.LogCaptureFixture, steps: int = 1) -> None:
    caplog.set_level(logging.INFO)
    with contextlib.closing(ParallelVectorEnv([functools.partial(Logging, also)], num_workers=1)) as envs:
        envs.reset()
        caplog.clear()
        for _ in range(steps):
            envs.step(np.zeros(1, int))
        caplog.set_level(logging.ERROR)


@pytest.mark.more
def test_records_that_are_too_many_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    stepped("many", caplog, steps=2)
    texts = [text for text, *_ in ((one.getMessage(),) for one in caplog.records)]
    dropped = "worker 0 dropped 10 log records, because it had 10000 others to send. Log less, or raise the level."
    assert texts == [*(f"record {number}" for number in range(MAX_RECORDS)), dropped] * 2


def test_a_record_of_another_thread_arrives_without_an_env_id(caplog: pytest.LogCaptureFixture) -> None:
    stepped("in_a_thread", caplog, steps=3)
    assert logged(caplog) == [("in a thread", 0, None)] * 3
    assert {one.threadName for one in caplog.records} == {"mine"}


def test_a_record_of_a_forked_child_does_not_use_the_connection_of_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    stepped("in_a_fork", caplog, steps=3)
    assert logged(caplog) == []


def test_a_record_that_cannot_be_formatted_arrives_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    stepped("badly", caplog)
    first, second, third = (text for text, _, _ in logged(caplog))
    assert first.startswith("two of %d (it cannot be formatted: TypeError: ")
    assert second == "%s (it cannot be formatted: RuntimeError: no text)"
    assert third == "<Unprintable> (it cannot be formatted: RuntimeError: no text)"


def test_the_traceback_of_a_logged_exception_arrives_as_text(caplog: pytest.LogCaptureFixture) -> None:
    stepped("a_failure", caplog)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("ERROR", "it fails")
    assert 'raise OSError("broken")\nOSError: broken' in logging.Formatter().format(record)


def test_records_before_an_exception_arrive_before_it(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OSError, match="the end"):
        stepped("and_raises", caplog)
    assert ("before the end", 0, 0) in logged(caplog)


class Failing(logging.Handler):
    """Handler that raises."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("a full disk")


def test_an_exception_of_a_handler_is_printed_and_the_workers_go_on(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = Failing()
    LOG.addHandler(handler)
    try:
        stepped("in_a_thread", caplog)
    finally:
        LOG.removeHandler(handler)
    assert "RuntimeError: a full disk" in capsys.readouterr().err


@pytest.mark.parametrize("configure", ["basicConfig", "dictConfig"])
def test_handlers_of_the_worker_get_records_too(
    configure: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = str(tmp_path / "worker.log")
    handlers = {"file": {"class": "logging.FileHandler", "filename": path}}
    dictionary = {"version": 1, "handlers": handlers, "root": {"handlers": ["file"]}, "disable_existing_loggers": False}

    def set_up(worker: int) -> None:
        if configure == "basicConfig":
            logging.basicConfig(filename=path)
        else:
            importlib.import_module("logging.config").dictConfig(dictionary)

    caplog.set_level(logging.INFO)
    with contextlib.closing(
        ParallelVectorEnv([Logging], num_workers=1, workers=WorkerOptions(setup_fn=set_up))
    ) as envs:
        envs.reset(seed=1)
    assert [text for text, _, _ in logged(caplog)] == ["made", "reset with 1", "closed"]
    assert "reset with 1" in Path(path).read_text()


WARNS = """
import contextlib, logging
import gymnasium as gym, numpy as np
from parenv import ParallelVectorEnv, WorkerOptions
class Warning(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        logging.getLogger("mine").info("not seen")
        logging.getLogger("mine").warning("seen")
        return np.zeros(1, np.float32), {}
SET_UP
workers = WorkerOptions(setup_fn=(lambda worker: set_up()) if "set_up" in globals() else None)
with contextlib.closing(ParallelVectorEnv([Warning] * 2, num_workers=NUM_WORKERS, workers=workers)) as envs:
    envs.reset()
"""
SET_UPS = {
    "no handlers": "",
    "a handler of a module": "import adds_a_handler; Warning.module = adds_a_handler",
    "a handler of the root": "logging.basicConfig(format='%(message)s')",
    "a library with a handler for nothing": "logging.getLogger('mine').addHandler(logging.NullHandler())",
    "handlers of the root in both processes": "logging.basicConfig(format='%(message)s'); set_up = logging.basicConfig",
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("set_up", SET_UPS)
def test_a_warning_is_shown_once(set_up: str, tmp_path: Path) -> None:
    (tmp_path / "adds_a_handler.py").write_text(
        "import logging\nlogging.getLogger('mine').addHandler(logging.StreamHandler())\n"
    )
    script = WARNS.replace("SET_UP", SET_UPS[set_up])
    for num_workers in (0, 2):
        done = subprocess.run(
            [sys.executable, "-c", script.replace("NUM_WORKERS", str(num_workers))],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=150,
        )
        assert (done.returncode, done.stdout) == (0, "")
        # A library without handlers is quiet, as in one process.
        assert done.stderr == ("" if "nothing" in set_up else "seen\n" * 2)


class Settings(Base):
    """Environment whose info has settings of its process."""

    def step(self, action: Any) -> Any:
        torch = importlib.import_module("torch")
        info = {
            "dtype": torch.tensor(0.1).element_size(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
            "divide": np.geterr()["divide"] == "raise",
        }
        return (*super().step(action)[:4], info)


@pytest.mark.parametrize(
    ("start_method", "num_workers"), [("fork", 1), ("fork", 0), pytest.param("spawn", 1, marks=pytest.mark.more)]
)
def test_settings_of_torch_and_numpy_apply_in_workers(start_method: Any, num_workers: int) -> None:
    torch = importlib.import_module("torch")
    options = WorkerOptions(start_method=start_method)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with (
            np.errstate(divide="raise"),
            contextlib.closing(
                ParallelVectorEnv([lambda: (torch, Settings())[1]], num_workers=num_workers, workers=options)
            ) as envs,
        ):
            envs.reset()
            infos = envs.step(np.zeros(1, int))[4]
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
    found = {name: values.item() for name, values in infos.items() if not name.startswith("_")}
    assert found == {"dtype": 8, "deterministic": True, "warn_only": True, "divide": True}


def test_threads_that_step_environments_have_the_settings_of_numpy() -> None:
    with (
        np.errstate(divide="raise"),
        AsyncWorkerPool(
            lambda: Dividing(),
            zeros,
            num_workers=1,
            num_envs=2,
            rollout_length=2,
            workers=WorkerOptions(step_threads=2),
        ) as pool,
        pytest.raises(FloatingPointError),
    ):
        next(pool.rollouts())


class Dividing(Base):
    """Environment that divides by zero."""

    def step(self, action: Any) -> Any:
        return super().step(np.ones(1) / np.zeros(1))
