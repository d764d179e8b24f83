"""Check exported agents: files for ONNX Runtime and torch.export that act like the policy, and play without torch."""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from late import Late

import parenv
from parenv import AsyncWorkerPool, ConfigurationError, Policy, TorchPolicy, export
from parenv.cli.main import main
from parenv.errors import PolicyOutputError
from parenv.exporting import OnnxPolicy
from parenv.exporting.exporter import _differences, difference
from parenv.exporting.graph import Graph, run_on_arrays
from parenv.memory.spaces import Leaf
from parenv.policy.policy import Action

ort = Late("onnxruntime")
pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("onnxruntime", "onnxscript"))), reason="needs parenv[export]"
)

CARTPOLE = gym.make("CartPole-v1").observation_space
FORMATS = pytest.mark.parametrize("format", ["onnx", "torch"])


class Greedy(torch.nn.Module):
    """Agent in the style of CleanRL."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Dropout(0.5))
        self.logits, self.value = torch.nn.Linear(16, 2), torch.nn.Linear(16, 1)

    def get_action_and_value(self, observations: Any, action: Any = None) -> tuple[Any, ...]:
        hidden = self.body(observations)
        distribution = torch.distributions.Categorical(logits=self.logits(hidden))
        action = distribution.sample() if action is None else action
        return action, distribution.log_prob(action), distribution.entropy(), self.value(hidden).squeeze(-1)

    def greedy(self, observations: Any) -> tuple[Any, ...]:
        distribution = torch.distributions.Categorical(logits=self.logits(self.body(observations)))
        action = distribution.probs.argmax(-1)
        return action, distribution.log_prob(action), distribution.entropy(), self.value(self.body(observations))[:, 0]


def greedy() -> TorchPolicy:
    torch.manual_seed(1)
    return TorchPolicy(Greedy(), deterministic_method="greedy")


class Squashed(torch.nn.Module):
    """Module that normalizes and clips observations by its buffers, and squashes and scales actions."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(3, 2)
        self.register_buffer("mean", torch.tensor([1.0, -2.0, 30.0]))
        self.register_buffer("deviation", torch.tensor([2.0, 0.1, 10.0]))

    def forward(self, observations: Any) -> Any:
        normal = ((observations.float() - self.mean) / self.deviation).clamp(-10, 10)
        return 2.0 * torch.tanh(self.net(normal)) + torch.tensor([0.0, 1.0])


