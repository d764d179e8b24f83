"""Member: one policy of a population, with its optimizer and other parts, and its state as plain data."""

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

    A worker makes a new member for every training round, and restores the parameters and buffers of its policy, and its
    parts. All other attributes are lost after each round.

    Args:
        policy: :class:`~parenv.Policy`, ``torch.nn.Module``, or callable ``observations -> actions``.
        **parts: Parts that are kept, each an attribute: objects with ``state_dict`` and ``load_state_dict``, such as
            optimizers, modules and normalizers, or plain data and arrays.

    Attributes:
        hyperparameters: Present hyper-parameters by name. If an optimizer among the parts has an option of the same
            name, such as ``lr``, each change sets it in all groups of the optimizer.
        number: Number of the member.

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
            raise ConfigurationError(f"a part of a Member cannot be named {taken[0]!r}. Give it another name.")
        self.policy = policy
        self.hyperparameters: dict[str, float] = {}
        self.number = -1
        self._names = tuple(parts)
        vars(self).update(parts)

    def __getattr__(self, name: str) -> Any:
        parts = ", ".join(vars(self).get("_names", ())) or "none"
        raise AttributeError(f"this member has no part {name!r}. Its parts are: {parts}")


@dataclass(frozen=True)
class Fitness:
    """Measurement of a member of a :class:`~parenv.Population`, by episodes that it does not learn from.

    Args:
        episodes: Number of episodes. May be 0 if ``score`` needs none.
        env_fn: Factory of the sub-environments for these episodes, as for a pool. ``None``: the factory for learning.
            With another factory, the rewards for learning can be shaped, and the score measures the true objective.
        score: Function ``(member, episodes) -> number`` with :class:`~parenv.statistics.EpisodeStatistics`. A worker
            calls it. Higher is better. ``None``: the mean return.
        deterministic: Value of ``policy.settings["deterministic"]`` in these episodes.

    >>> Fitness(episodes=20, score=lambda member, episodes: -episodes.mean_length).episodes
    20
    """

    episodes: int = 10
    env_fn: Any = None
    score: Callable[[Member, EpisodeStatistics], float] | None = None
    deterministic: bool = True

    def __post_init__(self) -> None:
        at_least("Fitness.episodes", self.episodes, int(self.score is None), ". 0 needs a score function.")
        is_callable("Fitness.score", self.score)


def made(make_member: Any, number: int, hyperparameters: Mapping[str, float], device: str = "cpu") -> Member:
    """Make a member on a device.

    Raises:
        ConfigurationError: ``make_member`` did not return a member.
    """
    member = make_member(dict(hyperparameters))
    if not isinstance(member, Member):
        raise ConfigurationError(
            f"make_member must return a parenv.population.Member, got {member!r}. "
            "Return Member(agent, optimizer=optimizer)."
        )
    member.number, member.hyperparameters = number, dict(hyperparameters)
    for part in (module_of(member.policy), *(getattr(member, name) for name in member._names)):
        if hasattr(part, "parameters") and hasattr(part, "to"):
            part.to(device)  # This works in place, so that optimizers keep the parameters.
    return member


def state_of(member: Member) -> dict[str, Any]:
    """Return the state of a member as plain data.

    Raises:
        NotDataError: A part is not plain data.
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
    """Restore a state of :func:`state_of` in a member that was made by the same function.

    Tensors and optimizers use the memory of the state, without another copy. The hyper-parameters of the member
    override the values in the state and in its optimizers.

    Raises:
        ConfigurationError: The member has different parts or tensors.
    """
    module = module_of(member.policy)
    tensors = {} if module is None else tensors_of(module)
    if tensors.keys() != state["tensors"].keys() or set(member._names) != state["parts"].keys():
        raise ConfigurationError(
            f"make_member must make member {member.number} with the same parts and tensors as before, got the parts "
            f"{sorted(member._names)} and the tensors {sorted(tensors)}. Make both independent of hyper-parameters."
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
    # An optimizer restores its options with its state, so changed hyper-parameters have to be set after that.
    for name in member._names:
        for group in getattr(getattr(member, name), "param_groups", ()):
            group.update({option: value for option, value in changed.items() if option in group})


def _take(tensor: Any, saved: Any) -> None:
    """Set a tensor to a saved one, and use the memory of the saved one if it fits."""
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
            f"{where} of a member is a {kind.__module__}.{kind.__qualname__}, which cannot be copied to another "
            "member. Give it the methods state_dict and load_state_dict, or store plain data."
        )
    return value
