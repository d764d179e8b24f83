"""ParallelVecEnv: parallel environments for Stable-Baselines3."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import Env, Space, Wrapper
from gymnasium.spaces import Dict, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array
from stable_baselines3.common.monitor import ResultsWriter
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn

from parenv.envs.step_buffer_stepper import NO_OPTIONS
from parenv.memory.kinds import ENDED_BY, FINAL_OBSERVATION, WORKER_RESTARTED
from parenv.options import WorkerOptions
from parenv.vector.library_vector_env import LibraryVectorEnv
from parenv.vector.vector_plan import OnWorkerDeath
from parenv.worker.copied_env import CHANGES

_FINAL_INFO = "final_info"


class ParallelVecEnv(VecEnv):
    """Stable-Baselines3's ``SubprocVecEnv`` with many environments per worker: same arguments, same behaviour.

    Observations, rewards, dones and infos are the same as with ``DummyVecEnv`` with the same seeds and actions.

    Args:
        env_fns: One factory for each environment.
        start_method: Start method, for compatibility. All start methods have the same effect.
        num_workers: Number of worker processes, at most one per environment. 0: all environments run in this process.
            Default: ``"auto"``, chosen as in :class:`~parenv.ParallelVectorEnv`.
        step_timeout_s: Seconds in which a worker must answer a step or a call. A worker that does not is killed, and
            the error shows its stack. ``WorkerOptions(reset_timeout_s=...)`` limits resets.
        on_worker_death: ``"raise"``: a dead worker closes the vec env. ``"restart"``: the worker is restarted, the
            current episodes of its environments are truncated, and their infos have ``"worker_restarted"`` and
            ``"ended_by"``.
        workers: Options of workers, such as time limits for start and close.
        spaces: Spaces of one environment, or how to get them, as in :class:`~parenv.ParallelVectorEnv`.
        strict_infos: Whether an info value without a plain form is an error. Default: it is left out with a warning.

    Raises:
        ConfigurationError: An argument is wrong, or cannot be honoured.

    >>> from stable_baselines3.common.env_util import make_vec_env
    >>> envs = make_vec_env("CartPole-v1", 4, vec_env_cls=ParallelVecEnv, vec_env_kwargs={"num_workers": 2})
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
        num_workers: int | Literal["auto"] | None = "auto",
        step_timeout_s: float | None = None,
        on_worker_death: OnWorkerDeath = "raise",
        workers: WorkerOptions | None = None,
        spaces: tuple[Space[Any], Space[Any]] | Literal["make"] | None = None,
        strict_infos: bool = False,
    ) -> None:
        self._envs = envs = LibraryVectorEnv(
            env_fns,
            is_silent=True,
            context=start_method,
            autoreset_mode=AutoresetMode.SAME_STEP,
            num_workers=min(num_workers, len(env_fns)) if isinstance(num_workers, int) else num_workers,
            step_timeout_s=step_timeout_s,
            on_worker_death=on_worker_death,
            workers=workers,
            spaces=spaces,
            strict_infos=strict_infos,
        )
        try:
            super().__init__(len(env_fns), envs.single_observation_space, envs.single_action_space)
        except BaseException:
            envs.close()
            raise
        self.metadata = {key: value for key, value in envs.metadata.items() if key != "autoreset_mode"}

    def reset(self) -> VecEnvObs:
        """Begin an episode in all environments, with the seeds and options that were set since the last reset.

        Returns:
            Observations only. Infos are in ``reset_infos``.
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
        """Environments as in ``DummyVecEnv``, with ``num_workers=0`` only."""
        return self._envs.envs

    def step_async(self, actions: Any) -> None:
        """Begin a step without waiting for it.

        Args:
            actions: Array ``[num_envs, ...]``. If the action space is a ``Dict`` or ``Tuple``, one action for each
                environment.

        Raises:
            ValueError: The number of actions is not ``num_envs``.
        """
        if isinstance(self.action_space, Dict | Tuple) and not isinstance(actions, Mapping):
            actions = _batched(self.action_space, actions, self.num_envs)
        self._envs.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for a step.

        Returns:
            Observations, rewards (float32 ``[num_envs]``), dones (bool ``[num_envs]``), and infos as a list of dicts.
            At the end of an episode the info is the one of its last step, with the last observation as
            ``"terminal_observation"``. ``reset_infos`` then has the info of the reset.
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
        """Return an image of each environment, or warn and return ``None`` if the render mode is not ``rgb_array``."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"get_images needs render_mode='rgb_array', got {self.render_mode!r}", stacklevel=2)
            return [None] * self.num_envs
        return self.env_method("render")

    def has_attr(self, attr_name: str) -> bool:
        """Return whether all environments have an attribute."""
        return all(self.env_method("has_wrapper_attr", attr_name))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of some environments, found through their wrappers.

        Raises:
            AttributeError: They have no attribute of this name.
            NotDataError: Its value is not plain data, and there are worker processes.
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
            NotDataError: It returns something other than plain data, and there are worker processes.
        """
        return self._ask(indices, "call", method_name, method_args, method_kwargs)

    def env_is_wrapped(
        self, wrapper_class: type[Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Return whether some environments have a wrapper of this class, compared by module and name."""
        return self._ask(indices, "is_wrapped", wrapper_class.__module__, wrapper_class.__qualname__)

    def _each_info(self, infos: dict[str, Any]) -> list[dict[str, Any]]:
        """Return one dict for each environment."""
        each = self._envs.each_info(infos)
        for env_id in np.flatnonzero(infos.get(f"_{WORKER_RESTARTED}", ())).tolist():
            final_info = {WORKER_RESTARTED: True, ENDED_BY: infos[ENDED_BY][env_id]}
            each[env_id] |= {FINAL_OBSERVATION: infos[FINAL_OBSERVATION][env_id], _FINAL_INFO: final_info}
        return each

    def _ask(self, indices: VecEnvIndices, method: str, *arguments: Any) -> list[Any]:
        """Have the workers of some environments call a method. Negative indices count from the end."""
        return self._envs.ask_some(env_ids_of(self, indices), method, *arguments)


