"""Check that gradients are reduced as in the formulas, in one pass and in the memory of the first gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parenv.errors import GradientError
from parenv.experience import reduction
from parenv.experience.reduction import Reducer, clip
from parenv.options import GradientOptions

Groups = list[tuple[int, list[int]]]
"""Groups of gradients that arrive together: lag of the group and number of samples of each gradient."""
groups = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(1, 50), min_size=1, max_size=3)), min_size=1, max_size=4
)


def random_gradients(count: int, size: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(count * 1000 + size).normal(size=(count, size)))


def reduced(options: GradientOptions, arrived: Groups, gradients: torch.Tensor) -> Any:
    reducer, at = Reducer(options), 0
    for lag, samples in arrived:
        reducer.add([gradient.clone() for gradient in gradients[at : at + len(samples)]], samples, lag)
        at += len(samples)
    return reducer.result()


@given(groups, st.sampled_from(["mean", "weighted_mean", "sum"]), st.booleans())
def test_the_result_matches_the_formula_for_any_groups(arrived: Groups, how: Any, by_lag: bool) -> None:
    lag_weight = (lambda lag: 0.5**lag) if by_lag else None
    counted = [(lag, n) for lag, samples in arrived for n in samples]
    gradients = random_gradients(len(counted), 5)
    weights = [(n if how == "weighted_mean" else 1) * (0.5**lag if by_lag else 1.0) for lag, n in counted]
    expected = sum(weight * gradient for weight, gradient in zip(weights, gradients, strict=True))
    if how != "sum":
        expected = expected / sum(weights)
    found = reduced(GradientOptions(reduction=how, lag_weight=lag_weight), arrived, gradients)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1, reduction.CHUNK - 1, reduction.CHUNK, reduction.CHUNK * 2 + 3])
def test_chunks_cover_everything_once(size: int) -> None:
    gradients = random_gradients(3, size)
    found = reduced(GradientOptions(), [(0, [1, 1]), (0, [1])], gradients)
    torch.testing.assert_close(found, gradients.mean(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", ["mean", "weighted_mean", "sum"])
def test_gradients_of_weight_zero_give_zeros_until_another_arrives(how: Any) -> None:
    options = GradientOptions(reduction=how, lag_weight=lambda lag: float(lag < 2))
    gradients = random_gradients(3, 4)
    assert torch.equal(reduced(options, [(2, [3, 5])], gradients), torch.zeros(4, dtype=gradients.dtype))
    found = reduced(options, [(2, [3]), (2, [5]), (0, [1])], gradients)
    torch.testing.assert_close(found, gradients[2], rtol=1e-12, atol=1e-12)


def test_the_result_is_in_the_memory_of_the_first_gradient_and_a_single_one_is_not_changed() -> None:
    first, second = random_gradients(2, 7)
    reducer = Reducer(GradientOptions())
    before = first.clone()
    reducer.add([first], [4], 0)
    assert torch.equal(first, before)
    reducer.add([second], [4], 0)
    assert reducer.result().data_ptr() == first.data_ptr()


def test_a_custom_reduction_gets_stacked_gradients_and_samples_times_lag_weight() -> None:
    seen: list[Any] = []

    def largest(gradients: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        seen.append((gradients.clone(), weights))
        return gradients[int(weights.argmax())]

    gradients = random_gradients(3, 4)
    options = GradientOptions(reduction=largest, lag_weight=lambda lag: 1 / (1 + lag))
    found = reduced(options, [(1, [10, 30]), (0, [12])], gradients)
    assert torch.equal(seen[0][0], gradients)
    assert seen[0][1].tolist() == [5.0, 15.0, 12.0]
    assert torch.equal(found, gradients[1])


@pytest.mark.parametrize("returned", [None, 3.0, torch.zeros(2)])
def test_a_custom_reduction_that_returns_something_else_is_an_error(returned: Any) -> None:
    with pytest.raises(GradientError, match=r"the reduction must return a tensor of shape \(4,\), got"):
        reduced(GradientOptions(reduction=lambda gradients, weights: returned), [(0, [1])], random_gradients(1, 4))


def test_clipping_is_the_same_as_in_torch() -> None:
    flat = random_gradients(1, 50)[0]
    parameter = torch.nn.Parameter(torch.zeros(50, dtype=torch.float64))
    parameter.grad = flat.clone()
    norm = torch.nn.utils.clip_grad_norm_([parameter], 0.5)
    assert clip(flat, 0.5) == pytest.approx(float(norm))
    torch.testing.assert_close(flat, parameter.grad, rtol=1e-12, atol=1e-12)
    unchanged = flat.clone()
    clip(flat, 100.0)
    assert torch.equal(flat, unchanged)
