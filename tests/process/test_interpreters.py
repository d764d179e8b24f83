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
import members
import numpy as np
import psutil
import pytest
from audits import until
from comparison import assert_same
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from inside import workers_of
from scripts import printed_by

import parenv
from parenv import (
    AsyncWorkerPool,
    ConfigurationError,
    ParallelVectorEnv,
    RestartPolicy,
    Stop,
    SubEnvironmentError,
    WorkerDiedError,
    WorkerOptions,
    WorkerTimeoutError,
    entry_point,
)
from parenv.errors import WorkerMemoryError
from parenv.process.served_envs import decode, encode, foreign

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
    limit = 5.0 if fault == "hang" else 60.0
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
    with stepped(ledger(fault="hang"), 2, num_workers=1, step_timeout_s=5.0) as envs:
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


def test_close_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    script = f"""
from parenv import ParallelVectorEnv, WorkerOptions, entry_point
envs = ParallelVectorEnv(
    [entry_point({FILE + ":Ledger"!r})] * 2, num_workers=2, workers=WorkerOptions(python={sys.executable!r})
)
envs.reset(seed=0)
print(*envs.call("pid"))
envs.close()
"""
    # Other tests make and remove files in the usual temporary folder at the same time.
    pids = list(map(int, printed_by(script, TMPDIR=str(tmp_path)).splitlines()[-1].split()))
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not list(tmp_path.iterdir())


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
def test_a_main_process_that_is_killed_while_interpreters_start_leaves_nothing(tmp_path: Path) -> None:
    script, temporary = tmp_path / "main.py", tmp_path / "temporary"
    temporary.mkdir()
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, sys, threading
            from parenv import ParallelVectorEnv, WorkerOptions
            threading.Timer(float(sys.argv[1]), os.kill, (os.getpid(), signal.SIGKILL)).start()
            ParallelVectorEnv(["CartPole-v1"] * 4, num_workers=2, workers=WorkerOptions(python=sys.executable))
            signal.pause()
            """
        )
    )
    for seconds in ("0.2", "0.5", "0.8", "1.2"):
        subprocess.run([sys.executable, script, seconds], env={**os.environ, "TMPDIR": str(temporary)})
        assert list(temporary.iterdir()) == []
        until(lambda: not any(str(temporary) in _environment(one) for one in psutil.process_iter()))


def _environment(process: psutil.Process) -> str:
    try:
        return process.environ().get("TMPDIR", "")
    except psutil.Error:
        return ""


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
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ParallelVectorEnv([ledger()], workers=WorkerOptions(**options))


def shown_worker(worker: int) -> None:
    print(f"worker {worker}", file=sys.stderr, flush=True)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": 0},
        {"num_workers": 2, "batch_size": "auto"},
        {"num_workers": 1, "caller_steps": True},
        {"num_workers": 1, "spaces": "make"},
        {"num_workers": 2, "setup_fn": shown_worker, "cleanup_fn": shown_worker},
        {"num_workers": 2, "preload": ("decimal",)},
        {"num_workers": 1, "start_method": "spawn"},
        {"num_workers": 2, "recycle_episodes": 2},
        {},
    ],
    ids=lambda given: "-".join(given) or "default",
)
def test_every_way_to_step_has_the_same_results(arguments: dict[str, Any]) -> None:
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        envs = stepped(entry_point("CartPole-v1"), 4, autoreset_mode=mode, **arguments)
        reference = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 4, autoreset_mode=mode)
        steps = 40 if "recycle_episodes" in arguments else 100
        with envs, contextlib.closing(reference):
            # The first reset of a recycled environment has a seed of its own.
            ours = list(trace(envs, steps, lambda generator: generator.integers(0, 2, 4), mode))
            theirs = list(trace(reference, steps, lambda generator: generator.integers(0, 2, 4), mode))
            if "recycle_episodes" in arguments:
                assert same(ours[:10], theirs[:10])
            elif arguments.get("batch_size") != "auto":
                assert same(ours, theirs)


def lean(observations: Any) -> Any:
    return (observations[:, 2] > 0).astype(int)


def rollouts_of(env_fn: Any, **more: Any) -> list[Any]:
    """Return observations, rewards and ends of some rollouts."""
    options = {name: more.pop(name) for name in list(more) if name in WorkerOptions.__dataclass_fields__}
    given: dict[str, Any] = {"num_envs": 4, "num_workers": 2, "mode": "sync", "rollout_length": 30, "seed": 1, **more}
    names = ("observations", "actions", "rewards", "terminated", "truncated")
    with AsyncWorkerPool(env_fn, lean, workers=WorkerOptions(**options), **given) as pool:
        return [[np.array(getattr(one, name)) for name in names] for one in pool.rollouts(Stop(env_steps=600))]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"num_workers": 0},
        {"num_workers": 1, "num_envs": 1},
        {"step_threads": 2},
        {"recycle_episodes": 3},
        {"on_env_error": "restart_env"},
        {"on_env_error": "restart_worker"},
        {"num_workers": 1, "step_workers": 2},
        {"episode_seeds": True},
        {"rollout_length": "episode", "mode": "async", "num_workers": 1, "num_envs": 1},
    ],
    ids=lambda given: "-".join(given) or "default",
)
def test_a_pool_collects_the_same_rollouts_as_with_ordinary_workers(more: dict[str, Any]) -> None:
    made = entry_point("CartPole-v1")
    ours, theirs = rollouts_of(made, python=sys.executable, **more), rollouts_of(made, **more)
    # An asynchronous pool may yield one more episode after the last step that is wanted.
    count = min(len(ours), len(theirs))
    assert count > 4
    assert same(ours[:count], theirs[:count])


def test_threads_of_a_worker_step_in_interpreters_of_their_own() -> None:
    made, options = ledger("Sleeper", seconds=0.4), WorkerOptions(step_threads=4, python=sys.executable)
    with AsyncWorkerPool(made, lambda o: np.zeros(len(o), int), num_envs=4, rollout_length=5, workers=options) as pool:
        assert len(set(pool.call("pid"))) == 4
        observations = next(pool.rollouts()).observations[1:]
        begun, ended = observations[..., 0], observations[..., 3]
        # At some time all steps of a row are in progress. A busy machine may delay some of them.
        assert (begun.max(1) < ended.min(1)).any()


def test_sub_environments_of_a_worker_share_an_interpreter() -> None:
    with stepped(ledger(), 6, num_workers=2) as envs:
        assert len(set(envs.call("pid"))) == 2


def test_a_sub_environment_that_raises_is_replaced() -> None:
    made = ledger(fault="raise", at=4)
    options = WorkerOptions(
        on_env_error="restart_env", python=sys.executable, restart=RestartPolicy(max_restarts=10**6)
    )
    with AsyncWorkerPool(
        made, lambda o: np.zeros(len(o), int), num_envs=2, num_workers=1, rollout_length=12, workers=options
    ) as pool:
        steps = next(pool.rollouts()).observations[:, :, 2].copy()
    assert set(steps.flat) == {0, 1, 2}
    assert ((steps[1:] == steps[:-1] + 1) | (steps[1:] == 0)).all()


@pytest.mark.more
def test_the_members_of_a_population_train_in_another_interpreter(tmp_path: Path) -> None:
    made = entry_point(f"{members.__file__}:Short")
    found = [
        members.after(tmp_path / name, 3, env_fn=made, num_workers=1, workers=WorkerOptions(python=python))
        for name, python in (("ordinary", None), ("elsewhere", sys.executable))
    ]
    assert found[0] == found[1]


@pytest.mark.more
@pytest.mark.parametrize("more", [{"num_workers": 2}, {"num_workers": 0}, {"step_workers": 2}], ids=str)
def test_an_evaluation_plays_the_same_episodes(more: dict[str, Any]) -> None:
    reports = []
    for python in (None, sys.executable):
        given = dict(more)
        options = WorkerOptions(python=python, step_workers=given.pop("step_workers", None))
        report = parenv.evaluate(lean, entry_point("CartPole-v1"), episodes=6, seed=2, workers=options, **given)
        reports.append([(one.index, one.episode_return, one.length) for one in report.episodes])
    assert reports[0] == reports[1]


def test_named_policies_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"python=...\) cannot be used with named policies"):
        AsyncWorkerPool(ledger(), {"a": lean}, num_envs=2, workers=WorkerOptions(python=sys.executable))


def test_functions_as_factories_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be named"):
        ParallelVectorEnv([lambda: gym.make("CartPole-v1")], workers=WorkerOptions(python=sys.executable))


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


def test_an_environment_without_numpy_needs_no_numpy() -> None:
    # The same interpreter without site packages has no numpy.
    made = entry_point(str(Path(__file__).with_name("stepped_without_numpy.py")) + ":Counter")
    with stepped(made, 2, (sys.executable, "-S", "-E"), num_workers=1) as envs:
        observations, _ = envs.reset()
        assert observations.dtype == np.float32
        for t in range(1, 5):
            observations, rewards, terminated, _, infos = envs.step(np.full((2, 2), 0.25, np.float32))
            assert observations.tolist() == [[t, t / 2]] * 2
            assert rewards.tolist() == [1, 1]
            assert terminated.tolist() == [t == 4] * 2
            assert infos["kind"].tolist() == ["list"] * 2


@pytest.mark.more
@pytest.mark.parametrize("version", ["3.6", "3.7"])
def test_an_old_python_steps(version: str) -> None:
    if (python := _runs(f"python{version}")) is None:
        pytest.skip(f"this machine has no Python {version}")
    made = entry_point(str(Path(__file__).with_name("stepped_without_numpy.py")) + ":Counter")
    with stepped(made, 2, python, num_workers=1) as envs:
        envs.reset()
        assert envs.step(np.zeros((2, 2), np.float32))[0].tolist() == [[1, 0]] * 2


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("sh", "-c", "echo parenv 2.7.18 1; sleep 100"), "must be Python 3.6 or later, got Python 2.7.18. Correct it"),
        ("true", "must be a Python interpreter, but it did not answer as one. It ended with code 0. Correct it"),
        (("sh", "-c", "echo hello; exit 3"), "did not answer as one. It ended with code 3"),
        ("/etc/passwd", "WorkerOptions.python must be an interpreter or a command that exists"),
    ],
)
def test_a_program_that_is_no_python_gets_a_sentence(command: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        stepped(ledger(), 1, command, num_workers=1)


@pytest.mark.more
def test_python_2_gets_a_sentence() -> None:
    found = [str(path) for path in Path.home().glob(".pyenv/versions/2.7*/bin/python")]
    if not found:
        pytest.skip("this machine has no Python 2.7")
    with pytest.raises(ConfigurationError, match=r"must be Python 3.6 or later, got Python 2\.7"):
        stepped(ledger(), 1, found[0], num_workers=1)


@pytest.mark.more
def test_a_program_that_never_answers_meets_the_time_limit() -> None:
    with pytest.raises(WorkerTimeoutError, match="not ready after 1 s"):
        stepped(ledger(), 1, ("sh", "-c", "sleep 1000"), num_workers=1, start_timeout_s=1.0, close_timeout_s=0.1)


def test_the_time_limit_is_for_one_step_of_many() -> None:
    with stepped(ledger("Sleeper", seconds=1.0), 6, num_workers=1, step_timeout_s=4.0) as envs:
        envs.reset()
        assert envs.step(np.zeros(6, int))[1].tolist() == [1] * 6


@pytest.mark.more
def test_a_hang_and_a_death_name_the_sub_environment() -> None:
    made = [ledger(), ledger(), ledger(fault="hang"), ledger()]
    workers = WorkerOptions(python=sys.executable)
    with ParallelVectorEnv(made, num_workers=1, step_timeout_s=5.0, workers=workers) as envs:
        envs.reset()
        with pytest.raises(WorkerTimeoutError, match=r"during env.step\(\) of env_id 2"):
            step_three_times(envs)
    made[2] = ledger(fault="kill")
    with ParallelVectorEnv(made, num_workers=1, workers=workers) as envs:
        envs.reset()
        with pytest.raises(WorkerDiedError, match=r"during env.step\(\) of env_id 2"):
            step_three_times(envs)


def test_the_death_of_an_interpreter_of_this_process_is_an_exception() -> None:
    envs = stepped(ledger(fault="kill"), 2, num_workers=0)
    envs.reset()
    with pytest.raises(SubEnvironmentError, match="was killed by SIGKILL"):
        step_three_times(envs)
    envs.close()


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


def test_the_encoding_keeps_values_and_types() -> None:
    values = [
        {
            "a": np.arange(6).reshape(2, 3),
            "b": (np.float32(1), np.bool_(True), np.str_("x")),
            3: [set(), frozenset({1})],
        },
        np.array(["a", "bc"]),
        np.array("2020-01-01", "M8[s]"),
        np.timedelta64(3, "ns"),
        np.zeros((0, 2)),
        np.array(2.5),
        (),
        -0.0,
        10**400,
        "\ud800",
    ]
    for value in values:
        assert_same(decode(encode(value, foreign)), value)
