"""Check the fork server and its launcher: starts and ends of processes, their descriptors, and errors at the start."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from audits import until
from policies import zeros
from scripts import printed_by

from parenv import AsyncWorkerPool, ParallelVectorEnv, WorkerError, WorkerOptions
from parenv.memory.shared import SharedMemory
from parenv.placement.base import Launch, Received
from parenv.placement.local import LocalPlacement
from parenv.platform import system
from parenv.process import launcher as launcher_module
from parenv.process.descriptors import FOR_ALL, PER_WORKER
from parenv.process.launcher import Exited, ForkServerSpec, Launcher
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import Call, Close, Reply
from parenv.testing import LedgerEnv
from parenv.transport.zeromq import WorkerSocket

pytestmark = pytest.mark.timeout(200)
DEADLINE_S = 150.0
BETWEEN_POOLS = 4
"""Number of descriptors of an idle fork server: to wait, to be woken up, and to communicate with the main process."""


def wait_for_the_other_end(arguments: dict[str, Any], *descriptors: int) -> int:
    """Run a worker that ends when it can read from its first descriptor."""
    os.close(descriptors[1])
    os.read(descriptors[0], 1)
    return 0


ENTRY = f"{__name__}:wait_for_the_other_end"


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    launcher = Launcher(ForkServerSpec((__name__,), (), threads=1))
    yield launcher
    launcher.close()


def serve_until(launcher: Launcher, done: Callable[[], bool]) -> None:
    """Process the events of a launcher until a condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline
        launcher.flush()
        select.select([launcher], [], [], 0.5)
        launcher.events()


def write_a_byte(arguments: dict[str, Any], *descriptors: int) -> int:
    """Run a worker that writes a byte to its second descriptor and ends."""
    os.write(descriptors[1], b"x")
    return 0


@pytest.mark.more
def test_the_process_id_of_a_worker_is_known_once_the_worker_has_written(launcher: Launcher) -> None:
    reading, writing = os.pipe()
    for handle in range(100):
        launcher.launch(handle, f"{__name__}:write_a_byte", {}, (reading, writing))
        assert os.read(reading, 1) == b"x"
        assert launcher.pid(handle) > 0
    ended: set[int] = set()
    while len(ended) < 100:
        assert select.select([launcher], [], [], DEADLINE_S)[0], "pid() must not consume the events of a worker"
        ended |= {exited.handle for exited in launcher.events()}
    os.close(reading)
    os.close(writing)


def fork_server_of(launcher: Launcher) -> psutil.Process:
    return psutil.Process(launcher._fork_server._process.pid)


def starts_programs(arguments: dict[str, Any], *descriptors: int) -> int:
    """Run a worker that starts three programs in their own sessions: two children, and one whose parent has ended."""
    programs = [
        subprocess.Popen(["sleep", "1000"], start_new_session=True, env=env).pid for env in (None, {"PATH": "/usr/bin"})
    ]
    daemon = subprocess.check_output(["sh", "-c", "setsid sleep 1000 >/dev/null & echo $!"], text=True)
    os.write(descriptors[1], f"{programs[0]} {programs[1]} {daemon}".encode())
    os.read(descriptors[0], 1)
    return 0


@pytest.mark.linux  # Elsewhere, nothing lists processes in a session of their own.
def test_programs_that_a_worker_has_started_end_with_it_and_others_do_not(launcher: Launcher) -> None:
    waiting, ending = os.pipe()
    reading, writing = os.pipe()
    programs = []
    for handle in range(3):
        launcher.launch(handle, f"{__name__}:starts_programs", {}, (waiting, writing))
        programs.append([os.pidfd_open(int(pid)) for pid in os.read(reading, 1 << 10).split()])
    launcher.signal(0, signal.SIGKILL, alone=True)
    serve_until(launcher, lambda: len(launcher.running) == 2)
    assert ended(programs[0]) == [True] * 3
    assert [bool(select.select([program], [], [], 0.0)[0]) for program in programs[1] + programs[2]] == [False] * 6
    os.write(ending, b"x")
    serve_until(launcher, lambda: len(launcher.running) == 1)
    launcher.close()
    assert ended(programs[1] + programs[2]) == [True] * 6
    for descriptor in (waiting, ending, reading, writing, *programs[0], *programs[1], *programs[2]):
        os.close(descriptor)


def starts_a_program_without_variables(arguments: dict[str, Any], *descriptors: int) -> int:
    """Run a worker that starts a program in its own session without environment variables, whose parent has ended."""
    command = "setsid env -i sleep 1000 >/dev/null & echo $!"
    os.write(descriptors[1], subprocess.check_output(["sh", "-c", command]))
    os.read(descriptors[0], 1)
    return 0


