"""A vec env that replays the steps of workers: they have acted for a model, which then sees step after step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn, cast

from gymnasium import Wrapper
from stable_baselines3.common.monitor import ResultsWriter
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn

from parenv.adapters.sb3.infos import infos_of, set_random_state
from parenv.adapters.sb3.vec_env import env_ids_of
from parenv.errors import ConfigurationError
from parenv.experience.rollout import Rollout
from parenv.memory.spaces import leaves, unflatten
from parenv.memory.trees import map_trees
from parenv.pool.library_pool import LibraryPool
from parenv.worker.copied_env import CHANGES


class RecordedSteps:
    """Steps that workers have made in all environments, with their infos: one part of a model's rollout.

    Args:
        rollout: Rollout of all environments.
        recorded: Results of :meth:`~parenv.adapters.sb3.infos.InfoLoggingEnv.recorded`, one for each worker.
        is_final: Whether this is the last part of the model's rollout.

    Attributes:
        position: Step that is replayed next.
        dones: Whether an episode ended, bool ``[length, num_envs]``.
        reset_infos: Infos of the last reset of each environment.
        random_state: Torch's random state after the last step, or ``None``.
    """

    def __init__(self, rollout: Rollout, recorded: Sequence[Any], is_final: bool) -> None:
        self.rollout, self.is_final, self.position = rollout, is_final, 0
        self.dones = rollout.terminated | rollout.truncated
        self._by_limit = (rollout.truncated & ~rollout.terminated).tolist()
        self._recorded = [infos for infos, _, _ in recorded]
        self._ends: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for k, (step, env_id) in enumerate(zip(*(index.tolist() for index in rollout.final_index), strict=True)):
            self._ends[step].append((env_id, k))
        self.reset_infos: list[dict[str, Any]] = [info for _, resets, _ in recorded for info in resets]
        self.random_state: bytes | None = recorded[0][2]

    @property
    def length(self) -> int:
        """Number of steps."""
        return len(self.dones)

    @property
    def is_over(self) -> bool:
        """True if all steps have been replayed."""
        return self.position == self.length

    @cached_property
    def _infos(self) -> dict[int, dict[int, dict[str, Any]]]:
        return infos_of(self._recorded)

    def acted(self, name: str) -> Any:
        """Return an extra of the policy for the next step, ``[num_envs, ...]``."""
        return self.rollout.extras[name][self.position].copy()

    def ended_at(self, step: int) -> list[int]:
        """Return the env_ids whose episode ended in a step."""
        return [env_id for env_id, _ in self._ends.get(step, ())]

    def infos_with(self, *keys: str) -> dict[int, dict[int, dict[str, Any]]]:
        """Return infos that have one of some keys, by step and env_id."""
        return infos_of(self._recorded, keys)

    def cut_off(self) -> Iterator[tuple[int, int, Any]]:
        """Yield step, env_id and final observation of each episode that a limit has ended."""
        for step, ends in self._ends.items():
            for env_id, k in ends:
                if self._by_limit[step][env_id]:
                    yield step, env_id, copies_at(k, self.rollout.final_observations)

    def next_step(self) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
        """Return observations, rewards, dones and infos of the next step."""
        step, rollout = self.position, self.rollout
        given, infos = self._infos.get(step, {}), []
        for env_id, by_limit in enumerate(self._by_limit[step]):
            infos.append(info := given.get(env_id) or {})
            info["TimeLimit.truncated"] = by_limit
        for env_id, k in self._ends.get(step, ()):
            infos[env_id]["terminal_observation"] = copies_at(k, rollout.final_observations)
        observations = copies_at(step, rollout.shifted_observations)
        return observations, rollout.rewards[step].copy(), self.dones[step].copy(), infos


class ReplayedVecEnv(VecEnv):
    """A vec env whose steps workers have already made, with actions of their own.

    Args:
        pool: Pool of :class:`~parenv.adapters.sb3.infos.InfoLoggingEnv`, in sync mode.
        original: Vec env that this one replaces.
        writers: Writer of the Monitor's file, by env_id.
        publish: Publishes the policy for the next rollout, which begins after so many steps more.
        ahead: Whether workers begin a rollout while the model still learns from the previous one.
        parts: Number of pool rollouts in one rollout of the model. The model replays a part while workers collect the
            next one.

    Attributes:
        seconds: Seconds for which the model has waited.
        steps: Number of steps that all environments have made together.
        num_workers: Number of worker processes.
    """

    def __init__(
        self,
        pool: LibraryPool,
        original: VecEnv,
        writers: Mapping[int, ResultsWriter],
        publish: Callable[[int], None],
        ahead: bool,
        parts: int,
    ) -> None:
        self._pool, self._publish, self._ahead, self._parts = pool, publish, ahead, parts
        self._render_mode, self._writers = original.render_mode, writers
        self._is_waiting, self._parts_left = False, 0
        self._stream: Iterator[Rollout | None] = pool.rollouts(wait=lambda: self._is_waiting)
        self._early: Rollout | None = None
        self._recorded: RecordedSteps | None = None
        self.seconds, self.steps, self.num_workers = 0.0, 0, pool.num_workers
        super().__init__(original.num_envs, original.observation_space, original.action_space)
        self.metadata = original.metadata

    @property
    def is_between(self) -> bool:
        """True if the model has replayed a part of a rollout, but not all of it."""
        return self._recorded is not None and not (self._recorded.is_over and self._recorded.is_final)

    def recorded(self) -> RecordedSteps:
        """Return the steps that are replayed now.

        After their end, wait for the next ones, and have workers go on as far as the policy allows.
        """
        if self._recorded is None or self._recorded.is_over:
            if not self._parts_left:
                self._begin_rollout(0)
            self._recorded = self._next_part()
            if self._parts_left:
                self._request_part()
            elif self._ahead:
                self._begin_rollout(self._recorded.length)
        return self._recorded

    def reset(self) -> VecEnvObs:
        """Begin an episode in every environment, with the seeds that were set since the last reset."""
        if any(self._options):
            raise ConfigurationError(
                "accelerate cannot send options to the workers. Do not call set_options, or use "
                "make_vec_env(..., vec_env_cls=parenv.adapters.sb3.ParallelVecEnv)."
            )
        if self._parts_left:
            self._next_part()  # Workers may be in the middle of it.
        self._recorded, self._parts_left = None, 0
        first = self._pool.begin_episodes(self._seeds)
        self._reset_seeds()
        observations: VecEnvObs = unflatten(leaves(self.observation_space), first)
        return observations

    def step_async(self, actions: Any) -> None:
        """Do nothing, because the workers have chosen the actions."""

    def step_wait(self) -> VecEnvStepReturn:
        """Replay a step."""
        stepped = self.recorded().next_step()
        self.finish_step(dict(enumerate(stepped[3])))
        return stepped

    def finish_step(self, infos: Mapping[int, Mapping[str, Any]]) -> None:
        """Move on to the next step.

        This keeps infos of resets, writes lines of Monitors, and sets torch's random state after the last step.

        Args:
            infos: Infos of the step by env_id, at least those with ``"episode"``.
        """
        recorded = self.recorded()
        for env_id in recorded.ended_at(recorded.position):
            self.reset_infos[env_id] = recorded.reset_infos[env_id]
            if env_id in self._writers and "episode" in infos.get(env_id, {}):
                self._writers[env_id].write_row(infos[env_id]["episode"])
        recorded.position += 1
        self.steps += 1
        if recorded.is_over and recorded.random_state is not None:
            set_random_state(recorded.random_state)

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def changes(self) -> list[Any]:
        """Return the changes of each environment, at the end of what workers have collected."""
        return list(self._pool.call(CHANGES))

    def has_attr(self, attr_name: str) -> bool:
        """Return whether all environments have an attribute."""
        return all(self._ask("has_wrapper_attr", attr_name))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of some environments, found through their wrappers."""
        if attr_name == "render_mode":
            return [self._render_mode for _ in self._get_indices(indices)]
        return self._ask("get_wrapper_attr", attr_name, indices=indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of some environments for the next rollout."""
        self._ask("set_outermost", attr_name, value, indices=indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of some environments, found through their wrappers.

        Raises:
            ConfigurationError: The model is in the middle of a rollout, at whose end the environments are.
        """
        return self._ask(method_name, *method_args, indices=indices, **method_kwargs)

    def env_is_wrapped(
        self, wrapper_class: type[Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Return whether some environments have a wrapper of this class, compared by module and name."""
        named = wrapper_class.__module__, wrapper_class.__qualname__
        return list(self._pool.call("is_wrapped", *named, env_ids=env_ids_of(self, indices)))

    def get_images(self) -> NoReturn:
        """Raise an error, because the environments are ahead of the model.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "images of a step are not available, because workers that act are ahead of the model. Let the model act: "
            "make_vec_env(..., vec_env_cls=parenv.adapters.sb3.ParallelVecEnv)."
        )

    def _begin_rollout(self, steps_ahead: int) -> None:
        """Have the workers collect a rollout of the model."""
        self._publish(steps_ahead)
        self._parts_left = self._parts
        self._request_part()

    def _request_part(self) -> None:
        """Have the workers collect the next part of a rollout."""
        self._is_waiting = False
        self._early = next(self._stream)

    def _next_part(self) -> RecordedSteps:
        """Wait for the part that was requested."""
        began = time.perf_counter()
        rollout = self._early
        if rollout is None:
            self._is_waiting = True
            rollout = cast(Rollout, next(self._stream))
        self._parts_left, self._early = self._parts_left - 1, None
        is_final = not self._parts_left
        recorded = [one for one in self._pool.call("recorded", is_final and not self._ahead) if one is not None]
        self.seconds += time.perf_counter() - began
        return RecordedSteps(rollout, recorded, is_final)

    def _ask(self, name: str, /, *args: Any, indices: VecEnvIndices = None, **method_kwargs: Any) -> list[Any]:
        if self.is_between and not self._ahead:
            raise ConfigurationError(
                f"{name} cannot be called in the middle of a rollout, because the workers that act have already "
                "collected it. Call it in _on_rollout_start or _on_rollout_end, or let the model act: "
                "make_vec_env(..., vec_env_cls=parenv.adapters.sb3.ParallelVecEnv)."
            )
        return list(self._pool.call(name, *args, env_ids=env_ids_of(self, indices), **method_kwargs))


def copies_at(index: int, tree: Any) -> Any:
    """Return a copy of a row of every array in a tree."""
    return map_trees(lambda rows: rows[index].copy(), tree)