class Recurrent(torch.nn.Module):
    """Agent with an LSTM cell, whose initial carry is not zero."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.logits = torch.nn.LSTMCell(4, 8), torch.nn.Linear(8, 2)

    def act(self, observations: Any, carry: Any) -> Any:
        hidden, cell = self.cell(observations, (carry["hidden"], carry["cell"]))
        return self.logits(hidden).argmax(-1), {"hidden": hidden, "cell": cell}

    def initial_carry(self, batch: int) -> Any:
        return {"hidden": torch.ones(batch, 8), "cell": torch.zeros(batch, 8)}


class Nested(Policy):
    """Policy with nested observations and with a dict of actions."""

    takes_tensors = True

    def __init__(self) -> None:
        self.module = torch.nn.Linear(5, 3)

    def act(self, observations: Any, carry: Any) -> Action:
        left, (right, _) = observations["left"], observations["both"]
        found = self.module(torch.cat([left["position"], right.float()[:, None]], -1))
        return Action({"turn": found[:, :2].argmax(-1), "push": found[:, 2:].tanh()}, {"score": found.sum(-1)})


NESTED = spaces.Dict(
    {
        "left": spaces.Dict({"position": spaces.Box(-1, 1, (4,))}),
        "both": spaces.Tuple([spaces.Discrete(7), spaces.Box(0, 255, (2, 2), np.uint8)]),
    }
)
AGENTS: dict[str, tuple[Any, Any]] = {
    "greedy": (greedy, CARTPOLE),
    "squashed": (Squashed, spaces.Box(-np.inf, np.inf, (3,), np.float64)),
    "recurrent": (lambda: TorchPolicy(Recurrent(), "act", ("actions", "carry")), CARTPOLE),
    "nested": (Nested, NESTED),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Any]:
    """Return a function that exports an agent and returns the report.

    Each export is made once for all test processes, because torch.onnx takes seconds.
    """
    folder = tmp_path_factory.getbasetemp()
    if run := os.environ.get("PYTEST_XDIST_TESTRUNUID"):
        folder = folder.parent / f"exported {run}"
        folder.mkdir(exist_ok=True)

    def export_once(name: str, format: Any) -> Any:
        mine = folder / f"{name} {format}"
        with open(folder / f"{name} {format}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not mine.exists():
                make, space = AGENTS[name]
                report = export(make(), mine / f"agent.{format}", observation_space=space, format=format, parity=200)
                mine.with_suffix(".report").write_bytes(pickle.dumps(report))
        return pickle.loads(mine.with_suffix(".report").read_bytes())

    return export_once


@FORMATS
@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", AGENTS)
def test_an_exported_agent_acts_as_the_policy_does_on_batches_of_any_size(
    name: str, format: Any, exported: Callable[[str, str], Any]
) -> None:
    report = exported(name, format)
    assert report.path.name == f"agent.{format}"
    assert report.observations == 200
    assert max(report.differences.values()) < 1e-5
    assert set(report.differences) == set(report.outputs)
    assert list(report.path.parent.iterdir()) == [report.path]
    if format == "onnx":
        found = ort.InferenceSession(str(report.path))
        assert tuple(one.name for one in found.get_inputs()) == report.inputs
        assert tuple(one.name for one in found.get_outputs()) == report.outputs


@pytest.mark.more
def test_inputs_and_outputs_have_descriptive_names(tmp_path: Path) -> None:
    def names(name: str) -> Any:
        make, space = AGENTS[name]
        report = export(make(), tmp_path / "agent.pt2", observation_space=space, format="torch", parity=0)
        assert report.differences == {}
        assert "not compared" in str(report)
        return report.inputs, report.outputs

    assert names("greedy") == (("observations",), ("actions", "log_prob", "value"))
    assert names("recurrent") == (
        ("observations", "carry.hidden", "carry.cell"),
        ("actions", "next_carry.hidden", "next_carry.cell"),
    )
    assert names("nested") == (
        ("observations.both.0", "observations.both.1", "observations.left.position"),
        ("actions.turn", "actions.push", "score"),
    )


@pytest.mark.more
@pytest.mark.parametrize("name", ["greedy", "recurrent"])
def test_an_export_is_compared_on_the_observations_of_a_rollout(name: str, tmp_path: Path) -> None:
    policy = AGENTS[name][0]()
    with AsyncWorkerPool("CartPole-v1", policy, num_workers=0, num_envs=8, rollout_length=32) as pool:
        rollout = next(pool.rollouts())
        space = pool.single_observation_space
    for on, format in ((rollout, "onnx"), (rollout.to("cpu"), "torch")):
        more: Any = {"format": format, "parity": 100, "on": on}
        report = export(policy, tmp_path / f"agent.{format}", observation_space=space, **more)
        assert report.observations == 104
        assert max(report.differences.values()) < 1e-5
    with AsyncWorkerPool("MountainCar-v0", lambda o: np.ones(len(o), int), num_workers=0) as pool:
        other = next(pool.rollouts())
    with pytest.raises(ConfigurationError, match=r"observations of the rollout must have shape \(4,\), got \(2,\)"):
        export(policy, tmp_path / "agent.onnx", observation_space=space, on=other)
    with pytest.raises(ConfigurationError, match=r"the policy raised RuntimeError while it acted on 3 .*\(5,\)"):
        export(policy, tmp_path / "agent.onnx", observation_space=spaces.Box(-1, 1, (5,)))


def test_the_policy_itself_is_not_touched(tmp_path: Path) -> None:
    policy = greedy()
    before = {name: tensor.clone() for name, tensor in policy.module.state_dict().items()}
    validates = torch.distributions.Distribution._validate_args
    export(policy, tmp_path / "agent.pt2", observation_space=CARTPOLE, format="torch", parity=10)
    assert policy.module.training
    assert policy.settings == {}
    assert torch.distributions.Distribution._validate_args is validates
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.module.state_dict().items())


def test_a_file_that_acts_differently_is_not_saved_and_the_difference_is_named(tmp_path: Path) -> None:
    path = tmp_path / "agent.onnx"
    path.write_text("the one before")
    with pytest.raises(PolicyOutputError, match=r"by at most tolerance=0, but differs in .*value by \S+e-\d+"):
        export(greedy(), path, observation_space=CARTPOLE, tolerance=0.0)
    assert path.read_text() == "the one before"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_differences_are_relative_and_handle_values_that_are_not_finite() -> None:
    assert difference(np.array([np.nan, np.inf]), np.array([np.nan, np.inf])) == 0
    assert difference(np.array([1.0]), np.array([np.nan])) == np.inf
    assert difference(np.zeros((3, 1)), np.zeros(3)) == np.inf
    assert difference(np.array([True, False]), np.array([True, True])) == 0.5
    assert difference(np.float32([1000.0]), np.float32([1001.0])) == pytest.approx(1e-3)


class Branching(torch.nn.Module):
    """Module with a Python branch on the values of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 2)

    def forward(self, observations: Any) -> Any:
        return self.net(observations).argmax(-1) if observations.sum() > 0 else observations[:, 0].long()