@pytest.mark.more
@pytest.mark.linux  # Elsewhere, nothing lists processes in a session of their own.
def test_a_program_without_variables_ends_some_time_after_its_worker(launcher: Launcher) -> None:
    waiting, ending = os.pipe()
    reading, writing = os.pipe()
    for handle in range(2):
        launcher.launch(handle, f"{__name__}:starts_a_program_without_variables", {}, (waiting, writing))
        pid = int(os.read(reading, 1 << 10))
        # Until then, the program could be recognized as one of the worker that ends.
        until(lambda pid=pid: not system.variables_of(pid))  # type: ignore[misc]
    program = os.pidfd_open(pid)
    launcher.signal(1, signal.SIGKILL, alone=True)
    serve_until(launcher, lambda: len(launcher.running) == 1)
    assert ended([program]) == [True]
    for descriptor in (waiting, ending, reading, writing, program):
        os.close(descriptor)


def starts_programs_in_its_group(arguments: dict[str, Any], *descriptors: int) -> int:
    """Run a worker that starts two programs in its process group: a child, and one whose parent has ended."""
    waiting, held = descriptors
    subprocess.Popen(["sleep", "1000"], stdout=held)
    subprocess.check_call(["sh", "-c", "sleep 1000 &"], stdout=held)
    os.write(held, b"started")
    os.read(waiting, 1)
    return 0


def test_programs_in_the_group_of_a_worker_end_with_it_and_others_do_not(launcher: Launcher) -> None:
    waiting, ending = os.pipe()
    programs = []
    for handle in range(3):
        program, held = os.pipe()
        launcher.launch(handle, f"{__name__}:starts_programs_in_its_group", {}, (waiting, held))
        assert os.read(program, 10) == b"started"
        # From now on, only the worker and its programs have this end. The other end is readable when all have ended.
        os.close(held)
        programs.append(program)
    launcher.signal(0, signal.SIGKILL, alone=True)
    serve_until(launcher, lambda: len(launcher.running) == 2)
    assert ended(programs[:1]) == [True]
    assert not select.select(programs[1:], [], [], 0.0)[0]
    os.write(ending, b"x")
    serve_until(launcher, lambda: len(launcher.running) == 1)
    launcher.close()
    assert ended(programs) == [True] * 3
    for descriptor in (waiting, ending, *programs):
        os.close(descriptor)


def ended(processes: list[int]) -> list[bool]:
    """Return whether each process ends before the deadline, given by its pidfd or a pipe that it has."""
    return [bool(select.select([process], [], [], DEADLINE_S)[0]) for process in processes]


