"""Check that no process or file remains however the driver ends, and that plain scripts need no main guard."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from audits import until
from leftovers import is_fork_server
from sampling import one_in

LATE_S = 120.0
PREAMBLE = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # A background process may ignore SIGINT.
import gymnasium as gym, numpy as np
import parenv
from parenv import AsyncWorkerPool, Stop

class Env(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        DELAY
        return np.zeros(2, np.float32), 1.0, False, False, {}
"""
POOL = (
    PREAMBLE
    + """
pool = AsyncWorkerPool(lambda: Env(), lambda o: np.zeros(len(o), int), num_workers=2, num_envs=4, rollout_length=10)
print("ready", *(pool._session.workers.pid(worker) for worker in range(pool.num_workers)), flush=True)
"""
)
VECTOR_ENV = (
    PREAMBLE
    + """
class Stepping:
    def __init__(self):
        self.envs = parenv.ParallelVectorEnv([Env] * 4, num_workers=2)
        self.envs.reset()
    def rollouts(self):
        while True:
            yield self.envs.step(np.zeros(4, int))[1].sum()
    def __enter__(self):
        return self
    def __exit__(self, *exc):
        self.envs.close()

pool = Stepping()
print("ready", *(pool.envs._session.backend.workers.pid(worker) for worker in range(2)), flush=True)
"""
)
SESSIONS = (
    PREAMBLE
    + """
class Leasing:
    def __init__(self):
        self.pool = parenv.SessionPool(Env, num_envs=2).__enter__()
    def rollouts(self):
        with self.pool.session_sync() as env:
            env.reset()
            while True:
                yield env.step(0)[1]
    def __enter__(self):
        return self
    def __exit__(self, *exc):
        self.pool.close()

pool = Leasing()
print("ready", *(pool.pool._service._line.crew.workers.pid(worker) for worker in range(2)), flush=True)
"""
)
SYSTEMS = {"pool": POOL, "vector env": VECTOR_ENV, "sessions": SESSIONS}
ENDINGS = {
    "end of the script": "next(pool.rollouts())",
    "exception": "next(pool.rollouts()); raise RuntimeError('mine')",
    "sys.exit": "next(pool.rollouts()); sys.exit(3)",
    "os._exit": "next(pool.rollouts()); os._exit(3)",
    "SIGKILL": "next(pool.rollouts()); os.kill(os.getpid(), 9)",
    "SIGTERM": "next(pool.rollouts()); os.kill(os.getpid(), 15)",
    "SIGKILL before the first rollout": "os.kill(os.getpid(), 9)",
    "SIGKILL while a forked child of the driver lives on": (
        "next(pool.rollouts())\n"
        "if os.fork() == 0: os.close(1); os.close(2); time.sleep(5); os._exit(0)\n"
        "os.kill(os.getpid(), 9)"
    ),
    "SIGKILL, and of the fork server with it": (
        "next(pool.rollouts())\nfrom parenv.process import launcher\n"
        "for pid in [*(one._process.pid for one in launcher._fork_servers.values()), os.getpid()]: os.kill(pid, 9)"
    ),
    "SIGKILL while the fork server is stopped": (
        "next(pool.rollouts())\nfrom parenv.process import launcher\n"
        "for one in launcher._fork_servers.values(): os.kill(one._process.pid, signal.SIGSTOP)\n"
        "os.kill(os.getpid(), 9)"
    ),
    "pool in a global that is never closed": "next(pool.rollouts()); sys.modules['parenv'].kept = pool",
}
STEPS = {"quick steps": "pass", "a hung step": "time.sleep(100)", "a step that holds the GIL": "sum(range(10**12))"}


