"""Copy a sub-environment that exists in the driver to a worker."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np

from parenv.process.user_code import dumps
from parenv.worker.copied_env import CHANGES, EnvChanges, generator_of, samplers_of, set_generator, set_samplers


@dataclass(frozen=True)
class PickledEnv:
    """Factory of copies of an environment.

    Args:
        data: Environment with its random states, pickled by :meth:`of`.
        env_id: env_id of the environment.
    """

    data: bytes = field(repr=False)
    env_id: int

    @classmethod
    def of(cls, env: Any, env_id: int, shared: Iterable[Any] = ()) -> PickledEnv:
        """Pickle an environment.

        Args:
            env: Environment.
            env_id: Its env_id.
            shared: Generators from which the model or another environment draws too. The copy gets other ones, because
                it must not repeat their samples.

        Raises:
            Exception: The environment cannot be pickled. The type varies.
        """
        others = {id(generator): _other(generator, env_id) for generator in shared}
        samplers = samplers_of(env)
        replaced = [others.get(id(sampler), sampler) for sampler in samplers]
        is_own = [id(sampler) not in others for sampler in samplers]
        return cls(dumps((env, generator_of(env), replaced, is_own)), env_id)

    def __call__(self) -> Any:
        """Return a copy with the random states of the original."""
        env, generator, samplers, is_own = cloudpickle.loads(self.data)
        # EzPickle makes environments from their arguments when they are unpickled, which loses the random states.
        set_generator(env, generator)
        set_samplers(env, samplers)
        setattr(env, CHANGES, EnvChanges(env, is_own))
        return env


def _other(generator: Any, env_id: int) -> Any:
    return np.random.default_rng([int(copy.deepcopy(generator).integers(2**31)), env_id])
