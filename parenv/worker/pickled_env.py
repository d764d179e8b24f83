"""Copy a sub-environment that exists in the driver to a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from parenv.process.user_code import dumps


@dataclass(frozen=True)
class PickledEnv:
    """Factory of copies of an environment.

    Args:
        data: Environment with its random state, pickled by :meth:`of`.
        env_id: env_id of the environment.
    """

    data: bytes = field(repr=False)
    env_id: int

    @classmethod
    def of(cls, env: Any, env_id: int) -> PickledEnv:
        """Pickle an environment.

        Raises:
            Exception: The environment cannot be pickled. The type varies.
        """
        return cls(dumps((env, generator_of(env))), env_id)

    def __call__(self) -> Any:
        """Return a copy with the random state of the original, and an action space with other samples."""
        env, generator = cloudpickle.loads(self.data)
        # EzPickle makes environments from their arguments when they are unpickled, which loses the random state.
        set_generator(env, generator)
        # The model and other environments may sample the original space. The copy must not repeat their samples.
        env.action_space.seed(int(env.action_space.np_random.integers(2**31)) + self.env_id)
        return env


def generator_of(env: Any) -> tuple[Any, Any]:
    """Return the random generator of an environment and its seed. Each is ``None`` before the first use."""
    inner = env.unwrapped
    return getattr(inner, "_np_random", None), getattr(inner, "_np_random_seed", None)


def set_generator(env: Any, generator: tuple[Any, Any]) -> None:
    """Set the generator that :func:`generator_of` has returned for another environment."""
    env.unwrapped._np_random, env.unwrapped._np_random_seed = generator
