"""Ledger environments and policies with one fault at a chosen place, and an audit of every transition.

This module does not import torch, because every process that steps these environments would import it too.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from parenv import Policy
from parenv.policy.policy import Action

Place = Literal["reset", "step", "load", "postprocess", "loss"]
NUM_ENVS = 4
TARGET = 1
"""Sub-environment that has the fault, or whose worker has it."""
EPISODE = 3
"""Episode of ``TARGET`` in which the step fails, or after which the reset fails. A rollout is delivered before."""
AGENTS = ("cat_0", "dog_0")


class SimulatorError(RuntimeError):
    """Exception of a fault that does not kill the process."""


@dataclass(frozen=True)
class Fault:
    """Fault that happens once, in the first process that gets to its place.

    Args:
        place: Place of the fault.
        kills: Whether the process kills itself, instead of raising an exception.
        folder: Directory with files by which the processes share state.
    """

    place: Place
    kills: bool
    folder: Path

    def at(self, place: Place) -> None:
        if place != self.place or not _created(self.folder / "happened"):
            return
        if self.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        raise SimulatorError("the motor is hot")

    def next_life(self) -> int:
        """Return a unique number for an instance of an environment. Later instances have higher numbers."""
        notes = os.open(self.folder / "lives", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(notes, b"x")
        life = os.lseek(notes, 0, os.SEEK_CUR)
        os.close(notes)
        return life

    @property
    def happened(self) -> bool:
        return (self.folder / "happened").exists()


def _created(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def length(env_id: int, episode: int) -> int:
    return 2 + (env_id * 5 + episode * 3) % 4


def choose(observations: Any) -> Any:
    """Return the action for each observation. By it, the audit knows for which observation an action was chosen."""
    return (observations * np.array([3, 5, 7, 11, 13])[: observations.shape[-1]]).sum(-1) % 4


def reward_of(observation: Any, action: int) -> float:
    """Return a reward that depends on the observation and on the action that the environment got."""
    return float(1000 * action + int(np.dot(observation, [31, 17, 7, 3, 1][: len(observation)])) % 1000)


class FaultyEnv(gym.Env[Any, Any]):
    """Environment with the observation ``[env_id, life, episode, step]``."""

    observation_space = spaces.Box(-1, 1 << 40, (4,), np.int64)
    action_space = spaces.Discrete(4)

    def __init__(self, env_id: int, fault: Fault) -> None:
        self.env_id, self.fault = env_id, fault
        self.state = np.array([env_id, fault.next_life(), -1, 0])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.env_id == TARGET and self.state[2] == EPISODE:
            self.fault.at("reset")
        self.state[2:] = self.state[2] + 1, 0
        return self.state, {}

    def step(self, action: Any) -> Any:
        reward = reward_of(self.state, int(action))
        return self.state, reward, *self.advance(), {}

    def advance(self) -> tuple[bool, bool]:
        if self.env_id == TARGET and self.state[2] == EPISODE and self.state[3] == 1:
            self.fault.at("step")
        self.state[3] += 1
        return flags_of(self.state.tolist())


def flags_of(state: list[int]) -> tuple[bool, bool]:
    """Return whether the episode is terminated and whether it is truncated in a state; episodes alternate."""
    env_id, _, episode, step = state[:4]
    ended = step >= length(env_id, episode)
    return ended and episode % 2 == 0, ended and episode % 2 == 1


def note_worker(worker: int) -> None:
    os.environ["FAULTY_WORKER"] = str(worker)


class FaultyBatch(gym.vector.SyncVectorEnv):
    """SyncVectorEnv that a pool steps as a whole. It steps the sub-environments of a plain SyncVectorEnv itself."""


def faulty_batch(fault: Fault) -> gym.vector.VectorEnv[Any, Any, Any]:
    """Return a vector env with the sub-environments of the calling worker."""
    first = NUM_ENVS // 2 * int(os.environ["FAULTY_WORKER"])
    return FaultyBatch([lambda i=i: FaultyEnv(i, fault) for i in range(first, first + NUM_ENVS // 2)])


class FaultyAgents(FaultyEnv):
    """Environment with two agents that act in parallel, and the interface of PettingZoo's ParallelEnv."""

    metadata = {"name": "faulty_v0"}  # noqa: RUF012

    def __init__(self, env_id: int, fault: Fault) -> None:
        super().__init__(env_id, fault)
        self.possible_agents, self.agents = list(AGENTS), list[str]()

    def observation_space(self, agent: str) -> Any:  # type: ignore[override]
        return spaces.Box(-1, 1 << 40, (5,), np.int64)

    def action_space(self, agent: str) -> Any:  # type: ignore[override]
        return spaces.Discrete(4)

    def see(self, agent: str) -> Any:
        return np.array([*self.state, AGENTS.index(agent)])

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset()
        self.agents = list(AGENTS)
        return {agent: self.see(agent) for agent in AGENTS}, {agent: {} for agent in AGENTS}

    def step(self, actions: Any) -> Any:
        rewards = {agent: reward_of(self.see(agent), int(action)) for agent, action in actions.items()}
        terminated, truncated = self.advance()
        self.agents = [] if terminated or truncated else self.agents
        seen = {agent: self.see(agent) for agent in AGENTS}
        return (
            seen,
            rewards,
            dict.fromkeys(AGENTS, terminated),
            dict.fromkeys(AGENTS, truncated),
            {a: {} for a in AGENTS},
        )


