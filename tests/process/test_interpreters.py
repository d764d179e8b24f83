"""Check that sub-environments in another interpreter have the same results, errors and guarantees as in this one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from audits import until
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from inside import workers_of

from parenv import (
    AsyncWorkerPool,
    ConfigurationError,
    NotDataError,
    ObservationError,
    ParallelVectorEnv,
    RemotePlacement,
    RestartPolicy,
    Stop,
    WorkerDiedError,
    WorkerMemoryError,
    WorkerOptions,
    WorkerTimeoutError,
    entry_point,
)
from parenv.process.stack_pipe import StackPipe

pytestmark = pytest.mark.timeout(300)
FILE = str(Path(__file__).with_name("stepped_elsewhere.py"))
MODES = list(AutoresetMode)


def ledger(name: str = "Ledger", **arguments: Any) -> Any:
    return entry_point(f"{FILE}:{name}", **arguments)


def stepped(made: Any, count: int = 1, python: Any = sys.executable, **more: Any) -> ParallelVectorEnv:
    """Return a vector env in an interpreter. Further arguments may be worker options."""
    options = {name: more.pop(name) for name in list(more) if name in WorkerOptions.__dataclass_fields__}
    return ParallelVectorEnv([made] * count, workers=WorkerOptions(python=python, **options), **more)


@pytest.fixture(scope="session")
def with_numpy_only(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the oldest usable interpreter, in a venv with an old numpy and no other package."""
    return _interpreter(tmp_path_factory.mktemp("bare"), "numpy<2")