class WithNumpy(Branching):
    """Module that computes with numpy arrays."""

    def forward(self, observations: Any) -> Any:
        return torch.from_numpy(np.argmax(self.net(observations).detach().numpy(), -1))


class Odd(Branching):
    """Module with an operator that ONNX does not support."""

    def forward(self, observations: Any) -> Any:
        return torch.linalg.eigvals(observations[:, :1, None] * torch.ones(2, 2)).real.argmax(-1)


class Drawing(Branching):
    """Module that samples its actions."""

    def forward(self, observations: Any) -> Any:
        return torch.distributions.Categorical(logits=self.net(observations)).sample()


class OnArrays(Policy):
    """Policy that acts on numpy arrays."""

    module = torch.nn.Linear(4, 2)

    def act(self, observations: Any, carry: Any) -> Action:
        return Action(np.zeros(len(observations), int))


class Masked(Branching):
    """Module with methods that require an info."""

    def act(self, observations: Any, action_mask: Any) -> Any:
        return self.net(observations).argmax(-1)

    def tempered(self, observations: Any, temperature: float) -> Any:
        return self.net(observations).argmax(-1)


class MaskedIfGiven(Branching):
    """Module with a method that takes an optional info."""

    def act(self, observations: Any, action_mask: Any = None) -> Any:
        return self.net(observations).argmax(-1)


class Tempered(Branching):
    """Module with a method whose parameters have defaults."""

    def act(self, observations: Any, deterministic: bool = False, temperature: float = 2.0) -> Any:
        return (self.net(observations) / temperature).tanh()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Drawing, "must not sample its actions .*deterministic_method"),
        (OnArrays, r"OnArrays.act computes with numpy arrays.*takes_tensors = True"),
        (lambda: TorchPolicy(Masked(), "act", ("actions",)), r"acts on infos \(action_mask\)"),
        (lambda: TorchPolicy(MaskedIfGiven(), "act", ("actions",)), r"acts on infos \(action_mask\)"),
        (lambda: TorchPolicy(Masked(), "tempered", ("actions",)), r"acts on infos \(temperature\)"),
        (lambda: lambda observations: observations[:, 2] > 0, "policy with a torch module"),
        (lambda: {"state": "dict"}, "policy with a torch module"),
    ],
)
def test_policies_that_cannot_be_exported_are_refused(make: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        export(make(), tmp_path / "agent.onnx", observation_space=CARTPOLE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "format", "message"),
    [
        (Branching, "torch", ".*without Python branches on the values of a tensor"),
        # torch.onnx tries several strategies before it fails, which takes seconds.
        pytest.param(Branching, "onnx", ".*without Python branches on the values of a tensor", marks=pytest.mark.more),
        (WithNumpy, "torch", ""),
        pytest.param(WithNumpy, "onnx", "", marks=pytest.mark.more),
        pytest.param(Odd, "onnx", r".*aten.linalg_eig", marks=pytest.mark.more),
    ],
)
def test_the_reason_why_torch_cannot_export_is_named(make: Any, format: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f'cannot be exported with format="{format}"{message}'):
        export(make(), tmp_path / "agent", observation_space=CARTPOLE, format=format)
    assert list(tmp_path.iterdir()) == []


