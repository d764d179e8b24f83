"""Check the measurements, recommendations and errors of ``parenv advise`` in short runs with real processes."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

from parenv import ConfigurationError, TorchPolicy
from parenv.advice import Setting
from parenv.bench.setting_advice import advise, moves_for
from parenv.cli.main import main

AGENTS = """
import gymnasium as gym
import torch
from parenv import Action, Policy, TorchPolicy

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = torch.nn.Linear(4, 2)

    def act(self, observations):
        distribution = torch.distributions.Categorical(logits=self.logits(observations))
        actions = distribution.sample()
        return actions, distribution.log_prob(actions)

def loss_fn(policy, rollout):
    distribution = torch.distributions.Categorical(logits=policy.module.logits(rollout.observations))
    return -(distribution.log_prob(rollout.actions) * rollout.rewards).mean()

def make():
    net = Net()
    policy = TorchPolicy(net, "act", ("actions", "log_prob"))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def learn(rollout):
        optimizer.zero_grad()
        loss_fn(policy, rollout.to("cpu")).backward()
        optimizer.step()

    return policy, learn, loss_fn

def only_a_policy():
    return make()[0]

def learns_wrong():
    def learn(rollout):
        raise RuntimeError("no such loss\\nat all")

    return make()[0], learn

class Late(gym.Wrapper):
    steps = 0

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action):
        self.steps += 1
        if self.steps > 100:
            raise ValueError("lost")
        return super().step(action)

class Arrays(Policy):
    def __init__(self, takes_tensors, act):
        self.module, self.takes_tensors, self._act = torch.nn.Linear(4, 2), takes_tensors, act

    def act(self, observations, carry):
        return self._act(self.module, observations)

def takes_arrays():
    return Arrays(False, lambda module, given: Action(module(torch.from_numpy(given.copy())).argmax(-1).numpy()))

def returns_arrays():
    return Arrays(True, lambda module, given: Action(module(given).argmax(-1), {"logits": module(given).numpy()}))

def acts_without_gradients():
    return Arrays(True, torch.no_grad()(lambda module, given: Action(module(given).argmax(-1))))

def wrong_size():
    return torch.nn.Linear(8, 2)

def wrong():
    return make()[0], "learn"

def insists():
    def learn(rollout):
        assert rollout.num_steps == 32, "32 env steps are wanted"

    return make()[0], learn
