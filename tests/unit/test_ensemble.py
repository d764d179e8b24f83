"""Check that an ensemble computes the same as its modules one by one, and can be trained, copied and saved."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest
import torch
from nets import Wrapped
from scripts import printed_by
from torch import Tensor, nn

from parenv.errors import ConfigurationError
from parenv.learning import Ensemble
from parenv.policy.snapshots import flat_layout


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def conv_net() -> nn.Module:
    return (
        nn.Sequential(nn.Conv2d(1, 4, 2), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)).double().eval()
    )


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Scaled(Ensemble):
    def forward(self, *args: Tensor) -> Tensor:
        return 2 * super().forward(*args)


ARCHITECTURES = [(mlp, (5, 3)), (conv_net, (5, 1, 3, 3)), (Tied, (5, 3))]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("architecture", "shape"), ARCHITECTURES)
def test_outputs_and_gradients_are_those_of_the_modules_one_by_one(
    architecture: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    modules = [architecture() for _ in range(3)]
    ensemble, inputs = Ensemble(modules), torch.randn(shape, dtype=torch.float64)
    outputs = torch.stack([module(inputs) for module in modules])
    close(ensemble(inputs), outputs)
    close(ensemble.mean(inputs), outputs.mean(0))
    close(ensemble.minimum(inputs), outputs.min(0).values)
    ensemble(inputs).square().sum().backward()
    outputs.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in ensemble.members.named_parameters()}
    assert gradients.keys() == dict(modules[0].named_parameters()).keys()
    for name, gradient in gradients.items():
        close(gradient, torch.stack([module.get_parameter(name).grad for module in modules]))


def test_an_optimizer_trains_the_members_and_leaves_the_modules_alone() -> None:
    modules = [mlp(), mlp()]
    originals = copy.deepcopy(modules)
    ensemble, inputs = Ensemble(modules), torch.randn(5, 3, dtype=torch.float64)
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.1)
    ensemble(inputs).square().mean().backward()
    optimizer.step()
    members = ensemble.unstacked()
    close(torch.stack([member(inputs) for member in members]), ensemble(inputs))
    for module, original, member in zip(modules, originals, members, strict=True):
        assert torch.equal(module(inputs), original(inputs))
        assert not torch.equal(member(inputs), original(inputs))
    assert members[0][0].weight.untyped_storage().nbytes() == 8 * 3 * 8


def test_tied_weights_stay_tied() -> None:
    ensemble = Ensemble([Tied(), Tied()])
    assert ensemble.members.second.weight is ensemble.members.first.weight
    member = ensemble.unstacked()[1]
    assert member.second.weight is member.first.weight


def test_a_target_network_follows_by_soft_updates() -> None:
    critics = Ensemble([mlp(), mlp()])
    target = copy.deepcopy(critics).requires_grad_(False)
    with torch.no_grad():
        for parameter in critics.parameters():
            parameter += 1
    expected = [old + 0.25 for old in target.parameters()]
    torch._foreach_lerp_(list(target.parameters()), [p.detach() for p in critics.parameters()], 0.25)
    for parameter, value in zip(target.parameters(), expected, strict=True):
        close(parameter, value)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e)), lambda e: cloudpickle.loads(cloudpickle.dumps(e))],
)
@pytest.mark.parametrize("kind", [Ensemble, Scaled])
def test_copies_are_of_the_same_class_and_independent(
    kind: type[Ensemble], copied: Callable[[Ensemble], Ensemble]
) -> None:
    ensemble, inputs = kind([mlp(), mlp()]), torch.randn(5, 3, dtype=torch.float64)
    twin = copied(ensemble)
    assert type(twin) is type(ensemble)
    assert isinstance(twin, kind)
    assert isinstance(twin, nn.Module)
    before = ensemble(inputs)
    assert torch.equal(twin(inputs), before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(ensemble(inputs), before)


@pytest.mark.more
def test_an_ensemble_can_be_unpickled_in_a_new_process(tmp_path: Path) -> None:
    ensemble = Ensemble([mlp(), mlp()])
    (tmp_path / "ensemble").write_bytes(pickle.dumps(ensemble))
    script = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).num_members)"
    assert printed_by(script, str(tmp_path / "ensemble")) == "2\n"


def test_a_state_dict_restores_all_members() -> None:
    saved, other = Ensemble([conv_net(), conv_net()]), Ensemble([conv_net(), conv_net()])
    inputs = torch.randn(5, 1, 3, 3, dtype=torch.float64)
    assert not torch.equal(saved(inputs), other(inputs))
    other.load_state_dict(saved.state_dict())
    assert torch.equal(saved(inputs), other(inputs))


def test_train_and_to_reach_the_members() -> None:
    ensemble = Ensemble([nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5))] * 2)
    inputs = torch.ones(1, 3)
    first, second = ensemble(inputs)
    assert not torch.equal(first == 0, second == 0)
    first, second = ensemble.eval()(inputs)
    assert torch.equal(first, second)
    assert ensemble.double()(inputs.double()).dtype == torch.float64


def test_running_statistics_are_kept_for_each_member() -> None:
    modules = [nn.BatchNorm1d(3), nn.BatchNorm1d(3)]
    modules[1].running_mean += 1
    ensemble, inputs = Ensemble(modules), torch.randn(8, 3)
    ensemble(inputs)
    for module, member in zip(modules, ensemble.unstacked(), strict=True):
        module(inputs)
        torch.testing.assert_close(member.running_mean, module.running_mean)
        assert member.num_batches_tracked == 1


def test_every_tensor_can_be_published() -> None:
    ensemble = Ensemble([conv_net(), conv_net()])
    layout, _ = flat_layout(ensemble)
    assert [tensor.name for tensor in layout if tensor.shape[0] == 2] == [
        name for name, _ in [*ensemble.named_parameters(), *ensemble.named_buffers()]
    ]


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([], "needs at least one module, got none"),
        ([nn.ReLU()], "got one that has none"),
        ([nn.Linear(3, 2), nn.Linear(3, 2).double()], r"modules\[1\] differs from modules\[0\] in weight: .*float64"),
        (
            [nn.Linear(3, 2), nn.Linear(3, 1)],
            "in its structure: Linear.*out_features=1.* instead of Linear.*features=2",
        ),
        ([nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False)], "in weight: .*requires_grad=False"),
        ([nn.Linear(3, 2), nn.Linear(3, 2).eval()], "in its training mode: False instead of True"),
        ([nn.Sequential(nn.Linear(3, 3), a()) for a in (nn.ReLU, nn.Tanh)], r"(?s)in its structure: .*Tanh.*ReLU"),
    ],
)
def test_modules_that_cannot_be_stacked_are_refused(modules: list[nn.Module], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Ensemble(modules)


def test_importing_parenv_learning_does_not_import_torch() -> None:
    script = "import sys, parenv.learning; assert 'torch' not in sys.modules; print(parenv.learning.Ensemble.__doc__)"
    printed_by(script)


def test_modules_whose_tensors_torch_compile_has_renamed_can_be_members() -> None:
    modules = [Wrapped(torch.nn.Linear(4, 2)) for _ in range(3)]
    inputs = torch.randn(5, 4)
    wanted = torch.stack([module(inputs) for module in modules])
    assert torch.allclose(Ensemble(modules)(inputs), wanted, atol=1e-6)
