"""What lasts of the rows of a group of agents from one rollout to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from parenv.envs.fitting import Fit
from parenv.envs.infos import nothing_seen
from parenv.envs.recorded import EpisodeClocks
from parenv.envs.values import action_splitter, row_writer
from parenv.memory.agent_layout import NOBODY
from parenv.memory.layout import RolloutSpec
from parenv.memory.spaces import is_single

_LASTING = ("who", "assigned", "returns", "lengths")


class AgentRow(NamedTuple):
    """Where an agent of a sub-environment has its row.

    Args:
        agent: its name.
        group: by index.
        row: among those of the group in this worker.
    """

    agent: str
    group: int
    row: int


class GroupRows:
    """The rows of a group in one worker.

    Args:
        spec: what a row holds.
        num_rows: how many there are.
        fit: how observations must fit their space.
        restarted: whether another process was here before.

    Attributes:
        observed: the observations to begin the next rollout with, one array ``[R, ...]`` per leaf.
        seen: the infos that came with them, as far as policies take them, by name ``[R, ...]``.
        who: the policy of each row, or :data:`~parenv.memory.agent_layout.NOBODY`.
        assigned: the one that was drawn for it, also where its agent is not there.
        restarted: what the next rollout begins with does not follow what was delivered last.
        returns: so far.
        lengths: so far; where agents act together, less the steps of the rollout that is being written.
        clocks: for how long episodes have been under way.
        write: writes an observation into a row.
        split: makes an action for each row.
        dtype: with ``shape``, what a single array must be like to be written without a call per step; ``None`` matches
            nothing.
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
        """What lasts, as plain data."""
        lasting = {name: getattr(self, name).copy() for name in _LASTING}
        seen = {name: rows.copy() for name, rows in self.seen.items()}
        return {"observed": [row.copy() for row in self.observed], "seen": seen, **lasting}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Be as rows were that had this state."""
        for mine, saved in zip(self.observed, state["observed"], strict=True):
            mine[:] = saved
        for name, saved in state.get("seen", {}).items():
            self.seen[name][:] = saved
        for name in _LASTING:
            getattr(self, name)[:] = state[name]
