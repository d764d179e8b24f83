"""What a vector env asks of those who step its sub-environments, wherever they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from parenv.memory.board import Board, BoardSpec
from parenv.protocol.messages import Actions, SideData
from parenv.vector.joined_spaces import SpacesOfWorker


@dataclass(frozen=True)
class Members:
    """What sub-environments are like.

    Args:
        spaces: of each worker's.
        metadata: of the first.
        render_mode: of the first.
    """

    spaces: Sequence[SpacesOfWorker]
    metadata: Mapping[str, Any]
    render_mode: str | None


class Backend(Protocol):
    """Steps sub-environments: processes, or this one."""

    @property
    def members(self) -> Members:
        """What its sub-environments are like."""

    @property
    def closed(self) -> bool:
        """Whether it has ended, by itself or because somebody wanted it."""

    @property
    def has_infos(self) -> bool:
        """Whether there is an info among the last answers."""

    @property
    def has_side_data(self) -> bool:
        """Whether there is something in :meth:`side_data`."""

    @property
    def failing(self) -> bool:
        """Whether there is something in :meth:`errors`."""

    @property
    def restarts(self) -> int:
        """How often another process took the place of a worker that was gone."""

    @property
    def spun_s(self) -> tuple[float, float]:
        """Seconds that this process, and all workers together, have looked for a ring before sleeping."""

    @property
    def beginning(self) -> Sequence[int]:
        """Sub-environments that begin anew after a restart: their rows mean nothing until :meth:`restarted`."""

    def lay_out(self, spec: BoardSpec) -> Board:
        """Make the board."""

    def request_all(self) -> None:
        """Have every sub-environment take a step."""

    def request(self, env_ids: Sequence[int], reset: bool = False) -> None:
        """Have some of them take a step, or begin an episode."""

    def give(self, actions: Actions, env_ids: Sequence[int]) -> None:
        """Say something about the actions that come next, to the workers of these sub-environments."""

    def listen(self, timeout_s: float) -> None:
        """Wait until something has been answered or has happened, at most up to the limit.

        Raises:
            WorkerError: a worker is gone and could not be, or was not to be, restarted.
        """

    def catch_up(self) -> bool:
        """Hear all that was said before the answers that are on the board; whether there was anything."""

    def side_data(self) -> list[SideData]:
        """What did not go on the board since the last time."""

    def errors(self) -> list[BaseException]:
        """Exceptions of sub-environments since the last time."""

    def restarted(self) -> list[list[int]]:
        """The env_ids of workers that were started again since the last time, worker by worker."""

    def begin(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> Any:
        """Call a method on workers; a token for the next three."""

    def answered(self, asked: Any) -> bool:
        """Whether all have answered."""

    def answers(self, asked: Any) -> dict[int, Any]:
        """What they answered, by worker.

        Raises:
            Exception: what was raised instead, a group where that is of several types.
        """

    def forget(self, asked: Any) -> None:
        """Nobody will ask for these answers any more."""

    def close(self, timeout_s: float) -> None:
        """End all. Idempotent."""