class SteppedVecEnv(ParallelVecEnv):
    """A ``ParallelVecEnv`` for a model whose own environments are replaced: it writes the files of their Monitors.

    Args:
        env_fns: One factory for each environment.
        writers: Writer of the Monitor's file, by env_id.
        **options: Options of ``ParallelVecEnv``.

    Attributes:
        seconds: Seconds for which the model has waited for steps.
        steps: Number of steps that all environments have made together.
        num_workers: Number of worker processes. With 0, all environments run in this process.

    >>> import gymnasium as gym
    >>> envs = SteppedVecEnv([lambda: gym.make("CartPole-v1")] * 2, {}, num_workers=0)
    >>> envs.reset().shape, envs.steps
    ((2, 4), 0)
    >>> envs.close()
    """

    def __init__(self, env_fns: Any, writers: Mapping[int, ResultsWriter], **options: Any) -> None:
        super().__init__(env_fns, **options)
        self._writers, self.num_workers = writers, self._envs.num_workers
        self.seconds, self.steps = 0.0, 0

    def step_async(self, actions: Any) -> None:
        """Begin a step."""
        began = time.perf_counter()
        super().step_async(actions)
        self.seconds += time.perf_counter() - began

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for a step, and write a line into the file of a Monitor for each episode that ended."""
        began = time.perf_counter()
        stepped = super().step_wait()
        self.seconds += time.perf_counter() - began
        self.steps += 1
        for env_id, writer in self._writers.items():
            if (episode := stepped[3][env_id].get("episode")) is not None:
                writer.write_row(episode)
        return stepped

    def changes(self) -> list[Any]:
        """Return the changes of each environment, see :class:`~parenv.worker.copied_env.EnvChanges`."""
        return self.env_method(CHANGES)


def env_ids_of(envs: VecEnv, indices: VecEnvIndices) -> list[int]:
    """Return env_ids for indices of a vec env, among which negative ones count from the end."""
    return [range(envs.num_envs)[index] for index in envs._get_indices(indices)]


def _batched(space: Space[Any], actions: Sequence[Any], n: int) -> Any:
    """Return single actions as one action of Gymnasium's vector envs."""
    if len(actions) != n:
        raise ValueError(f"actions must have one for each of {n} environments, got {len(actions)}")
    empty: Any = create_empty_array(space, n)
    return concatenate(space, list(actions), empty)
