"""Rollout: a time-major block of real transitions by one version of the policy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any, ClassVar

import numpy as np

from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.summary import Summarized, shapes_of
from parenv.experience.transitions import Transitions
from parenv.memory.layout import PLAIN, Axes
from parenv.memory.trees import Tree, as_array, concatenated, copy_of, map_trees, to_tensors

PER_STEP = ("observations", "actions", *(name for name, axes in PLAIN.items() if axes is Axes.STEPS))
"""The fields of a rollout, and of transitions, that are trees of arrays and lists ``[T, B, ...]``."""

TREES = (
    *PER_STEP,
    *(name for name in PLAIN if name not in PER_STEP),
    "last_observations",
    "initial_carry",
    "shifted_observations",
)
"""The fields of a rollout that are trees of arrays and lists."""

NAMED = ("extras", "infos", "next_infos")
"""The fields of a rollout that are arrays by name."""


@dataclass(frozen=True)
class Ends:
    """Where episodes ended in a rollout, and the observations they ended with.

    Args:
        steps: rows, int64 ``[K]``.
        columns: columns, int64 ``[K]``.
        observations: ``[K, *obs]``, nested as the space is; NaN, or 0 in integers, where one is not known.
        known: bool ``[K]``: whether the environment has given the observation; ``None``: all.
        resets_next: bool ``[K]``: whether the step after it only resets the sub-environment; ``None``: nowhere.
        void: bool ``[K]``: whether nothing was stepped there, since the process that was to do it was gone; likewise.
    """

    steps: Any
    columns: Any
    observations: Tree
    known: Any = None
    resets_next: Any = None
    void: Any = None

    @classmethod
    def joined(cls, parts: Sequence[Ends]) -> Ends:
        """The ends of several parts of one block."""
        if len(parts) == 1:
            return parts[0]
        fields = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(map_trees(concatenated, *values) for values in fields))


@dataclass(frozen=True, repr=False)
class Rollout(Summarized):
    """``T`` env steps of ``B`` sub-environments by one version of the policy.

    Every ``[t, b]`` is a real transition, but where :attr:`valid` says otherwise: of a ``VectorEnv`` in ``NEXT_STEP``
    mode, a step after an episode's end only resets.

    Arrays lie in shared memory and stay valid and unchanged for as long as anybody holds one of them. ``to(device)``
    gives the same fields as tensors. Fields of spaces without a fixed size are lists of lists.

    Args:
        observations: ``[T, B, *obs]``, nested as the space is.
        actions: ``[T, B, *action]``, nested as the space is.
        rewards: float32 ``[T, B]``.
        terminated: bool ``[T, B]``.
        truncated: bool ``[T, B]``.
        last_observations: what the next rollout begins with, ``[B, *obs]``.
        extras: what the policy and ``postprocess`` returned, each ``[T, B, ...]``.
        initial_carry: the policy's carry before the first row, ``[B, ...]`` in dicts and tuples; ``None`` without one.
        env_ids: the sub-environments of the columns, int64 ``[B]``.
        worker: the worker it came from; ``None`` for a block of all workers (sync).
        policy_version: the version that acted.
        policy_lag: version published when the rollout was yielded minus ``policy_version``, in publishes.
        restarted: bool ``[B]``: the first row does not follow the last row of the rollout before, because a worker died
            or a sub-environment raised; the episode that was under way there has no end.
        episodes: the episodes that ended in it.
        ends: where they ended, as parts of one block.
        shifted_observations: ``observations`` one step later, ``[T, B, *obs]``, before the final ones are put in.
        infos: by name, arrays ``[T, B, ...]`` of the infos that the pool was to bring along. ``infos[name][t]`` is what
            step ``t`` returned, at an episode's end too; of an info that the policy takes as an argument, such as an
            action mask, it is what came with ``observations[t]``, from the step before or a reset: what the policy saw.
            ``infos["_name"]``, bool ``[T, B]``, says where it was there; elsewhere ``infos[name]`` is 0.
        next_infos: the same as each step returned it, whoever takes it: what came with ``next_observations()``.
        resetting: bool ``[B]``: the first row only resets the sub-environment, since the last row of the rollout before
            ended its episode; ``None``: nowhere.
        serial: number of the rollout among all that this process has made. Copies keep it.

    >>> from parenv import AsyncWorkerPool
    >>> def lean(observations):
    ...     return observations[:, 2] > 0
    >>> with AsyncWorkerPool("CartPole-v1", lean, num_workers=0, num_envs=2, rollout_length=4) as pool:
    ...     rollout = next(pool.rollouts())
    >>> rollout.observations.shape, rollout.next_observations().shape, rollout.policy_version
    ((4, 2, 4), (4, 2, 4), 0)
    >>> bool((rollout.next_observations()[:-1] == rollout.observations[1:]).all())
    True
    """

    observations: Tree
    actions: Tree
    rewards: Any
    terminated: Any
    truncated: Any
    last_observations: Tree
    extras: Mapping[str, Any]
    initial_carry: Tree
    env_ids: Any
    worker: int | None
    policy_version: int
    policy_lag: int
    restarted: Any
    episodes: EpisodeStatistics
    ends: Sequence[Ends]
    shifted_observations: Tree
    infos: Mapping[str, Any] = field(default_factory=dict)
    next_infos: Mapping[str, Any] = field(default_factory=dict)
    resetting: Any = None
    serial: int = field(default_factory=count().__next__, compare=False)
    _blocks: ClassVar[tuple[str, ...]] = (*TREES, *NAMED)

    @property
    def num_steps(self) -> int:
        """Env steps in it: ``T * B``, less those that are not :attr:`valid`."""
        return int(self.valid.sum() if self._has_resets else math.prod(self.rewards.shape[:2]))

    @cached_property
    def valid(self) -> Any:
        """Which ``[t, b]`` are transitions, bool ``[T, B]``.

        False only where a ``VectorEnv`` in ``NEXT_STEP`` mode resets: there the observation is the final one of the
        episode before, the next one the first of another episode, the action was not taken, the reward is 0. And where
        one of ``WorkerOptions.step_workers`` was gone: there an episode is truncated by a step that nobody has taken.
        All true otherwise, without an array of its own.
        """
        if not self._has_resets:
            return _everywhere(self.terminated)
        valid = self.terminated | ~self.terminated
        if self.resetting is not None:
            valid[0] = ~self.resetting
        if self._ends.resets_next is not None:
            inside = self._ends.resets_next & (self._ends.steps < len(valid) - 1)
            valid[self._ends.steps[inside] + 1, self._ends.columns[inside]] = False
        if self._ends.void is not None:
            valid[self._ends.steps[self._ends.void], self._ends.columns[self._ends.void]] = False
        return valid

    @cached_property
    def next_known(self) -> Any:
        """Where :meth:`next_observations` is known, bool ``[T, B]``.

        False only at an episode's end for which a ``VectorEnv`` gives no final observation.
        All true otherwise, without an array of its own.
        """
        ends = self._ends
        if ends.known is None or ends.known.all():
            return _everywhere(self.terminated)
        known = self.terminated | ~self.terminated
        known[ends.steps[~ends.known], ends.columns[~ends.known]] = False
        return known

    @property
    def final_observations(self) -> Tree:
        """The observations that episodes ended with, ``[K, *obs]``, at the places that ``final_index`` gives."""
        return self._ends.observations

    @property
    def final_index(self) -> tuple[Any, Any]:
        """Rows and columns where episodes ended, two int64 ``[K]``; ``terminated[final_index]`` says how."""
        return self._ends.steps, self._ends.columns

    @property
    def successors(self) -> Tree:
        """The former name of ``shifted_observations``."""
        warnings.warn("Rollout.successors is now shifted_observations", DeprecationWarning, stacklevel=2)
        return self.shifted_observations

    def next_observations(self) -> Tree:
        """The true next observation of every step, ``[T, B, *obs]``: the final one where an episode ended.

        Where it is not :attr:`next_known`, NaN stands in arrays of floats, and 0 in others. Without an episode end this
        is a view; otherwise a copy.
        """
        resets_next = self._ends.resets_next
        if not len(self._ends.steps) or (resets_next is not None and resets_next.all()):
            return self.shifted_observations
        return map_trees(self._with_finals, self.shifted_observations, self._ends.observations)

    def next_values(self, values: Any, value_fn: Callable[[Tree], Any]) -> Any:
        """Values of the true next observations, ``[T, B]``, for :func:`parenv.returns.gae` and its like.

        Only the last and the final observations are evaluated; all other values are already there. Targets are
        constants: no gradient flows through them. Where a next observation is not known, its value is NaN.

        Args:
            values: ``V(o_t)``, ``[T, B]``, array or tensor as the rollout's fields are.
            value_fn: maps observations ``[N, *obs]`` to values ``[N]`` or ``[N, 1]``.
        """
        following = copy_of(values.detach() if hasattr(values, "detach") else values)
        following[:-1] = values[1:]
        following[-1] = reshaped(value_fn(self.last_observations), values[-1])
        if len(self._ends.steps):
            finals = value_fn(self.final_observations)
            following[self.final_index] = reshaped(finals, following[self.final_index])
            if self._ends.known is not None:
                unknown = ~self._ends.known
                following[self._ends.steps[unknown], self._ends.columns[unknown]] = math.nan
        return following

    def transitions(self) -> Transitions:
        """Flatten to transitions with their true next observations, without steps that are not :attr:`valid`.

        Views wherever that is possible.
        """
        T = self.rewards.shape[0]
        flat = _only(self.valid.reshape(-1)) if self._has_resets else _flat
        return Transitions(
            **{name: map_trees(flat, getattr(self, name)) for name in PER_STEP},
            next_observations=map_trees(flat, self.next_observations()),
            env_ids=flat(_rows_of(self.env_ids, T)),
            **{kind: map_trees(flat, getattr(self, kind)) for kind in NAMED},
            next_known=flat(self.next_known),
        )

    def to(self, device: Any = "cpu", *, non_blocking: bool = False) -> Rollout:
        """The same rollout as tensors. On the CPU they share the memory of the arrays.

        Args:
            device: torch device.
            non_blocking: as in ``torch.Tensor.to``.
        """
        tensor = to_tensors(device, non_blocking)
        return self._with_each(tensor, [self._ends], env_ids=tensor(self.env_ids))

    def to_tensordict(self, device: Any = "cpu", *, names: Mapping[str, str] | None = None) -> Any:
        """The same rollout as a ``TensorDict`` of batch size ``[B, T]``, as TorchRL's collectors give it.

        Keys are ``"observation"`` (those of a Dict space at the root), ``"action"``, ``"done"``, ``"terminated"`` and
        ``"truncated"``, which are false at the root since every step is a real one, and under ``"next"`` the true next
        observations, the reward and how the step ended. Extras have their names, but ``log_prob`` is
        ``"action_log_prob"``, or where losses of TorchRL look for it by ``composite_lp_aggregate``, and ``value`` is
        ``"state_value"``, with a last dimension of 1; infos are under ``"infos"``, ``"policy_version"`` comes along.
        ``("collector", "traj_ids")`` has one id for each part of an episode in a rollout, and another in every other
        rollout, so that ``SliceSampler`` joins only steps that follow each other. On the CPU the memory is that of the
        arrays.

        Args:
            device: torch device.
            names: other keys for extras, such as ``{"log_prob": "behaviour_log_prob"}``.

        Raises:
            ConfigurationError: ``tensordict`` is not installed, a field has no fixed size, or two have one key.
        """
        from parenv.experience.tensordicts import tensordict_of

        return tensordict_of(self.to(device), dict(names or {}), device)

    def copy(self) -> Rollout:
        """The same rollout with memory of its own."""
        return self._with_each(copy_of, self.ends)

    def _facts(self) -> dict[str, Any]:
        T, B = self.rewards.shape
        trees = {"observations": self.observations, "actions": self.actions, "extras": self.extras, "infos": self.infos}
        return {
            "T": T,
            "B": B,
            **{name: shapes_of(tree) for name, tree in trees.items() if name in PER_STEP or tree},
            "episodes": len(self.episodes),
            **{name: getattr(self, name) for name in ("worker", "policy_version", "policy_lag")},
        }

    def _with_each(self, function: Callable[[Any], Any], ends: Sequence[Ends], **others: Any) -> Rollout:
        """The same rollout with what a function makes of each of its blocks."""
        made = {name: map_trees(function, getattr(self, name)) for name in self._blocks}
        ends = [Ends(**{name: map_trees(function, value) for name, value in vars(part).items()}) for part in ends]
        return replace(self, **made, **others, ends=ends)

    @cached_property
    def _ends(self) -> Ends:
        return Ends.joined(self.ends)

    @cached_property
    def _has_resets(self) -> bool:
        """Whether there is a step that is no transition."""
        flags = [self.resetting, *(flag for part in self.ends for flag in (part.resets_next, part.void))]
        return any(bool(flag.any()) for flag in flags if flag is not None and len(flag))

    def _with_finals(self, shifted: Any, finals: Any) -> Any:
        filled = copy_of(shifted)
        steps, columns = self.final_index
        if isinstance(filled, list):
            for step, column, final in zip(steps, columns, finals, strict=True):
                filled[int(step)][int(column)] = final
        else:
            filled[steps, columns] = finals
        return filled


def _everywhere(like: Any) -> Any:
    """True at every place, without memory for it."""
    return like.new_ones(()).expand(like.shape) if hasattr(like, "expand") else np.broadcast_to(np.True_, like.shape)


def _only(places: Any) -> Callable[[Any], Any]:
    """What flattens to some places only."""

    def flat(value: Any) -> Any:
        if isinstance(value, list):
            return [item for item, is_wanted in zip(_flat(value), places.tolist(), strict=True) if is_wanted]
        return _flat(value)[places]

    return flat


def _rows_of(row: Any, count: int) -> Any:
    return row.expand(count, -1) if hasattr(row, "expand") else np.broadcast_to(row, (count, len(row)))


def _flat(value: Any) -> Any:
    if isinstance(value, list):
        return [item for row in value for item in row]
    return value.reshape(-1, *value.shape[2:])


def reshaped(values: Any, like: Any) -> Any:
    """Values in the shape of others, and as arrays or tensors without a gradient as those are."""
    if hasattr(values, "detach"):
        values = values.detach() if hasattr(like, "detach") else as_array(values)
    return values.reshape(like.shape)
