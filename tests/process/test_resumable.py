"""Check that a run in ``resumable`` that is killed or preempted continues at the next start without a difference."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cartpole_training
import numpy as np
import pytest
import torch
from cartpole_training import LENGTH, NUM_ENVS, Agent, digest, make, train
from crashes import status_of
from inside import pid_of
from policies import lean, zeros
from scripted_agents import act, named_pool, opponents
from test_policies_by_name import scorer

from parenv import (
    AsyncWorkerPool,
    ConfigurationError,
    Policy,
    RestartPolicy,
    Stop,
    TorchPolicy,
    WorkerError,
    WorkerOptions,
    load_checkpoint,
    resumable,
)
from parenv.errors import NotDataError
from parenv.policy.policy import Action
from parenv.pool.stream_counts import StreamCounts, StreamLog
from parenv.records import noted_signals

pytestmark = pytest.mark.usefixtures("warnings_are_expected", "random_states_stay")
PREEMPTED = 75
UPDATES = 12
LATE_S = 120.0


@pytest.fixture
def random_states_stay() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def pool_of(policy: Any = zeros, **options: Any) -> AsyncWorkerPool:
    arguments: dict[str, Any] = {"num_envs": 2, "num_workers": 0, "mode": "sync", "rollout_length": 8, "seed": 3}
    return AsyncWorkerPool(make, policy, **(arguments | options))


def send_at(update: int, *signals: int) -> Callable[[int, Any], None]:
    """Return a function that sends signals to its own process after the given update."""

    def send(steps: int, pool: Any) -> None:
        if steps == update:
            for signum in signals:
                os.kill(os.getpid(), signum)

    return send


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.ckpt"))


def test_a_killed_and_preempted_run_reaches_the_weights_of_a_run_without_interruption(tmp_path: Path) -> None:
    np.random.seed(4)
    expected, whole = train(tmp_path / "whole", UPDATES)
    folder = tmp_path / "run"
    np.random.seed(4)
    # This process is killed before it saves a checkpoint, so only the first one, for 0 steps, is left.
    assert status_of(lambda: train(folder, UPDATES, after_update=send_at(2, signal.SIGKILL))) == -signal.SIGKILL
    assert status_of(lambda: train(folder, UPDATES, after_update=send_at(3, signal.SIGTERM))) == PREEMPTED
    assert status_of(lambda: train(folder, UPDATES, after_update=send_at(7, signal.SIGUSR1))) == PREEMPTED
    assert status_of(lambda: train(folder, UPDATES, after_update=send_at(9, signal.SIGKILL))) == -signal.SIGKILL
    assert checkpoints(folder) == [f"step-{steps:012}.ckpt" for steps in (0, 3, 7)]
    found, statistics = train(folder, UPDATES)
    assert digest(found) == digest(expected)
    assert statistics.env_steps == whole.env_steps == UPDATES * NUM_ENVS * LENGTH
    assert (statistics.rollouts, statistics.episodes) == (whole.rollouts, whole.episodes)


def kill_a_worker_at(update: int, then: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
    def kill(steps: int, pool: Any) -> None:
        if steps == update:
            os.kill(pid_of(pool, 1), signal.SIGKILL)
        then(steps, pool)

    return kill


WAYS: dict[str, dict[str, Any]] = {
    "two workers": {},
    "step_threads": {"workers": WorkerOptions(step_threads=2)},
    "a dead worker": {"workers": WorkerOptions(restart=RestartPolicy(backoff_s=0.01))},
}


@pytest.mark.more
@pytest.mark.parametrize("way", WAYS)
def test_runs_of_every_kind_continue_bitwise(way: str, tmp_path: Path) -> None:
    def run(folder: str, then: Callable[[int, Any], None]) -> Any:
        np.random.seed(4)
        after_update = kill_a_worker_at(2, then) if way == "a dead worker" else then
        return train(tmp_path / folder, UPDATES, num_workers=2, after_update=after_update, **WAYS[way])

    expected, whole = run("whole", lambda steps, pool: None)
    with pytest.raises(SystemExit):
        run("run", send_at(4, signal.SIGTERM))
    found, statistics = run("run", lambda steps, pool: None)
    assert (digest(found), statistics.env_steps) == (digest(expected), whole.env_steps)
    assert statistics.worker_restarts == whole.worker_restarts == (way == "a dead worker")


@pytest.mark.more
def test_step_workers_have_no_states_and_counts_are_exact(tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_workers": 1, "workers": WorkerOptions(step_workers=2)}
    with pytest.raises(SystemExit):
        train(tmp_path, UPDATES, after_update=send_at(4, signal.SIGTERM), **options)
    _, statistics = train(tmp_path, UPDATES, **options)
    assert (statistics.rollouts, statistics.env_steps) == (UPDATES, UPDATES * NUM_ENVS * LENGTH)


@pytest.mark.more
def test_whole_episodes_of_an_asynchronous_run_are_counted_once(tmp_path: Path) -> None:
    steps, options = list[int](), {"mode": "async", "rollout_length": "episode", "num_workers": 2}

    def run(last: int) -> Any:
        with pool_of(lean, **options) as pool, resumable(tmp_path, pool=pool) as run:
            for rollout in pool.rollouts(Stop(episodes=9)):
                assert len(rollout.episodes.finished) == 1
                steps.append(rollout.num_steps)
                send_at(last, signal.SIGTERM)(run.steps + 1, pool)
                run.step()
            return pool.statistics()

    with pytest.raises(SystemExit):
        run(4)
    statistics = run(99)
    assert (len(steps), statistics.episodes, statistics.env_steps) == (9, 9, sum(steps))


GRADIENTS = [
    (0, 8),
    pytest.param(2, 8, marks=pytest.mark.more),
    pytest.param(2, "episode", marks=pytest.mark.more),
]


@pytest.mark.parametrize(("num_workers", "rollout_length"), GRADIENTS)
def test_gradients_continue_bitwise(num_workers: int, rollout_length: Any, tmp_path: Path) -> None:
    def loss_of(policy: Any, rollout: Any) -> Any:
        _, log_prob = policy.module.act(rollout.observations, rollout.actions)
        return -(log_prob * rollout.rewards).mean() * (1 + 0.1 * torch.rand(()))

    def run(folder: str, last: int) -> tuple[list[int], str]:
        torch.manual_seed(1)
        agent, seen = Agent(), list[int]()
        optimizer, policy = torch.optim.Adam(agent.parameters()), TorchPolicy(agent, "act", ("actions", "log_prob"))
        options: dict[str, Any] = {"parallelism": "gradient", "loss_fn": loss_of, "num_workers": num_workers}
        options["rollout_length"] = rollout_length
        with (
            pool_of(policy, **options) as pool,
            resumable(tmp_path / folder, pool=pool, state={"agent": agent, "optimizer": optimizer}) as run,
        ):
            for gradient in pool.gradients(Stop(env_steps=96)):
                gradient.assign_to(agent)
                optimizer.step()
                pool.publish(agent)
                seen.append(gradient.num_samples)
                send_at(last, signal.SIGUSR1)(run.steps + 1, pool)
                run.step()
        return seen, digest(agent.state_dict())

    seen, expected = run("whole", 99)
    with pytest.raises(SystemExit):
        run("run", 2)
    assert run("run", 99) == (seen[2:], expected)


@pytest.mark.more
@pytest.mark.parametrize("num_workers", [0, 2])
def test_named_policies_and_frozen_versions_continue_bitwise(num_workers: int, tmp_path: Path) -> None:
    def run(folder: str, last: int) -> tuple[list[Any], list[str]]:
        torch.manual_seed(1)
        seen: list[Any] = []
        with (
            named_pool(
                4, hen=scorer(7.0), fox=act, policy_of=opponents, num_workers=num_workers, mode="sync", seed=3,
                rollout_length=6,
            ) as pool,
            resumable(tmp_path / folder, pool=pool) as run,
        ):  # fmt: skip
            for rollout in pool.rollouts(Stop(env_steps=24 * 9)):
                hens = rollout["hen"]
                seen.append((hens.policy_version, hens.observations.tobytes(), hens.extras["weight"].tobytes()))
                if run.steps == 2:
                    pool.publish({"hen": scorer(2.0)}, past=[pool.freeze("hen")])
                elif run.steps % 2:
                    pool.publish({"hen": scorer(float(run.steps))})
                send_at(last, signal.SIGTERM)(run.steps + 1, pool)
                run.step()
            return seen, [*pool.statistics().frozen_policies, *run.missing]

    expected, frozen = run("whole", 99)
    with pytest.raises(SystemExit):
        run("run", 5)
    assert frozen == ["hen@1"]
    assert run("run", 99) == (expected[5:], frozen)


def start(folder: Path, every_s: float, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    arguments = [str(folder), "400", "2", str(every_s)]
    command = [sys.executable, cartpole_training.__file__, *arguments]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, start_new_session=True)


def weights_of(running: subprocess.Popen[str]) -> str:
    output, _ = running.communicate(timeout=LATE_S)
    assert running.returncode == 0
    return output.splitlines()[-1]


@pytest.mark.more
@pytest.mark.timeout(900)
def test_a_run_that_is_killed_twenty_times_reaches_the_weights_of_a_run_without_interruption(tmp_path: Path) -> None:
    expected, draw = weights_of(start(tmp_path / "whole", 600.0)), random.Random(5)
    for life in range(20):
        # Every fourth process is killed before, during or soon after the restoration of the run.
        updates, delay_s = (
            (0, draw.uniform(0.5, 2.0)) if life % 4 == 3 else (draw.randint(1, 30), draw.uniform(0, 0.02))
        )
        signum = draw.choice([signal.SIGTERM, signal.SIGKILL]) if updates else signal.SIGKILL
        with start(tmp_path / "run", draw.choice([1e-9, 0.05, 600.0]), subprocess.PIPE) as running:
            assert running.stdin is not None
            assert running.stdout is not None
            # On a busy machine, the run could otherwise end before the signal arrives. It takes a few updates more.
            running.stdin.write("." * (updates + 3))
            running.stdin.flush()
            for _ in range(updates):
                assert running.stdout.readline().startswith("update ")
            time.sleep(delay_s)
            os.killpg(running.pid, signum)
            ended = running.communicate(timeout=LATE_S)[0].splitlines()
        assert "weights" not in "".join(ended)
        assert running.returncode == (PREEMPTED if signum == signal.SIGTERM else -signal.SIGKILL)
    assert checkpoints(tmp_path / "run")[-1] > "step-000000000050.ckpt"
    assert weights_of(start(tmp_path / "run", 600.0)) == expected


@pytest.mark.more
def test_a_signal_to_all_processes_leads_to_a_requeue_and_loses_no_checkpoint(tmp_path: Path) -> None:
    def signal_all_at(update: int) -> Callable[[int, Any], None]:
        def send(steps: int, pool: Any) -> None:
            if steps == update:
                workers = [pid_of(pool, worker) for worker in range(2)]
                for pid in (os.getpid(), *workers):
                    os.kill(pid, signal.SIGTERM)

        return send

    np.random.seed(4)
    options: dict[str, Any] = {"num_workers": 2, "workers": WorkerOptions(restart=None)}
    expected, _ = train(tmp_path / "whole", UPDATES, **options)
    for update in (2, 5):
        np.random.seed(4)
        with pytest.raises(SystemExit) as left:
            train(tmp_path / "run", UPDATES, every_s=1e-9, after_update=signal_all_at(update), **options)
        assert left.value.code == PREEMPTED
        assert checkpoints(tmp_path / "run")[-1] >= f"step-{update - 1:012}.ckpt"
    found, _ = train(tmp_path / "run", UPDATES, **options)
    assert digest(found) == digest(expected)


def test_worker_errors_after_a_signal_lead_to_a_normal_exit(tmp_path: Path) -> None:
    lost = [WorkerError("worker 0 is gone.", worker=0)] * 2

    def lose(error: Exception, *signals: int) -> None:
        with resumable(tmp_path):
            for signum in signals:
                os.kill(os.getpid(), signum)
            raise error

    for error in (lost[0], ExceptionGroup("two workers", lost)):
        with pytest.raises(SystemExit):
            lose(error, signal.SIGTERM)
    for error, signals in ((lost[0], ()), (ValueError(), (signal.SIGTERM,))):
        with pytest.raises(type(error)):
            lose(error, *signals)
    assert checkpoints(tmp_path) == ["step-000000000000.ckpt"]


def test_a_signal_after_the_last_step_saves_and_exits(tmp_path: Path) -> None:
    counts = {"updates": 0}
    with pytest.raises(SystemExit), resumable(tmp_path, state={"counts": counts}):
        counts["updates"] = os.kill(os.getpid(), signal.SIGUSR1) or 3
    counts.clear()
    with resumable(tmp_path, state={"counts": counts}):
        assert counts == {"updates": 3}


def test_a_finished_run_ends_at_once_and_continues_with_a_later_stop(tmp_path: Path) -> None:
    def steps_until(updates: int) -> int:
        seen: list[int] = []
        train(tmp_path, updates, after_update=lambda steps, pool: seen.append(steps))
        return len(seen)

    assert [steps_until(3), steps_until(3), steps_until(5)] == [3, 0, 2]


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.more), "async"])
def test_counts_are_exact_with_workers(mode: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_workers": 2, "mode": mode}
    with pytest.raises(SystemExit) as left:
        train(tmp_path, UPDATES, after_update=send_at(4, signal.SIGTERM), **options)
    assert left.value.code == PREEMPTED
    seen: list[int] = []
    _, statistics = train(tmp_path, UPDATES, after_update=lambda steps, pool: seen.append(steps), **options)
    per_rollout = LENGTH * NUM_ENVS // (1 if mode == "sync" else 2)
    assert statistics.env_steps == UPDATES * NUM_ENVS * LENGTH
    assert statistics.rollouts == statistics.env_steps // per_rollout
    assert seen == list(range(5, statistics.rollouts + 1))


def test_a_signal_during_the_wait_for_a_rollout_lets_the_wait_end(tmp_path: Path) -> None:
    main, flag = os.getpid(), tmp_path / "flag"

    def signalling() -> Any:
        env = make()
        step = env.step

        def stepped(action: Any) -> Any:
            if not flag.exists():
                flag.touch()
                os.kill(main, signal.SIGUSR1)
            return step(action)

        env.step = stepped
        return env

    rewards = []

    def loop() -> None:
        with (
            AsyncWorkerPool(signalling, zeros, num_workers=1, rollout_length=8, mode="sync", seed=1) as pool,
            resumable(tmp_path / "run", pool=pool, exit_code=3) as run,
        ):
            for rollout in pool.rollouts(Stop(env_steps=80)):
                assert flag.exists()
                rewards.append(rollout.rewards.sum())
                run.step()

    with pytest.raises(SystemExit) as left:
        loop()
    assert (left.value.code, rewards) == (3, [8])


def test_handlers_are_put_back_and_a_second_sigterm_has_its_former_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []
    former = signal.signal(signal.SIGTERM, lambda signum, frame: heard.append(signum))
    try:
        mine = [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1)]
        twice_sigterm = (signal.SIGTERM, signal.SIGUSR1, int(signal.SIGTERM))
        with contextlib.suppress(SystemExit), resumable(tmp_path, signals=twice_sigterm) as run:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # A scheduler may send SIGTERM to the group as well.
            assert heard == []
            monkeypatch.setattr(noted_signals, "DUPLICATE_S", 0.0)
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard == [signal.SIGTERM]
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard == [signal.SIGTERM] * 2
            run.step()
        assert [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1)] == mine
    finally:
        signal.signal(signal.SIGTERM, former)
    assert status_of(lambda: twice(tmp_path / "other")) == -signal.SIGTERM


def twice(folder: Path) -> None:
    noted_signals.DUPLICATE_S = 0.0
    with resumable(folder):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_forked_child_in_the_block_ends_by_sigterm(tmp_path: Path) -> None:
    with resumable(tmp_path) as run:
        assert status_of(lambda: os.kill(os.getpid(), signal.SIGTERM)) == -signal.SIGTERM
        run.step()
    assert checkpoints(tmp_path)[-1] == "step-000000000001.ckpt"


def test_a_pool_of_two_runs_is_refused(tmp_path: Path) -> None:
    with pool_of() as pool, resumable(tmp_path / "one", pool=pool) as run:
        with pytest.raises(ConfigurationError, match="pool must belong to one run at a time, got the pool of another"):
            resumable(tmp_path / "other", pool=pool).__enter__()
        run.step()


def test_only_the_main_thread_receives_signals(tmp_path: Path) -> None:
    raised: list[BaseException] = []

    def enter(**options: Any) -> None:
        try:
            with resumable(tmp_path, **options) as run:
                run.step()
        except BaseException as error:
            raised.append(error)

    for options in ({}, {"signals": ()}):
        thread = threading.Thread(target=enter, kwargs=options, name="learner")
        thread.start()
        thread.join()
    (error,) = raised
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith("resumable must be entered in the main thread, which receives all signals, got learn")
    assert checkpoints(tmp_path)[-1] == "step-000000000001.ckpt"


def test_a_second_run_in_one_folder_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with (
        resumable(tmp_path),
        pytest.raises(ConfigurationError, match=rf"is used by another run, pid {os.getpid()} on .*\. Wait for the end"),
        resumable(tmp_path),
    ):
        pass
    with resumable(tmp_path):
        assert status_of(lambda: resumable(tmp_path).__enter__()) == 1


def test_a_forked_child_neither_keeps_nor_frees_the_folder(tmp_path: Path) -> None:
    reader, writer = os.pipe()

    def outlive() -> None:
        resumable(tmp_path).__enter__()
        if not os.fork():
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    assert status_of(outlive) == -signal.SIGKILL
    run = resumable(tmp_path)
    with run:
        assert status_of(lambda: run.__exit__(None, None, None)) == 0
        assert status_of(run.step) == 1
        assert status_of(lambda: resumable(tmp_path).__enter__()) == 1
    assert checkpoints(tmp_path) == ["step-000000000000.ckpt"]
    os.close(writer)
    os.close(reader)


def test_a_damaged_checkpoint_is_skipped_and_kept_beside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    counts = {"updates": 0}
    with resumable(tmp_path, state={"counts": counts}, every_s=1e-9, keep=2) as run:
        for counts["updates"] in (1, 2, 3):
            run.step()
    assert checkpoints(tmp_path) == ["step-000000000002.ckpt", "step-000000000003.ckpt"]
    newest = tmp_path / "step-000000000003.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1])
    (tmp_path / ".step-000000000004.ckpt.0123456789abcdef").write_bytes(b"cut off")
    with caplog.at_level("WARNING", logger="parenv"), resumable(tmp_path, state={"counts": counts}) as run:
        assert (run.steps, counts) == (2, {"updates": 2})
    assert "the run continues from step-000000000002.ckpt, because" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lock", "step-000000000002.ckpt", "step-000000000003.ckpt.damaged"
    ]  # fmt: skip
    (tmp_path / "step-000000000002.ckpt").write_bytes(b"")
    for _ in range(2):
        with (
            pytest.raises(ConfigurationError, match=r"none of the 1 checkpoints in .* Move the folder away to begin"),
            resumable(tmp_path, state={"counts": counts}),
        ):
            pass


def test_all_random_states_are_restored(tmp_path: Path) -> None:
    own = {"numpy": np.random.default_rng(1), "python": random.Random(1), "torch": torch.Generator().manual_seed(1)}
    own["legacy"] = np.random.RandomState(1)  # type: ignore[assignment]

    def drawn() -> list[float]:
        mine = [own["numpy"].random(), own["python"].random(), torch.rand((), generator=own["torch"]).item()]  # type: ignore[union-attr, call-overload]
        mine.append(own["legacy"].rand())  # type: ignore[union-attr]
        return [*mine, random.random(), np.random.rand(), torch.rand(()).item()]

    drawn()
    with resumable(tmp_path, state=own):
        pass
    expected = drawn()
    assert drawn() != expected
    with resumable(tmp_path, state=own):
        assert drawn() == expected


class Numbers(Policy):
    """Policy without a module, whose state is one number."""

    def __init__(self) -> None:
        self.number = 0

    def act(self, observations: Any, carry: Any) -> Action:
        return Action(np.full(len(observations), self.number % 2), {"number": np.full(len(observations), self.number)})

    def state_dict(self) -> Any:
        return {"number": self.number}

    def load_state_dict(self, state: Any) -> None:
        self.number = state["number"]


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.more)])
def test_a_policy_without_a_module_is_restored_from_the_state_or_named(num_workers: int, tmp_path: Path) -> None:
    policy = Numbers()
    with pool_of(policy, num_workers=num_workers) as pool, resumable(tmp_path, pool=pool, state={"p": policy}) as run:
        policy.number = 5
        pool.publish(policy)
        next(pool.rollouts())
        run.step()
    policy = Numbers()
    with pool_of(policy, num_workers=num_workers) as pool, resumable(tmp_path, pool=pool, state={"p": policy}) as run:
        rollout = next(pool.rollouts())
        assert (rollout.policy_version, set(rollout.extras["number"].flat), run.missing) == (1, {5}, [])
    other = tmp_path / "other"
    for missing in (0, 1):
        with pool_of(Numbers(), num_workers=num_workers) as pool, resumable(other, pool=pool) as run:
            assert len(run.missing) == missing
            pool.publish(Numbers())
    assert run.missing[0].startswith("the published version of the policy, which has no torch module. Put the policy i")


def test_the_weights_that_act_are_restored_and_not_those_that_learn(tmp_path: Path) -> None:
    class Greedy(Agent):
        def forward(self, observations: Any) -> Any:
            return self.logits(observations).argmax(-1)

    agent = Greedy()
    with pool_of(agent) as pool, resumable(tmp_path, pool=pool, state={"agent": agent}) as run:
        stream = pool.rollouts()
        next(stream)
        acting = agent.logits[2].bias.detach().clone()
        with torch.no_grad():
            agent.logits[2].bias += 5.0
        run.step()
    again = Greedy()
    with pool_of(again) as pool, resumable(tmp_path, pool=pool, state={"agent": again}):
        assert torch.equal(again.logits[2].bias, agent.logits[2].bias)
        weights = pool._session.versions.weights_of(pool._session.versions.newest)
        assert torch.equal(weights["logits.2.bias"], acting)


def test_each_stream_of_the_run_continues_its_own_counts(tmp_path: Path) -> None:
    def phases(last: int) -> list[int]:
        counts = [0, 0]
        with pool_of() as pool, resumable(tmp_path, pool=pool) as run, contextlib.suppress(KeyboardInterrupt):
            next(pool.rollouts())  # This stream has no stop criterion, so it is not counted.
            for phase, env_steps in enumerate((48, 96)):
                for _ in pool.rollouts(Stop(env_steps=env_steps)):
                    counts[phase] += 1
                    run.step()
                    if run.steps == last:
                        raise KeyboardInterrupt
        return counts

    assert phases(last=5) == [3, 2]
    assert phases(last=99) == [0, 4]
    assert phases(last=99) == [0, 0]


def test_all_criteria_count_on() -> None:
    log = StreamLog()
    counts = log.begin(Stop(episodes=3))
    counts.env_steps, counts.episodes, counts.mean_return, counts.seconds, counts.evaluation_return = (
        7,
        2,
        4.5,
        9.0,
        8.0,
    )
    counts.returns.extend([4.0, 5.0])
    again = StreamLog(map(StreamCounts.from_state, log.state()))
    assert again.state() == log.state()
    again.begin(Stop(window=5))
    assert again.begin(Stop(episodes=3)) == counts
    assert again.begin(Stop(episodes=3)).env_steps == 0
    for stop in (Stop(env_steps=7), Stop(mean_return=4), Stop(seconds=9), Stop(evaluation_return=8)):
        assert counts.meet(stop)
    assert not counts.meet(Stop(env_steps=8, episodes=3, mean_return=5, seconds=10, evaluation_return=9))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"state": {"agent": 3}}, r"state\['agent'\] must have state_dict\(\) and load_state_dict\(\), got 3\."),
    ({"state": {3: {}}}, "state must have strings as keys, got 3"),
    ({"state": [1]}, r"state must be a dict such as .*, got \[1\]"),
    ({"pool": "CartPole-v1"}, "pool must be an AsyncWorkerPool, got 'CartPole-v1'"),
    ({"every_s": 0}, "every_s must be positive seconds, got 0"),
    ({"keep": 0}, "keep must be an integer of at least 1, got 0"),
    ({"exit_code": 0}, "exit_code must be an integer of at least 1, got 0"),
    ({"exit_code": 256}, "exit_code must be at most 255, got 256"),
    ({"signals": (signal.SIGKILL,)}, "signals must contain signals that can be handled, got SIGKILL"),
    ({"signals": (999,)}, "signals must contain signal numbers, got 999"),
    ({"signals": ("SIGTERM",)}, "signals must contain signal numbers, got 'SIGTERM'"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[words[:30] for _, words in BAD])
def test_a_wrong_argument_is_refused_and_no_folder_is_made(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=words):
        resumable(tmp_path / "run", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_pool_that_cannot_continue_is_refused(tmp_path: Path) -> None:
    with (
        pool_of(mode="async", record=tmp_path / "run.journal") as pool,
        pytest.raises(ConfigurationError, match=r"pool must not record or replay the run, .* Leave out record="),
    ):
        resumable(tmp_path, pool=pool)
    with pool_of(seed=None) as pool:
        with pytest.raises(ConfigurationError, match=r"pool must have a seed, .* got seed=None\. Pass AsyncWorkerPool"):
            resumable(tmp_path, pool=pool)
        with pytest.raises(ConfigurationError, match=r"state\['pool'\] must not be a pool\. Pass it as pool=\."):
            resumable(tmp_path, state={"pool": pool})


def test_several_learners_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigurationError, match="resumable must be used with one learner, got 2 learners"):
        resumable(tmp_path)


def test_a_run_of_another_kind_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    agent = Agent()
    with pool_of() as pool, resumable(tmp_path, pool=pool, state={"agent": agent}):
        pass
    both = {"one": {"updates": 1}, "other": {"updates": 2}}
    with resumable(tmp_path / "both", state=both):
        pass
    with resumable(tmp_path / "both", state=dict(reversed(both.items()))):
        assert both["one"] == {"updates": 1}
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.ckpt")}
    with pytest.raises(ConfigurationError, match=r"must have the names of the run in .*, \['agent'\], got \['other'\]"):
        resumable(tmp_path, state={"other": agent}).__enter__()
    with pytest.raises(ConfigurationError, match=r"was saved with a pool\. Pass the same pool= as then"):
        resumable(tmp_path, state={"agent": agent}).__enter__()
    with pool_of(seed=4) as pool, pytest.raises(ConfigurationError, match="seed must be 3"):
        resumable(tmp_path, pool=pool, state={"agent": agent}).__enter__()
    with pool_of() as pool, pytest.raises(RuntimeError, match="Missing key"):
        resumable(tmp_path, pool=pool, state={"agent": torch.nn.Linear(2, 2)}).__enter__()
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.ckpt")} == before
    with pool_of() as pool, resumable(tmp_path, pool=pool, state={"agent": agent}) as run:
        assert repr(run) == f"ResumableRun(folder='{tmp_path}', steps=0, missing=0)"


def test_a_folder_that_cannot_be_used_and_data_that_is_not_plain_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"the folder .*file cannot be used: .*\. Choose another folder"):
        resumable(tmp_path / "file").__enter__()
    with pytest.raises(NotDataError, match=r"value\['state'\]\['values'\]\['f'\]"):
        resumable(tmp_path / "run", state={"values": {"f": lean}}).__enter__()
    assert checkpoints(tmp_path / "run") == []
    with resumable(tmp_path / "run") as run:
        pass
    with pytest.raises(ConfigurationError, match=r"run\.step\(\) must be called inside"):
        run.step()


def test_an_exception_saves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with resumable(tmp_path) as run:
            run.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert checkpoints(tmp_path) == ["step-000000000000.ckpt"]
    assert load_checkpoint(tmp_path / "step-000000000000.ckpt")["steps"] == 0


SCHEDULES: list[Callable[[Any], Any]] = [
    lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]),
    lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=20),
    lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)],
        [3],
    ),
]


@pytest.mark.parametrize("schedule_of", SCHEDULES)
def test_schedules_of_torch_continue(schedule_of: Callable[[Any], Any], tmp_path: Path) -> None:
    def rates(last: int) -> list[float]:
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.Adam([weight])
        schedule, seen = schedule_of(optimizer), []
        with resumable(tmp_path / str(last), state={"optimizer": optimizer, "schedule": schedule}) as run:
            while run.steps < last:
                weight.grad = torch.ones(3)
                optimizer.step()
                schedule.step()
                seen.append(optimizer.param_groups[0]["lr"])
                run.step()
        return seen

    whole = rates(8)
    rates(4)
    (tmp_path / "4").rename(tmp_path / "8 again")
    (tmp_path / "8").rename(tmp_path / "8 before")
    (tmp_path / "8 again").rename(tmp_path / "8")
    assert rates(8) == whole[4:]
