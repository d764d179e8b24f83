"""Features that pools refuse with named policies. This table is the only place that declares them."""

from __future__ import annotations

from typing import Literal, NoReturn

from parenv.errors import ConfigurationError

Feature = Literal[
    "whole episodes",
    "given spaces",
    "rollouts on a device",
    "in place",
    "vector env",
    "objects",
    "episode seeds",
    "another interpreter",
    "threads",
]
_REFUSED: dict[Feature, tuple[str, str]] = {
    "whole episodes": (
        'rollout_length="episode"',
        "because agents end at different times. Pass the number of steps of an episode.",
    ),
    "given spaces": ("spaces=", "because workers report the spaces of every agent. Leave it out."),
    "rollouts on a device": (
        "rollout_device",
        "because rows of agents are stored in shared memory only. Leave it out.",
    ),
    "in place": ("in_place=True", "because they are evaluated in sub-environments of their own. Leave it out."),
    "episode seeds": ("episode_seeds=True", "because it is for environments of Gymnasium. Leave it out."),
    "another interpreter": (
        "WorkerOptions(python=...)",
        "because other interpreters have environments of one agent only. Leave it out.",
    ),
    "threads": (
        "WorkerOptions(step_threads=...)",
        "because a worker steps environments of agents in turn. Leave it out, and use more workers.",
    ),
    "vector env": ("a vector env", "Give factories of single environments, of one or several agents."),
    "objects": ("values without a fixed size", "Pad them to arrays in the environment."),
}


def refuse(feature: Feature, got: str = "") -> NoReturn:
    """Refuse a feature with named policies.

    Args:
        feature: Feature that the user asked for.
        got: Value that asked for it, and where it is.

    Raises:
        ConfigurationError: Always.
    """
    what, why = _REFUSED[feature]
    got = f", got {got}" * bool(got)
    joint = ", " if why.startswith("because") else ". "
    raise ConfigurationError(f"{what} cannot be used with named policies{got}{joint}{why}")
