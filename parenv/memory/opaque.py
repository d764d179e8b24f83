"""Placeholder in the main process for a custom space of a worker."""

from __future__ import annotations

from typing import Any

from gymnasium import Space


class OpaqueSpace(Space[Any]):
    """A custom space of a worker, of which the main process knows only the text.

    Args:
        text: ``repr`` of the space in the worker.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueSpace) and self.text == other.text

    def contains(self, x: Any) -> bool:
        """Return ``True`` for every value, because the space is not known."""
        return True

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Refuse to sample.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            f"the custom space {self.text} cannot be sampled in the main process, which does not unpickle what workers "
            'send. Pass spaces="make", or spaces=(observation_space, action_space).'
        )