def test_a_parameter_with_a_default_keeps_it_in_the_file(tmp_path: Path) -> None:
    policy = TorchPolicy(Tempered(), "act", ("actions",))
    report = export(policy, tmp_path / "new" / "agent.pt2", observation_space=CARTPOLE, format="torch")
    assert (report.inputs, report.observations) == (("observations",), 1000)
    assert report.path.is_file()


def test_the_random_state_of_the_callers_space_is_not_touched(tmp_path: Path) -> None:
    space, same = (spaces.Box(-1, 1, (4,), seed=7) for _ in range(2))
    export(greedy(), tmp_path / "agent.pt2", observation_space=space, format="torch", parity=8)
    assert np.array_equal(space.sample(), same.sample())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "tflite"}, "format must be"),
        ({"parity": -1}, "parity must be"),
        ({"observation_space": spaces.Text(5)}, "must have a fixed size"),
        ({"path": "/dev/null/agent.onnx"}, "the folder of /dev/null/agent.onnx cannot be made: File exists"),
        ({"path": "."}, "it is a directory"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, message: str, tmp_path: Path) -> None:
    given = {"path": "agent.onnx", "observation_space": CARTPOLE, **arguments}
    path = tmp_path / given.pop("path")
    with pytest.raises(ConfigurationError, match=message):
        export(greedy(), path, **given)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory, exported: Callable[[str, str], Any]) -> Path:
    folder = tmp_path_factory.mktemp("agents")
    for name in ("greedy", "recurrent"):
        (folder / f"{name}.onnx").symlink_to(exported(name, "onnx").path)
    (folder / "text.onnx").write_text("dear diary")
    onnx = pytest.importorskip("onnx")
    model = onnx.load(folder / "greedy.onnx")
    del model.metadata_props[:]
    onnx.save(model, folder / "other.onnx")
    return folder


@pytest.mark.one_in(2)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exported_agent_acts_in_a_pool_as_the_policy_does(agents: Path, num_workers: int) -> None:
    torch.manual_seed(1)
    policy = TorchPolicy(Greedy().eval(), deterministic_method="greedy")

    def returns(acting: Any) -> list[float]:
        with AsyncWorkerPool("CartPole-v1", acting, num_envs=4, num_workers=num_workers, seed=2) as pool:
            return pool.evaluate(8).returns.tolist()

    assert returns(OnnxPolicy(agents / "greedy.onnx")) == returns(policy)


def test_an_exported_recurrent_agent_acts_in_a_pool(agents: Path) -> None:
    policy = OnnxPolicy(agents / "recurrent.onnx")
    with AsyncWorkerPool("CartPole-v1", policy, num_workers=1, num_envs=2, rollout_length=16) as pool:
        rollout = next(pool.rollouts())
    assert rollout.initial_carry["hidden"].tolist() == np.ones((2, 8)).tolist()
    assert rollout.initial_carry["cell"].tolist() == np.zeros((2, 8)).tolist()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["greedy", "recurrent"])
def test_the_command_plays_without_torch(agents: Path, name: str) -> None:
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from parenv.cli.main import main\n"
        f"raise SystemExit(main(['play', {str(agents / name)!r} + '.onnx', 'CartPole-v1', '--episodes', '3']))\n"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"episode 0: return \d+ in \d+ env steps", lines[0])
    assert re.fullmatch(r"3 episodes: mean return \d+\.\d\d ± \d+\.\d\d, mean length \d+\.\d", lines[3])


def test_the_same_seed_plays_the_same_episodes(agents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(more: str) -> str:
        assert main(["play", str(agents / "greedy.onnx"), "CartPole-v1", *shlex.split(more)]) == 0
        return capsys.readouterr().out

    assert shown("--episodes 4 --seed 7") == shown("--episodes 4 --seed 7") != shown("--episodes 4 --seed 70")


class Painted(gym.Env[Any, Any]):
    """Environment that draws the number of the step into the same frame."""

    observation_space, action_space = CARTPOLE, spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = "rgb_array") -> None:
        self.render_mode = render_mode
        self._frame = np.zeros((16, 16, 3), np.uint8)

    def reset(self, **options: Any) -> Any:
        self._step = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        assert type(action) is int
        self._step += 1
        return np.zeros(4, np.float32), 1.0, self._step == 6, False, {}

    def render(self) -> Any:
        self._frame[:] = 40 * self._step
        return self._frame


