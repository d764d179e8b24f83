"""Check that named infos are stored in rollouts and are passed to policies that take them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs import OwnVectorEnv
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from parenv import AsyncWorkerPool, ConfigurationError, Policy, Stop, TorchPolicy, WorkerOptions
from parenv.errors import ObservationError
from parenv.policy.policy import Action

N = 5
LENGTH = 4


def mask_of(number: int) -> Any:
    """Return the mask of the two actions that are legal for the observation with a number."""
    mask = np.zeros(N, bool)
    mask[[number % N, (number + 1) % N]] = True
    return mask


class Masked(gym.Env[Any, Any]):
    """Environment whose observations count up, and which refuses actions that the mask of the last one forbids."""

    observation_space, action_space = spaces.Box(0, np.inf, (1,)), spaces.Discrete(N)
    shown = -1
    fails_at = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._show()

    def step(self, action: Any) -> Any:
        assert mask_of(self.shown)[action], "the mask of another observation"
        if self.shown == self.fails_at:
            raise RuntimeError("no more")
        self.steps += 1
        observation, info = self._show()
        over = self.steps == LENGTH
        return observation, 1.0, over, False, {**info, "is_success": over, **({"late": 7.5} if over else {})}

    def _show(self) -> Any:
        self.shown += 1
        return np.array([self.shown], np.float32), {"action_mask": mask_of(self.shown), "number": self.shown}

    def get_state(self) -> Any:
        return {"shown": self.shown, "steps": self.steps}

    def set_state(self, state: Any) -> None:
        self.shown, self.steps = state["shown"], state["steps"]


MAKERS = {
    "single": Masked,
    "next step": lambda: OwnVectorEnv([Masked, Masked], autoreset_mode=AutoresetMode.NEXT_STEP),
    "same step": lambda: OwnVectorEnv([Masked, Masked], autoreset_mode=AutoresetMode.SAME_STEP),
    "disabled": lambda: OwnVectorEnv([Masked, Masked], autoreset_mode=AutoresetMode.DISABLED),
}
NAMES = ("is_success", "action_mask", "number", "late")


def first_allowed(observations: Any, action_mask: Any) -> Any:
    chosen = action_mask.argmax(1)
    action_mask[:] = False  # The policy has its own copy.
    return chosen


def last_allowed(observations: Any, *, action_mask: Any) -> Any:
    return N - 1 - action_mask[:, ::-1].argmax(1)


class Agent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.nn.Linear(1, N)

    def forward(self, observations: Any, action_mask: Any = None) -> Any:
        logits = self.logits(observations)
        return logits.masked_fill(~action_mask, -torch.inf).argmax(1)

    def act(self, observations: Any, action: Any = None, action_mask: Any = None) -> Any:
        logits = self.logits(observations).masked_fill(~action_mask, -torch.inf)
        distribution = torch.distributions.Categorical(logits=logits)
        action = distribution.sample()
        return action, distribution.log_prob(action)


class Counting(Policy):
    def initial_carry(self, batch: int) -> Any:
        return np.zeros(batch)

    def act(self, observations: Any, carry: Any, action_mask: Any = None) -> Action:
        return Action(action_mask.argmax(1), {"count": carry + 1}, carry + 1)


def check(rollout: Any) -> None:
    """Check each info of a rollout. The number in the observation determines its value."""
    numbers, T = np.asarray(rollout.observations)[..., 0].astype(int), len(rollout.rewards)
    following = np.asarray(rollout.next_observations())[..., 0].astype(int)
    infos = {name: np.asarray(values) for name, values in rollout.infos.items()}
    later = {name: np.asarray(values) for name, values in rollout.next_infos.items()}
    for t, column in np.ndindex(numbers.shape):
        assert (infos["action_mask"][t, column] == mask_of(numbers[t, column])).all()
        assert (later["action_mask"][t, column] == mask_of(following[t, column])).all()
        assert infos["action_mask"][t, column, int(rollout.actions[t, column])]
    assert (infos["number"] == following).all()
    assert (infos["is_success"] == np.asarray(rollout.terminated)).all()
    assert infos["is_success"].dtype == bool
    assert (infos["_late"] == infos["is_success"]).all()
    assert (infos["late"] == 7.5 * infos["is_success"]).all()
    assert infos["_action_mask"].all()
    assert (infos["_is_success"] == np.asarray(rollout.valid)).all()
    assert infos["action_mask"].shape == (T, numbers.shape[1], N)


POLICIES: dict[str, Any] = {
    "callable": first_allowed,
    "keyword only": last_allowed,
    "module": Agent(),
    "method": TorchPolicy(Agent(), "act", ("actions", "log_prob")),
    "recurrent": Counting(),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_infos_of_the_policy_belong_to_observations_and_others_to_steps(make: Any, mode: Any, num_workers: int) -> None:
    with AsyncWorkerPool(
        make, first_allowed, num_workers=num_workers, mode=mode, rollout_length=7, infos=NAMES
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=200)):
            check(rollout)
        assert pool.evaluate(3).lengths.tolist() == [LENGTH] * 3


@pytest.mark.one_in(3)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_every_kind_of_policy_gets_the_mask_before_it_acts(policy: Any) -> None:
    with AsyncWorkerPool(Masked, policy, num_workers=1, num_envs=3, rollout_length=9, infos=NAMES) as pool:
        for rollout in pool.rollouts(Stop(env_steps=100)):
            check(rollout)
            pool.publish(policy)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_info_that_is_missing_in_a_step_has_its_default(make: Any, num_workers: int) -> None:
    infos = {"action_mask": None, "is_success": False, "late": -1.0, "never": np.array([2, 3])}
    with AsyncWorkerPool(make, first_allowed, num_workers=num_workers, rollout_length=7, infos=infos) as pool:
        rollout = next(pool.rollouts())
    found = rollout.infos
    assert found["late"].tolist() == np.where(found["is_success"], 7.5, -1.0).tolist()
    assert (found["_late"] == found["is_success"]).all()
    assert (found["is_success"] == rollout.terminated).all()
    assert (found["never"] == [2, 3]).all()
    assert not found["_never"].any()
    assert found["_action_mask"].all()


def test_an_info_of_another_kind_than_its_default_is_an_error() -> None:
    with (
        AsyncWorkerPool(
            Masked, first_allowed, num_workers=0, infos={"action_mask": None, "late": False}, rollout_length=50
        ) as pool,
        pytest.raises(ObservationError, match=r"the info 'late' must have .* like its default, got \(\) and float64"),
    ):
        next(pool.rollouts())


def test_infos_that_the_policy_does_not_take_belong_to_steps() -> None:
    class Unmasked(Masked):
        def step(self, action: Any) -> Any:
            return super().step(self.shown % N)

    with AsyncWorkerPool(
        Unmasked, lambda o: np.zeros(len(o), int), num_workers=0, rollout_length=9, infos=("action_mask",)
    ) as pool:
        rollout = next(pool.rollouts())
        following = rollout.next_observations()[..., 0].astype(int)
        assert (rollout.infos["action_mask"] == np.stack([[mask_of(n) for n in row] for row in following])).all()


def test_infos_come_as_tensors_flattened_and_copied_too() -> None:
    with AsyncWorkerPool(Masked, first_allowed, num_workers=2, mode="sync", rollout_length=7, infos=NAMES) as pool:
        rollout = next(pool.rollouts())
        check(rollout.to("cpu"))
        assert rollout.to("cpu").infos["action_mask"].dtype == torch.bool
        copied = rollout.copy()
        flat = rollout.transitions()
        assert flat.infos["action_mask"].shape == (14, N)
        assert (flat.next_infos["number"] == flat.next_observations[:, 0]).all()
        del rollout
        next(pool.rollouts())
        check(copied)


def test_postprocess_and_loss_have_the_infos() -> None:
    def shares(policy: Any, rollout: Any) -> Any:
        return {"allowed": rollout.infos["action_mask"].sum(-1), "late": rollout.infos["late"]}

    with AsyncWorkerPool(
        Masked, first_allowed, num_workers=1, rollout_length=7, infos=NAMES, postprocess=shares
    ) as pool:
        rollout = next(pool.rollouts())
        assert (rollout.extras["allowed"] == 2).all()
        assert (rollout.extras["late"] == rollout.infos["late"]).all()


@pytest.mark.parametrize("rollout_length", [6, "episode"])
def test_gradients_are_computed_with_the_infos(rollout_length: Any) -> None:
    def loss(policy: Any, rollout: Any) -> Any:
        logits = policy.logits(rollout.observations).masked_fill(~rollout.infos["action_mask"], -1e9)
        taken = rollout.infos["action_mask"].gather(-1, rollout.actions.unsqueeze(-1))
        return logits.logsumexp(-1).mean(), {"allowed": taken.float().mean(), "wins": rollout.infos["is_success"].sum()}

    with AsyncWorkerPool(
        Masked,
        Agent(),
        num_workers=2,
        num_envs=4,
        mode="sync",
        parallelism="gradient",
        rollout_length=rollout_length,
        loss_fn=loss,
        infos=NAMES,
    ) as pool:
        gradient = next(pool.gradients())
        assert gradient.metrics["allowed"] == 1
        assert gradient.metrics["wins"] == 2


def test_a_replaced_sub_environment_has_its_own_mask(warnings_are_expected: None) -> None:
    class Failing(Masked):
        fails_at = 10

    options = WorkerOptions(on_env_error="restart_env")
    with AsyncWorkerPool(
        Failing, first_allowed, num_workers=1, num_envs=2, rollout_length=16, infos=NAMES[:3], workers=options
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=64)):
            numbers = rollout.observations[..., 0].astype(int)
            masks = np.stack([[mask_of(n) for n in row] for row in numbers])
            assert (rollout.infos["action_mask"] == masks).all()
        assert pool.statistics().env_restarts > 0


def test_a_restarted_worker_returns_infos(warnings_are_expected: None) -> None:
    class Failing(Masked):
        fails_at = 30

    options = WorkerOptions(on_env_error="restart_worker")
    with AsyncWorkerPool(
        Failing, first_allowed, num_workers=2, num_envs=2, mode="sync", rollout_length=8, infos=NAMES, workers=options
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=96)):
            check(rollout)
        assert pool.statistics().worker_restarts > 0


def test_a_recorded_run_is_replayed_with_its_infos(tmp_path: Path) -> None:
    def run(**more: Any) -> list[Any]:
        with AsyncWorkerPool(
            Masked, first_allowed, num_workers=2, rollout_length=8, infos=NAMES, seed=3, **more
        ) as pool:
            return [rollout.infos["number"].tolist() for rollout in pool.rollouts(Stop(env_steps=64))]

    assert run(record=tmp_path / "run") == run(replay=tmp_path / "run")


def test_a_resumed_run_acts_on_the_mask_of_the_observation_it_stopped_at() -> None:
    def pool() -> AsyncWorkerPool:
        return AsyncWorkerPool(
            Masked, first_allowed, num_workers=2, mode="sync", rollout_length=6, infos=NAMES[:3], seed=1
        )

    with pool() as before:
        next(before.rollouts())
        state = before.state_dict()
        wanted = next(before.rollouts()).infos
        with pool() as after:
            assert not after.load_state_dict(state)
            got = next(after.rollouts()).infos
    assert {name: values.tolist() for name, values in got.items()} == {
        name: values.tolist() for name, values in wanted.items()
    }


def test_the_error_for_a_name_that_no_info_has_lists_the_infos() -> None:
    words = r"got 'is_sucess', .*\['action_mask', 'is_success', 'late', 'numb.*infos=\{'is_sucess': False\}"
    with pytest.raises(ConfigurationError, match=words):
        AsyncWorkerPool(Masked, first_allowed, num_workers=0, infos=("action_mask", "is_sucess"))


def test_an_info_that_is_not_a_number_is_an_error() -> None:
    class Named(Masked):
        def _show(self) -> Any:
            observation, info = super()._show()
            return observation, {**info, "name": "x"}

    with pytest.raises(ConfigurationError, match=r"infos must name numbers.*, got 'name' of type str"):
        AsyncWorkerPool(Named, first_allowed, num_workers=0, infos=("action_mask", "name"))


def needs_mask(observations: Any, action_mask: Any) -> Any:
    return np.asarray(action_mask).argmax(-1)


class MaskedModule(torch.nn.Linear):
    """Module whose method requires the mask."""

    def act(self, observations: Any, action_mask: Any) -> Any:
        return action_mask.int().argmax(-1)


class MaskedPolicy(Policy):
    """Policy that requires the mask as a keyword argument."""

    def act(self, observations: Any, carry: Any, *, action_mask: Any) -> Action:
        return Action(needs_mask(observations, action_mask))


NEED_A_MASK: dict[str, Any] = {
    "function": needs_mask,
    "module": TorchPolicy(MaskedModule(1, 1), "act", ("actions",)),
    "policy": MaskedPolicy(),
}


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("policy", NEED_A_MASK.values(), ids=NEED_A_MASK)
def test_an_info_that_the_policy_needs_must_be_named(policy: Any, by_name: bool) -> None:
    message = re.escape(
        "infos must name ['action_mask'], which the policy takes without a default, got ('number',). "
        "Pass infos=('number', 'action_mask'), or give the parameters defaults"
    )
    with pytest.raises(ConfigurationError, match=message):
        AsyncWorkerPool(Masked, {"a": policy} if by_name else policy, num_workers=2, infos=("number",))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_error_for_an_info_that_reset_does_not_return_lists_the_infos(
    num_workers: int,
) -> None:
    class Unmasked(Masked):
        def _show(self) -> Any:
            observation, info = super()._show()
            return observation, {"mask": info["action_mask"]}

    message = re.escape(
        "reset() must return the infos ['action_mask'], which the policy takes without a default, got ['mask']."
    )
    with pytest.raises(ConfigurationError, match=message):
        AsyncWorkerPool(Unmasked, needs_mask, num_workers=num_workers, infos=("action_mask",))


@pytest.mark.parametrize("infos", ["late", ("a", "a"), ("a", "_a"), (3,), 3, {3: 0}, {"a": 0, "_a": 0}])
def test_invalid_names_of_infos_are_refused(infos: Any) -> None:
    with pytest.raises(ConfigurationError, match="infos must be"):
        AsyncWorkerPool(Masked, first_allowed, infos=infos)


def test_a_default_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"infos\['late'\] must be a number.*, got 'x'"):
        AsyncWorkerPool(Masked, first_allowed, infos={"late": "x"})


def test_an_info_that_changes_its_shape_names_its_sub_environment() -> None:
    class Growing(Masked):
        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            return *rest, {**info, "number": np.zeros(self.steps)}

    with (
        AsyncWorkerPool(Growing, first_allowed, num_workers=1, num_envs=2, infos=("action_mask", "number")) as pool,
        pytest.raises(
            Exception,
            match=r"env_id 0: in env step 1: the info 'number' must have .* like its first value, got \(1,\)",
        ),
    ):
        next(pool.rollouts())


def test_gymnasiums_taxi_is_played_by_its_mask() -> None:
    def make() -> Any:
        return gym.make("Taxi", max_episode_steps=9)

    with AsyncWorkerPool(make, first_allowed, num_workers=2, num_envs=4, infos=("action_mask", "prob")) as pool:
        rollout = next(pool.rollouts())
        taken = np.take_along_axis(rollout.infos["action_mask"], rollout.actions[..., None], -1)
        assert taken.all()
        assert (rollout.infos["prob"] == 1).all()