def run(
    script: str, directory: Path, stdin: str | None = None, arguments: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(directory)}
    return subprocess.Popen(
        [sys.executable, *(arguments or ("-c", script))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        text=True,
        env=environment,
    )


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield a directory for the sockets of a driver. If the driver still runs after the test, kill it."""
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        directory = Path(name) / "run"
        directory.mkdir(mode=0o700)
        yield directory
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.environ().get("XDG_RUNTIME_DIR") == str(directory):
                    child.kill()
                    child.wait()


def residue(directory: Path, pids: list[int]) -> list[str]:
    alive = []
    for process in psutil.process_iter(["pid"]):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.pid in pids or (is_fork_server(process) and str(directory) in process.environ().values()):
                alive.append(f"{process.pid}: {' '.join(process.cmdline())[:80]}")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return alive + [str(path) for path in directory.iterdir()]


def in_shared_memory() -> set[str]:
    """Return the names in shared memory, without semaphores of multiprocessing, which other tests make meanwhile."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}


def assert_nothing_is_left(directory: Path, pids: list[int]) -> None:
    deadline = time.monotonic() + LATE_S
    while (left := residue(directory, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("ending", "system"),
    [*one_in(1, ENDINGS, ["pool"]), *one_in(2, ENDINGS, ["vector env"]), *one_in(2, ENDINGS, ["sessions"])],
)
def test_nothing_is_left_however_the_driver_ends(ending: str, system: str, directory: Path) -> None:
    before = in_shared_memory()
    driver = run(SYSTEMS[system].replace("DELAY", "pass") + ENDINGS[ending], directory)
    output, errors = driver.communicate(timeout=LATE_S)
    pids = [int(pid) for pid in output.split()[1:]]
    assert len(pids) == 2, errors
    assert_nothing_is_left(directory, pids)
    assert errors.count("Traceback") == (ending == "exception"), errors
    # Other tests may have files there for some time.
    until(lambda: in_shared_memory() <= before)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("step", "system"), one_in(2, STEPS, SYSTEMS))
def test_workers_end_with_a_killed_driver_even_during_a_step(step: str, system: str, directory: Path) -> None:
    driver = run(SYSTEMS[system].replace("DELAY", STEPS[step]) + "list(pool.rollouts())", directory)
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()[1:]]
    time.sleep(0.2)
    driver.send_signal(signal.SIGKILL)
    driver.communicate(timeout=LATE_S)
    assert_nothing_is_left(directory, pids)


@pytest.mark.more
@pytest.mark.parametrize(
    ("system", "step"),
    [("pool", "a step that holds the GIL"), ("vector env", "a hung step"), ("sessions", "a hung step")],
)
def test_ctrl_c_prints_one_traceback_and_ends_the_workers_even_during_a_step(
    step: str, system: str, directory: Path
) -> None:
    script = SYSTEMS[system].replace("DELAY", STEPS[step]) + "with pool:\n    list(pool.rollouts())"
    driver = run(script, directory)
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()[1:]]
    time.sleep(0.3)
    for process in [driver.pid, *pids]:
        os.kill(process, signal.SIGINT)
    _, errors = driver.communicate(timeout=LATE_S)
    assert errors.count("Traceback") == 1
    assert errors.strip().endswith("KeyboardInterrupt")
    assert_nothing_is_left(directory, pids)


@pytest.mark.more
def test_ctrl_c_while_the_pool_starts_leaves_nothing(directory: Path) -> None:
    script = POOL.replace(
        "def reset", "def __init__(self):\n        print('making', flush=True); time.sleep(100)\n    def reset"
    )
    driver = run(script, directory)
    assert driver.stdout is not None
    driver.stdout.readline()
    driver.send_signal(signal.SIGINT)
    _, errors = driver.communicate(timeout=LATE_S)
    assert errors.count("Traceback") == 1
    assert_nothing_is_left(directory, [])


WITH_CHILDREN = """
    def __init__(self):
        import subprocess
        for own_session in (False, True):
            child = subprocess.Popen(["sleep", "1000"], close_fds=False, start_new_session=own_session)
            open(os.environ["XDG_RUNTIME_DIR"] + ".pids", "a").write(f"{child.pid}\\n")
        STARTING
    def close(self):
        print("closing", flush=True); CLOSING
    def reset"""
