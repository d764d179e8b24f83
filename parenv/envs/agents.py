"""Multi-agent environments, recognised by their attributes: PettingZoo's two interfaces, and Gymnasium's."""

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
    """An environment of Gymnasium with the interface of a multi-agent environment that has one agent.

    Args:
        env: Environment of Gymnasium.
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
    """Check that a factory made a multi-agent environment or a single environment of Gymnasium.

    Raises:
        ConfigurationError: The object is neither.
    """
    if isinstance(env, gym.vector.VectorEnv):
        refuse("vector env", f"{env} for env_id {env_id}")
    agents = getattr(env, "possible_agents", None)
    if not _has_agents(env):
        check_is_env(env, env_id)
    elif not (isinstance(agents, Sequence) and agents and all(isinstance(agent, str) for agent in agents)):
        raise ConfigurationError(
            f"possible_agents of {env}, made for env_id {env_id}, must be a sequence with the name of every agent that "
            f"can exist, because rollouts have a row for each, got {agents!r}"
        )


def with_agents(env: Any) -> Any:
    """Return a multi-agent environment unchanged, and wrap an environment of Gymnasium in :class:`SingleAgent`."""
    return env if _has_agents(env) else SingleAgent(env)


def acts_in_turns(env: Any) -> bool:
    """Tell whether the agents of an environment act one after the other, as in PettingZoo's AECEnv."""
    return hasattr(env, "agent_iter") and hasattr(env, "last")


def spaces_of(envs: Sequence[Any], first_env_id: int) -> tuple[spaces.Dict, spaces.Dict]:
    """Return the observation and action spaces by agent, which must be the same in all environments.

    Raises:
        ConfigurationError: The spaces are different, or have values without a fixed size.
    """
    first, *others = [tuple(_by_agent(env, name) for name in ("observation_space", "action_space")) for env in envs]
    for column, other in enumerate(others, start=1):
        if list(other[0].spaces) != list(first[0].spaces) or other != first:
            raise ConfigurationError(
                f"all sub-environments must have agents with the same spaces, but env_id {first_env_id + column} has "
                f"observations {other[0]} and actions {other[1]}, and env_id {first_env_id} has {first[0]} and "
                f"{first[1]}. Pad the spaces in the environment, or use one pool for each kind."
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
    """A multi-agent environment with Gymnasium's methods for attributes and states, for calls of the user.

    Args:
        env: Environment, of PettingZoo or a :class:`SingleAgent`.
    """

    def __init__(self, env: Any) -> None:
        is_single = isinstance(env, SingleAgent)
        self._env = env.env if is_single else env
        self.get_wrapper_attr: Any = self._env.get_wrapper_attr if is_single else partial(getattr, env)
        self.set_wrapper_attr: Any = self._env.set_wrapper_attr if is_single else partial(setattr, env)

    def get_state(self) -> dict[str, Any] | None:
        """Return the state of the environment as plain data, or ``None`` if it has no ``get_state``."""
        if isinstance(self._env, gym.Env):
            return get_state(self._env)
        core = self._env.unwrapped
        return {"layers": [core.get_state()], "unknown": []} if hasattr(core, "get_state") else None

    def set_state(self, state: dict[str, Any]) -> None:
        """Set the environment to a state of :meth:`get_state`."""
        if isinstance(self._env, gym.Env):
            set_state(self._env, state)
        else:
            self._env.unwrapped.set_state(state["layers"][0])


def _has_agents(env: Any) -> bool:
    together = callable(getattr(env, "observation_space", None)) and callable(getattr(env, "step", None))
    return together and (hasattr(env, "possible_agents") or hasattr(env, "agents"))


def _by_agent(env: Any, name: str) -> spaces.Dict:
    return spaces.Dict(OrderedDict((agent, getattr(env, name)(agent)) for agent in env.possible_agents))