def test_a_preloaded_module_may_leave_a_process_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "leaves_a_process.py"
    module.write_text(
        "import os, subprocess\n"
        "process = subprocess.Popen(['true'], stdout=subprocess.PIPE)\n"
        "process.stdout.read()\n"
        # The end of file comes a moment before the end of the process. macOS has no waitid before Python 3.13.
        "if hasattr(os, 'waitid'):\n"
        "    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    launcher = Launcher(ForkServerSpec(("leaves_a_process", __name__), (), threads=1))
    waiting, ending = os.pipe()
    launcher.launch(0, ENTRY, {}, (waiting, ending))
    os.write(ending, b"x")
    serve_until(launcher, lambda: not launcher.running)
    assert launcher.pid(0) > 0
    assert not launcher.lost
    launcher.close()
    os.close(waiting)
    os.close(ending)


def test_only_the_two_most_recently_used_idle_fork_servers_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parenv.process.launcher.MAX_IDLE_FORK_SERVERS", 2)
    specs = [ForkServerSpec((), (("NUMBER", str(number)),), threads=1) for number in range(4)]
    used, *others = [Launcher(spec) for spec in specs]
    processes = [fork_server_of(launcher) for launcher in (used, *others)]
    for launcher in others:
        launcher.close()
    assert [process.is_running() for process in processes] == [True, False, True, True]
    used.close()
    assert [process.is_running() for process in processes] == [True, False, False, True]
    again = Launcher(specs[3])
    assert fork_server_of(again) == processes[3]
    again.close()


def test_a_worker_launched_by_a_dead_fork_server_is_reported_as_ended(launcher: Launcher) -> None:
    launcher._fork_server.bury()
    launcher.launch(7, ENTRY, {}, ())
    assert launcher.events() == [Exited(7, -1, None, None)]
    assert launcher.lost


@pytest.mark.more
def test_500_processes_start_at_once_and_end(launcher: Launcher) -> None:
    waiting, ending = os.pipe()
    for handle in range(500):
        launcher.launch(handle, ENTRY, {}, (waiting, ending))
    serve_until(launcher, lambda: all(launcher.pid(handle) > 0 for handle in range(500)))
    assert len(fork_server_of(launcher).children()) == 500
    os.close(waiting)
    os.close(ending)
    serve_until(launcher, lambda: not launcher.running)


@pytest.mark.more
def test_launches_and_signals_do_not_wait_for_a_suspended_fork_server(launcher: Launcher) -> None:
    waiting, ending = os.pipe()
    fork_server = fork_server_of(launcher)
    fork_server.suspend()
    try:
        for handle in range(500):
            launcher.launch(handle, ENTRY, {}, (waiting, ending))
            launcher.signal(handle, 0)
    finally:
        fork_server.resume()
    os.write(ending, bytes(500))
    serve_until(launcher, lambda: not launcher.running)
    os.close(waiting)
    os.close(ending)


def test_descriptors_beyond_the_limit_of_the_kernel_are_sent_later(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, ending = os.pipe()
    send_fds, refusals = socket.send_fds, [OSError(errno.ETOOMANYREFS, "Too many references")] * 3

    def refused_at_first(*arguments: Any) -> int:
        if refusals:
            raise refusals.pop()
        return send_fds(*arguments)

    monkeypatch.setattr(socket, "send_fds", refused_at_first)
    launcher.launch(0, ENTRY, {}, (waiting, ending))
    os.write(ending, b"x")
    serve_until(launcher, lambda: not refusals and not launcher.running)
    os.close(waiting)
    os.close(ending)


def test_unused_descriptors_of_a_session_are_closed_with_it() -> None:
    spec = ForkServerSpec((__name__,), (("OF", "descriptors"),), threads=1)
    waiting, ending = os.pipe()

    def run_a_worker() -> psutil.Process:
        """Run a worker. Afterwards, the fork server has processed all earlier messages."""
        launcher = Launcher(spec)
        launcher.launch(0, ENTRY, {}, (waiting, ending))
        os.write(ending, b"x")
        serve_until(launcher, lambda: not launcher.running)
        launcher.close()
        return fork_server_of(launcher)

    fork_server = run_a_worker()
    before = settled_descriptors(fork_server)
    for _ in range(20):
        cut = Launcher(spec)
        # Send only the beginning of a message, with descriptors that belong to it.
        socket.send_fds(cut._lines.socket, [b'{"fork": '], [waiting, ending])
        cut.close()
    run_a_worker()
    os.close(waiting)
    os.close(ending)
    assert settled_descriptors(fork_server) == before


def settled_descriptors(fork_server: psutil.Process) -> int:
    """Wait until a fork server is idle, and return the number of its descriptors."""
    deadline = time.monotonic() + DEADLINE_S
    while (held := _channels(fork_server)) > BETWEEN_POOLS and time.monotonic() < deadline:
        time.sleep(0.01)
    return held


def _channels(process: psutil.Process) -> int:
    """Return the number of descriptors of a process, without files, which libffi keeps open, and standard streams."""
    held = 0
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # The descriptor was closed meanwhile.
            held += int(descriptor.name) > 2 and not os.readlink(descriptor).startswith("/")
    return held


OPEN = """
import contextlib, os
for descriptor in os.listdir("/proc/self/fd"):
    with contextlib.suppress(OSError):
        if int(descriptor) > 2:
            print(descriptor, os.readlink(f"/proc/self/fd/{descriptor}"))
"""


class Starting(LedgerEnv):
    """Ledger that starts a program with all inheritable descriptors, and returns which ones the program has."""

    def inherited(self) -> list[str]:
        done = subprocess.run([sys.executable, "-c", OPEN], close_fds=False, capture_output=True, text=True)
        return done.stdout.splitlines()


@pytest.mark.more
@pytest.mark.parametrize("system", ["pool", "vector env"])
def test_a_program_that_an_environment_starts_inherits_no_descriptors(system: str) -> None:
    made = (
        AsyncWorkerPool([lambda: Starting(0)] * 2, zeros, num_workers=2)
        if system == "pool"
        else ParallelVectorEnv([lambda: Starting(0)] * 2, num_workers=2)
    )
    try:
        assert made.call("inherited") == ([], [])
    finally:
        made.close()


@pytest.mark.more
def test_entries_of_sys_path_that_are_not_strings_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [Path("/nowhere"), *sys.path])
    monkeypatch.setattr(sys, "argv", [Path("script.py"), 3])
    options = WorkerOptions(environment={"OWN_FORK_SERVER": "paths"})
    with AsyncWorkerPool([lambda: LedgerEnv(0)], zeros, num_workers=1, workers=options) as pool:
        next(pool.rollouts())


@pytest.mark.more
def test_the_error_for_a_preloaded_module_that_starts_threads_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "starts_threads.py"
    module.write_text("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    options = WorkerOptions(preload=("colorsys", "starts_threads"))
    with pytest.raises(WorkerError, match="could not be started") as raised:
        AsyncWorkerPool([lambda: LedgerEnv(0)], zeros, num_workers=1, workers=options)
    assert "importing starts_threads does" in str(raised.value.__cause__)
    assert "Remove the module from preload" in str(raised.value.__cause__)
    spec = next(spec for spec in launcher_module._fork_servers if "starts_threads" in spec.preload)
    del launcher_module._fork_servers[spec]


@pytest.mark.more
def test_a_preloaded_module_may_have_threads_that_end_before_a_fork() -> None:
    options = WorkerOptions(preload=("numpy",), threads=2)
    with AsyncWorkerPool([lambda: LedgerEnv(0)], zeros, num_workers=1, workers=options) as pool:
        next(pool.rollouts())


STANDARD = """
import os, sys
import gymnasium as gym, numpy as np
from parenv import AsyncWorkerPool, ParallelVectorEnv, Stop

def chatting(observations):
    print("acting", flush=True)
    print("acting", flush=True, file=sys.stderr)
    return np.zeros(len(observations), int)

for descriptor in CLOSED:
    os.close(descriptor)
with AsyncWorkerPool("CartPole-v1", chatting, num_workers=2, num_envs=4, rollout_length=10) as pool:
    for rollout in pool.rollouts(Stop(env_steps=200)):
        pass
envs = ParallelVectorEnv([lambda: gym.make("CartPole-v1")] * 4, num_workers=2)
envs.reset()
envs.step(np.zeros(4, int))
envs.close()
os.write(ANSWERS, b"fine")
"""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("closed", ["(1,)", "(2,)", "(0, 1, 2)"])
def test_workers_start_if_the_main_process_has_no_standard_streams(closed: str) -> None:
    reading, writing = os.pipe()
    try:
        script = STANDARD.replace("CLOSED", closed).replace("ANSWERS", str(writing))
        done = subprocess.run(
            [sys.executable, "-c", script], pass_fds=(writing,), capture_output=True, timeout=DEADLINE_S
        )
        os.close(writing)
        assert os.read(reading, 10) == b"fine", done.stderr
    finally:
        os.close(reading)


def test_no_worker_is_started_while_the_interpreter_is_ending() -> None:
    script = """
import atexit, threading

begun, ended = threading.Event(), threading.Event()

def wait_for_the_late():
    begun.set()
    ended.wait()

# atexit calls this function last, because it is registered first.
atexit.register(wait_for_the_late)

from parenv.process.launcher import Launcher, ForkServerSpec

Launcher(ForkServerSpec((), (), threads=1)).close()

def start_late():
    begun.wait()
    try:
        Launcher(ForkServerSpec((), (), threads=1))
    except BaseException as error:
        print(type(error).__name__, error, flush=True)
    ended.set()

threading.Thread(target=start_late, daemon=True).start()
"""
    words = "RuntimeError no worker can be started while the interpreter is ending. "
    words += "Join the thread before the main thread ends."
    assert printed_by(script).strip() == words


def test_a_fork_server_that_cannot_be_started_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    options = WorkerOptions(environment={"OWN_FORK_SERVER": "none"})
    with pytest.raises(FileNotFoundError, match="/nowhere/python"):
        AsyncWorkerPool([lambda: LedgerEnv(0)], zeros, num_workers=1, workers=options)


def begins_late(arguments: dict[str, Any], socket_fd: int, *descriptors: int) -> int:
    """Run a worker that waits before it receives messages, and replies with the numbers of all calls."""
    os.read(descriptors[-1], 1)
    sender = Sender(arguments["worker"], arguments["generation"])
    socket = WorkerSocket(socket_fd, arguments["driver"])
    before: list[Any] = []
    while not isinstance(message := from_frames(socket.receive(block=True) or [])[1], Close):
        before.append(message.sequence)
    socket.send(to_frames(sender, Reply(len(before), before)))
    socket.close()
    return 0


def test_messages_sent_before_a_worker_begins_arrive() -> None:
    may_begin, let_begin = os.pipe()
    memory, sender = SharedMemory(64), Sender(0, 0)
    placement = LocalPlacement()
    try:
        launch = Launch(memory.fd, b"{}", (), {}, 1, (may_begin,), entry=f"{__name__}:begins_late")
        placement.start(launch, [sender])
        for sequence in range(3):
            placement.send(sender, Call(sequence, "x" * 1_000_000, b"", -1, -1, 0))
        placement.send(sender, Close())
        os.write(let_begin, b"!")
        events: list[Any] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(events) < 2 and time.monotonic() < deadline:
            events += placement.wait(60)
    finally:
        placement.close(0)
        memory.close()
        os.close(may_begin)
        os.close(let_begin)
    # A thread of ZeroMQ receives the message, so the report of the end may arrive before it.
    ended, received = sorted(events, key=lambda event: isinstance(event, Received))
    assert received.message == Reply(3, [0, 1, 2])
    assert ended.exit_code == 0


NEEDED = 2 * PER_WORKER + FOR_ALL
FEW_DESCRIPTORS = """
import os, resource, signal, sys
import numpy as np
from parenv import AsyncWorkerPool, ParallelVectorEnv
from parenv.testing import LedgerEnv

def make():
    factories = [lambda: LedgerEnv(0)] * 2
    if sys.argv[1] == "vector env":
        return ParallelVectorEnv(factories, num_workers=2, on_worker_death="restart")
    return AsyncWorkerPool(factories, lambda observations: np.zeros(len(observations), int), num_workers=2)

def descriptors():
    return len(os.listdir("/dev/fd"))

make().close()
before, hard = descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
"""
"""Beginning of scripts in which the fork server is already running."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("system", ["pool", "vector env"])
def test_too_few_descriptors_are_an_error_before_anything_starts(system: str) -> None:
    script = """
resource.setrlimit(resource.RLIMIT_NOFILE, (before + 10, before + 10))
try:
    make()
except OSError as error:
    print(str(error).replace(f"limit: {before + 10}", "limit: that"), descriptors() == before)
"""
    words = (
        f"[Errno 24] num_workers=2 needs {NEEDED} file descriptors, but this process may open only 10 more "
        "(hard limit: that). Raise the limit with `ulimit -Hn`, or use fewer workers. True\n"
    )
    assert printed_by(FEW_DESCRIPTORS + script, system) == words


def test_free_descriptors_are_checked_before_zeromq_opens_them() -> None:
    script = """
import os, resource
from parenv.placement.base import Launch
from parenv.placement.local import LocalPlacement
from parenv.process import descriptors
from parenv.protocol.frames import Sender
placement, launch = LocalPlacement(), Launch(0, b"{}", (), {}, 1)
placement._open_launcher(launch)
placement.close(0.0)
before = len(os.listdir("/dev/fd"))
# The session of the fork server takes one of them.
resource.setrlimit(resource.RLIMIT_NOFILE, (before + 4, before + 4))
try:
    placement.start(launch, [Sender(0, 0)])
except OSError as error:
    print(error)
placement.close(0.0)
print(len(os.listdir("/dev/fd")) == before)
"""
    words = "[Errno 24] 8 file descriptors must be free, got 4. Close files, or raise `ulimit -n`.\nTrue\n"
    assert printed_by(script) == words


@pytest.mark.more
@pytest.mark.parametrize("system", ["pool", "vector env"])
def test_a_soft_limit_of_descriptors_that_is_too_low_is_raised(system: str) -> None:
    script = """
resource.setrlimit(resource.RLIMIT_NOFILE, (before + 4, hard))
make().close()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - before)
"""
    assert printed_by(FEW_DESCRIPTORS + script, system) == f"{NEEDED}\n"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("system", ["pool", "vector env"])
def test_a_worker_is_replaced_while_no_descriptor_is_left(system: str) -> None:
    script = """
import logging
logging.getLogger("parenv").setLevel(logging.ERROR)
made = make()
session = made._session
pid = (session if sys.argv[1] == "pool" else session.backend).workers.pid(0)
resource.setrlimit(resource.RLIMIT_NOFILE, (before + 100, before + 100))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
if sys.argv[1] == "pool":
    rollouts = made.rollouts()
    os.kill(pid, signal.SIGKILL)
    while not next(rollouts).restarted.any():
        pass
else:
    made.reset()
    os.kill(pid, signal.SIGKILL)
    while "worker_restarted" not in made.step(np.zeros(2, int))[4]:
        pass
made.close()
print("replaced")
"""
    assert printed_by(FEW_DESCRIPTORS + script, system) == "replaced\n"
