"""Check that results of ``parenv.evaluate`` do not depend on the number of workers, on deaths and on resumptions."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import envs
import gymnasium as gym
import numpy as np
import pytest
import torch
from envs import Drawn
from policies import Counter, lean, zeros

import parenv
from parenv import Action, ConfigurationError, Policy, WorkerDiedError, WorkerOptions
from parenv.cli.main import main
from parenv.envs.seeding import task_episode_seed
from parenv.evaluation import EvaluatedEpisode


class Agent(torch.nn.Module):
    """Network whose actions depend on all bits of its observations."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))

    def forward(self, observations: Any) -> Any:
        return self.layers(observations).argmax(-1)


def of_index(task: str, index: int) -> dict[str, Any]:
    return {"index": index}


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the episodes of a file, sorted by task and index, without their durations."""
    _, *lines = map(json.loads, path.read_text().splitlines())
    return sorted(({**line, "seconds": 0} for line in lines), key=lambda line: (line["task"], line["index"]))


def evaluated(out: Path, tasks: Any = None, policy: Any = None, **more: Any) -> list[dict[str, Any]]:
    """Evaluate a policy and return the episodes of the file. Check that the report has the same episodes."""
    tasks = {"one": Drawn, "two": Drawn} if tasks is None else tasks
    given = {"episodes": 12, "num_workers": 2, "num_envs": 3, "options": of_index, "infos": ("index",), **more}
    report = parenv.evaluate(policy or Agent(), tasks, out=out, **given)
    lines = lines_of(out)
    assert {EvaluatedEpisode.of_line(line).seed for line in lines} == {one.seed for one in report.episodes}
    return lines


def test_results_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    runs = [evaluated(tmp_path / f"{n}.jsonl", num_workers=n) for n in (0, 1, 3)]
    assert runs[0] == runs[1] == runs[2]
    assert len(runs[0]) == 24
    assert len({line["seed"] for line in runs[0]}) == 24
    assert len({line["return"] for line in runs[0]}) == 24
    assert {line["ended_by"] for line in runs[0]} == {"terminated"}
    assert {line["success"] for line in runs[0]} == {True, False}
    assert all(line["infos"] == {"index": line["index"]} for line in runs[0])
    assert runs[0][0]["seed"] == task_episode_seed(0, "one", 0)


def test_results_equal_those_of_a_plain_loop(tmp_path: Path) -> None:
    agent = Agent()
    for line in evaluated(tmp_path / "results.jsonl", num_workers=0, episodes=4, policy=agent):
        env = Drawn()
        observation, _ = env.reset(seed=line["seed"])
        total, is_over = 0.0, False
        while not is_over:
            action = int(agent(torch.from_numpy(observation)[None])[0])
            observation, reward, is_over, _, _ = env.step(action)
            total += reward
        assert (line["return"], line["length"]) == (total, env.steps)


def test_a_pool_shows_the_figures_of_parenv_evaluate_for_episodes_that_are_equal() -> None:
    make = partial(envs.Plain, length=5, reward=2.0)
    with parenv.AsyncWorkerPool(make, zeros, num_envs=2, num_workers=0) as pool:
        of_pool = pool.evaluate(8).figures.cells()
    report = parenv.evaluate(zeros, {"plain": make}, episodes=8, num_workers=0)
    assert {**report.tasks["plain"].cells(), "seconds": ""} == {**of_pool, "seconds": ""}
    assert of_pool["mean return [95 %]"] == "10.00 [10.00, 10.00]"


FAULTS = {"kill": envs.kill_oneself, "raise": envs.fail, "exit": envs.sys_exit, "segfault": envs.segfault}


@pytest.mark.usefixtures("warnings_are_expected")
@pytest.mark.parametrize(
    "fault", ["kill", "raise", *(pytest.param(one, marks=pytest.mark.more) for one in ("exit", "segfault"))]
)
def test_a_lost_episode_is_played_again_with_the_same_result(fault: str, tmp_path: Path) -> None:
    undisturbed = evaluated(tmp_path / "undisturbed.jsonl", num_workers=0)
    flags = tmp_path / "flags"
    flags.mkdir()
    hook = partial(envs.when, partial(envs.at_step, 2), FAULTS[fault], flags)
    disturbed = evaluated(tmp_path / "disturbed.jsonl", {"one": partial(Drawn, hook), "two": Drawn})
    assert disturbed == undisturbed
    assert len(list(flags.iterdir())) == 12


@pytest.mark.usefixtures("warnings_are_expected")
@pytest.mark.parametrize(
    ("fault", "ended_by"),
    [
        pytest.param("kill", "worker_died", marks=pytest.mark.more),
        ("raise", "environment_error"),
        pytest.param("hang", "step_timeout", marks=pytest.mark.more),
    ],
)
def test_an_episode_that_is_always_lost_is_recorded_and_affects_no_other(
    fault: str, ended_by: str, tmp_path: Path
) -> None:
    undisturbed = evaluated(tmp_path / "undisturbed.jsonl", num_workers=0)
    hook = partial(envs.when, partial(envs.of_index, 5), {**FAULTS, "hang": envs.sleep_long}[fault], None)
    tasks = {"one": partial(Drawn, hook), "two": Drawn}
    workers = WorkerOptions(step_timeout_s=3.0) if fault == "hang" else None
    disturbed = evaluated(tmp_path / "disturbed.jsonl", tasks, workers=workers, retries=1)
    (lost,) = [line for line in disturbed if line not in undisturbed]
    assert (lost["task"], lost["index"], lost["ended_by"], lost["return"]) == ("one", 5, ended_by, None)
    assert lost["success"] is None
    if fault == "raise":
        assert lost["error"] == "ValueError: the simulator is not there"
    report = parenv.evaluation.EvaluationReport.load(tmp_path / "disturbed.jsonl")
    assert report.tasks["one"].failures == {ended_by: 1}
    assert report.tasks["one"].episodes == 11
    assert f"lost episodes of one: {ended_by} 1" in str(report)


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_a_worker_that_may_not_be_restarted_ends_the_evaluation_and_keeps_the_file(tmp_path: Path) -> None:
    # Episode 11 begins in the row of 2, 5 and 8, of which two begin at once. So two have been written when it begins.
    hook = partial(envs.when, partial(envs.of_index, 11), envs.kill_oneself, None)
    with pytest.raises(WorkerDiedError):
        evaluated(tmp_path / "results.jsonl", {"one": partial(Drawn, hook)}, workers=WorkerOptions(restart=None))
    assert len(lines_of(tmp_path / "results.jsonl")) >= 2


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_a_death_while_the_policy_acts_counts_against_all_its_episodes(tmp_path: Path) -> None:
    lines = evaluated(tmp_path / "results.jsonl", {"one": Drawn}, Deadly(), num_workers=1, episodes=4, retries=1)
    assert [line["ended_by"] for line in lines] == ["worker_died"] * 4


class Deadly(Policy):
    """Policy that kills its process."""

    def act(self, observations: Any, carry: Any) -> Action:
        envs.kill_oneself()
        raise AssertionError


def test_a_resumed_evaluation_plays_only_what_is_missing(tmp_path: Path) -> None:
    whole = evaluated(tmp_path / "whole.jsonl", num_workers=0)
    text = (tmp_path / "whole.jsonl").read_bytes()
    out = tmp_path / "cut.jsonl"
    for size in (len(text) // 2, len(text) - 1, 20, 0, len(text)):
        out.write_bytes(text[:size])
        played = evaluated(out, {"one": Drawn, "two": Drawn}, num_workers=0, resume=True)
        assert played == whole
        kept = text[: text[:size].rfind(b"\n") + 1]
        assert out.read_bytes().startswith(kept)
        assert len(out.read_bytes().splitlines()) == 25


def test_more_episodes_can_be_added_to_a_file(tmp_path: Path) -> None:
    whole = evaluated(tmp_path / "whole.jsonl", num_workers=0)
    evaluated(tmp_path / "grown.jsonl", num_workers=0, episodes=3)
    first = (tmp_path / "grown.jsonl").read_text()
    assert evaluated(tmp_path / "grown.jsonl", num_workers=0, resume=True) == whole
    assert (tmp_path / "grown.jsonl").read_text().startswith(first)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"policy": lambda observations: np.zeros(len(observations), np.int64)}, "policy"),
        ({"tasks": {"one": Drawn, "two": partial(Drawn, longest=5)}}, r"tasks\['two'\]"),
        ({"tasks": {"one": Drawn}}, r"tasks\['two'\]"),
        ({"seed": 1}, r"seed \(0 there\)"),
        ({"max_episode_steps": 3}, "max_episode_steps"),
        ({"infos": ()}, "infos"),
        ({"success": lambda episode: True}, "success"),
    ],
)
def test_a_file_of_another_evaluation_is_refused(other: Any, named: str, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    evaluated(out, num_workers=0, episodes=1)
    before = out.read_bytes()
    with pytest.raises(ConfigurationError, match=f"contains another evaluation, which differs in {named}"):
        evaluated(out, num_workers=0, resume=True, **other)
    assert out.read_bytes() == before


def test_an_existing_file_is_not_touched_without_resume(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    out.write_text("my notes\n")
    with pytest.raises(ConfigurationError, match=r"exists already. Pass resume=True"):
        evaluated(out)
    with pytest.raises(ConfigurationError, match=r"is not a file of parenv.evaluate in format 1"):
        evaluated(out, resume=True)
    assert out.read_text() == "my notes\n"


def test_errors_of_environments_and_policies_name_the_task(tmp_path: Path) -> None:
    cases: list[tuple[Any, Any, type[Exception], str]] = [
        (envs.fail, None, ValueError, r"^task 'two': the simulator is not there"),
        (partial(Drawn, None, envs.fail), None, ValueError, r"^task 'two': the simulator is not there"),
        ("MountainCar-v0", None, ConfigurationError, r"^the policy does not fit task 'two' with the observation space"),
        (
            int,
            None,
            ConfigurationError,
            r"^task 'two': env_fn must make gymnasium.Env objects, got for env_id \d a builtins.int",
        ),
        (Drawn, lambda observations: observations, ConfigurationError, r"^the policy does not fit task"),
        (
            Drawn,
            Twos(),
            ConfigurationError,
            r"^the policy does not fit task .* in Discrete\(2\), got (np.int64\(2\)|2$)",
        ),
    ]
    for number, (task, policy, kind, message) in enumerate(cases):
        for num_workers in (0, 1):
            with pytest.raises(kind, match=message):
                evaluated(
                    tmp_path / f"{number}-{num_workers}", {"one": Drawn, "two": task}, policy, num_workers=num_workers
                )


class Rewarded(Drawn):
    """Environment with this reward and this flag."""

    def __init__(self, reward: Any, terminated: Any = False) -> None:
        super().__init__()
        self._returned = reward, terminated

    def step(self, action: Any) -> Any:
        return super().step(action)[0], *self._returned, False, {}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (([1.0, 2.0],), "the reward of env_id 0 must be a number, got a sequence"),
        ((None,), "the reward of env_id 0 must be a number, got None"),
        ((0.0, [False]), "terminated of env_id 0 must be a boolean, got [False]"),
    ],
    ids=["sequence", "none", "flag"],
)
def test_a_wrong_reward_or_flag_is_named_in_the_warning_about_a_lost_episode(
    returned: Any, message: str, num_workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = partial(Rewarded, *returned)
    evaluated(tmp_path / "out", {"one": task}, num_workers=num_workers, num_envs=1, episodes=1)
    assert message in caplog.text


class Twos(Policy):
    """Policy that always returns action 2, which ``Discrete(2)`` does not contain."""

    def act(self, observations: Any, carry: Any) -> Action:
        return Action(np.full(len(observations), 2))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tasks": {}}, "tasks must have at least one task"),
    ({"tasks": ["CartPole-v1", "CartPole-v1"]}, "name of a task must be unique, got 'CartPole-v1' twice"),
    ({"tasks": [Drawn]}, "Give each factory a name"),
    ({"tasks": {1: Drawn}}, "the name of a task must be a non-empty string, got 1"),
    ({"tasks": {"one": lambda number: number}}, "^task 'one': env_fn must be callable without arguments"),
    ({"tasks": {"one": [Drawn]}}, "^task 'one': a factory must not be a sequence"),
    ({"tasks": "Nothing-v7"}, "^task 'Nothing-v7': the environment 'Nothing-v7' must be registered"),
    ({"episodes": 0}, "episodes must be an integer of at least 1"),
    ({"num_workers": -1}, "num_workers must be an integer of at least 0"),
    ({"num_envs": 0}, "num_envs must be an integer of at least 1"),
    ({"retries": -1}, "retries must be"),
    ({"seed": -1}, "seed must be"),
    ({"max_episode_steps": 0}, "max_episode_steps must be"),
    ({"videos": 1, "out": None}, "videos=1 needs out="),
    ({"infos": (1,)}, "infos must be names of infos, got 1"),
    ({"options": 1}, "options must be callable"),
    ({"policy": {"a": Agent}}, "policy must be one policy, got a mapping of 'a'"),
    ({"policy": 7}, "policy must be a Policy"),
    ({"policy": "nothing.onnx"}, "policy='nothing.onnx' must be a policy or an existing file. Correct the path"),
    ({"policy": __file__}, r"must be a file of parenv.export \(.onnx\)"),
    ({"policy": Drawn, "checkpoint": "best.ckpt"}, "needs a policy with a torch module"),
    ({"policy": Agent(), "checkpoint": "nothing.ckpt"}, "must be an existing file of SaveBest. Correct the path"),
    ({"workers": WorkerOptions(on_env_error="restart_env")}, "on_env_error needs a pool"),
    ({"workers": WorkerOptions(step_workers=2)}, "num_workers=1 must be left out with step_workers=2"),
    ({"workers": WorkerOptions(step_threads=2)}, "step_threads needs a pool"),
    ({"workers": WorkerOptions(python="/usr/bin/python3")}, "must be named"),
    ({"workers": {"threads": 2}}, "workers must be WorkerOptions"),
    ({"out": "/proc/results.jsonl"}, "cannot be written"),
    ({"out": "/dev/null/results.jsonl"}, "cannot be made"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD)
def test_bad_input_is_refused_before_anything_starts(wrong: dict[str, Any], message: str, tmp_path: Path) -> None:
    given = {"policy": Agent(), "tasks": {"one": Drawn}, "num_workers": 1, "out": tmp_path / "results.jsonl", **wrong}
    with pytest.raises(ConfigurationError, match=message):
        parenv.evaluate(given.pop("policy"), given.pop("tasks"), **given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.more
def test_the_carry_of_a_policy_is_reset_at_the_start_of_each_episode(tmp_path: Path) -> None:
    for num_workers in (0, 2):
        out = tmp_path / f"{num_workers}.jsonl"
        lines = evaluated(out, {"one": envs.Alternating}, Parity(), num_workers=num_workers)
        assert [line["success"] for line in lines] == [True] * len(lines)


class Parity(Counter):
    """Policy whose action is 0 in even steps of an episode and 1 in odd ones."""

    def act(self, observations: Any, carry: Any) -> Action:
        return Action(carry % 2, {}, carry + 1)


@pytest.mark.more
def test_tasks_may_have_different_spaces(tmp_path: Path) -> None:
    tasks = {"drawn": Drawn, "car": "MountainCar-v0"}
    runs = [
        evaluated(tmp_path / f"{n}", tasks, by_shape, num_workers=n, max_episode_steps=20, options=None) for n in (0, 2)
    ]
    assert runs[0] == runs[1]
    assert {line["ended_by"] for line in runs[0] if line["task"] == "car"} == {"truncated"}
    assert {line["length"] for line in runs[0] if line["task"] == "car"} == {20}


def by_shape(observations: Any) -> Any:
    """Return actions for observations of either size: 0 or 2 for MountainCar, and 0 or 1 for :class:`Drawn`."""
    return (observations[:, 0] > 0).astype(np.int64) * (2 if observations.shape[1] == 2 else 1)


def test_success_can_be_a_function_or_an_info(tmp_path: Path) -> None:
    lines = evaluated(tmp_path / "1", {"one": Drawn}, num_workers=0, success=lambda episode: episode.length > 6)
    assert all(line["success"] == (line["length"] > 6) for line in lines)
    lines = evaluated(tmp_path / "2", {"one": Drawn}, num_workers=0, success="index")
    assert [line["success"] for line in lines] == [index > 0 for index in range(12)]
    lines = evaluated(tmp_path / "3", {"one": Drawn}, num_workers=0, success=(), infos=("odd", "none"))
    assert [line["success"] for line in lines] == [None] * 12
    assert lines[0]["infos"] == {"odd": None, "none": None}


@pytest.mark.more
def test_videos_show_the_worst_the_median_and_the_best_episode(tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio.v3")
    out = tmp_path / "results.jsonl"
    lines = evaluated(out, {"a/b": envs.Filmed}, videos=3, num_workers=1)
    ranked = sorted(lines, key=lambda line: line["return"])
    names = {f"a_b-{ranked[rank]['index']:04}.gif": ranked[rank]["length"] for rank in (0, 6, 11)}
    videos = {path.name: len(imageio.imread(path)) for path in (tmp_path / "results-videos").iterdir()}
    assert videos == {name: length + 1 for name, length in names.items()}
    with pytest.raises(ConfigurationError, match=r'must make an environment with render_mode="rgb_array"'):
        evaluated(tmp_path / "2.jsonl", {"one": Drawn}, videos=1, num_workers=0)


def stored(kind: str, folder: Path) -> tuple[Any, Any]:
    """Store an agent in a file. Return the path, and a policy that acts like the agent."""
    agent = Agent()
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
        found = parenv.export(agent, folder / "agent.onnx", observation_space=Drawn.observation_space)
        return found.path, agent
    model_class = pytest.importorskip("stable_baselines3").__dict__[kind]
    env = Drawn() if kind in ("PPO", "DQN") else Continuous()
    model = model_class("MlpPolicy", env, seed=0, device="cpu")
    model.save(folder / "agent.zip")
    return folder / "agent.zip", lambda observations: model.predict(observations, deterministic=True)[0]


class Continuous(Drawn):
    """Environment with a continuous action, by which the reward is multiplied."""

    action_space = gym.spaces.Box(-2, 2, (1,))

    def step(self, action: Any) -> Any:
        observation, reward, *more = super().step(0)
        return observation, reward * float(action[0]), *more


@pytest.mark.parametrize(
    "kind", ["onnx", *(pytest.param(one, marks=pytest.mark.more) for one in ("PPO", "DQN", "SAC"))]
)
def test_an_agent_from_a_file_acts_like_the_stored_agent(kind: str, tmp_path: Path) -> None:
    path, agent = stored(kind, tmp_path)
    task = {"one": Continuous if kind == "SAC" else Drawn}
    from_file = evaluated(tmp_path / "file.jsonl", task, path, num_workers=1, episodes=6)
    assert from_file == evaluated(tmp_path / "object.jsonl", task, agent, num_workers=0, episodes=6)
    assert evaluated(tmp_path / "file.jsonl", task, path, num_workers=0, episodes=6, resume=True) == from_file


def test_weights_of_a_save_best_checkpoint_are_loaded_into_the_policy(tmp_path: Path) -> None:
    trained, untrained = Agent(), Agent()
    with torch.no_grad():
        untrained.layers[2].weight.neg_()
    with parenv.AsyncWorkerPool("CartPole-v1", trained, num_workers=0, num_envs=2, rollout_length=8) as pool:
        best = parenv.SaveBest(tmp_path / "best.ckpt", episodes=5, every=10_000)
        next(pool.rollouts())
        best.update(pool)
        best.finish(pool)
    wanted = evaluated(tmp_path / "1.jsonl", policy=trained, num_workers=0)
    assert evaluated(tmp_path / "2.jsonl", policy=untrained, num_workers=0) != wanted
    assert evaluated(tmp_path / "3.jsonl", policy=untrained, num_workers=1, checkpoint=tmp_path / "best.ckpt") == wanted
    command = [
        "eval",
        str(tmp_path / "best.ckpt"),
        "a=envs:Drawn",
        "--agent",
        "test_evaluate:Agent",
        "--num-workers",
        "0",
    ]
    assert main([*command, "--episodes", "2", "--out", str(tmp_path / "4.jsonl")]) == 0
    (tmp_path / "other.ckpt").write_bytes((tmp_path / "best.ckpt").read_bytes())
    with pytest.raises(ConfigurationError, match="does not fit the policy"):
        parenv.evaluate(torch.nn.Linear(4, 2), Drawn, checkpoint=tmp_path / "other.ckpt", num_workers=0)


def test_the_command_prints_the_report_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.jsonl"
    policy = "test_evaluate:make_lean"
    command = ["eval", policy, "CartPole-v1", "drawn=envs:Drawn", "--num-workers", "1", "--out", str(out)]
    assert main([*command, "--episodes", "3"]) == 0
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()[1:]] == ["CartPole-v1", "drawn", "all"]
    assert "6 of 6 episodes" in shown.err
    assert main([*command, "--episodes", "3"]) == 2
    assert "exists already. Pass --resume to continue it" in capsys.readouterr().err
    assert main([*command, "--episodes", "4", "--resume"]) == 0
    assert "8 of 8 episodes" in capsys.readouterr().err
    assert len(lines_of(out)) == 8
    assert main(["eval", "agent.ckpt", "CartPole-v1"]) == 2
    assert "pass --agent MODULE:FACTORY" in capsys.readouterr().err
    assert main(["eval", policy, "CartPole-v1", "CartPole-v1"]) == 2
    assert "name of a task must be unique, got 'CartPole-v1' twice" in capsys.readouterr().err


def make_lean() -> Any:
    return lean


CENTRAL = {"num_workers": None, "workers": WorkerOptions(step_workers=2)}


@pytest.mark.parametrize("step_workers", [1, pytest.param(3, marks=pytest.mark.more)])
def test_centralized_inference_gives_the_same_results(step_workers: int, tmp_path: Path) -> None:
    workers = WorkerOptions(step_workers=step_workers)
    central = evaluated(tmp_path / "central.jsonl", num_workers=None, workers=workers)
    assert central == evaluated(tmp_path / "workers.jsonl", num_workers=0)


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
@pytest.mark.parametrize("fault", FAULTS)
def test_centralized_inference_plays_lost_episodes_again(fault: str, tmp_path: Path) -> None:
    undisturbed = evaluated(tmp_path / "undisturbed.jsonl", num_workers=0)
    flags = tmp_path / "flags"
    flags.mkdir()
    hook = partial(envs.when, partial(envs.at_step, 2), FAULTS[fault], flags)
    disturbed = evaluated(tmp_path / "disturbed.jsonl", {"one": partial(Drawn, hook), "two": Drawn}, **CENTRAL)
    assert disturbed == undisturbed
    assert len(list(flags.iterdir())) == 12


@pytest.mark.more
def test_centralized_inference_keeps_recurrent_states_and_spaces_apart(tmp_path: Path) -> None:
    lines = evaluated(tmp_path / "1.jsonl", {"one": envs.Alternating}, Parity(), **CENTRAL)
    assert [line["success"] for line in lines] == [True] * len(lines)
    tasks, given = {"drawn": Drawn, "car": "MountainCar-v0"}, {"max_episode_steps": 20, "options": None}
    central = evaluated(tmp_path / "2.jsonl", tasks, by_shape, **given, **CENTRAL)
    assert central == evaluated(tmp_path / "3.jsonl", tasks, by_shape, **given, num_workers=0)
    with pytest.raises(ValueError, match=r"^task 'two': the simulator is not there"):
        evaluated(tmp_path / "4.jsonl", {"one": Drawn, "two": envs.fail}, **CENTRAL)
    with pytest.raises(ConfigurationError, match=r"^the policy does not fit task 'two'"):
        evaluated(tmp_path / "5.jsonl", {"one": Drawn, "two": "MountainCar-v0"}, **CENTRAL)


def masked(observations: Any, action_mask: Any) -> Any:
    return np.where(action_mask[:, 1], 1, 0)


@pytest.mark.parametrize("where", [{"num_workers": 0}, pytest.param(CENTRAL, marks=pytest.mark.more)])
def test_a_policy_gets_the_infos_that_its_arguments_name(where: Any, tmp_path: Path) -> None:
    lines = evaluated(tmp_path / "results.jsonl", {"one": envs.Masked}, masked, **where)
    assert [line["success"] for line in lines] == [True] * len(lines)


def make_counted(folder: Path) -> Any:
    """Make an environment, and add a file to a folder, so that environments can be counted."""
    (folder / f"{len(list(folder.iterdir()))}").touch()
    return gym.wrappers.NormalizeObservation(Drawn())


@pytest.mark.parametrize(("recycle_episodes", "made"), [(None, 1), (5, 3), (1, 12)])
def test_recycling_environments_does_not_change_the_results(recycle_episodes: Any, made: int, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    tasks, workers = {"one": partial(make_counted, tmp_path / "made")}, WorkerOptions(recycle_episodes=recycle_episodes)
    lines = evaluated(tmp_path / "1.jsonl", tasks, num_workers=0, num_envs=1, workers=workers)
    assert len(list((tmp_path / "made").iterdir())) == made
    (tmp_path / "again").mkdir()
    tasks = {"one": partial(make_counted, tmp_path / "again")}
    assert lines == evaluated(tmp_path / "2.jsonl", tasks, num_workers=0, num_envs=1)
