"""Check whether a ``VectorEnv`` follows its declarations, with random steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from parenv.envs.autoreset import autoreset_mode
from parenv.errors import ConfigurationError
from parenv.libraries import installed_version
from parenv.memory.spaces import flatten, leaves
from parenv.memory.trees import as_array
from parenv.testing.vector_env_trace import Step, Trace, random_actions

SURE = 0.75
"""Fraction of the ends that must agree with one mode."""

KNOWN = {
    "gymnasium": "FunctionalJaxVectorEnv (1.0 to 1.4) gives a reward for a step that only resets; SyncVectorEnv and "
    "AsyncVectorEnv in SAME_STEP keep the environment's own array as final_obs, which is wrong where it is reused",
    "envpool": "1.2 resets in the next step; reset(seed=) is ignored: give the seed to envpool.make",
    "gymnax": "GymnaxToVectorGymWrapper does not declare its mode, which is SAME_STEP. Since 1.0 it returns final "
    "observations. 0.0.9 returns none, and marks every end as terminated and truncated",
    "brax": "0.14: VectorGymWrapper is for OpenAI's gym and not for Gymnasium; AutoResetWrapper is SAME_STEP without "
    "final observations",
}
"""Known behaviour of the vector envs of some packages."""


@dataclass(frozen=True)
class VectorEnvReport:
    """Result of :func:`check_vector_env`.

    Args:
        declared: Autoreset mode that the environment declares.
        found: Autoreset mode that the environment follows; ``None`` if the steps did not show it.
        ends: Number of episodes that ended.
        problems: Violations of Gymnasium's rules, a sentence each.
        notes: Further facts, a sentence each.

    >>> print(VectorEnvReport(AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, 12, ["it says another mode"]))
    says NEXT_STEP, does SAME_STEP; 12 episodes ended
    WRONG: it says another mode
    """

    declared: AutoresetMode | None
    found: AutoresetMode | None
    ends: int
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"says {_name(self.declared)}, does {_name(self.found)}; {self.ends} episodes ended"]
        lines += [f"WRONG: {problem}" for problem in self.problems]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def check_vector_env(make: Callable[[], Any], steps: int = 1000, seed: int = 0) -> VectorEnvReport:
    """Check whether a ``VectorEnv`` follows Gymnasium's rules, and print the problems.

    The check covers the autoreset mode, the final observations, shapes and dtypes, whether arrays change after they
    were returned, and whether seeds have an effect.

    Args:
        make: Function that makes the environment. It is called several times.
        steps: Largest number of steps of all sub-environments, with random actions.
        seed: Seed of actions and resets.

    Returns:
        All problems. The function does not raise an exception for a problem.

    >>> import gymnasium as gym
    >>> report = check_vector_env(lambda: gym.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point"))
    says NEXT_STEP, does NEXT_STEP; ... episodes ended...
    >>> report.problems
    []
    """
    problems: list[str] = []
    notes: list[str] = []
    with contextlib.closing(make()) as env:
        declared = _declared(env, problems)
        found, ends = None, 0
        if isinstance(env, VectorEnv):
            trace = Trace(env, declared, seed, problems, notes)
            history = trace.run(steps)
            ends = sum(int(step.ended.sum()) for step in history)
            found = _compare_modes(trace, history, declared)
            if found is AutoresetMode.SAME_STEP:
                _check_finals(trace, history)
            _check_seeds(trace, make, seed)
        notes += _known_of(env)
    report = VectorEnvReport(declared, found, ends, problems, notes)
    print(report)
    return report


def _declared(env: Any, problems: list[str]) -> AutoresetMode | None:
    mode = None
    try:
        mode = autoreset_mode(env)
    except (ConfigurationError, AttributeError, TypeError):
        problems.append('it does not say its autoreset mode: metadata["autoreset_mode"] must be an AutoresetMode')
    if not isinstance(env, VectorEnv):
        problems.append(f"a {type(env).__module__}.{type(env).__qualname__} is no gymnasium.vector.VectorEnv")
    return mode


def _compare_modes(trace: Trace, history: Sequence[Step], declared: AutoresetMode | None) -> AutoresetMode | None:
    """Find the autoreset mode from the distance between observations around ends and first observations."""
    pairs = list(_around_ends(history))
    if not pairs:
        trace.note("no episode has ended: nothing can be told of resets; give more steps")
        return None
    if declared is AutoresetMode.DISABLED:
        return declared  # The trace has reset it with a mask, and has already reported problems of that.
    known = any(step.finals for step in history)
    later = np.mean([_distance(trace, at) > _distance(trace, after) for at, after, _, _ in pairs])
    found = None
    if later >= SURE and not (known and declared is AutoresetMode.SAME_STEP):
        found = AutoresetMode.NEXT_STEP
    elif known or later <= 1 - SURE:
        found = AutoresetMode.SAME_STEP
    if found is None:
        trace.note("whether it resets in the same step or in the next could not be told from its observations")
    elif declared is not None and found is not declared:
        trace.say(f"it says {declared.name}, but what it returns where episodes end is {found.name}")
    if found is AutoresetMode.NEXT_STEP:
        if any(ended for _, _, _, ended in pairs):
            trace.say("a step that only resets ends an episode again")
        if any(reward != 0 for _, _, reward, _ in pairs):
            trace.note("a step that only resets has a reward that is not 0: a pool takes it as 0")
    return found


def _around_ends(history: Sequence[Step]) -> Iterator[tuple[list[Any], list[Any], Any, bool]]:
    """Yield the observations of each end and of the next step, and reward and end flag of that step."""
    for step, after in pairwise(history):
        for column in np.flatnonzero(step.ended).tolist():
            here, there = ([part[column] for part in one.observations] for one in (step, after))
            yield here, there, after.rewards[column], bool(after.ended[column])


def _distance(trace: Trace, observation: Sequence[Any]) -> float:
    """Return the distance of an observation to the nearest first observation of an episode."""
    total: Any = 0.0
    for initial, part in zip(trace.initial, observation, strict=True):
        rows = initial.reshape(len(initial), -1).astype(np.float64)
        total = total + np.abs(rows - part.reshape(-1).astype(np.float64)).sum(1)
    return float(np.min(total))


def _check_finals(trace: Trace, history: Sequence[Step]) -> None:
    ends = [(step, column) for step in history for column in np.flatnonzero(step.ended).tolist()]
    given = [(step, column) for step, column in ends if column in step.finals]
    if len(given) < len(ends):
        trace.note(
            f"of {len(ends) - len(given)} of {len(ends)} ends infos do not say the final observation (final_obs): "
            "Rollout.next_known is False there, and nothing can be bootstrapped from a truncated one"
        )
    same = [all(map(np.array_equal, step.finals[c], [part[c] for part in step.observations])) for step, c in given]
    if same and all(same):
        trace.say(
            "final_obs are the observations that the next episodes begin with: let the environment give a copy of the "
            "final ones, not an array that it goes on writing to"
        )


def _check_seeds(trace: Trace, make: Callable[[], Any], seed: int) -> None:
    """Compare runs with the same seed and with another seed."""
    one, again, other = (_run_from(make, one_seed) for one_seed in (seed, seed, seed + 1))
    if not all(map(np.array_equal, one, again)):
        trace.say("two runs from the same seed with the same actions are different")
    elif all(map(np.array_equal, one, other)):
        trace.note("reset(seed=) changes nothing: seed it where it is made, or all workers have the same episodes")


def _run_from(make: Callable[[], Any], seed: int, steps: int = 20) -> list[Any]:
    with contextlib.closing(make()) as env:
        of = leaves(env.single_observation_space)
        is_disabled = env.metadata.get("autoreset_mode") in (AutoresetMode.DISABLED, AutoresetMode.DISABLED.value)
        space = env.single_action_space  # Some environments make another space for each access.
        space.seed(0)
        copies = [as_array(part).copy() for part in flatten(of, env.reset(seed=seed)[0])]
        for _ in range(steps):
            observations, _, *flags = env.step(random_actions(space, env.num_envs))
            copies += [as_array(part).copy() for part in flatten(of, observations)]
            if is_disabled and any(as_array(flag).any() for flag in flags[:2]):
                break
        return copies


def _known_of(env: Any) -> list[str]:
    """Return known behaviour of the libraries of an environment."""
    packages = {kind.__module__.partition(".")[0] for kind in type(getattr(env, "unwrapped", env)).__mro__}
    mine = sorted(packages & KNOWN.keys() - {"gymnasium"}) or sorted(packages & KNOWN.keys())
    versions = {name: version for name in mine if (version := installed_version(name)) is not None}
    return [f"{name} {version} is installed. Known: {KNOWN[name]}" for name, version in versions.items()]


def _name(mode: AutoresetMode | None) -> str:
    return "nothing that could be told" if mode is None else mode.name
