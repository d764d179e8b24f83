"""State of the rows of a group of agents that lasts from one rollout to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from parenv.envs.episode_statistics import EpisodeClocks
from parenv.envs.fitting import Fit
from parenv.envs.infos import nothing_seen
from parenv.envs.values import action_splitter, row_writer
from parenv.memory.agent_layout import NOBODY
from parenv.memory.layout import RolloutSpec
from parenv.memory.spaces import is_single

_LASTING = ("who", "assigned", "returns", "lengths")


class AgentRow(NamedTuple):
    """The row of an agent of a sub-environment.

    Args:
        agent: Name of the agent.
        group: Index of its group.
        row: Row among those of the group in this worker.
    """

    agent: str
    group: int
    row: int


class GroupRows:
    """The rows of a group in one worker.

    Args:
        spec: Contents of a rollout of the group.
        num_rows: Number of rows.
        fit: Rules for observations that do not fit their space.
        restarted: Whether this process has replaced another one.

    Attributes:
        observed: First observations of the next rollout, one array ``[R, ...]`` per leaf.
        seen: Infos of these observations that policies take, by name ``[R, ...]``.
        who: Index of the policy that acts in each row, or :data:`~parenv.memory.agent_layout.NOBODY`.
        assigned: Index of the policy that is assigned to each row, also while its agent is not active.
        restarted: Whether the next rollout does not follow the last one that was delivered, by row.
        returns: Return so far of each row.
        lengths: Length so far of each row. With parallel agents, the rollout in progress is not counted.
        clocks: Start times of the episodes.
        write: Function that writes an observation into a row.
        split: Function that makes an action for each row.
        dtype: Dtype of an observation that is written without a call per step. ``None``: no observation is.
        shape: Shape of such an observation.
    """

    def __init__(self, spec: RolloutSpec, num_rows: int, fit: Fit, restarted: bool) -> None:
        self.observed = [np.zeros((num_rows, *leaf.shape), leaf.dtype) for leaf in spec.observations]
        self.seen = nothing_seen(spec.infos, num_rows)
        self.who = np.full(num_rows, NOBODY, np.int32)
        self.assigned = np.full(num_rows, NOBODY, np.int32)
        self.restarted = np.full(num_rows, restarted)
        self.returns = np.zeros(num_rows)
        self.lengths = np.zeros(num_rows, np.int64)
        self.clocks = EpisodeClocks([False] * num_rows)
        self.write = row_writer(spec.observations, fit)
        self.split = action_splitter(spec.actions)
        single = is_single(spec.observations) and not fit.finite
        self.dtype = np.dtype(spec.observations[0].dtype) if single else None
        self.shape = spec.observations[0].shape if single else ()

    def get_state(self) -> dict[str, Any]:
        """Return the state as plain data."""
        lasting = {name: getattr(self, name).copy() for name in _LASTING}
        seen = {name: rows.copy() for name, rows in self.seen.items()}
        return {"observed": [row.copy() for row in self.observed], "seen": seen, **lasting}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of :meth:`get_state`."""
        for mine, saved in zip(self.observed, state["observed"], strict=True):
            mine[:] = saved
        for name, saved in state.get("seen", {}).items():
            self.seen[name][:] = saved
        for name in _LASTING:
            getattr(self, name)[:] = state[name]
