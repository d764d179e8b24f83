"""The versions of the policy: where each lies, for as long as a credit names it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

from parenv.errors import ConfigurationError
from parenv.policy.policy import Policy, as_policy
from parenv.policy.snapshots import WeightsWriter, module_of
from parenv.pool.moving import has_moved
from parenv.process.user_code import dumps


class Version(NamedTuple):
    """One version.

    Args:
        number: counts the publishes.
        place: where its weights lie in shared memory.
        snapshot: pickled settings, and the policy where it has no module; empty for no settings and the policy that the
            pool was made with.
    """

    number: int
    place: int
    snapshot: bytes


class Versions:
    """Versions that workers may still need.

    Args:
        policy: what the user gave; it is version 0.
        weights: writes the weights of a policy with a module; ``None`` for one without.
        places: how many versions' weights there is room for.
        settings: of version 0, beside those that the policy has.
    """

    frozen: Mapping[str, int] = {}
    settings: dict[str, Any]
    newest: Version
    _kept: dict[int, Version]

    def __init__(self, policy: Any, weights: WeightsWriter | None, places: int, settings: Mapping[str, Any]) -> None:
        self._policy, self._weights, self._num_places = policy, weights, places
        self.resume(0, {**getattr(policy, "settings", {}), **settings})
        if weights is not None:
            weights.write(module_of(policy), 0, None)

    def __getitem__(self, number: int) -> Version:
        return self._kept[number]

    @property
    def setting_names(self) -> Collection[str]:
        """Names of the settings of the newest version."""
        return self.settings.keys()

    def has_room(self, in_use: Iterable[int]) -> bool:
        """Whether another version can be written, if of the old ones only these are still needed."""
        needed = {*in_use, self.newest.number}
        self._kept = {number: version for number, version in self._kept.items() if number in needed}
        return len(self._kept) < self._num_places

    def add(self, given: Any, settings: Mapping[str, Any], number: Callable[[], int]) -> int:
        """Write a version.

        Args:
            given: a policy, a module or a state dict.
            settings: what changes in ``policy.settings``.
            number: counts it, once it is known to be right.

        Raises:
            ConfigurationError: it is not a version of the policy that the pool was made with.
        """
        _check_has_no_names(given)
        settings = {**self.settings, **settings}
        taken = {version.place for version in self._kept.values()}
        place = next(place for place in range(self._num_places) if place not in taken)
        if self._weights is None:
            as_policy(given)
            snapshot = dumps((settings, given))
        else:
            snapshot = dumps((settings, None)) if settings else b""
            self._weights.write(source_of(given), place, self.newest.place)
        self.newest = Version(number(), place, snapshot)
        self.settings = settings
        self._kept[self.newest.number] = self.newest
        return self.newest.number

    def moved(self, given: Any, settings: Mapping[str, Any], min_kl: Any, on: Any) -> Any:
        """What of this is to be published, having moved from what acted in a rollout or with settings, or ``None``."""
        return given if has_moved(on, given, self._policy, min_kl, settings) else None

    def weights_of(self, version: Version) -> dict[str, Any]:
        """The weights of a version that is kept, as a state dict with memory of its own; empty without a module."""
        return {} if self._weights is None else self._weights.state_dict(version.place)

    def named(self) -> NoReturn:
        """Those of policies that have names.

        Raises:
            ConfigurationError: there is one policy, without a name.
        """
        raise ConfigurationError(
            "the pool has one policy, without a name: give policies by name, "
            'AsyncWorkerPool(env_fn, {"runner": policy})'
        )

    def resume(self, number: int, settings: Mapping[str, Any]) -> None:
        """Go on counting from a version, which is what the pool was made with, with these settings."""
        self.settings = dict(settings)
        snapshot = dumps((self.settings, None)) if settings else b""
        self.newest = Version(number, 0, snapshot)
        self._kept = {number: self.newest}


def _check_has_no_names(given: Any) -> None:
    """Refuse policies by name; a state dict is a mapping too, and its values are tensors, which cannot be called."""
    if isinstance(given, Mapping) and any(isinstance(one, Policy) or callable(one) for one in given.values()):
        raise ConfigurationError(
            f"publish takes the policy itself, since the pool was made with one policy without a name; "
            f"got a dict of policies by name: {list(given)}. Publish one of its values"
        )


def source_of(given: Any, of: str = "") -> Any:
    """What the weights of a version are read from, a module or a state dict.

    Raises:
        ConfigurationError: there is none.
    """
    source = given if isinstance(given, Mapping) else module_of(given)
    if source is None:
        raise ConfigurationError(
            f"publish needs the module{of}, the policy that holds it or its state dict, got {given!r}"
        )
    return source