@pytest.fixture(scope="session")
def with_old_gym(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _interpreter(tmp_path_factory.mktemp("gym"), "numpy<2", "gym==0.26.2")


@pytest.fixture(scope="session")
def with_gymnasium(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _interpreter(tmp_path_factory.mktemp("gymnasium"), "numpy<2", "gymnasium<1.1")


def _interpreter(folder: Path, *packages: str) -> str:
    """Create a venv with packages, and return its interpreter."""
    found = [path for name in ("python3.8", "python3.9", "python3.10") if (path := _runs(name))]
    subprocess.run([*(found or [sys.executable])[:1], "-m", "venv", folder], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def _runs(name: str) -> str | None:
    """Return a working interpreter. Commands of version managers on the path may only print how to install one."""
    candidates = [shutil.which(name), *map(str, Path.home().glob(f".pyenv/versions/{name[6:]}.*/bin/python"))]
    for path in candidates:
        if path and subprocess.run([path, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
            return path
    return None


def trace(envs: Any, steps: int, actions: Callable[[Any], Any], mode: AutoresetMode) -> Iterator[Any]:
    """Yield the results of a reset and of steps with random actions."""
    yield envs.reset(seed=5)
    generator = np.random.default_rng(0)
    for _ in range(steps):
        result = envs.step(actions(generator))
        yield result
        if mode is AutoresetMode.DISABLED and (ended := result[2] | result[3]).any():
            yield envs.reset(options={"reset_mask": ended})


def same(one: Any, other: Any) -> bool:
    """Return whether nested values are equal and their arrays have the same dtypes."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray) and one.dtype == object:
        return len(one) == len(other) and all(map(same, one.tolist(), other.tolist()))
    return np.array_equal(one, other) and np.asarray(one).dtype == np.asarray(other).dtype


def step_three_times(envs: Any) -> None:
    for _ in range(3):
        envs.step(np.zeros(envs.num_envs, int))


def check_cart_pole(python: Any, mode: AutoresetMode) -> None:
    """Check that CartPoles in an interpreter have the trace of Gymnasium's SyncVectorEnv."""
    envs = stepped(entry_point("CartPole-v1"), 6, python, num_workers=2, autoreset_mode=mode)
    reference = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 6, autoreset_mode=mode)

    def actions(generator: Any) -> Any:
        return generator.integers(0, 2, 6)

    with envs, contextlib.closing(reference):
        for ours, theirs in zip(trace(envs, 150, actions, mode), trace(reference, 150, actions, mode), strict=True):
            assert same(ours, theirs)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", MODES)
def test_a_trace_equals_the_trace_of_gymnasium(mode: AutoresetMode) -> None:
    check_cart_pole(sys.executable, mode)


@pytest.mark.more
@pytest.mark.parametrize("mode", MODES)
def test_a_trace_in_an_older_python_and_numpy_equals_the_trace_of_gymnasium(
    mode: AutoresetMode, with_gymnasium: str
) -> None:
    check_cart_pole(with_gymnasium, mode)


@pytest.mark.more
def test_half_cheetah_with_its_infos_equals_the_trace_of_gymnasium() -> None:
    envs = stepped(entry_point("HalfCheetah-v5"), 4, num_workers=2)
    reference = SyncVectorEnv([lambda: gym.make("HalfCheetah-v5")] * 4)
    with envs, contextlib.closing(reference):
        envs.action_space.seed(0)
        actions = [envs.action_space.sample() for _ in range(30)]
        assert same(envs.reset(seed=1), reference.reset(seed=1))
        for action in actions:
            assert same(envs.step(action), reference.step(action))


@pytest.mark.more
@pytest.mark.parametrize("name", ["Ledger", "OldGymLedger"])
def test_an_environment_without_gymnasium_needs_only_numpy(name: str, with_numpy_only: str) -> None:
    with stepped(ledger(name), 4, with_numpy_only, num_workers=2) as envs:
        observations, _ = envs.reset(seed=[7, 8, 9, 10])
        assert observations[:, 0].tolist() == [7, 8, 9, 10]
        assert set(envs.call("where")) == {with_numpy_only}
        for t in range(1, 13):
            observations, rewards, terminated, truncated, infos = envs.step(np.full(4, 2))
            episode, step = divmod(t, 6)
            assert (observations[:, 1:3] == [episode, step]).all()
            assert (rewards == step).all()
            by_clock = name == "OldGymLedger" and episode % 2 == 1
            assert (terminated == (step == 5 and not by_clock)).all()
            assert (truncated == (step == 5 and by_clock)).all()
            if step:
                assert infos["action"].tolist() == [2] * 4


@pytest.mark.more
def test_old_gym_steps_its_own_cart_pole(with_old_gym: str) -> None:
    check_cart_pole(with_old_gym, AutoresetMode.NEXT_STEP)


@pytest.mark.filterwarnings("ignore:infos")
def test_nested_spaces_and_odd_infos(recwarn: pytest.WarningsRecorder) -> None:
    with stepped(ledger("Nested"), 2, num_workers=1) as envs:
        observations, _ = envs.reset()
        assert observations["a"].dtype == np.float32
        assert observations["b"][0].tolist() == [0, 0]
        actions = {"x": np.array([[1, 2], [0, 1]]), "y": np.array([[0.25, 0], [0.5, 0]], np.float32)}
        observations, rewards, *_, infos = envs.step(actions)
        assert observations["b"][0].tolist() == [1, 1]
        assert observations["a"][0, 0] == np.float32(0.1)
        assert rewards.tolist() == [0.25, 0.5]
        assert infos["x"].tolist() == [[1, 2], [0, 1]]
        assert infos["text"].tolist() == ["at 1", "at 1"]
        assert infos["deep"]["pair"].tolist() == [[0, 1], [0, 1]]
    assert any("infos['deep']['no']" in str(one.message) for one in recwarn)


def test_the_final_info_is_the_one_of_the_last_step_of_an_environment_that_keeps_it() -> None:
    with stepped(ledger("Keeping"), autoreset_mode="SameStep") as envs:
        envs.reset()
        envs.step([0])
        _, rewards, *_, infos = envs.step([0])
        assert rewards.tolist() == [2]
        assert infos["final_info"]["sums"].tolist() == [[2]]
        assert infos["final_info"]["deep"]["steps"].tolist() == [[1, 2]]


def test_send_and_recv_of_some_sub_environments() -> None:
    with stepped(ledger(), 4, num_workers=2, batch_size=2) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(4, int), np.arange(4))
        steps = np.zeros(4, int)
        for _ in range(40):
            observations, *_, infos = envs.recv()
            env_ids = infos["env_id"]
            steps[env_ids] += 1
            assert (observations[:, 1] * 6 + observations[:, 2] == steps[env_ids]).all()
            envs.send(np.zeros(len(env_ids), int), env_ids)


def test_calls_and_attributes() -> None:
    with stepped(ledger(), 3, num_workers=2) as envs:
        envs.reset()
        assert envs.get_attr("t") == (0, 0, 0)
        envs.set_attr("t", [1, 2, 3])
        assert envs.get_attr("t") == (1, 2, 3)
        assert len(set(envs.call("pid"))) == 2
        with pytest.raises(AttributeError, match="nothing"):
            envs.call("nothing")
        with pytest.raises(NotDataError, match="must be plain data"):
            envs.set_attr("t", [object()] * 3)
        with pytest.raises(NotDataError, match="not plain data"):
            envs.get_attr("observation_space")
        assert envs.get_attr("t") == (1, 2, 3)


def test_an_exception_keeps_its_type_and_its_traceback() -> None:
    with stepped(ledger(fault="raise"), 1, num_workers=1) as envs:
        envs.reset()
        for _ in range(2):
            envs.step(np.zeros(1, int))
        with pytest.raises(ValueError, match="broken at step 3") as failed:
            envs.step(np.zeros(1, int))
        traceback = failed.value.__cause__.remote_traceback  # type: ignore[union-attr]
        assert "stepped_elsewhere.py" in traceback
        assert "/stepper.py" not in traceback


@pytest.mark.one_in(2)
@pytest.mark.parametrize("fault", ["kill", "exit"])
def test_the_death_of_a_worker_is_an_error(fault: str) -> None:
    with stepped(ledger(fault=fault), 2, num_workers=1) as envs:
        envs.reset()
        with pytest.raises(WorkerDiedError, match="SIGKILL" if fault == "kill" else "code 3"):
            step_three_times(envs)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
@pytest.mark.parametrize("fault", ["kill", "hang"])
def test_a_restarted_worker_begins_new_episodes(fault: str, mode: AutoresetMode, tmp_path: Path) -> None:
    made = ledger(fault=fault, mark=str(tmp_path / "mark"), length=6)
    limit = 1.0 if fault == "hang" else 60.0
    options: Any = {"on_worker_death": "restart", "step_timeout_s": limit, "autoreset_mode": mode}
    with stepped(made, 4, num_workers=2, **options) as envs:
        envs.reset(seed=0)
        restarted = np.zeros(4, bool)
        for _ in range(12):
            observations, _, _, truncated, infos = envs.step(np.zeros(4, int))
            now = infos.get("worker_restarted", np.zeros(4, bool))
            assert not (now & ~truncated).any()
            assert mode is AutoresetMode.NEXT_STEP or not observations[now, 2].any()
            restarted |= now
        assert restarted.sum() == 2


@pytest.mark.more
def test_the_stack_of_a_hang_shows_the_environment() -> None:
    with stepped(ledger(fault="hang"), 2, num_workers=1, step_timeout_s=1.0) as envs:
        envs.reset()
        with pytest.raises(WorkerTimeoutError, match="_break"):
            step_three_times(envs)


@pytest.mark.more
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reward": [1.0, 2.0]}, "the reward of env_id 0 must be a number, got a sequence"),
        ({"reward": None}, "the reward of env_id 0 must be a number, got None"),
        ({"reward": "much"}, "the reward of env_id 0 must be a number, got 'much'"),
        ({"reward": 0.0, "terminated": [False]}, r"terminated of env_id 0 must be a boolean, got \[False\]"),
    ],
    ids=["sequence", "none", "text", "flag"],
)
def test_a_wrong_reward_or_flag_is_an_error_that_names_it_and_the_env_id(arguments: Any, message: str) -> None:
    with contextlib.closing(stepped(ledger("Returning", **arguments))) as envs:
        envs.reset()
        with pytest.raises((TypeError, ValueError), match=message):
            envs.step([0])


def test_a_debugger_is_refused_with_the_remedy() -> None:
    with stepped(ledger("Debugged")) as envs:
        envs.reset()
        with pytest.raises(ConfigurationError, match=r"^breakpoint\(\) and pdb.set_trace\(\) cannot .* num_workers=0"):
            envs.step([0])


def test_an_observation_of_another_shape_is_an_error() -> None:
    with stepped(ledger(fault="shape"), 1, num_workers=1) as envs:
        envs.reset()
        with pytest.raises(ObservationError, match=r"env_id 0.*shape \(7,\)"):
            step_three_times(envs)


@pytest.mark.more
def test_a_memory_limit_applies_in_another_interpreter() -> None:
    with stepped(ledger("Eater"), 1, num_workers=1, max_memory_bytes=1 << 28) as envs:
        envs.reset()
        with pytest.raises((WorkerMemoryError, MemoryError)):
            envs.step(np.zeros(1, int))


def test_a_pool_acts_in_this_interpreter_and_steps_in_another() -> None:
    options = WorkerOptions(step_workers=2, python=sys.executable)
    with AsyncWorkerPool(
        ledger(), lambda observations: np.zeros(len(observations), int), num_envs=4, rollout_length=10, workers=options
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=80)):
            assert (np.diff(rollout.observations[:, :, 2], axis=0) % 5 == 1).all()
            assert rollout.rewards.shape == (10, 4)


