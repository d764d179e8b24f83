"""Step a ``VectorEnv`` and record copies of its results."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from parenv.envs.autoreset import Autoreset
from parenv.envs.final_observations import final_of, given_finals
from parenv.memory.spaces import flatten, leaves, stacked, unflatten
from parenv.memory.trees import as_array


class Step(NamedTuple):
    """Copies of the results of one step, by leaf."""

    observations: list[Any]
    rewards: Any
    ended: Any
    finals: dict[int, list[Any]]
    """Final observations by column."""


class Trace:
    """Steps an environment with random actions and records its results.

    Args:
        env: Environment.
        autoreset: Autoreset mode that it declares, or ``None``.
        seed: Seed of actions and of the reset.
        problems: List to which problems are added, each once.
        notes: List to which further facts are added, each once.

    Attributes:
        initial: Observations of which it is certain that episodes begin with them, by leaf ``[K, ...]``.
    """

    def __init__(self, env: Any, autoreset: Autoreset | None, seed: int, problems: list[str], notes: list[str]) -> None:
        self.env, self.problems, self.notes = env, problems, notes
        self._resets = autoreset is not None and autoreset.caller_resets
        self.leaves = leaves(env.single_observation_space)
        self.spec = [leaf for leaf in self.leaves if leaf.dtype is not None]
        self._seed = seed
        self._space: Space[Any] = env.single_action_space
        self._space.seed(seed)
        self.initial = [np.concatenate(parts) for parts in zip(*(self._reset(seed + i) for i in range(8)), strict=True)]

    def run(self, steps: int) -> list[Step]:
        """Take a number of steps, or fewer if enough episodes end."""
        history: list[Step] = []
        self._reset(self._seed)
        before: list[tuple[Any, Any]] = []
        ends = 0
        for _ in range(steps):
            stepped = self.env.step(random_actions(self._space, self.env.num_envs))
            if len(stepped) != 5:
                self.say(
                    "step must return observations, rewards, terminated, truncated and infos, got "
                    f"{len(stepped)} values"
                )
                break
            if any(not np.array_equal(now, then, equal_nan=True) for now, then in before):
                self.note("it changes arrays that it has returned. Copy what you keep, as a pool does")
            step = self._taken(*stepped)
            before = list(zip(self._parts(stepped[0]), step.observations, strict=True))
            history.append(step)
            ends += int(step.ended.sum())
            if ends >= 40 and len(history) >= 50:
                break
            if self._resets and step.ended.any():
                self._reset_some(step)
        return history

    def say(self, problem: str) -> None:
        """Report a problem."""
        if problem not in self.problems:
            self.problems.append(problem)

    def note(self, text: str) -> None:
        """Report a note."""
        if text not in self.notes:
            self.notes.append(text)

    def _taken(self, observations: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any) -> Step:
        self._check_observations(observations)
        batch = self.env.num_envs
        flags = []
        for name, values in {"rewards": rewards, "terminated": terminated, "truncated": truncated}.items():
            array = as_array(values)
            kinds, wanted = ("fiu", "numbers") if name == "rewards" else ("b", "bool")
            if array.shape != (batch,) or array.dtype.kind not in kinds:
                self.say(f"{name} must be {wanted} of shape ({batch},), got {array.dtype} of shape {array.shape}")
            flags.append(array.reshape(-1)[:batch].copy())
        self._check_infos(infos)
        ended = np.logical_or(flags[1], flags[2])
        return Step([part.copy() for part in self._parts(observations)], flags[0], ended, self._finals(infos, ended))

    def _finals(self, infos: Any, ended: Any) -> dict[int, list[Any]]:
        given, there = given_finals(infos) if isinstance(infos, dict) else (None, None)
        finals = {}
        for column in np.flatnonzero(ended).tolist() if given is not None else ():
            final = final_of(self.leaves, given, there, column)
            if final is not None:
                finals[column] = [part.copy() for part in self._parts(final)]
        return finals

    def _reset(self, seed: int) -> list[Any]:
        returned = self.env.reset(seed=seed)
        if not isinstance(returned, tuple) or len(returned) != 2:
            self.say("reset must return observations and infos")
            returned = returned, {}
        self._check_observations(returned[0])
        return [part.copy() for part in self._parts(returned[0])]

    def _reset_some(self, step: Step) -> None:
        """Reset the sub-environments whose episode has ended."""
        try:
            observations, _ = self.env.reset(options={"reset_mask": step.ended.copy()})
        except Exception as error:
            self.say(
                f"it declares DISABLED, but reset(options={{'reset_mask': ...}}) raises {type(error).__name__}: {error}"
            )
            self._resets = False
            return
        for before, after in zip(step.observations, self._parts(observations), strict=True):
            if not np.array_equal(before[~step.ended], after[~step.ended]):
                self.say("reset(options={'reset_mask': ...}) changes sub-environments that the mask leaves out")

    def _parts(self, observations: Any) -> list[Any]:
        """Return the leaves of observations that are arrays."""
        found = zip(self.leaves, flatten(self.leaves, observations), strict=True)
        return [as_array(values) for leaf, values in found if leaf.dtype is not None]

    def _check_observations(self, observations: Any) -> None:
        for leaf, array in zip(self.spec, self._parts(observations), strict=True):
            wanted = (self.env.num_envs, *leaf.shape)
            if array.shape != wanted or array.dtype != leaf.dtype:
                self.say(
                    f"observations{leaf.name} must have shape {wanted} and dtype {np.dtype(leaf.dtype)} like their "
                    f"space, got {array.shape} and {array.dtype}"
                )

    def _check_infos(self, infos: Any) -> None:
        if not isinstance(infos, dict):
            self.say(f"infos must be a dict of arrays, got a {type(infos).__name__}")
            return
        for name, values in infos.items():
            length = getattr(values, "shape", (None,))[:1] or (0,)
            if length[0] is not None and length[0] != self.env.num_envs:
                self.note(f"the info {name!r} is left out, because it does not have a row for each sub-environment")


def random_actions(space: Space[Any], batch: int) -> Any:
    """Return a batch with one random action for each sub-environment."""
    of = leaves(space)
    return unflatten(of, stacked(of, [space.sample() for _ in range(batch)]))
