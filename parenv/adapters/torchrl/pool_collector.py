"""TorchRL: policies from its actors, and a pool as a collector for its loops and trainers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parenv.adapters.library_version import check_version, needed
from parenv.errors import ConfigurationError
from parenv.libraries import install_command
from parenv.options import Stop
from parenv.policy.policy import Action, Policy, is_module
from parenv.pool.pool import AsyncWorkerPool

with needed("torchrl", "TorchRL", install_command("torchrl")):
    import tensordict as _tensordict  # noqa: F401
    import torchrl as _torchrl  # noqa: F401

check_version("torchrl", "0.9", install_command("torchrl", upgrade=True))


class TensorDictPolicy(Policy):
    """An actor of TorchRL, any ``TensorDictModule`` that writes actions, as a policy for a pool.

    Its other outputs, such as ``action_log_prob``, ``loc`` or ``state_value``, are extras with the same keys in
    :meth:`~parenv.Rollout.to_tensordict`. With ``evaluate(deterministic=True)``, the actor acts with
    ``ExplorationType.DETERMINISTIC``.

    Args:
        actor: Module that reads ``observation``, or the keys of a ``Dict`` observation space.
        action_key: Key of the action.

    Raises:
        ConfigurationError: The actor is not such a module, or it writes nested keys.

    >>> import torch
    >>> from tensordict.nn import TensorDictModule
    >>> from torchrl.modules import ProbabilisticActor
    >>> network = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"])
    >>> actor = ProbabilisticActor(
    ...     network, ["logits"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    ... )
    >>> with AsyncWorkerPool("CartPole-v1", TensorDictPolicy(actor), num_workers=0, num_envs=2) as pool:
    ...     data = next(pool.rollouts()).to_tensordict()
    >>> data.batch_size, data["next", "reward"].shape, data["logits"].shape
    (torch.Size([2, 128]), torch.Size([2, 128, 1]), torch.Size([2, 128, 2]))
    """

    takes_tensors = True

    def __init__(self, actor: Any, action_key: str = "action") -> None:
        keys = getattr(actor, "out_keys", None)
        if not is_module(actor) or keys is None or action_key not in keys:
            raise ConfigurationError(
                f"TensorDictPolicy needs a TensorDictModule that writes {action_key!r}, such as a ProbabilisticActor, "
                f"got {type(actor).__name__}" + (f", which writes {list(keys)}" if keys is not None else "")
            )
        if nested := [key for key in (*keys, *actor.in_keys) if not isinstance(key, str)]:
            raise ConfigurationError(f"the keys of the actor must be flat, got {nested}. Use a single-agent actor.")
        self.module, self._action_key = actor, action_key
        self._extras = [key for key in keys if key != action_key]

    def act(self, observations: Any, carry: Any) -> Action:
        """Choose actions."""
        from tensordict import TensorDict
        from torchrl.envs.utils import ExplorationType, set_exploration_type

        given = observations if isinstance(observations, Mapping) else {"observation": observations}
        kind = ExplorationType.DETERMINISTIC if self.settings.get("deterministic") else ExplorationType.RANDOM
        with set_exploration_type(kind):
            found = self.module(TensorDict(given, batch_size=[len(next(iter(given.values())))]))
        written = found.to_dict()
        return Action(written[self._action_key], {name: written[name] for name in self._extras if name in written})


class PoolCollector:
    """A pool in the shape of TorchRL's collectors: an iterable of tensordicts ``[B, T]``, for its loops and trainers.

    Args:
        pool: Pool with ``parallelism="experience"``. :meth:`shutdown` closes it.
        policy: Policy that :meth:`update_policy_weights_` publishes by default, such as the actor.
        total_frames: Number of env steps after which it ends. -1: it does not end.
        device: Device of the tensordicts.

    Attributes:
        frames_per_batch: Env steps in each batch. With ``mode="async"``, env steps of the largest worker.
        init_random_frames: 0, because policies act from the start.

    Raises:
        ConfigurationError: An argument is wrong.

    >>> import torch
    >>> class Agent(torch.nn.Linear):
    ...     def forward(self, observations):
    ...         return super().forward(observations).argmax(-1)
    >>> agent = Agent(4, 2)
    >>> pool = AsyncWorkerPool("CartPole-v1", agent, num_workers=0, num_envs=4, rollout_length=32, mode="sync")
    >>> collector = PoolCollector(pool, agent, total_frames=256)
    >>> for data in collector:
    ...     print(data.batch_size, data["next", "reward"].shape)
    ...     collector.update_policy_weights_()
    torch.Size([4, 32]) torch.Size([4, 32, 1])
    torch.Size([4, 32]) torch.Size([4, 32, 1])
    >>> collector.shutdown()
    """

    init_random_frames = 0

    def __init__(self, pool: AsyncWorkerPool, policy: Any, *, total_frames: int = -1, device: Any = "cpu") -> None:
        if not isinstance(pool, AsyncWorkerPool):
            raise ConfigurationError(f"PoolCollector needs an AsyncWorkerPool, got {pool!r}")
        if total_frames != -1 and total_frames < 1:
            raise ConfigurationError(f"total_frames must be positive, or -1 for no limit, got {total_frames}")
        self.pool, self.policy, self._device = pool, policy, device
        self.total_frames = total_frames
        self.frames_per_batch = self.requested_frames_per_batch = pool.max_rollout_steps
        self._stream: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self.iterator()

    def iterator(self) -> Iterator[Any]:
        """Yield tensordicts until ``total_frames``, counted from this call."""
        stop = Stop() if self.total_frames == -1 else Stop(env_steps=self.total_frames)
        for rollout in self.pool.rollouts(stop):
            yield rollout.to_tensordict(self._device)

    def next(self) -> Any:
        """Return the next tensordict, or ``None`` after the last one."""
        self._stream = self._stream or self.iterator()
        return next(self._stream, None)

    def update_policy_weights_(
        self, policy_or_weights: Any = None, *, policy: Any = None, weights: Any = None, **others: Any
    ) -> None:
        """Publish weights to all workers.

        Args:
            policy_or_weights: Module, policy, state dict or tensordict of weights. Default: the collector's policy.
            policy: Same as ``policy_or_weights``.
            weights: Same as ``policy_or_weights``.
            **others: Not supported: a pool publishes to all workers at once.
        """
        if unknown := [name for name, value in others.items() if value is not None]:
            raise ConfigurationError(
                f"a weight update cannot take {', '.join(unknown)}, because a pool publishes to all workers. Leave "
                "them out."
            )
        given = next((one for one in (policy_or_weights, policy, weights) if one is not None), self.policy)
        if hasattr(given, "flatten_keys"):  # TensorDictParams are modules too, and a state dict in other words.
            given = {name: getattr(value, "data", value) for name, value in given.flatten_keys(".").items()}
        self.pool.publish(given)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Check that the pool has this seed, and return the next seed.

        Raises:
            ConfigurationError: The pool was made with another seed.
        """
        if seed != self.pool.seed:
            raise ConfigurationError(
                f"seed must be the seed of the pool, {self.pool.seed}, because its environments are already seeded, "
                f"got {seed}. Make the pool with seed={seed}."
            )
        return seed if static_seed else seed + self.pool.num_envs

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the pool, see :meth:`~parenv.AsyncWorkerPool.state_dict`."""
        return self.pool.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the state of another collector, with a new pool."""
        self.pool.load_state_dict(state_dict)

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Close the pool, within its own limit."""
        self.pool.close()