"""
SHORT = ["--seconds", "1", "--num-envs", "4", "--num-workers", "2"]


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "advised_agents.py").write_text(AGENTS)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.more
@pytest.mark.usefixtures("agents")
def test_facts_runs_and_the_fastest_setting_are_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "advice.json"
    arguments = ["CartPole-v1", "--agent", "advised_agents:make", *SHORT, "--json", str(file)]
    assert main(["advise", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    present = "num_workers=2, num_envs=4, mode='sync', parallelism='experience', rollout_length="
    assert f"training with {present}" in printed.out
    assert f"\n{present}" in printed.out
    assert re.search(r"\n  learning +[\d.]+ [mµ]?s per rollout +\d+%", printed.out)
    assert re.search(r"\n(take num_workers=.*\nit is [\d.]+ times|keep the present setting)", printed.out)
    found = json.loads(file.read_text())
    assert set(found["learning_s"]["cpu"]) == {"32", "128", "512", "2048"}
    assert found["advice"]["setting"]["num_envs"] == 4
    assert {run["failure"] for run in found["runs"]} == {None}
    rates = [run["env_steps_per_second"] for run in found["runs"]]
    assert min(rates) > 0
    settings = [run["setting"] for run in found["runs"]]
    assert settings[0] == found["advice"]["setting"]
    assert found["recommended"] in settings
    assert found["gain"] == found["recommended_steps_per_second"] / found["present_steps_per_second"]


@pytest.mark.more
@pytest.mark.usefixtures("agents")
def test_a_failed_run_is_reported_and_its_setting_is_not_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    only_lengths(monkeypatch)
    options: Any = {"seconds": 0.5, "num_envs": 2, "num_workers": 1, "rollout_length": 16, "watch": told.append}
    report = advise("CartPole-v1", agent="advised_agents:insists", **options)
    failures = {run.setting.update_size == 32: run.failure for run in report.runs}
    assert failures == {True: None, False: "AssertionError: 32 env steps are wanted"}
    assert report.recommended.update_size == 32
    assert "rollout_length=32: failed: AssertionError: 32 env steps are wanted" in str(report)
    assert f"training with {report.runs[-1].setting}" in told


@pytest.mark.soak
def test_gradients_are_recommended_where_workers_learn_much_faster() -> None:
    torch.manual_seed(0)

    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(4, 2048), torch.nn.Tanh(), torch.nn.Linear(2048, 2))

        def act(self, observations: Any) -> Any:
            distribution = torch.distributions.Categorical(logits=self.body(observations))
            actions = distribution.sample()
            return actions, distribution.log_prob(actions)

    def loss_fn(policy: Any, rollout: Any) -> Any:
        logits = policy.module.body(rollout.observations)
        return -torch.distributions.Categorical(logits=logits).log_prob(rollout.actions).mean()

    def make() -> Any:
        net = Wide()
        policy = TorchPolicy(net, "act", ("actions", "log_prob"))

        def learn(rollout: Any) -> None:
            for _ in range(20):
                loss_fn(policy, rollout.to("cpu")).backward()

        return policy, learn, loss_fn

    shape: Any = {"num_envs": 2, "num_workers": 1, "rollout_length": 32}
    report = advise("CartPole-v1", agent=make, seconds=4.0, **shape)
    assert report.recommended.parallelism == "gradient"
    assert report.gain >= 1.1


@pytest.mark.more
def test_workers_are_recommended_for_environments_that_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Any:
        env: Any = gym.make("CartPole-v1")
        step = env.unwrapped.step
        env.unwrapped.step = lambda action: (time.sleep(20e-3), step(action))[1]
        return env

    def four_workers(now: Setting) -> Setting | None:
        return replace(now, num_workers=4, num_envs=4) if now.num_workers == 1 else None

    monkeypatch.setattr("parenv.bench.setting_advice.moves_for", lambda shared, device: [(four_workers,)])
    report = advise(make, seconds=2.0, num_envs=2, num_workers=1, rollout_length=8)
    assert report.recommended.num_workers == 4
    assert report.gain >= 1.5
    assert report.recommended_steps_per_second > report.present_steps_per_second
    assert {fact.name: fact.setting for fact in report.advice.limits}["workers sleeping, as for a simulator"]


def only_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search over rollout lengths only."""
    monkeypatch.setattr("parenv.bench.setting_advice.moves_for", lambda shared, device: moves_for(shared, device)[4:5])


