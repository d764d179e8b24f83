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
    """

    data: bytes = field(repr=False)

    @classmethod
    def of(cls, env: Any) -> PickledEnv:
        """Pickle an environment.

        Raises:
            Exception: of any kind: it cannot be pickled.
        """
        inner = env.unwrapped
        random_state = getattr(inner, "_np_random", None), getattr(inner, "_np_random_seed", None)
        return cls(dumps((env, random_state)))

    def __call__(self) -> Any:
        """A copy, with the random state that it had."""
        env, (generator, seed) = cloudpickle.loads(self.data)
        # Many are made anew from their arguments when they are unpickled (EzPickle), and have lost it.
        if generator is not None:
            env.unwrapped._np_random, env.unwrapped._np_random_seed = generator, seed
        return env
