"""Check each formula for returns and advantages against a scalar implementation, one column at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from parenv.returns import discounted_returns, gae, n_step_returns, vtrace

GAMMA = 0.9
SETTINGS = settings(max_examples=60)


class Block(NamedTuple):
    rewards: Any
    values: Any
    next_values: Any
    terminated: Any
    truncated: Any
    behaviour: Any
    target: Any

    @property
    def after_actions(self) -> tuple[Any, ...]:
        return self.rewards, self.next_values, self.terminated, self.truncated

    @property
    def with_values(self) -> tuple[Any, ...]:
        return self.rewards, self.values, self.next_values, self.terminated, self.truncated

    @property
    def off_policy(self) -> tuple[Any, ...]:
        return self.behaviour, self.target, *self.with_values


@st.composite
def blocks(draw: Callable[[Any], Any], consistent: bool = False, dtype: Any = np.float64) -> Block:
    """Draw a block of steps.

    Args:
        consistent: Whether ``next_values[t]`` is ``values[t + 1]`` within an episode, as in a rollout.
    """
    shape = draw(st.tuples(st.integers(1, 7), st.integers(1, 3)))
    terminated, truncated = draw(hnp.arrays(bool, shape)), draw(hnp.arrays(bool, shape))
    generator = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    rewards, values, next_values, behaviour, target = generator.normal(size=(5, *shape)).astype(dtype)
    if consistent:
        next_values[:-1] = np.where((terminated | truncated)[:-1], next_values[:-1], values[1:])
    return Block(rewards, values, next_values, terminated, truncated, behaviour, target)


def per_column(function: Callable[..., list[float]], arrays: tuple[Any, ...], *more: Any) -> Any:
    columns = zip(*(np.asarray(array, object).T.tolist() for array in arrays), strict=True)
    return np.array([function(*column, *more) for column in columns], np.float64).T


def steps_of_the_episode(t: int, terminated: list[bool], truncated: list[bool]) -> list[int]:
    """Return the steps from ``t`` to the end of the episode or of the block."""
    steps = [t]
    while not (terminated[steps[-1]] or truncated[steps[-1]]) and steps[-1] + 1 < len(terminated):
        steps.append(steps[-1] + 1)
    return steps


def slow_gae(r: Any, v: Any, nv: Any, terminated: Any, truncated: Any, lam: float) -> list[float]:
    def delta(t: int) -> float:
        return float(r[t] + (0 if terminated[t] else GAMMA * nv[t]) - v[t])

    return [
        sum((GAMMA * lam) ** (k - t) * delta(k) for k in steps_of_the_episode(t, terminated, truncated))
        for t in range(len(r))
    ]


def slow_n_step(r: Any, nv: Any, terminated: Any, truncated: Any, n: int) -> list[float]:
    targets = []
    for t in range(len(r)):
        steps = steps_of_the_episode(t, terminated, truncated)[:n]
        bootstrap = 0 if terminated[steps[-1]] else GAMMA ** len(steps) * nv[steps[-1]]
        targets.append(sum(GAMMA ** (k - t) * r[k] for k in steps) + bootstrap)
    return targets


def slow_vtrace(
    mu: Any, pi: Any, r: Any, v: Any, nv: Any, terminated: Any, truncated: Any, rho_bar: float, c_bar: float, lam: float
) -> list[list[float]]:
    T = range(len(r))
    ratio = [float(np.exp(pi[t] - mu[t])) for t in T]
    rho, c = [min(rho_bar, x) for x in ratio], [lam * min(c_bar, x) for x in ratio]
    delta = [rho[t] * (r[t] + (0 if terminated[t] else GAMMA * nv[t]) - v[t]) for t in T]
    targets = [
        v[s]
        + sum(
            GAMMA ** (t - s) * float(np.prod(c[s:t])) * delta[t] for t in steps_of_the_episode(s, terminated, truncated)
        )
        for s in T
    ]
    advantages = []
    for s in T:
        goes_on = len(steps_of_the_episode(s, terminated, truncated)) > 1
        following = 0 if terminated[s] else targets[s + 1] if goes_on else nv[s]
        advantages.append(rho[s] * (r[s] + GAMMA * following - v[s]))
    return [targets, advantages]


@given(blocks(), st.floats(0, 1))
@SETTINGS
def test_gae_is_the_discounted_sum_of_temporal_differences_in_the_episode(block: Block, lam: float) -> None:
    advantages, targets = gae(*block.with_values, gamma=GAMMA, gae_lambda=lam)
    np.testing.assert_allclose(advantages, per_column(slow_gae, block.with_values, lam), atol=1e-9)
    np.testing.assert_allclose(targets, advantages + block.values)


@given(blocks(), st.integers(1, 9))
@SETTINGS
def test_n_step_returns_sum_n_rewards_or_as_many_as_the_episode_has_left(block: Block, n: int) -> None:
    targets = n_step_returns(*block.after_actions, n=n, gamma=GAMMA)
    np.testing.assert_allclose(targets, per_column(slow_n_step, block.after_actions, n), atol=1e-9)


@given(blocks())
@SETTINGS
def test_discounted_returns_sum_to_the_end_of_the_episode_or_the_block(block: Block) -> None:
    returns = discounted_returns(*block.after_actions, gamma=GAMMA)
    np.testing.assert_allclose(returns, per_column(slow_n_step, block.after_actions, 1 << 20), atol=1e-9)


@given(blocks(), st.floats(0.5, 2), st.floats(0.5, 2), st.floats(0, 1))
@SETTINGS
def test_vtrace_is_the_sum_of_equation_1(block: Block, rho_bar: float, c_bar: float, lam: float) -> None:
    got = vtrace(*block.off_policy, gamma=GAMMA, rho_bar=rho_bar, c_bar=c_bar, trace_lambda=lam)
    wanted = per_column(slow_vtrace, block.off_policy, rho_bar, c_bar, lam)  # [T, 2, B]
    np.testing.assert_allclose(got.targets, wanted[:, 0], atol=1e-9)
    np.testing.assert_allclose(got.advantages, wanted[:, 1], atol=1e-9)


@given(blocks(consistent=True))
@SETTINGS
def test_vtrace_on_policy_is_the_n_step_bellman_target(block: Block) -> None:
    on_policy = block._replace(behaviour=block.target)
    targets = n_step_returns(*block.after_actions, n=len(block.rewards), gamma=GAMMA)
    np.testing.assert_allclose(vtrace(*on_policy.off_policy, gamma=GAMMA).targets, targets, atol=1e-9)


@given(blocks(consistent=True))
@SETTINGS
def test_gae_with_lambda_1_is_the_discounted_return_minus_the_value(block: Block) -> None:
    advantages, _ = gae(*block.with_values, gamma=GAMMA, gae_lambda=1)
    returns = discounted_returns(*block.after_actions, gamma=GAMMA)
    np.testing.assert_allclose(advantages, returns - block.values, atol=1e-9)


@given(blocks())
@SETTINGS
def test_gae_with_lambda_0_is_the_one_step_temporal_difference(block: Block) -> None:
    advantages, _ = gae(*block.with_values, gamma=GAMMA, gae_lambda=0)
    one_step = n_step_returns(*block.after_actions, n=1, gamma=GAMMA)
    np.testing.assert_allclose(advantages, one_step - block.values, atol=1e-9)


FUNCTIONS: dict[str, Callable[[Block], Any]] = {
    "gae": lambda block: gae(*block.with_values),
    "discounted_returns": lambda block: [discounted_returns(*block.after_actions)],
    "n_step_returns": lambda block: [n_step_returns(*block.after_actions, n=3)],
    "vtrace": lambda block: vtrace(*block.off_policy),
}


def random_block(T: int, B: int, dtype: Any, ends: float = 0.2) -> Block:
    generator = np.random.default_rng(0)
    floats = generator.normal(size=(5, T, B)).astype(dtype)
    terminated, truncated = generator.random((2, T, B)) < ends
    return Block(floats[0], floats[1], floats[2], terminated, truncated, floats[3], floats[4])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_have_the_precision_of_the_inputs(name: str, dtype: Any) -> None:
    wanted = FUNCTIONS[name](random_block(20, 3, np.float64))
    for result, exact in zip(FUNCTIONS[name](random_block(20, 3, dtype)), wanted, strict=True):
        assert result.dtype == dtype
        np.testing.assert_allclose(result, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_cpu_tensors_are_accepted_and_inputs_are_not_changed(name: str) -> None:
    block = random_block(6, 2, np.float32)
    tensors = Block(*(torch.from_numpy(array.copy()) for array in block))
    for result, wanted in zip(FUNCTIONS[name](tensors), FUNCTIONS[name](block), strict=True):
        np.testing.assert_array_equal(result, wanted)
    for tensor, array in zip(tensors, block, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_single_column_needs_no_second_dimension(name: str) -> None:
    block = random_block(6, 1, np.float64)
    flat = Block(*(array[:, 0] for array in block))
    for result, wanted in zip(FUNCTIONS[name](flat), FUNCTIONS[name](block), strict=True):
        np.testing.assert_array_equal(result, wanted[:, 0])


def test_a_terminated_step_bootstraps_nothing_even_if_truncated_too() -> None:
    rewards, huge, yes = np.ones((1, 1)), np.full((1, 1), 1e6), np.ones((1, 1), bool)
    assert gae(rewards, 0 * rewards, huge, yes, yes)[0] == 1
    assert discounted_returns(rewards, huge, yes, yes) == 1
    assert n_step_returns(rewards, huge, yes, yes, n=2) == 1
    assert vtrace(*[0 * rewards] * 2, rewards, 0 * rewards, huge, yes, yes).advantages == 1


def test_vtrace_takes_log_probabilities_that_are_far_apart() -> None:
    one, no = np.ones((1, 1), np.float32), np.zeros((1, 1), bool)
    result = vtrace(-200 * one, one, one, one, one, no, no, gamma=0.5)
    assert result.targets == 1.5


def test_n_step_returns_need_a_step() -> None:
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        n_step_returns([[1.0]], [[0.0]], [[False]], [[False]], n=0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_for_tensors_are_tensors_without_gradients(name: str) -> None:
    block = random_block(6, 2, np.float32)
    tensors = Block(*(torch.from_numpy(array.copy()) for array in block))
    with_gradient = tensors._replace(values=tensors.values.clone().requires_grad_())
    for those in (tensors, with_gradient):
        for result, wanted in zip(FUNCTIONS[name](those), FUNCTIONS[name](block), strict=True):
            assert isinstance(result, torch.Tensor)
            assert not result.requires_grad
            np.testing.assert_array_equal(result.numpy(), wanted)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("field", ["next_values", "terminated", "truncated"])
@pytest.mark.parametrize("shape", [(4, 1), (4, 4)])
def test_a_trailing_dimension_of_one_is_refused_and_not_broadcast(name: str, field: str, shape: Any) -> None:
    block = random_block(*shape, np.float32)
    wrong = block._replace(**{field: getattr(block, field)[..., None]})
    T, B = shape
    with pytest.raises(
        ValueError, match=rf"{field} must have the shape of rewards, \({T}, {B}\), got \({T}, {B}, 1\).*squeeze\(-1\)"
    ):
        FUNCTIONS[name](wrong)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_blocks_of_different_shapes_are_refused(name: str) -> None:
    block = random_block(4, 3, np.float32)
    with pytest.raises(ValueError, match=r"next_values must have the shape of rewards, \(4, 3\), got \(3,\). Pass all"):
        FUNCTIONS[name](block._replace(next_values=block.next_values[0]))


@given(blocks(consistent=True), st.data())
@SETTINGS
def test_invalid_rows_do_not_change_the_results_of_others(block: Block, data: Any) -> None:
    """Insert a row after an end, with arbitrary values, as in a step in which a vector env only resets."""
    ended = (block.terminated | block.truncated).any(1)
    places = [t + 1 for t in range(len(ended) - 1) if (block.terminated | block.truncated)[t].all()]
    if not places:
        return
    at = data.draw(st.sampled_from(places))

    def longer(array: Any) -> Any:
        odd = np.ones if array.dtype == bool else np.zeros
        return np.insert(array, at, odd(array.shape[1], array.dtype), axis=0)

    more, valid = Block(*map(longer, block)), np.ones((len(ended) + 1, block.rewards.shape[1]), bool)
    more.terminated[at] = more.truncated[at] = valid[at] = False
    more.rewards[at] = more.next_values[at] = 9
    for function, with_it, without in (
        (gae, more.with_values, block.with_values),
        (vtrace, more.off_policy, block.off_policy),
        (discounted_returns, more.after_actions, block.after_actions),
        (functools.partial(n_step_returns, n=3), more.after_actions, block.after_actions),
    ):
        np.testing.assert_allclose(np.delete(function(*with_it, valid=valid), at, axis=-2), function(*without))
    advantages, targets = gae(*more.with_values, valid=valid)
    assert not advantages[at].any()
    assert (targets[at] == more.values[at]).all()


@given(blocks(), st.data())
@SETTINGS
def test_results_are_zero_where_agents_are_not_alive_and_each_life_is_a_block(block: Block, data: Any) -> None:
    alive = data.draw(hnp.arrays(bool, block.rewards.shape))
    block.rewards[~alive] = block.values[~alive] = np.nan
    for function, arrays in (
        (gae, block.with_values),
        (vtrace, block.off_policy),
        (discounted_returns, block.after_actions),
        (functools.partial(n_step_returns, n=3), block.after_actions),
    ):
        found = np.stack([function(*arrays, alive=alive)]).reshape(-1, *alive.shape)  # type: ignore[operator]
        wanted = np.zeros_like(found)
        for column, there in enumerate(alive.T):
            for run in np.split(np.arange(len(there)), np.flatnonzero(np.diff(there)) + 1):
                if there[run[0]]:
                    mine = function(*(array[run, column] for array in arrays))  # type: ignore[operator]
                    wanted[:, run, column] = mine
        np.testing.assert_allclose(found, wanted)


def test_a_truncated_step_without_a_next_value_has_no_advantage_and_changes_no_other() -> None:
    no, cut = [False, False, False], [False, True, False]
    values, following = [1.0, 2.0, 3.0], [2.0, np.nan, 4.0]
    advantages, targets = gae([1.0, 1.0, 1.0], values, following, no, cut, gamma=1.0, gae_lambda=1.0)
    assert advantages.tolist() == [2.0, 0.0, 2.0]
    assert targets.tolist() == [3.0, 2.0, 5.0]
    zeros = [0.0, 0.0, 0.0]
    found = vtrace(zeros, zeros, [1.0, 1.0, 1.0], values, following, no, cut, gamma=1.0)
    assert found.targets.tolist() == [3.0, 2.0, 5.0]
    assert found.advantages.tolist() == [2.0, 0.0, 2.0]
    assert np.isnan(discounted_returns([1.0, 1.0, 1.0], following, no, cut)[:2]).all()
