"""Environments of several agents, recognised by what they offer: PettingZoo's two interfaces; and Gymnasium's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium import Space, spaces

from parenv.envs.make import check_is_env
from parenv.envs.state import get_state, set_state
from parenv.errors import ConfigurationError
from parenv.memory.spaces import leaves
from parenv.policy.capabilities import refuse

ONLY_AGENT = "agent"
"""The agent of an environment of Gymnasium."""


class SingleAgent:
    """An environment of Gymnasium as one of a single agent.

    Args:
        env: the environment.
    """

    possible_agents = (ONLY_AGENT,)

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env, self.unwrapped = env, env.unwrapped
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Space[Any]:
        """Return the observation space of the agent."""
        return self.env.observation_space

    def action_space(self, agent: str) -> Space[Any]:
        """Return the action space of the agent."""
        return self.env.action_space

    def reset(self, *, seed: int | None = None) -> tuple[Any, Any]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed)
        self.agents = [ONLY_AGENT]
        return {ONLY_AGENT: observation}, {ONLY_AGENT: info}

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Take a step."""
        stepped = self.env.step(actions[ONLY_AGENT])
        if stepped[2] or stepped[3]:
            self.agents = []
        return tuple({ONLY_AGENT: part} for part in stepped)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def check_has_agents(env: Any, env_id: int) -> None:
    """Check that what was made for an env_id is an environment of several agents, or a single one of Gymnasium.

    Raises:
        ConfigurationError: it is neither.
    """
    if isinstance(env, gym.vector.VectorEnv):
        refuse("vector env", f"{env} for env_id {env_id}")
    agents = getattr(env, "possible_agents", None)
    if not _has_agents(env):
        check_is_env(env, env_id)
    elif not (isinstance(agents, Sequence) and agents and all(isinstance(agent, str) for agent in agents)):
        raise ConfigurationError(
            f"for env_id {env_id} the factory made {env}, whose possible_agents are {agents!r}: it must name every "
            "agent that there can be, as texts, since rollouts have a row for each"
        )


def with_agents(env: Any) -> Any:
    """An environment of several agents; one of Gymnasium is made one."""
    return env if _has_agents(env) else SingleAgent(env)


def acts_in_turns(env: Any) -> bool:
    """Tell whether the agents of an environment act one after the other, as in PettingZoo's AECEnv."""
    return hasattr(env, "agent_iter") and hasattr(env, "last")


def spaces_of(envs: Sequence[Any], first_env_id: int) -> tuple[spaces.Dict, spaces.Dict]:
    """Observation and action spaces by agent, which all environments must have alike.

    Raises:
        ConfigurationError: they are different, or have values without a fixed size.
    """
    first, *others = [tuple(_by_agent(env, name) for name in ("observation_space", "action_space")) for env in envs]
    for column, other in enumerate(others, start=1):
        if list(other[0].spaces) != list(first[0].spaces) or other != first:
            raise ConfigurationError(
                f"env_id {first_env_id + column} has agents with observations {other[0]} and actions {other[1]}, but "
                f"env_id {first_env_id} has {first[0]} and {first[1]}; all must have the same"
            )
    for name, of in zip(("observation", "action"), first, strict=True):
        for leaf in leaves(of):
            if leaf.dtype is None:
                refuse("objects", f"the {name} space {of[str(leaf.path[0])]} of agent {leaf.path[0]!r}")
    return first[0], first[1]


def state_space(env: Any) -> Space[Any] | None:
    """Return the space of ``env.state()``; ``None`` if the environment has no state."""
    found = getattr(env, "state_space", None)
    return found if isinstance(found, Space) and callable(getattr(env, "state", None)) else None


class QuestionedEnv:
    """An environment of several agents to which a user's questions are put: its attributes, as of Gymnasium's.

    Args:
        env: the environment.
    """

    def __init__(self, env: Any) -> None:
        is_single = isinstance(env, SingleAgent)
        self._env = env.env if is_single else env
        self.get_wrapper_attr: Any = self._env.get_wrapper_attr if is_single else partial(getattr, env)
        self.set_wrapper_attr: Any = self._env.set_wrapper_attr if is_single else partial(setattr, env)

    def get_state(self) -> dict[str, Any] | None:
        """Its state as plain data, if it offers one."""
        if isinstance(self._env, gym.Env):
            return get_state(self._env)
        core = self._env.unwrapped
        return {"layers": [core.get_state()], "unknown": []} if hasattr(core, "get_state") else None

    def set_state(self, state: dict[str, Any]) -> None:
        """Bring it into a state."""
        if isinstance(self._env, gym.Env):
            set_state(self._env, state)
        else:
            self._env.unwrapped.set_state(state["layers"][0])


def _has_agents(env: Any) -> bool:
    together = callable(getattr(env, "observation_space", None)) and callable(getattr(env, "step", None))
    return together and (hasattr(env, "possible_agents") or hasattr(env, "agents"))


def _by_agent(env: Any, name: str) -> spaces.Dict:
    return spaces.Dict(OrderedDict((agent, getattr(env, name)(agent)) for agent in env.possible_agents))