@pytest.mark.more
def test_without_an_agent_nothing_is_learned_and_the_facts_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_lengths(monkeypatch)
    file = tmp_path / "advice.json"
    assert main(["advise", "CartPole-v1", *SHORT, "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "waiting for workers" in printed
    assert "Infinity" not in file.read_text()
    workers = {fact["name"]: fact for fact in json.loads(file.read_text())["advice"]["workers"]}
    assert workers["learning"]["value"] == 0.0


@pytest.mark.more
@pytest.mark.usefixtures("agents")
def test_a_policy_alone_is_an_agent_that_learns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("parenv.bench.setting_advice.moves_for", lambda shared, device: asked.append(shared) or [])
    report = advise("CartPole-v1", agent="advised_agents:only_a_policy", seconds=0.5, num_envs=2, num_workers=1)
    assert report.learning_s["cpu"].keys() == {32, 128, 512, 2048}
    assert asked == [False], "workers cannot learn without a loss"


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["CartPole-v1", "--agent", "advised_agents:wrong"],
            "the agent must be a policy, (policy, learn) or (policy, learn, loss_fn), got",
        ),
        (["CartPole-v1", "--agent", "advised_agents:none"], "'advised_agents:none' does not exist"),
        (
            ["CartPole-v1", "--agent", "advised_agents:wrong_size"],
            "the agent cannot act on 1 observations of Box([-4.8",
        ),
        (["CartPole-v1", "--seconds", "0"], "seconds must be positive, got 0.0"),
        (["CartPole-v1", "--num-envs", "2", "--num-workers", "3"], "num_envs must be an integer of at least 3, got 2"),
        (["CartPole-v1", "--rollout-length", "0"], "rollout_length must be an integer of at least 1, got 0"),
        (["NoSuchEnv-v0"], "NoSuchEnv"),
        (["CartPole-v1", "--json", "/no/such/directory/out.json"], "there is no directory /no/such/directory"),
        (["CartPole-v1", "--json", "/"], "/ cannot be written: it is a directory"),
    ],
)
def test_what_cannot_work_is_said_before_a_process_starts(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parenv.bench.setting_advice.AsyncWorkerPool", None)
    assert main(["advise", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("parenv advise: ")
    assert said in printed.err


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize("agent", ["takes_arrays", "returns_arrays", "acts_without_gradients"])
def test_a_policy_whose_learning_cannot_be_measured_gets_the_rest_of_the_advice(
    agent: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parenv.bench.setting_advice.moves_for", lambda shared, device: [])
    arguments = ["--agent", f"advised_agents:{agent}", "--seconds", "0.5", "--num-envs", "2", "--num-workers", "1"]
    assert main(["advise", "CartPole-v1", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "learning on cpu is not measured: " in printed.out
    assert "forward and backward" not in printed.out
    assert "\ntime of the workers\n" in printed.out
    assert printed.out.endswith("\nkeep the present setting: no other is at least 1.1 times as fast\n")


def give_a_device(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Replace the accelerator that ``advise`` finds, and let it try no other change of the setting."""
    monkeypatch.setattr("parenv.bench.setting_advice.accelerator", lambda policy: device)
    monkeypatch.setattr("parenv.bench.setting_advice.moves_for", lambda shared, device: moves_for(shared, device)[-1:])


@pytest.mark.more
@pytest.mark.usefixtures("agents")
def test_another_device_is_measured_like_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    give_a_device(monkeypatch, "cpu:0")
    report = advise("CartPole-v1", agent="advised_agents:make", seconds=1.0, num_envs=4, num_workers=2)
    assert report.learning_s["cpu"].keys() == report.learning_s["cpu:0"].keys()
    assert min(report.learning_s["cpu:0"].values()) > 0
    assert [(run.setting.worker_device, run.failure) for run in report.runs] == [("cpu", None), ("cpu:0", None)]


@pytest.mark.more
@pytest.mark.usefixtures("agents")
def test_a_device_on_which_the_agent_cannot_run_is_not_recommended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give_a_device(monkeypatch, "meta")
    assert main(["advise", "CartPole-v1", "--agent", "advised_agents:make", *SHORT]) == 0
    printed = capsys.readouterr().out
    assert "learning on meta is not measured: " in printed
    assert re.search(r"device='meta'\): failed: ", printed)
    assert printed.endswith("\nkeep the present setting: no other is at least 1.1 times as fast\n")


@pytest.mark.parametrize(
    ("env", "agent", "said", "frame"),
    [
        (
            "advised_agents:Late",
            "only_a_policy",
            r"ValueError: lost, in worker 0 \(pid \d+\), env_id 0, during env\.step\(\)",
            r"in step\n    raise ValueError\(.lost.\)\nValueError: lost",
        ),
        (
            "CartPole-v1",
            "learns_wrong",
            "RuntimeError: no such loss",
            r"in learn\n    raise RuntimeError\(.*\)\nRuntimeError: no such loss\nat all",
        ),
    ],
)
@pytest.mark.usefixtures("agents")
def test_what_the_environment_or_the_agent_raises_later_is_one_line_and_the_frames_of_its_code(
    env: str, agent: str, said: str, frame: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [env, "--agent", f"advised_agents:{agent}", "--seconds", "0.5", "--num-envs", "1", "--num-workers", "1"]
    arguments += ["--rollout-length", "128"]  # The environment fails during the first rollout.
    assert main(["advise", *arguments]) == 2
    words = rf"parenv advise: the environment or the agent does not run: {said}\n"
    words += rf'  File ".*advised_agents.py", line \d+, {frame}\n'
    assert re.fullmatch(words, capsys.readouterr().err)


def test_what_the_factory_of_the_agent_raises_is_named() -> None:
    def broken() -> Any:
        raise ValueError("no weights here")

    with pytest.raises(ConfigurationError, match=r"ValueError: no weights here"):
        advise("CartPole-v1", agent=broken)