class FaultyTurns(FaultyAgents):
    """Environment with two agents that act in turn, and the interface of PettingZoo's AECEnv."""

    def agent_iter(self) -> Any:
        raise NotImplementedError

    def observe(self, agent: str) -> Any:
        return self.see(agent)

    def reset(self, seed: int | None = None, options: Any = None) -> None:  # type: ignore[override]
        super().reset()
        self.agent_selection = AGENTS[0]
        self.rewards = dict.fromkeys(AGENTS, 0.0)
        self.terminations, self.truncations = dict.fromkeys(AGENTS, False), dict.fromkeys(AGENTS, False)
        self.infos: Any = {agent: {} for agent in AGENTS}

    def last(self) -> Any:
        agent = self.agent_selection
        return self.see(agent), self.rewards[agent], self.terminations[agent], self.truncations[agent], {}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self.agents.remove(agent)
        else:
            self.rewards[agent] = reward_of(self.see(agent), int(action))
            if agent == AGENTS[-1]:
                terminated, truncated = self.advance()
                self.terminations = dict.fromkeys(AGENTS, terminated)
                self.truncations = dict.fromkeys(AGENTS, truncated)
        self.agent_selection = AGENTS[1 - AGENTS.index(agent)]


class Chooses(Policy):
    """Policy that returns its number with each action. The number must be equal to the version in the pool."""

    def __init__(self, number: int, fault: Fault) -> None:
        self.number, self.fault = number, fault

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        if self.number == 2:
            self.fault.at("load")

    def act(self, observations: Any, carry: Any) -> Action:
        return Action(choose(observations), {"acted_by": np.full(len(observations), self.number)})


class Lived(NamedTuple):
    """Transition with the version that chose the action according to the pool, and whether a restart precedes it."""

    observation: list[int]
    action: int
    reward: float
    following: list[int]
    flags: tuple[bool, bool]
    acted_by: int
    version: int
    begins: bool


class Ledger(dict[tuple[int, str], list[Lived]]):
    """Delivered transitions in order, by sub-environment and agent."""

    def __init__(self) -> None:
        self.broken_off: dict[tuple[int, str], bool] = {}
        self.episodes: list[tuple[int, str, float, int]] = []
        """The env_id, reason for the end, return and length of each listed episode."""

    def note(self, episodes: Any) -> None:
        """Note the episodes that a rollout or a gradient lists."""
        columns = episodes.env_ids, episodes.ended_by, episodes.returns, episodes.lengths
        self.episodes += zip(*(column.tolist() for column in columns), strict=True)