PHASES = {
    "before the pool": ("print('now', flush=True); time.sleep(100)\n", "pass", "pass"),
    "starting": ("", "print('now', flush=True); time.sleep(100)", "pass"),
    "collecting": ("next(pool.rollouts()); print('now', flush=True)\nfor _ in pool.rollouts(): pass", "pass", "pass"),
    "publishing": (
        "next(pool.rollouts()); print('now', flush=True)\nwhile True: pool.publish(net)", "pass", "pass",
    ),
    "closing": ("next(pool.rollouts()); print('now', flush=True); pool.close()", "pass", "time.sleep(100)"),
}  # fmt: skip
PUBLISHING = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.large = torch.nn.Parameter(torch.zeros(1_000_000))
    def forward(self, observations):
        return torch.zeros(len(observations), dtype=torch.int64)
net = Net()
"""


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("phase", "signum"), [*((phase, signal.SIGKILL) for phase in PHASES), ("publishing", signal.SIGTERM)]
)
def test_a_killed_driver_leaves_neither_workers_nor_their_children_in_any_phase(
    signum: int, phase: str, directory: Path
) -> None:
    then, starting, closing = PHASES[phase]
    with_children = WITH_CHILDREN.replace("STARTING", starting).replace("CLOSING", closing)
    script = POOL.replace("    def reset", with_children, 1).replace("DELAY", "pass")
    if phase == "before the pool":
        script = PREAMBLE.replace("DELAY", "pass")
    if phase == "publishing":
        script = script.replace("lambda o: np.zeros(len(o), int)", "net").replace("\npool =", f"{PUBLISHING}\npool =")
    driver = run(script + then, directory)
    assert driver.stdout is not None
    # Two workers may print at once, in one line.
    while "now" not in driver.stdout.readline():
        assert driver.poll() is None, driver.communicate()
    time.sleep(0.1)
    driver.send_signal(signum)
    driver.communicate(timeout=LATE_S)
    pids = directory.with_name(directory.name + ".pids")
    assert pids.exists() or phase == "before the pool"
    assert_nothing_is_left(directory, [int(pid) for pid in pids.read_text().split()] if pids.exists() else [])


GUARDLESS = """
import gymnasium as gym, torch
from parenv import AsyncWorkerPool, Stop, TorchPolicy

class Agent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = torch.nn.Linear(4, 2)
    def get_action_and_value(self, observations):
        actions = torch.distributions.Categorical(logits=self.actor(observations)).sample()
        return actions, actions, None, actions

class Shifted(gym.Wrapper):
    def step(self, action):
        return self.env.step(action)

scale = 1.0
with AsyncWorkerPool(lambda: Shifted(gym.make("CartPole-v1")), TorchPolicy(Agent()), num_envs=4, num_workers=2) as pool:
    for rollout in pool.rollouts(Stop(env_steps=2000)):
        pool.publish(pool and Agent())
    print("steps", pool.statistics().env_steps)

"""


@pytest.mark.more
@pytest.mark.parametrize("how", one_in(2, ["script", "-c", "stdin"]))
def test_a_plain_script_needs_no_main_guard(how: str, directory: Path, tmp_path: Path) -> None:
    if how == "stdin":
        driver = run("", directory, stdin="", arguments=("-i",))
        output, errors = driver.communicate(GUARDLESS, timeout=LATE_S)
    else:
        path = tmp_path / "plain.py"
        path.write_text(GUARDLESS)
        driver = run(GUARDLESS, directory, arguments=(str(path),) if how == "script" else ())
        output, errors = driver.communicate(timeout=LATE_S)
    assert "steps 2" in output, errors
    assert "Traceback" not in errors
    assert_nothing_is_left(directory, [])


def test_modules_beside_the_script_are_found_in_workers(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import gymnasium as gym\ndef make():\n    return gym.make('CartPole-v1')\n")
    (tmp_path / "main.py").write_text(
        "import beside, numpy as np\nfrom parenv import AsyncWorkerPool\n"
        "with AsyncWorkerPool(beside.make, lambda o: np.zeros(len(o), int), num_workers=1) as pool:\n"
        "    print(next(pool.rollouts()).observations.shape)\n"
    )
    driver = run("", directory, arguments=(str(tmp_path / "main.py"),))
    output, errors = driver.communicate(timeout=LATE_S)
    assert output.strip() == "(128, 1, 4)", errors