@pytest.mark.more
def test_a_pool_continues_after_a_stepper_is_killed(tmp_path: Path) -> None:
    made = ledger(fault="kill", mark=str(tmp_path / "mark"), length=7)
    options = WorkerOptions(step_workers=2, python=sys.executable, restart=RestartPolicy())
    with AsyncWorkerPool(
        made, lambda observations: np.zeros(len(observations), int), num_envs=4, rollout_length=8, workers=options
    ) as pool:
        seen = sum(rollout.rewards.size for rollout in pool.rollouts(Stop(env_steps=320)))
    assert seen >= 320
    assert (tmp_path / "mark").exists()


def test_close_leaves_no_process_and_no_file() -> None:
    before = set(Path(os.environ.get("TMPDIR", "/tmp")).glob("parenv-*"))
    envs = stepped(ledger(), 2, num_workers=2)
    pids = envs.call("pid")
    envs.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert set(Path(os.environ.get("TMPDIR", "/tmp")).glob("parenv-*")) == before


@pytest.mark.more
def test_steppers_end_with_a_main_process_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys
            from parenv import ParallelVectorEnv, WorkerOptions, entry_point
            envs = ParallelVectorEnv([entry_point({FILE + ":Ledger"!r})] * 2, num_workers=2,
                                     workers=WorkerOptions(python=sys.executable))
            print(*envs.call("pid"), file=sys.stderr)
            os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    )
    ended = subprocess.run([sys.executable, script], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    pids = list(map(int, ended.stderr.split()))
    assert len(pids) == 2
    psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=60)
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.more
def test_environments_in_a_container_without_a_network(tmp_path: Path, with_numpy_only: str) -> None:
    """Check a stand-in for a container: separate user, mount, process and network namespaces, and another root."""
    base = subprocess.run([with_numpy_only, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True)
    root, venv = tmp_path / "root", Path(with_numpy_only).parents[1]
    script = tmp_path / "run.sh"
    places = ["/usr", "/lib", "/lib64", "/bin", base.stdout.strip(), str(venv), str(Path(FILE).parent)]
    mounts = [f"[ -e {place} ] && mkdir -p {root}{place} && mount --rbind {place} {root}{place}" for place in places]
    script.write_text(
        "\n".join(
            [
                *mounts,
                f'mkdir -p {root}"$1" {root}/proc && mount --rbind "$1" {root}"$1" && mount -t proc proc {root}/proc',
                "shift",
                f'exec chroot {root} "$@"',
            ]
        )
    )
    inside = ("unshare", "--map-root-user", "--mount", "--pid", "--fork", "--net", "--kill-child", "sh", str(script))
    probe = subprocess.run([*inside, "/tmp", with_numpy_only, "-c", "1"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"this machine allows no namespaces: {probe.stderr}")
    command = (*inside, "{sockets}", with_numpy_only)
    with stepped(ledger(length=10**9), 2, command, num_workers=2, on_worker_death="restart") as envs:
        envs.reset(seed=3)
        for t in range(1, 9):
            observations, *_ = envs.step(np.zeros(2, int))
            assert (observations[:, 1:3] == (0, t)).all()
        assert set(envs.call("where")) == {with_numpy_only}
        # This kills the command outside of the container. The environment may take many steps before the kernel ends
        # it. Its episode must not end meanwhile, because a death between two episodes loses none and sets no flag.
        os.kill(workers_of(envs).pid(0), 9)
        infos: dict[str, Any] = {}
        until(lambda: "worker_restarted" in infos, lambda: infos.update(envs.step(np.zeros(2, int))[4]))
        assert infos["worker_restarted"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"python": "/nowhere/python"}, "must be an interpreter or a command that exists"),
        ({"python": ()}, "path of an interpreter or a tuple"),
        ({"python": sys.executable, "setup_fn": print}, "setup_fn cannot be combined"),
        ({"python": sys.executable, "start_method": "spawn"}, "start_method cannot be combined"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ParallelVectorEnv([ledger()], workers=WorkerOptions(**options))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 0}, "num_workers=0 cannot"),
        ({"batch_size": "auto"}, "batch_size='auto' cannot"),
        ({"caller_steps": True}, "caller_steps=True cannot"),
        ({"spaces": "make"}, "spaces='make' cannot"),
        (
            {"placement": RemotePlacement("tcp://127.0.0.1:5555", key="k", hosts="h"), "num_workers": 1},
            "cannot be combined with a placement",
        ),
    ],
)
def test_arguments_that_need_environments_in_this_process_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ParallelVectorEnv([ledger()] * 2, workers=WorkerOptions(python=sys.executable), **arguments)


