"""``parenv advise`` with real processes, for as short as can be."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from parenv import ConfigurationError, TorchPolicy
from parenv.cli.advise import advise
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
"""
SLEEPING_LEARNERS = """
import time
import numpy as np

def zeros(observations):
    return np.zeros(len(observations), np.int64)

def by_update():
    return zeros, lambda rollout: time.sleep(0.05)

def by_env_step():
    return zeros, lambda rollout: time.sleep(0.002 * rollout.num_steps)

def insists():
    def learn(rollout):
        assert rollout.num_steps == 32, "32 env steps are wanted"

    return zeros, learn
"""
SHORT = ["--seconds", "1", "--num-envs", "4", "--num-workers", "2"]


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "advised_agents.py").write_text(AGENTS)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.more
@pytest.mark.usefixtures("agents")
def test_advice_with_all_recommendations_is_printed_verified_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "advice.json"
    arguments = ["CartPole-v1", "--agent", "advised_agents:make", *SHORT, "--verify", "--json", str(file)]
    assert main(["advise", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "training with 4 sub-environments in 2 workers" in printed.out
    assert re.search(r"\nverified: .*\n(take|the advice does not hold)", printed.out)
    found = json.loads(file.read_text())
    advice = found["advice"]
    assert f"R = {found['ratio']:.2g}, " in printed.out
    assert advice["costs"]["learner_s"] > 0
    assert set(advice["costs"]["acting_at"]["cpu"]) == {"1", "2", "4", "8", "16", "32", "64", "128", "256"}
    assert set(advice["costs"]["learning_at"]["cpu"]) == {"32", "128", "512", "2048"}
    assert advice["costs"]["can_share_learning"]
    assert [one["name"] for one in advice["recommendations"]][:3] == ["mode", "parallelism", "num_workers"]
    assert found["verified"]["measured"] > 0
    assert found["verified"]["predicted"] == advice["predicted_steps_per_second"]


@pytest.mark.more
@pytest.mark.parametrize(("learner", "least", "most"), [("by_update", 0.6, 1.0), ("by_env_step", 0.0, 0.4)])
def test_what_an_update_costs_whatever_its_size_is_told_from_what_its_samples_cost(
    learner: str, least: float, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleeping_learners.py").write_text(SLEEPING_LEARNERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    agent, told = f"sleeping_learners:{learner}", list[str]()
    options: Any = {"seconds": 2.0, "num_envs": 2, "num_workers": 1, "rollout_length": 16, "watch": told.append}
    costs = advise("CartPole-v1", agent=agent, **options).advice.costs
    assert costs.setting.rollout_length == 16
    assert costs.update_s is not None
    assert least <= costs.update_s / costs.update_seconds <= most
    assert "training with rollouts of 4 env steps instead of 16" in told


def test_a_learner_that_insists_on_its_size_is_taken_to_cost_as_much_for_smaller_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleeping_learners.py").write_text(SLEEPING_LEARNERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    told: list[str] = []
    options: Any = {"seconds": 0.5, "num_envs": 2, "num_workers": 1, "rollout_length": 16, "watch": told.append}
    assert advise("CartPole-v1", agent="sleeping_learners:insists", **options).advice.costs.update_s is None
    [words] = [line for line in told if "not measured" in line and "AssertionError" in line]
    assert "32 env steps are wanted" in words


@pytest.mark.soak
def test_gradients_that_are_recommended_are_verified_too() -> None:
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
    report = advise("CartPole-v1", agent=make, seconds=2.0, verify=True, **shape)
    assert report.advice.recommended.parallelism == "gradient"
    assert report.verified is not None
    assert report.verified.measured > 0


def test_without_an_agent_nothing_is_learned_and_the_advice_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "advice.json"
    assert main(["advise", "CartPole-v1", *SHORT, "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "R = inf" in printed
    assert "nothing was learned in this run" in printed
    assert "Infinity" not in file.read_text()
    assert json.loads(file.read_text())["ratio"] is None


@pytest.mark.usefixtures("agents")
def test_a_policy_alone_is_an_agent_that_learns_nothing() -> None:
    report = advise("CartPole-v1", agent="advised_agents:only_a_policy", seconds=0.5, num_envs=2, num_workers=1)
    assert report.advice["mini_batch"].value in (32, 128, 512, 2048)
    assert not report.advice.costs.can_share_learning


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["CartPole-v1", "--agent", "advised_agents:wrong"],
            "the agent must be a policy, (policy, learn) or (policy, learn, loss_fn), got",
        ),
        (["CartPole-v1", "--agent", "advised_agents:none"], "there is no 'none'"),
        (
            ["CartPole-v1", "--agent", "advised_agents:wrong_size"],
            "the agent cannot act on 1 observations of Box([-4.8",
        ),
        (["CartPole-v1", "--seconds", "0"], "seconds must be positive, got 0.0"),
        (["CartPole-v1", "--num-envs", "2", "--num-workers", "3"], "num_envs must be an integer of at least 3, got 2"),
        (["CartPole-v1", "--rollout-length", "0"], "rollout_length must be an integer of at least 1, got 0"),
        (["NoSuchEnv-v0"], "NoSuchEnv"),
        (["CartPole-v1", "--json", "/no/such/directory/out.json"], "there is no directory /no/such/directory"),
        (["CartPole-v1", "--json", "/"], "cannot write /: it is a directory"),
    ],
)
def test_what_cannot_work_is_said_before_a_process_starts(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parenv.cli.advise.AsyncWorkerPool", None)
    assert main(["advise", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("parenv advise: ")
    assert said in printed.err


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize("agent", ["takes_arrays", "returns_arrays", "acts_without_gradients"])
def test_a_policy_whose_learning_cannot_be_measured_gets_the_rest_of_the_advice(
    agent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--agent", f"advised_agents:{agent}", "--seconds", "0.5", "--num-envs", "2", "--num-workers", "1"]
    assert main(["advise", "CartPole-v1", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "learning on cpu is not measured: " in printed.out
    assert re.search(r"mini_batch +as it is +it was not measured", printed.out)


@pytest.mark.more
@pytest.mark.usefixtures("agents")
def test_another_device_is_measured_like_the_cpu_and_compared_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parenv.cli.curves.accelerator", lambda policy: "cpu:0")
    advice = advise("CartPole-v1", agent="advised_agents:make", seconds=1.0, num_envs=4, num_workers=2).advice
    for curves in (advice.costs.acting_at, advice.costs.learning_at):
        assert curves["cpu"].keys() == curves["cpu:0"].keys()
        assert min(curves["cpu:0"].values()) > 0
    for name in ("learner_device", "worker_device"):
        assert re.search(r"[\d.]+ [mµ]?s on cpu, [\d.]+ [mµ]?s on cpu:0", advice[name].because)


@pytest.mark.more
@pytest.mark.usefixtures("agents")
def test_a_device_on_which_the_agent_cannot_run_is_not_recommended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("parenv.cli.curves", "parenv.advice.advising"):
        monkeypatch.setattr(f"{module}.accelerator", lambda policy: "meta")
    assert main(["advise", "CartPole-v1", "--agent", "advised_agents:make", *SHORT]) == 0
    printed = capsys.readouterr().out
    for what in ("acting", "learning"):
        assert f"{what} on meta is not measured: " in printed
    for name in ("learner_device", "worker_device"):
        assert re.search(rf"{name} +cpu .*; cpu and meta were not compared", printed)


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
    assert main(["advise", *arguments]) == 2
    words = rf"parenv advise: the environment or the agent does not run: {said}\n"
    words += rf'  File ".*advised_agents.py", line \d+, {frame}\n'
    assert re.fullmatch(words, capsys.readouterr().err)


def test_what_the_factory_of_the_agent_raises_is_named() -> None:
    def broken() -> Any:
        raise ValueError("no weights here")

    with pytest.raises(ConfigurationError, match=r"ValueError: no weights here"):
        advise("CartPole-v1", agent=broken)