def write_down(rollout: Any, ledger: Ledger) -> None:
    """Add the transitions of a ``Rollout`` or an ``AgentRollout`` to a ledger."""
    following, agents = rollout.next_observations(), getattr(rollout, "agents", None)
    for column, env_id in enumerate(np.asarray(rollout.env_ids).tolist()):
        begins = bool(rollout.restarted[column])
        real = np.asarray(rollout.valid[:, column] if agents is None else rollout.alive[:, column])
        key = env_id, "" if agents is None else agents[column]
        for row in range(len(real)):
            if not real[row]:
                # The death of a step worker leaves a row that is not a transition.
                ledger.broken_off[key] = agents is None
                continue
            begins = ledger.broken_off.pop(key, False) or begins
            # If agents act in turn, an older version may have chosen the first action.
            first = agents is not None and row == int(np.flatnonzero(real)[0])
            version = int(rollout.first_versions[column]) if first else rollout.policy_version
            ledger.setdefault(key, []).append(
                Lived(
                    rollout.observations[row, column].tolist(),
                    int(rollout.actions[row, column]),
                    float(rollout.rewards[row, column]),
                    following[row, column].tolist(),
                    (bool(rollout.terminated[row, column]), bool(rollout.truncated[row, column])),
                    int(rollout.extras["acted_by"][row, column]),
                    version,
                    begins,
                )
            )
            begins = False


def audit(ledger: Ledger) -> set[int]:
    """Check every transition and its successor; return the env_ids that had more than one instance."""
    for lived in ledger.values():
        for one in lived:
            assert one.action == choose(np.array(one.observation)), one
            assert one.reward == reward_of(one.observation, one.action), one
            assert one.acted_by == one.version, one
            arrived = [*one.observation[:3], one.observation[3] + 1, *one.observation[4:]]
            assert one.following == arrived, one
            flags = flags_of(arrived)
            assert one.flags == flags if any(flags) else not one.flags[0], one
        for one, following in pairwise(lived):
            _check_next(one, following)
    return {env_id for (env_id, _), lived in ledger.items() if len({one.observation[1] for one in lived}) > 1}


def episodes_lived(ledger: Ledger, lost_by: str) -> list[tuple[int, str, float, int]]:
    """Return the episodes that ``note`` must have noted: all with a delivered step, except episodes in progress."""
    found = []
    for env_id in sorted({env_id for env_id, _ in ledger}):
        agents = [lived for (of, _), lived in ledger.items() if of == env_id]
        keys = dict.fromkeys(tuple(one.observation[1:3]) for one in agents[0])
        for key in keys:
            parts = [[one for one in lived if tuple(one.observation[1:3]) == key] for lived in agents]
            flags = flags_of(parts[0][-1].following)
            if any(flags) or key != list(keys)[-1]:
                ended_by = "terminated" if flags[0] else "truncated" if flags[1] else lost_by
                found.append((env_id, ended_by, sum(one.reward for part in parts for one in part), len(parts[0])))
    return found


def _check_next(one: Lived, following: Lived) -> None:
    env_id, life, episode, step, *agent = one.following
    now = following.observation
    begun_anew = now == [env_id, now[1], 0, 0, *agent] and now[1] > life
    if any(flags_of(one.following)):
        assert begun_anew or now == [env_id, life, episode + 1, 0, *agent], (one, following)
    elif one.flags[1] or following.begins:
        assert begun_anew, (one, following)
    else:
        assert now == [env_id, life, episode, step, *agent], (one, following)


def made(env_id: int, place: Place, kills: bool, folder: str) -> FaultyEnv:
    """Return an environment with a fault, from plain data."""
    return FaultyEnv(env_id, Fault(place, kills, Path(folder)))
