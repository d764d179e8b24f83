"""Check the adapters for TorchRL: rollouts as TensorDicts, actors as policies, and a pool as a collector."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from late import Late

from parenv import AsyncWorkerPool, ConfigurationError, Stop
from parenv.policy.policy import Action, Policy
from parenv.returns import gae
from parenv.testing import LedgerEnv

tensordict, tensordict_nn = Late("tensordict"), Late("tensordict.nn")
modules, objectives, objectives_value = (
    Late(f"torchrl.{name}") for name in ("modules", "objectives", "objectives.value")
)
adapter = Late("parenv.adapters.torchrl")
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torchrl") is None, reason="needs parenv[torchrl]"),
    # TorchRL emits deprecation warnings about itself.
    pytest.mark.filterwarnings("ignore"),
]


def make_actor() -> Any:
    torch.manual_seed(0)
    return modules.ProbabilisticActor(
        tensordict_nn.TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"]),
        ["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )


def make_pool(actor: Any, **more: Any) -> AsyncWorkerPool:
    arguments = {"num_envs": 4, "num_workers": 2, "rollout_length": 16, "mode": "sync", "seed": 3, **more}
    return AsyncWorkerPool("CartPole-v1", adapter.TensorDictPolicy(actor), **arguments)


def layout(data: Any) -> Any:
    """Return the batch size, the names of dimensions, and the shape and dtype of each entry."""
    keys = [key for key in data.keys(True, True) if key != "policy_version"]
    return data.batch_size, data.names, {key: (data[key].shape, data[key].dtype) for key in keys}


def layout_of_a_collector() -> Any:
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv, SerialEnv

    def make() -> Any:
        return GymEnv("CartPole-v1", categorical_action_encoding=True)

    collector = Collector(SerialEnv(4, make), make_actor(), frames_per_batch=64, total_frames=64)
    (data,) = collector
    collector.shutdown()
    return layout(data)


@pytest.mark.more
def test_the_layout_equals_that_of_a_collector_of_torchrl() -> None:
    wanted = layout_of_a_collector()  # TorchRL keeps the frames that make environments, so no pool is in them.
    assert wanted == layout_of_a_rollout()


def layout_of_a_rollout() -> Any:
    with make_pool(make_actor()) as pool:
        return layout(next(pool.rollouts()).to_tensordict())


def test_next_entries_are_true_at_every_end_of_an_episode_and_share_memory() -> None:
    makers = [lambda i=i: LedgerEnv(i) for i in range(4)]
    with AsyncWorkerPool(makers, lambda o: np.zeros(len(o), int), num_workers=2, mode="sync", rollout_length=8) as pool:
        for rollout in pool.rollouts(Stop(env_steps=128)):
            data = rollout.to_tensordict()
            assert data["observation"].data_ptr() == rollout.observations.__array_interface__["data"][0]
            assert (data["next", "observation"].numpy() == rollout.next_observations().swapaxes(0, 1)).all()
            assert (data["next", "observation"][..., 2] == data["observation"][..., 2] + 1).all()
            assert (data["next", "reward"][..., 0].numpy() == rollout.rewards.T).all()
            for name in ("terminated", "truncated"):
                assert (data["next", name][..., 0].numpy() == getattr(rollout, name).T).all()
                assert not data[name].any()
            assert (data["next", "done"] == data["next", "terminated"] | data["next", "truncated"]).all()
            assert data["next", "done"].any()
            assert not data["done"].any()
            assert (data["policy_version"] == rollout.policy_version).all()


def test_slices_of_a_replay_buffer_never_join_sub_environments_or_rollouts() -> None:
    from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

    sampler = SliceSampler(slice_len=4, traj_key=("collector", "traj_ids"))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(512), batch_size=1024, sampler=sampler)
    makers = [lambda i=i: LedgerEnv(i) for i in range(4)]
    with AsyncWorkerPool(makers, lambda o: np.zeros(len(o), int), num_workers=2, mode="async") as pool:
        for rollout in pool.rollouts(Stop(env_steps=512)):
            buffer.extend(rollout.to_tensordict().reshape(-1))
    slices = buffer.sample().reshape(-1, 4)
    assert len(slices) == 256
    assert (slices["next", "observation"][:, :-1] == slices["observation"][:, 1:]).all()
    assert not slices["next", "done"][:, :-1].any()


@pytest.mark.more
def test_a_rollout_of_tensors_has_the_same_tensordict() -> None:
    with make_pool(make_actor()) as pool:
        rollout = next(pool.rollouts())
    one, other = rollout.to_tensordict(), rollout.to("cpu").to_tensordict()
    assert (one == other).all()


class Rich(gym.Env[Any, Any]):
    observation_space = spaces.Dict(
        {"place": spaces.Box(-1, 1, (2,)), "more": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (1,))])}
    )
    action_space = spaces.Box(-1, 1, (3,))

    def reset(self, **options: Any) -> Any:
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        return self._observation(), 0.0, False, False, {"fuel": 0.5}

    def _observation(self) -> Any:
        return {"place": np.ones(2, np.float32), "more": (2, np.zeros(1, np.float32))}


class Extras(Policy):
    def __init__(self, **extras: Any) -> None:
        self.extras = extras

    def act(self, observations: Any, carry: Any) -> Action:
        batch = len(observations["place"] if isinstance(observations, dict) else observations)
        return Action(np.zeros((batch, 3), np.float32), {name: np.ones(batch) for name in self.extras})


def test_nested_observations_extras_and_infos_have_their_keys() -> None:
    policy = Extras(log_prob=1, value=1, other=1)
    with AsyncWorkerPool(Rich, policy, num_workers=0, num_envs=2, rollout_length=3, infos=("fuel",)) as pool:
        data = next(pool.rollouts()).to_tensordict(names={"other": "mine"})
    assert data["place"].shape == data["next", "place"].shape == (2, 3, 2)
    assert data["more", "0"].tolist() == [[2] * 3] * 2
    assert data["action"].shape == (2, 3, 3)
    assert data["action_log_prob"].shape == data["mine"].shape == (2, 3)
    assert data["state_value"].shape == (2, 3, 1)
    assert data["infos", "fuel"].tolist() == [[0.5] * 3] * 2


def test_the_error_for_data_that_does_not_fit_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with AsyncWorkerPool(Rich, Extras(action=1), num_workers=0, rollout_length=3) as pool:
        rollout = next(pool.rollouts())
    with pytest.raises(
        ConfigurationError, match="the extra 'action' cannot have the key 'action', which another field has"
    ):
        rollout.to_tensordict()
    rollout.to_tensordict(names={"action": "action_before"})

    class Worded(Rich):
        observation_space = spaces.Text(9)  # type: ignore[assignment]

        def _observation(self) -> Any:
            return "words"

    with AsyncWorkerPool(Worded, Extras(), num_workers=0, rollout_length=3) as pool:
        worded = next(pool.rollouts())
    with pytest.raises(ConfigurationError, match="observations must have a fixed size"):
        worded.to_tensordict()
    monkeypatch.setitem(sys.modules, "tensordict", None)
    with pytest.raises(ConfigurationError, match=r"\.\[torchrl\]"):
        rollout.to_tensordict()


@pytest.mark.more
def test_gae_of_torchrl_equals_ours() -> None:
    critic = modules.ValueOperator(torch.nn.Linear(4, 1), ["observation"])
    advantages = objectives_value.GAE(gamma=0.9, lmbda=0.8, value_network=critic, average_gae=False)
    with make_pool(make_actor(), rollout_length=64) as pool:
        for rollout in pool.rollouts(Stop(env_steps=512)):
            data = rollout.to_tensordict()
            with torch.no_grad():
                advantages(data)
                values = critic.module(rollout.to("cpu").observations)[..., 0]
                following = rollout.to("cpu").next_values(values, critic.module)
            wanted, _ = gae(
                rollout.rewards, values, following, rollout.terminated, rollout.truncated, gamma=0.9, gae_lambda=0.8
            )
            torch.testing.assert_close(data["advantage"][..., 0].T, wanted, rtol=1e-4, atol=1e-4)
            assert data["next", "done"].any()


@pytest.mark.more
def test_clip_ppo_loss_has_a_ratio_of_one_for_the_version_that_acted_and_trains() -> None:
    actor, critic = make_actor(), modules.ValueOperator(torch.nn.Linear(4, 1), ["observation"])
    loss = objectives.ClipPPOLoss(actor, critic)
    advantages = objectives_value.GAE(gamma=0.9, lmbda=0.8, value_network=critic)
    optimizer = torch.optim.SGD(loss.parameters(), 0.1)
    with make_pool(actor) as pool:
        for rollout in pool.rollouts(Stop(env_steps=256)):
            data = rollout.to_tensordict()
            with torch.no_grad():
                advantages(data)
            found = loss(data)
            assert float(found["kl_approx"].abs()) < 1e-5
            assert float(found["clip_fraction"]) == 0
            optimizer.zero_grad()
            (found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]).backward()
            assert all(torch.isfinite(parameter.grad).all() for parameter in loss.parameters())
            optimizer.step()
            pool.publish(actor)


def test_an_actor_uses_its_mode_in_evaluations() -> None:
    actor = make_actor()
    policy = adapter.TensorDictPolicy(actor)
    observations = torch.randn(64, 4)
    drawn = {tuple(policy.act(observations, None).actions.tolist()) for _ in range(3)}
    assert len(drawn) == 3
    policy.settings = {"deterministic": True}
    wanted = actor.module[0].module(observations).argmax(-1)
    assert torch.equal(policy.act(observations, None).actions, wanted)
    assert sorted(policy.act(observations, None).extras) == ["action_log_prob", "logits"]


@pytest.mark.more
def test_a_pool_works_with_a_trainer_of_torchrl() -> None:
    from torchrl.trainers import BatchSubSampler, Trainer, UpdateWeights

    actor, critic = make_actor(), modules.ValueOperator(torch.nn.Linear(4, 1), ["observation"])
    loss = objectives.ClipPPOLoss(actor, critic)
    advantages = objectives_value.GAE(gamma=0.9, lmbda=0.8, value_network=critic)
    before = {name: tensor.clone() for name, tensor in actor.state_dict().items()}
    pool = make_pool(actor)
    collector = adapter.PoolCollector(pool, actor, total_frames=640)
    assert collector.frames_per_batch == 64
    trainer = Trainer(
        collector=collector,
        total_frames=640,
        frame_skip=1,
        optim_steps_per_batch=2,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), 1e-2),
        progress_bar=False,
        seed=3,
    )
    trainer.register_op("batch_process", lambda data: advantages(data).reshape(-1))
    trainer.register_op("process_optim_batch", BatchSubSampler(batch_size=16))
    trainer.register_op("post_steps", UpdateWeights(collector, 1))
    trainer.train()
    assert pool.closed
    assert pool.policy_version == 10
    assert any(not torch.equal(before[name], tensor) for name, tensor in actor.state_dict().items())


@pytest.mark.more
def test_a_collector_publishes_weights_and_continues_from_a_state() -> None:
    actor = make_actor()
    with make_pool(actor) as pool:
        collector = adapter.PoolCollector(pool, actor)
        assert collector.next().batch_size == (4, 16)
        weights = tensordict.TensorDict.from_module(actor)
        for given in ((), (actor,), (actor.state_dict(),), (weights,), (adapter.TensorDictPolicy(actor),)):
            collector.update_policy_weights_(*given)
        collector.update_policy_weights_(policy=actor)
        assert pool.policy_version == 6
        assert (collector.next()["policy_version"] == 6).all()
        state = collector.state_dict()
    with make_pool(actor) as pool:
        collector = adapter.PoolCollector(pool, actor)
        collector.load_state_dict(state)
        assert pool.policy_version == 6
        assert collector.set_seed(3) == 7
        with pytest.raises(ConfigurationError, match="Make the pool with seed=4"):
            collector.set_seed(4)
        with pytest.raises(ConfigurationError, match="cannot take worker_ids"):
            collector.update_policy_weights_(worker_ids=[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: adapter.TensorDictPolicy(torch.nn.Linear(4, 2)),
            "needs a TensorDictModule that writes 'action'.*got Linear",
        ),
        (
            lambda: adapter.TensorDictPolicy(
                tensordict_nn.TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"])
            ),
            r"which writes \['logits'\]",
        ),
        (
            lambda: adapter.TensorDictPolicy(
                tensordict_nn.TensorDictModule(torch.nn.Linear(4, 2), [("agents", "observation")], ["action"])
            ),
            "the keys of the actor must be flat",
        ),
        (lambda: adapter.PoolCollector("CartPole-v1", None), "needs an AsyncWorkerPool"),  # type: ignore[arg-type]
    ],
)
def test_invalid_actors_and_pools_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.more
def test_a_collector_ends_after_total_frames() -> None:
    with make_pool(make_actor()) as pool:
        with pytest.raises(ConfigurationError, match="total_frames"):
            adapter.PoolCollector(pool, None, total_frames=0)
        assert len(list(adapter.PoolCollector(pool, None, total_frames=200))) == 4
    with make_pool(make_actor(), num_envs=5, mode="async") as pool:
        assert adapter.PoolCollector(pool, None).frames_per_batch == 3 * 16
