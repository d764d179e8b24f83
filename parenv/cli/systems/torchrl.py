"""TorchRL's batched envs, stepped as its collectors step them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any

NAME, PACKAGE = "TorchRL", "torchrl"
KINDS = {"SerialEnv": True, "ParallelEnv": False}


def wrapped(factory: Callable[[], Any]) -> Any:
    """One environment, with its actions as they are and not one-hot."""
    return import_module("torchrl.envs").GymWrapper(factory(), categorical_action_encoding=True)


class TorchRLEnvs:
    """Stepped from one batch of data to the next."""

    def __init__(self, envs: Any, num_envs: int) -> None:
        self.envs, self.num_envs, self.close = envs, num_envs, envs.close

    def reset(self) -> None:
        """Begin an episode in each."""
        self._data = self.envs.reset()

    def step(self, actions: Any) -> None:
        """Step all, and reset those that have ended."""
        import torch

        _, self._data = self.envs.step_and_maybe_reset(self._data.set("action", torch.as_tensor(actions)))


def make(kind: str, factories: Sequence[Callable[[], Any]], start_method: str | None = None) -> TorchRLEnvs:
    """Batched envs of this kind."""
    makers = {id(factory): partial(wrapped, factory) for factory in factories}  # The same one counts as the same task.
    more = {} if KINDS[kind] else {"mp_start_method": start_method}
    envs, each = getattr(import_module("torchrl.envs"), kind), [makers[id(factory)] for factory in factories]
    # TorchRL keeps the frames in which it is called, and all that lives there: in a thread there are none of ours.
    with ThreadPoolExecutor(1) as thread:
        return TorchRLEnvs(thread.submit(envs, len(factories), each, **more).result(), len(factories))