def test_functions_as_factories_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be named"):
        ParallelVectorEnv([lambda: gym.make("CartPole-v1")], workers=WorkerOptions(python=sys.executable))


def test_a_pool_needs_step_workers_for_another_interpreter() -> None:
    with pytest.raises(ConfigurationError, match="needs step_workers"):
        AsyncWorkerPool(ledger(), lambda o: o, num_envs=2, workers=WorkerOptions(python=sys.executable))


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    ("made", "kind", "message"),
    [
        (entry_point("no_such_module:make"), ModuleNotFoundError, "no_such_module"),
        (entry_point("json:no_such_function"), AttributeError, "no_such_function"),
        (ledger("failing"), RuntimeError, "no simulator here"),
        (ledger(nonsense=1), TypeError, "nonsense"),
        (ledger("WithoutSpaces"), ConfigurationError, "without observation_space"),
        (ledger("OddSpace"), ConfigurationError, "cannot describe"),
        (entry_point("NoSuchEnv-v0"), Exception, "NoSuchEnv"),
    ],
)
def test_an_environment_that_cannot_be_made_is_an_error_with_the_reason(
    made: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        stepped(made, 1, num_workers=1)


@pytest.mark.more
def test_an_interpreter_without_numpy_is_refused(tmp_path: Path) -> None:
    # The same interpreter without site packages has no numpy.
    with pytest.raises(ConfigurationError, match="has no numpy"):
        stepped(ledger(), 1, (sys.executable, "-S", "-E"), num_workers=1)


@pytest.mark.more
def test_a_program_that_never_connects_is_not_asked_for_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = list[int]()
    monkeypatch.setattr(StackPipe, "read", lambda pipe, pid: reads.append(pid))
    with pytest.raises(WorkerTimeoutError, match="not ready after 1 s"):
        stepped(ledger(), 1, ("sh", "-c", "sleep 1000"), num_workers=1, start_timeout_s=1.0, close_timeout_s=0.1)
    assert reads == []


@pytest.mark.parametrize("name", ["", ":make", "module:", "file.py", "with space:make", 3])
def test_invalid_entry_points_are_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="entry point"):
        entry_point(name)


def test_arguments_must_be_plain_data() -> None:
    with pytest.raises(ConfigurationError, match="must be plain data"):
        entry_point("module:make", task=object())


def test_an_entry_point_can_make_environments_in_this_process() -> None:
    made = ledger(length=3)()
    assert made.length == 3
    assert entry_point("CartPole-v1")().spec.id == "CartPole-v1"
