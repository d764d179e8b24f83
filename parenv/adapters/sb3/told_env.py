"""The sub-environments of a worker, which keep their infos until the driver asks for them."""

from __future__ import annotations

import copy
from typing import Any

from gymnasium import Wrapper

from parenv.adapters.sb3.told_infos import InfoLog
from parenv.protocol.plain import plain_info
from parenv.worker.pickled_env import PickledEnv, generator_of, set_generator

OWN: list[ToldEnv] = []
"""The sub-environments of this worker."""
_INFOS = InfoLog()
"""Of their steps."""


class ToldEnv(Wrapper[Any, Any, Any, Any]):
    """Keeps the infos of steps and resets.

    Args:
        env: the environment.
        env_id: of it.

    >>> import gymnasium as gym
    >>> env = ToldEnv(gym.make("CartPole-v1"), 0)
    >>> observation, info = env.reset(seed=1)
    >>> for _ in range(2):
    ...     observation, *_ = env.step(1)
    >>> env.told()
    (([], []), [{}], None)
    """

    def __init__(self, env: Any, env_id: int) -> None:
        super().__init__(env)
        self.env_id = env_id
        self._step = 0
        self._of_reset: dict[str, Any] = {}
        self._copied: tuple[Any, Any] | None = copy.deepcopy(generator_of(env))
        OWN.append(self)

    def reset(self, **options: Any) -> Any:
        """As the environment does it."""
        observation, self._of_reset = self.env.reset(**options)
        if self._copied is not None:
            # The pool has begun with a reset by a seed of its own, which the model knows nothing of.
            set_generator(self.env, self._copied)
            self._copied = None
        return observation, self._of_reset

    def step(self, action: Any) -> Any:
        """As the environment does it."""
        stepped = self.env.step(action)
        if info := stepped[4]:
            _INFOS.add(self._step, self.env_id, info)
        self._step += 1
        return stepped

    def told(self, with_random_state: bool = False) -> Any:
        """Of all of this worker: infos since the last time, with the steps counted from then, and of the last resets.

        Args:
            with_random_state: whether to say torch's random state too.
        """
        for env in OWN:
            env._step = 0
        resets = [plain_info(env._of_reset)[0] for env in OWN]
        return _INFOS.take(), resets, random_state() if with_random_state else None

    def set_outermost(self, name: str, value: Any) -> None:
        """Set an attribute on the outermost wrapper that the user knows."""
        setattr(self.env, name, value)


def told_env(pickled: PickledEnv, env_id: int) -> ToldEnv:
    """Make one in a worker.

    Args:
        pickled: what it wraps.
        env_id: of it.
    """
    return ToldEnv(pickled(), env_id)


def random_state() -> bytes:
    """Torch's random state as plain data."""
    import torch

    return bytes(torch.get_rng_state().numpy().tobytes())


def set_random_state(state: bytes) -> None:
    """Bring torch's random state into one of :func:`random_state`."""
    import torch

    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
