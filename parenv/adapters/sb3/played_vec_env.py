"""The environments of a model, stepped by workers that act for it; the model is played what they have collected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium import Wrapper
from stable_baselines3.common.monitor import ResultsWriter
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn

from parenv.adapters.sb3.played_rounds import PlayedRounds, Round
from parenv.errors import ConfigurationError
from parenv.memory.spaces import leaves, unflatten
from parenv.pool.pool import AsyncWorkerPool


class PlayedVecEnv(VecEnv):
    """A vec env whose steps have been made already, by actions of the workers.

    Args:
        pool: whose sub-environments are :class:`~parenv.adapters.sb3.told_env.ToldEnv`.
        original: the vec env whose place it takes.
        writers: by env_id, what writes the file of its Monitor.
        policy: what is published before each round.
        settings: of the version that begins after so many steps more, and whether workers may begin a round while the
            model learns from the one before.
        ahead: whether they do.
        parts: in which they collect one rollout of the model, which is played one while they collect the next.

    Attributes:
        steps: of all environments together.
        num_workers: worker processes.
    """

    def __init__(
        self,
        pool: AsyncWorkerPool,
        original: VecEnv,
        writers: Mapping[int, ResultsWriter],
        policy: Any,
        settings: Callable[[int], Mapping[str, Any]],
        ahead: bool,
        parts: int,
    ) -> None:
        self._pool, self._policy, self._settings, self._ahead = pool, policy, settings, ahead
        self._render_mode, self._writers = original.render_mode, writers
        self.rounds = PlayedRounds(pool, parts, with_random_state=not ahead)
        self._round: Round | None = None
        self.steps = 0
        self.num_workers = pool.num_workers
        super().__init__(original.num_envs, original.observation_space, original.action_space)
        self.metadata = original.metadata

    @property
    def seconds(self) -> float:
        """For which the model has waited."""
        return self.rounds.seconds

    @property
    def is_between(self) -> bool:
        """Whether a rollout of the model has been begun to play, and is not over."""
        return self._round is not None and not (self._round.is_over and self._round.is_final)

    def acted(self, *names: str) -> list[Any]:
        """What the policy gave for the next step; where all have been played, after a wait for the next round."""
        return [self.current_round().acted(name) for name in names]

    def current_round(self) -> Round:
        """What is played now; at its end the next one, behind which workers go on meanwhile as far as they may."""
        if self._round is None or self._round.is_over:
            if not self.rounds.is_under_way:
                self.rounds.begin(self._policy, self._settings(0))
            self._round = self.rounds.take()
            if self.rounds.is_under_way:
                self.rounds.go_on()
            elif self._ahead:
                self.rounds.begin(self._policy, self._settings(self._round.length))
        return self._round

    @property
    def random_state_behind(self) -> bytes | None:
        """Torch's random state behind the round whose last step comes next; ``None`` before others."""
        found = self._round
        return found.random_state if found is not None and found.is_last else None

    def reset(self) -> VecEnvObs:
        """Begin an episode in every environment, with the seeds that were set since the last reset."""
        if any(self._options):
            raise ConfigurationError("accelerate cannot give options to a reset: set_options has no way to the workers")
        self._round = None
        first = self.rounds.restart(self._seeds)
        self._reset_seeds()
        observations: VecEnvObs = unflatten(leaves(self.observation_space), first)
        return observations

    def step_async(self, actions: Any) -> None:
        """Nothing: the workers have chosen the actions."""

    def step_wait(self) -> VecEnvStepReturn:
        """Play a step."""
        current = self.current_round()
        stepped = current.play()
        if stepped[2].any():
            self.note_ends(current, np.flatnonzero(stepped[2]).tolist(), dict(enumerate(stepped[3])))
        self.steps += 1
        return stepped

    def note_ends(self, current: Round, env_ids: Sequence[int], infos: Mapping[int, Mapping[str, Any]]) -> None:
        """Keep what comes of a step that ends episodes: infos of the resets behind it, and lines of Monitors."""
        for env_id in env_ids:
            self.reset_infos[env_id] = current.reset_infos[env_id]
            if env_id in self._writers and "episode" in infos.get(env_id, {}):
                self._writers[env_id].write_row(infos[env_id]["episode"])

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def has_attr(self, attr_name: str) -> bool:
        """Whether all environments have an attribute."""
        return all(self._ask("has_wrapper_attr", attr_name))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of some environments, found through their wrappers."""
        if attr_name == "render_mode":
            return [self._render_mode for _ in self._get_indices(indices)]
        return self._ask("get_wrapper_attr", attr_name, indices=indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of some environments, from the next round on."""
        self._ask("set_outermost", attr_name, value, indices=indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of some environments, found through their wrappers.

        Raises:
            ConfigurationError: in the middle of a round: the environments are at its end.
        """
        return self._ask(method_name, *method_args, indices=indices, **method_kwargs)

    def env_is_wrapped(
        self, wrapper_class: type[Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether some environments have a wrapper of this class among theirs; classes go by their names."""
        named = wrapper_class.__module__, wrapper_class.__qualname__
        return list(self._pool._session.ask_environments("is_wrapped", self._env_ids(indices), *named))

    def get_images(self) -> NoReturn:
        """There are none.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("workers that act for the model are ahead of it, so there is no image of this step")

    def _ask(self, name: str, *args: Any, indices: VecEnvIndices = None, **method_kwargs: Any) -> list[Any]:
        if self.is_between and not self._ahead:
            raise ConfigurationError(
                f"{name} was asked of the environments in the middle of a rollout, but the workers have collected it "
                "to its end. Ask when a rollout begins or ends (_on_rollout_start, _on_rollout_end)"
            )
        return list(self._pool.call(name, *args, env_ids=self._env_ids(indices), **method_kwargs))

    def _env_ids(self, indices: VecEnvIndices) -> Sequence[int]:
        return [range(self.num_envs)[i] for i in self._get_indices(indices)]
