"""ParallelVecEnv: parallel environments for Stable-Baselines3."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import Env, Space, Wrapper
from gymnasium.spaces import Dict, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn

from parenv.envs.batch import NO_OPTIONS
from parenv.memory.kinds import FINAL_OBSERVATION
from parenv.options import WorkerOptions
from parenv.vector.env import ParallelVectorEnv
from parenv.vector.restarts import FLAG
from parenv.vector.vector_plan import OnWorkerDeath

_FINAL_INFO, _EACH = "final_info", "each"


class ParallelVecEnv(VecEnv):
    """Stable-Baselines3's ``SubprocVecEnv`` with many environments per worker: same arguments, same behaviour.

    Traces are those of ``DummyVecEnv`` on the same seeds and actions.

    Args:
        env_fns: one factory for each environment.
        start_method: accepted; all start methods mean the same here.
        num_workers: worker processes, at most one per environment; ``None``: one per usable core; 0: everything in this
            process; ``"auto"``: one per core or 0, whichever a measurement promises to be faster.
        step_timeout_s: seconds in which a worker must answer a step or a call; one that does not is killed, its stack
            shown. ``WorkerOptions(reset_timeout_s=...)`` is the same for resets.
        on_worker_death: ``"raise"``: a dead worker closes everything; ``"restart"``: it is started again, the current
            episodes of its environments are truncated and their infos have ``"worker_restarted"``.
        workers: how workers are set up and how long they may take to start and to close.
        spaces: of one environment, or how to get them, as in :class:`~parenv.ParallelVectorEnv`.
        strict_infos: whether a value in an info that has no plain form is an error, or left out with a warning.

    Raises:
        ConfigurationError: an argument is wrong, or cannot be honoured.
        RuntimeError: the spaces of the environments do not go together.

    >>> from stable_baselines3.common.env_util import make_vec_env
    >>> envs = make_vec_env("CartPole-v1", 4, seed=1, vec_env_cls=ParallelVecEnv, vec_env_kwargs={"num_workers": 2})
    >>> envs.reset().shape
    (4, 4)
    >>> observations, rewards, dones, infos = envs.step(np.zeros(4, int))
    >>> rewards, infos[0]
    (array([1., 1., 1., 1.], dtype=float32), {'TimeLimit.truncated': False})
    >>> envs.close()
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env[Any, Any]]],
        start_method: str | None = None,
        *,
        num_workers: int | Literal["auto"] | None = None,
        step_timeout_s: float | None = None,
        on_worker_death: OnWorkerDeath = "raise",
        workers: WorkerOptions | None = None,
        spaces: tuple[Space[Any], Space[Any]] | Literal["make"] | None = None,
        strict_infos: bool = False,
    ) -> None:
        self._envs = envs = ParallelVectorEnv(
            env_fns,
            context=start_method,
            autoreset_mode=AutoresetMode.SAME_STEP,
            num_workers=min(num_workers, len(env_fns)) if isinstance(num_workers, int) else num_workers,
            step_timeout_s=step_timeout_s,
            on_worker_death=on_worker_death,
            workers=workers,
            spaces=spaces,
            strict_infos=strict_infos,
        )
        envs._session.serve_library(_EACH)
        envs._session.backend.warn.is_silent = True
        try:
            super().__init__(len(env_fns), envs.single_observation_space, envs.single_action_space)
        except BaseException:
            envs.close()
            raise
        self.metadata = {key: value for key, value in envs.metadata.items() if key != "autoreset_mode"}

    def reset(self) -> VecEnvObs:
        """Begin an episode in all environments, with the seeds and options that were set since the last reset.

        Returns:
            Observations only; infos are in ``reset_infos``.
        """
        # An environment without this argument needs none unless options were set.
        options = [one or NO_OPTIONS for one in self._options]
        observations, infos = self._envs.reset(seed=self._seeds, options=options)
        self.reset_infos = self._each_info(infos)
        self._reset_seeds()
        self._reset_options()
        return observations  # type: ignore[no-any-return]

    @property
    def envs(self) -> list[Any]:
        """The environments themselves, as in ``DummyVecEnv``; with ``num_workers=0`` only."""
        return self._envs.envs

    def step_async(self, actions: Any) -> None:
        """Begin a step without waiting for it.

        Args:
            actions: an array ``[num_envs, ...]``; where the action space is a ``Dict`` or ``Tuple``, one for each
                environment.

        Raises:
            ValueError: there is another number of them.
        """
        if isinstance(self.action_space, Dict | Tuple) and not isinstance(actions, Mapping):
            actions = _batched(self.action_space, actions, self.num_envs)
        self._envs.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for a step.

        Returns:
            Observations; rewards, float32 ``[num_envs]``; dones, bool ``[num_envs]``; infos, a list of dicts. Where an
            episode ended, the info is that of its last step, its last observation is in ``"terminal_observation"``, and
            what the reset gave is in ``reset_infos``.
        """
        observations, rewards, terminated, truncated, infos = self._envs.step_wait()
        dones, each = terminated | truncated, self._each_info(infos)
        for env_id in np.flatnonzero(dones).tolist():
            reset_info = each[env_id]
            final = reset_info.pop(FINAL_OBSERVATION)
            each[env_id] = {**reset_info.pop(_FINAL_INFO), "terminal_observation": final}
            self.reset_infos[env_id] = reset_info
        for info, by_limit in zip(each, (truncated & ~terminated).tolist(), strict=True):
            info["TimeLimit.truncated"] = by_limit
        return observations, rewards.astype(np.float32), dones, each

    def close(self) -> None:
        """End the workers. Idempotent."""
        self._envs.close()

    def get_images(self) -> Sequence[np.ndarray[Any, Any] | None]:
        """An image of each environment, or ``None`` with a warning where ``render_mode`` is not ``"rgb_array"``."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"get_images needs render_mode='rgb_array', but it is {self.render_mode!r}", stacklevel=2)
            return [None] * self.num_envs
        return self.env_method("render")

    def has_attr(self, attr_name: str) -> bool:
        """Whether all environments have an attribute, whatever its value."""
        return all(self.env_method("has_wrapper_attr", attr_name))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of some environments, found through their wrappers.

        Raises:
            AttributeError: they have none of this name.
            NotDataError: its value is not plain data, and there are worker processes.
        """
        return self.env_method("get_wrapper_attr", attr_name, indices=indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of some environments, on their outermost wrapper as Stable-Baselines3 does.

        ``env_method("set_wrapper_attr", attr_name, value)`` sets it on the wrapper that has it.
        """
        self.env_method("__setattr__", attr_name, value, indices=indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of some environments, found through their wrappers.

        Raises:
            NotDataError: what it returns is not plain data, and there are worker processes.
        """
        return self._ask(indices, "call", method_name, method_args, method_kwargs)

    def env_is_wrapped(
        self, wrapper_class: type[Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether some environments have a wrapper of this class among theirs; classes go by their names."""
        module, name = wrapper_class.__module__, wrapper_class.__qualname__
        return self._ask(indices, "is_wrapped", module, name)

    def _each_info(self, infos: dict[str, Any]) -> list[dict[str, Any]]:
        """One dict for each environment, as it was given."""
        each: list[dict[str, Any]] = infos.get(_EACH) or [{} for _ in range(self.num_envs)]
        for env_id in np.flatnonzero(infos.get(f"_{FLAG}", ())).tolist():
            each[env_id] |= {FINAL_OBSERVATION: infos[FINAL_OBSERVATION][env_id], _FINAL_INFO: {FLAG: True}}
        return each

    def _ask(self, indices: VecEnvIndices, method: str, *arguments: Any) -> list[Any]:
        """Have the workers of some environments do something; negative indices count from the end."""
        self._envs._check_free(method)
        wanted = [range(self.num_envs)[env_id] for env_id in self._get_indices(indices)]
        asked = sorted(set(wanted))
        self._envs._session.begin_call(method, (), *arguments, env_ids=asked)
        answers = dict(zip(asked, self._envs._session.end_call(None, method), strict=True))
        return [answers[env_id] for env_id in wanted]


def _batched(space: Space[Any], actions: Sequence[Any], n: int) -> Any:
    """Actions one by one as Gymnasium's vector envs have them."""
    if len(actions) != n:
        raise ValueError(f"{len(actions)} actions were given for {n} environments")
    room: Any = create_empty_array(space, n)
    return concatenate(space, list(actions), room)
