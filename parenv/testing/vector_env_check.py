"""Check whether a ``VectorEnv`` follows its declarations, with random steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from parenv.envs.autoreset import NEXT_STEP, SAME_STEP, Autoreset
from parenv.errors import ConfigurationError
from parenv.libraries import installed_version
from parenv.memory.spaces import flatten, leaves
from parenv.memory.trees import as_array
from parenv.testing.vector_env_trace import Step, Trace, random_actions

SURE = 0.75
"""Fraction of the ends that must agree with one mode."""

KNOWN = {
    "gymnasium": "FunctionalJaxVectorEnv (1.0 to 1.4) returns a reward for a step that only resets. SyncVectorEnv and "
    "AsyncVectorEnv in SAME_STEP return the environment's own array as final_obs, which is wrong if it is reused.",
    "envpool": "1.2 resets in the next step and ignores reset(seed=). Pass the seed to envpool.make.",
    "gymnax": "GymnaxToVectorGymWrapper does not declare its mode, which is SAME_STEP. Since 1.0 it returns final "
    "observations. 0.0.9 returns none, and marks every end as terminated and truncated.",
    "brax": "VectorGymWrapper of 0.14 is for OpenAI's gym and not for Gymnasium. AutoResetWrapper is SAME_STEP without "
    "final observations.",
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

    >>> print(VectorEnvReport(AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, 12, ["it declares another mode"]))
    declares NEXT_STEP, follows SAME_STEP; 12 episodes ended
    problem: it declares another mode
    """

    declared: AutoresetMode | None
    found: AutoresetMode | None
    ends: int
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        modes = f"declares {_name(self.declared, 'no mode')}, follows {_name(self.found, 'an unknown mode')}"
        lines = [f"{modes}; {self.ends} episodes ended", *(f"problem: {problem}" for problem in self.problems)]
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
    declares NEXT_STEP, follows NEXT_STEP; ... episodes ended...
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
            if found is not None and found.resets_in_step:
                _check_finals(trace, history)
            _check_seeds(trace, make, seed, declared)
        notes += _known_of(env)
    report = VectorEnvReport(_mode(declared), _mode(found), ends, problems, notes)
    print(report)
    return report


def _declared(env: Any, problems: list[str]) -> Autoreset | None:
    declared = None
    try:
        declared = Autoreset.declared_by(env)
    except (ConfigurationError, AttributeError, TypeError):
        problems.append('it must declare its autoreset mode. Set metadata["autoreset_mode"] to an AutoresetMode')
    if not isinstance(env, VectorEnv):
        problems.append(f"it must be a gymnasium.vector.VectorEnv, got {type(env).__module__}.{type(env).__qualname__}")
    return declared


def _compare_modes(trace: Trace, history: Sequence[Step], declared: Autoreset | None) -> Autoreset | None:
    """Find the autoreset mode from the distance between observations around ends and first observations."""
    pairs = list(_around_ends(history))
    if not pairs:
        trace.note("no episode has ended, so resets were not checked. Pass more steps")
        return None
    if declared is not None and declared.caller_resets:
        return declared  # The trace has reset it with a mask, and has already reported problems with that.
    known = any(step.finals for step in history)
    distances = np.array([(_distance(trace, at), _distance(trace, after)) for at, after, _, _ in pairs])
    later = np.mean(distances[:, 0] > distances[:, 1])
    found = None
    if later >= SURE and not (known and declared is not None and declared.resets_in_step):
        found = NEXT_STEP
    elif known or (later <= 1 - SURE and (distances[:, 0] != distances[:, 1]).any()):
        found = SAME_STEP
    if found is None:
        trace.note("its observations do not show whether it resets in the same step or in the next one")
    elif declared is not None and found is not declared:
        trace.say(f"it declares {declared.mode.name}, but its results at the end of episodes follow {found.mode.name}")
    if found is not None and found.spends_step:
        if any(ended for _, _, _, ended in pairs):
            trace.say("a step that only resets ends an episode again")
        if any(reward != 0 for _, _, reward, _ in pairs):
            trace.note("a step that only resets has a reward other than 0. A pool replaces it by 0")
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
        apart = np.abs(initial.astype(np.float64) - np.asarray(part).astype(np.float64))
        total = total + apart.sum(axis=tuple(range(1, apart.ndim)))
    return float(np.min(total))


def _check_finals(trace: Trace, history: Sequence[Step]) -> None:
    ends = [(step, column) for step in history for column in np.flatnonzero(step.ended).tolist()]
    given = [(step, column) for step, column in ends if column in step.finals]
    if len(given) < len(ends):
        trace.note(
            f"infos do not contain the final observation (final_obs) of {len(ends) - len(given)} of {len(ends)} "
            "episodes. Rollout.next_known is False there, and a truncated episode cannot be bootstrapped"
        )
    same = [all(map(np.array_equal, step.finals[c], [part[c] for part in step.observations])) for step, c in given]
    if same and all(same):
        trace.say(
            "final_obs contains the first observations of the next episodes. Return a copy of the final observations, "
            "and not an array that the environment reuses"
        )


def _check_seeds(trace: Trace, make: Callable[[], Any], seed: int, declared: Autoreset | None) -> None:
    """Compare runs with the same seed and with another seed."""
    one, again, other = (_run_from(make, one_seed, declared) for one_seed in (seed, seed, seed + 1))
    if not all(map(np.array_equal, one, again)):
        trace.say("two runs with the same seed and the same actions are different")
    elif all(map(np.array_equal, one, other)):
        trace.note("reset(seed=) has no effect. Seed it when it is made, or all workers have the same episodes")


def _run_from(make: Callable[[], Any], seed: int, declared: Autoreset | None, steps: int = 20) -> list[Any]:
    with contextlib.closing(make()) as env:
        of = leaves(env.single_observation_space)
        space = env.single_action_space  # Some environments make another space for each access.
        space.seed(0)
        copies = [as_array(part).copy() for part in flatten(of, env.reset(seed=seed)[0])]
        for _ in range(steps):
            observations, _, *flags = env.step(random_actions(space, env.num_envs))
            copies += [as_array(part).copy() for part in flatten(of, observations)]
            if declared is not None and declared.caller_resets and any(as_array(flag).any() for flag in flags[:2]):
                break
        return copies


def _known_of(env: Any) -> list[str]:
    """Return known behaviour of the libraries of an environment."""
    packages = {kind.__module__.partition(".")[0] for kind in type(getattr(env, "unwrapped", env)).__mro__}
    mine = sorted(packages & KNOWN.keys() - {"gymnasium"}) or sorted(packages & KNOWN.keys())
    versions = {name: version for name in mine if (version := installed_version(name)) is not None}
    return [f"{name} {version} is installed. Known: {KNOWN[name]}" for name, version in versions.items()]


def _mode(autoreset: Autoreset | None) -> AutoresetMode | None:
    return None if autoreset is None else autoreset.mode


def _name(mode: AutoresetMode | None, otherwise: str) -> str:
    return otherwise if mode is None else mode.name
