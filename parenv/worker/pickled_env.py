"""A sub-environment that the driver has made, as what makes a copy of it in a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from parenv.process.user_code import dumps


@dataclass(frozen=True)
class PickledEnv:
    """Makes a copy of an environment each time it is called.

    Args:
        data: the environment with its random state, as :meth:`of` has pickled them.
        env_id: of it.
    """

    data: bytes = field(repr=False)
    env_id: int

    @classmethod
    def of(cls, env: Any, env_id: int) -> PickledEnv:
        """Pickle an environment.

        Raises:
            Exception: of any kind: it cannot be pickled.
        """
        return cls(dumps((env, generator_of(env))), env_id)

    def __call__(self) -> Any:
        """A copy, with the random state that it had and an action space that is sampled in its own way."""
        env, generator = cloudpickle.loads(self.data)
        # Many are made anew from their arguments when they are unpickled (EzPickle), and have lost it.
        set_generator(env, generator)
        # The model and other environments may sample the original space. The copy must not repeat their samples.
        env.action_space.seed(int(env.action_space.np_random.integers(2**31)) + self.env_id)
        return env


def generator_of(env: Any) -> tuple[Any, Any]:
    """The random generator of an environment and its seed, ``None`` where it has none yet."""
    inner = env.unwrapped
    return getattr(inner, "_np_random", None), getattr(inner, "_np_random_seed", None)


def set_generator(env: Any, generator: tuple[Any, Any]) -> None:
    """Give an environment what :func:`generator_of` has of another one."""
    env.unwrapped._np_random, env.unwrapped._np_random_seed = generator