def test_a_video_has_a_frame_for_every_step_of_the_first_episode(
    agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imageio = pytest.importorskip("imageio.v3")
    monkeypatch.setattr(sys.modules[__name__], "Still", lambda: Painted(None), raising=False)
    monkeypatch.setitem(sys.modules, "painted", sys.modules[__name__])
    agent = str(agents / "greedy.onnx")
    video = tmp_path / "agent.gif"
    assert main(["play", agent, "painted:Painted", "--episodes", "2", "--video", str(video)]) == 0
    frames = imageio.imread(video)
    assert [int(frame[0, 0, 0]) for frame in frames] == [0, 40, 80, 120, 160, 200]
    assert "video: " in capsys.readouterr().out
    assert main(["play", agent, "painted:Still", "--video", str(video)]) == 2
    assert 'render_mode="rgb_array"' in capsys.readouterr().err
    assert main(["play", agent, "painted:Painted", "--episodes", "1", "--video", str(tmp_path / "agent.strange")]) == 2
    assert "ends in .gif" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("none.onnx CartPole-v1", "none.onnx does not exist"),
        ("text.onnx CartPole-v1", "ONNX Runtime cannot read"),
        ("other.onnx CartPole-v1", "must be a file of parenv.export"),
        ("greedy.onnx MountainCar-v0", r"needs observations of \[4\] float32, but the environment has \[2\] float32"),
        ("greedy.onnx Foo-v7", "Foo"),
        ("greedy.onnx CartPole-v1 --episodes 0", "episodes must be"),
        ("greedy.onnx CartPole-v1 --seed -1", "seed must be"),
        ("greedy.onnx CartPole-v1 --video no/such/agent.gif", "there is no directory"),
        ("greedy.onnx continuous:Push", r"action must have shape \(1,\) as in Box.*, got \(\)"),
    ],
)
def test_the_command_names_the_problem(
    agents: Path,
    arguments: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Push(Painted):
        action_space = spaces.Box(-1, 1, (1,))  # type: ignore[assignment]

    monkeypatch.setattr(sys.modules[__name__], "Push", Push, raising=False)
    monkeypatch.setitem(sys.modules, "continuous", sys.modules[__name__])
    file, *more = shlex.split(arguments)
    assert main(["play", str(agents / file), *more]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_export_is_lazy_and_the_file_has_metadata(agents: Path) -> None:
    assert parenv.export is export
    about = json.loads(ort.InferenceSession(str(agents / "greedy.onnx")).get_modelmeta().custom_metadata_map["parenv"])
    assert about["format"] == 1
    assert about["observations"] == [[[], [4], "<f4"]]


class Counts(torch.nn.Module):
    """Module that returns its carry as the action, and counts in the carry up to a limit."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, observations: torch.Tensor, carry: torch.Tensor) -> Any:
        return carry.clamp(max=self.limit), carry + 1


def test_a_difference_that_only_a_later_recurrent_state_shows_is_found() -> None:
    leaf = Leaf((), (), "<f4")
    names = ("observations", "carry"), ("actions", "next_carry")
    graph = Graph(Counts(np.inf), (), *names, (leaf,), (leaf,), (leaf,), [np.float32(0.0)])
    steps = [[np.zeros(3, np.float32)]] * 4
    for limit, wanted in ((2.0, 1 / 3), (3.0, 0.0)):
        found = _differences(graph, functools.partial(run_on_arrays, Counts(limit)), steps)
        assert found == {"actions": pytest.approx(wanted), "next_carry": 0.0}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("whole", [False, True])
def test_torchscript_is_refused_with_the_way_out(whole: bool, tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.jit.script(torch.nn.Linear(2, 2)))
    policy = torch.jit.script(module) if whole else module
    where = "'the module itself'" if whole else "'1'"
    with pytest.raises(
        ConfigurationError, match=rf"must not contain TorchScript to be exported, got it in {where}\. Pass the module "
    ):
        export(policy, tmp_path / "policy.onnx", observation_space=CARTPOLE)
