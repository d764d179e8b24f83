"""Member: one policy of a population with all that learns beside it, and its state as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parenv.argument_checks import at_least, is_callable
from parenv.errors import ConfigurationError, NotDataError
from parenv.experience.episodes import EpisodeStatistics
from parenv.policy.policy import as_policy
from parenv.policy.snapshots import module_of, tensors_of
from parenv.protocol.tensors import with_tensors, without_tensors

_OWN = ("policy", "hyperparameters", "number")


class Member:
    """One member of a :class:`~parenv.Population`, as ``make_member`` makes it and ``learn`` gets it.

    It is made anew for every turn, and what it had learned is put back into it: the parameters and buffers of its
    policy, and its parts. Nothing else lasts from turn to turn.

    Args:
        policy: a :class:`~parenv.Policy`, a ``torch.nn.Module``, or a callable ``observations -> actions``.
        **parts: what lasts beside it, each an attribute of that name: whatever has ``state_dict`` and
            ``load_state_dict``, such as optimizers, further modules and normalisers, or plain data and arrays.

    Attributes:
        hyperparameters: by name, the values at this time. One that is also the name of an option of an optimizer among
            the parts, such as ``lr``, is set in all groups of that optimizer whenever it changes.
        number: which member it is.

    >>> import torch
    >>> agent = torch.nn.Linear(4, 2)
    >>> member = Member(agent, optimizer=torch.optim.SGD(agent.parameters(), lr=0.1), updates=0)
    >>> member.updates += 1
    >>> member.updates, type(member.optimizer).__name__
    (1, 'SGD')
    """

    def __init__(self, policy: Any, **parts: Any) -> None:
        as_policy(policy)
        if taken := [name for name in parts if name in _OWN or name.startswith("_")]:
            raise ConfigurationError(f"a part of a Member may not be called {taken[0]!r}: give it another name")
        self.policy = policy
        self.hyperparameters: dict[str, float] = {}
        self.number = -1
        self._names = tuple(parts)
        vars(self).update(parts)

    def __getattr__(self, name: str) -> Any:
        parts = ", ".join(vars(self).get("_names", ())) or "none"
        raise AttributeError(f"this member has no part {name!r}: its parts are {parts}")


@dataclass(frozen=True)
class Fitness:
    """How it is measured what a member of a :class:`~parenv.Population` is worth: by episodes it does not learn from.

    Args:
        episodes: how many; may be 0 where ``score`` needs none.
        env_fn: what makes the sub-environments for them, as for a pool; ``None``: the same as for learning. Here the
            reward may be what is wanted in the end, where that for learning is shaped.
        score: ``(member, episodes) -> number``, called on the worker with :class:`~parenv.EpisodeStatistics`; more is
            better; ``None``: the mean return.
        deterministic: what ``policy.settings["deterministic"]`` says meanwhile.

    >>> Fitness(episodes=20, score=lambda member, episodes: -episodes.mean_length).episodes
    20
    """

    episodes: int = 10
    env_fn: Any = None
    score: Callable[[Member, EpisodeStatistics], float] | None = None
    deterministic: bool = True

    def __post_init__(self) -> None:
        at_least("Fitness.episodes", self.episodes, int(self.score is None), "; 0 is for a score that needs none")
        is_callable("Fitness.score", self.score)


def made(make_member: Any, number: int, hyperparameters: Mapping[str, float], device: str = "cpu") -> Member:
    """A new member, on a device.

    Raises:
        ConfigurationError: what was made is no member.
    """
    member = make_member(dict(hyperparameters))
    if not isinstance(member, Member):
        raise ConfigurationError(
            f"make_member must return a parenv.Member, such as Member(agent, optimizer=optimizer), got {member!r}"
        )
    member.number, member.hyperparameters = number, dict(hyperparameters)
    for part in (module_of(member.policy), *(getattr(member, name) for name in member._names)):
        if hasattr(part, "parameters") and hasattr(part, "to"):
            part.to(device)  # In place, so that optimizers keep its parameters.
    return member


def state_of(member: Member) -> dict[str, Any]:
    """All that lasts of a member, as plain data.

    Raises:
        NotDataError: a part of it is something else.
    """
    module = module_of(member.policy)
    parts = {name: _state_of_part(getattr(member, name)) for name in member._names}
    policy = _state_of_part(member.policy) if module is None and _has_state(member.policy) else None
    tensors = {} if module is None else {name: _plain(tensor, name) for name, tensor in tensors_of(module).items()}
    return {
        "hyperparameters": dict(member.hyperparameters),
        "tensors": tensors,
        "policy": _plain(policy, "policy"),
        "parts": {name: _plain(part, name) for name, part in parts.items()},
    }


def restore(member: Member, state: Mapping[str, Any]) -> None:
    """Put a state of :func:`state_of` into a member that was made by the same function.

    What has been read is not copied once more: tensors and optimizers go on with the memory of the state. Its
    hyper-parameters may be others than those of the state: they hold, and not what an optimizer remembers of them.

    Raises:
        ConfigurationError: the member has other parts or tensors than the state.
    """
    module = module_of(member.policy)
    tensors = {} if module is None else tensors_of(module)
    if tensors.keys() != state["tensors"].keys() or set(member._names) != state["parts"].keys():
        raise ConfigurationError(
            f"make_member made member {member.number} otherwise than before, with the parts {sorted(member._names)} "
            f"and the tensors {sorted(tensors)}: parts and names must not depend on hyper-parameters"
        )
    for name, tensor in tensors.items():
        _take(tensor, with_tensors(state["tensors"][name]))
    if state["policy"] is not None:
        member.policy.load_state_dict(with_tensors(state["policy"]))
    for name, saved in state["parts"].items():
        if _has_state(getattr(member, name)):
            getattr(member, name).load_state_dict(with_tensors(saved))
        else:
            setattr(member, name, with_tensors(saved))
    before = state["hyperparameters"]
    changed = {name: value for name, value in member.hyperparameters.items() if before.get(name) != value}
    # Some are options of optimizers, which have remembered those of the member that they came from.
    for name in member._names:
        for group in getattr(getattr(member, name), "param_groups", ()):
            group.update({option: value for option, value in changed.items() if option in group})


def _take(tensor: Any, saved: Any) -> None:
    """Have a tensor be a saved one, whose memory becomes its own where it fits."""
    is_like = all(getattr(saved, name) == getattr(tensor, name) for name in ("shape", "dtype", "device"))
    if is_like and tensor.is_contiguous():
        tensor.data = saved
    else:
        tensor.data.copy_(saved)


def _has_state(part: Any) -> bool:
    return callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None))


def _state_of_part(part: Any) -> Any:
    return part.state_dict() if _has_state(part) else part


def _plain(value: Any, where: str) -> Any:
    return without_tensors(value, where, _data)


def _data(value: Any, where: str) -> Any:
    if hasattr(value, "__dict__") and not hasattr(value, "dtype"):
        kind = type(value)
        raise NotDataError(
            f"{where} of a member is a {kind.__module__}.{kind.__qualname__}, which cannot be copied to another: give "
            "it state_dict and load_state_dict, or make it plain data"
        )
    return value
