"""Train PPO of TorchRL on CartPole-v1 with parallel workers.

The actor, `GAE` and `ClipPPOLoss` come from TorchRL, and the pool replaces a collector of TorchRL.
`rollout.to_tensordict()` has the keys of a collector's batch, and `pool.publish(actor)` replaces
`update_policy_weights_()`. Training stops when the mean return of the last 100 episodes reaches `--stop-return`.

    pip install ".[torchrl]"
    python examples/torchrl_ppo.py --num-workers 2

prints the env steps, the seconds and the mean return of the last 100 episodes, every 10,000 env steps and at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from script import CommonArgs, Curve, flag, parse, save_results
from torch import nn

from parenv import AsyncWorkerPool, Stop

try:
    from tensordict.nn import TensorDictModule
    from torchrl.modules import ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    from parenv.adapters.torchrl import TensorDictPolicy
except ImportError:
    raise SystemExit('torchrl_ppo.py needs TorchRL: pip install ".[torchrl]"') from None


@dataclass
class Args(CommonArgs):
    total_env_steps: int = flag(200_000, "Maximum number of env steps")
    stop_return: float = flag(475.0, "Mean return of the last 100 episodes at which training stops")
    num_envs: int = flag(8, "Number of environments")
    num_workers: int = flag(2, "Number of worker processes; 0: run everything in the main process")
    rollout_length: int = flag(64, "Env steps per environment and rollout")
    epochs: int = flag(8, "Number of passes over each rollout")
    minibatch_size: int = flag(128, "Number of transitions per minibatch")
    learning_rate: float = flag(1e-3, "Learning rate")


def network(outputs: int, gain: float) -> nn.Sequential:
    layers = [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer in layers[::2]:
        nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def make_actor() -> Any:
    return ProbabilisticActor(
        TensorDictModule(network(2, 0.01), ["observation"], ["logits"]),
        ["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )


class Learner:
    """PPO learner from the modules of TorchRL."""

    def __init__(self, args: Args, actor: Any) -> None:
        critic = ValueOperator(network(1, 1.0), ["observation"])
        self.args = args
        self.advantages = GAE(gamma=0.98, lmbda=0.9, value_network=critic, average_gae=False)
        self.loss = ClipPPOLoss(
            actor, critic, clip_epsilon=0.2, entropy_coeff=0.0, critic_coeff=0.5, normalize_advantage=True
        )
        self.optimizer = torch.optim.Adam(self.loss.parameters(), args.learning_rate, eps=1e-5)

    def update(self, data: Any) -> None:
        """Update the actor and the critic with a tensordict of batch size `[num_envs, T]`."""
        for _ in range(self.args.epochs):
            with torch.no_grad():
                self.advantages(data)
            samples = data.reshape(-1)
            for indices in torch.randperm(len(samples)).split(self.args.minibatch_size):
                losses = self.loss(samples[indices])
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.loss.parameters(), 0.5)
                self.optimizer.step()


def main(argv: Sequence[str] | None = None) -> Curve:
    args = parse(Args, argv)
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.torch_threads)
    actor, curve = make_actor(), Curve()
    learner = Learner(args, actor)
    stop, env_steps = Stop(env_steps=args.total_env_steps, mean_return=args.stop_return), 0
    with AsyncWorkerPool(
        args.env_id,
        TensorDictPolicy(actor),
        num_envs=args.num_envs,
        num_workers=args.num_workers,
        rollout_length=args.rollout_length,
        mode="sync",
        seed=args.seed,
    ) as pool:
        for rollout in pool.rollouts(stop):
            learner.update(rollout.to_tensordict())
            pool.publish(actor)
            env_steps += rollout.num_steps
            curve.add(env_steps, rollout.episodes.returns.tolist())
    curve.print_last()
    save_results(args, curve, actor)
    return curve


if __name__ == "__main__":
    main()
