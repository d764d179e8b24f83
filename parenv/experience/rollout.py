"""Rollout: a time-major block of real transitions by one version of the policy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, cast

import numpy as np

from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.summary import Summarized, shapes_of
from parenv.experience.transitions import Transitions
from parenv.memory.layout import PLAIN, Axes
from parenv.memory.trees import Block, Tree, as_array, concatenated, copy_of, joined_axes, map_trees, to_tensors

if TYPE_CHECKING:
    from torch import Tensor

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


_serials = count()


@dataclass(frozen=True)
class Ends:
    """Episode ends in a rollout.

    Args:
        steps: Rows of the ends, int64 ``[K]``.
        columns: Columns of the ends, int64 ``[K]``.
        observations: Final observations, ``[K, *obs]``, nested as the space is. Unknown ones are NaN, or 0 in integers.
        known: Whether the environment returned the observation, bool ``[K]``. ``None``: always.
        resets_next: Whether the next step only resets the sub-environment, bool ``[K]``. ``None``: never.
        void: Whether no step was taken, since the process that had to take it was gone, bool ``[K]``. ``None``: never.
        lost: Whether the environment did not end the episode, bool ``[K]``. ``None``: never.
    """

    steps: Any
    columns: Any
    observations: Tree
    known: Any = None
    resets_next: Any = None
    void: Any = None
    lost: Any = None

    @classmethod
    def joined(cls, parts: Sequence[Ends]) -> Ends:
        """Join the ends of several parts of one block."""
        if len(parts) == 1:
            return parts[0]
        fields = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(map_trees(concatenated, *values) for values in fields))


@dataclass(frozen=True, repr=False)
class Rollout(Summarized, Generic[Block]):
    """``T`` env steps of ``B`` sub-environments by one version of the policy.

    Every ``[t, b]`` is a real transition, except where :attr:`valid` is false: a ``VectorEnv`` in ``NEXT_STEP`` mode
    only resets in the step after an episode's end.

    Arrays are in shared memory. They stay valid and unchanged as long as one of them is referenced. ``to(device)``
    returns the same fields as tensors: ``Rollout`` is a ``Rollout[NDArray[Any]]`` for type checkers, and ``to`` returns
    a ``Rollout[Tensor]``. Fields of spaces without a fixed size are lists of lists.

    Args:
        observations: Observations, ``[T, B, *obs]``, nested as the space is.
        actions: Actions, ``[T, B, *action]``, nested as the space is.
        rewards: Rewards, float32 ``[T, B]``.
        terminated: Whether a step terminated the episode, bool ``[T, B]``.
        truncated: Whether a step truncated the episode, bool ``[T, B]``.
        last_observations: First observations of the next rollout, ``[B, *obs]``.
        extras: Extras that the policy and ``postprocess`` returned, each ``[T, B, ...]``.
        initial_carry: Carry of the policy before the first row, ``[B, ...]`` in dicts and tuples; ``None`` without one.
        env_ids: Sub-environments of the columns, int64 ``[B]``.
        worker: Worker that collected the rollout; ``None`` for a block of all workers (sync).
        policy_version: Version of the policy that acted.
        policy_lag: Version published when the rollout was yielded minus ``policy_version``, in publishes.
        restarted: Whether the first row does not follow the last row of the rollout before, bool ``[B]``. The reason is
            a worker that died or a sub-environment that raised. The interrupted episode has no end in the rows. For a
            rollout of a whole episode: whether an episode of the sub-environment was lost before it.
        episodes: Episodes that ended in the rollout, and those that were lost before its first row.
        ends: Ends of episodes in the rows, as parts of one block.
        shifted_observations: ``observations`` one step later, ``[T, B, *obs]``, without the final observations.
        infos: Infos that the user named, each ``[T, B, ...]``. ``infos[name][t]`` came from step ``t``, also at an
            episode's end. An info that the policy takes as an argument, such as an action mask, came with
            ``observations[t]``. The mask ``infos["_name"]``, bool ``[T, B]``, is true where the info was present.
            Elsewhere ``infos[name]`` is 0.
        next_infos: Infos that came with ``next_observations()``, each ``[T, B, ...]``.
        resetting: Whether the first row only resets the sub-environment, bool ``[B]``, since the last row of the
            rollout before ended its episode. ``None``: never.
        policy_versions: Version that acted in each row, int64 ``[T, B]``, if the versions of rows may differ:
            ``policy_version`` is the oldest of them then. ``None``: ``policy_version`` acted in all rows.
        serial: Number of the rollout among all that this process has made. Copies keep it.

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
    rewards: Block
    terminated: Block
    truncated: Block
    last_observations: Tree
    extras: Mapping[str, Block]
    initial_carry: Tree
    env_ids: Block
    worker: int | None
    policy_version: int
    policy_lag: int
    restarted: Block
    episodes: EpisodeStatistics
    ends: Sequence[Ends]
    shifted_observations: Tree
    infos: Mapping[str, Block] = field(default_factory=dict)
    next_infos: Mapping[str, Block] = field(default_factory=dict)
    resetting: Block | None = None
    policy_versions: Block | None = None
    serial: int = field(default_factory=_serials.__next__, compare=False)
    _blocks: ClassVar[tuple[str, ...]] = (*TREES, *NAMED, "policy_versions")

    @classmethod
    def when_read(cls, make: Callable[[str], Any], *, has_resets: bool, **known: Any) -> Self:
        """Return a rollout, some of whose fields are made when they are read, since few learners read all of them.

        Args:
            make: Function that makes a field by its name, and raises ``KeyError`` for other names.
            has_resets: Whether a step is not a transition.
            **known: The other fields, without the serial number.
        """
        rollout = object.__new__(cls)
        rollout.__dict__.update(known, serial=next(_serials), _make=make, has_resets=has_resets)
        return rollout

    if not TYPE_CHECKING:  # With this method, a type checker would accept any name.

        def __getattr__(self, name: str) -> Any:
            make = self.__dict__.get("_make", _nothing)
            try:
                value = make(name)
            except KeyError:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from None
            return self.__dict__.setdefault(name, value)

    def read_all(self) -> None:
        """Make all fields that were not read yet."""
        for one in fields(self):
            getattr(self, one.name)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields. The functions that make them cannot be pickled."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def num_steps(self) -> int:
        """Number of env steps: ``T * B``, less the steps that are not :attr:`valid`."""
        return int(self.valid.sum() if self.has_resets else math.prod(self.rewards.shape[:2]))

    @cached_property
    def valid(self) -> Block:
        """Mask of the transitions among all ``[t, b]``, bool ``[T, B]``.

        It is false in two cases. A ``VectorEnv`` in ``NEXT_STEP`` mode only resets in this step: the observation is the
        final one of an episode, the next one is the first of another, the reward is 0. Or one of
        ``WorkerOptions.step_workers`` died, and its episode was truncated without a step.
        If all steps are valid, the array takes no memory.
        """
        if not self.has_resets:
            return cast("Block", _everywhere(self.terminated))
        valid: Block = self.terminated | ~self.terminated
        if self.resetting is not None:
            valid[0] = ~self.resetting
        if self._ends.resets_next is not None:
            inside = self._ends.resets_next & (self._ends.steps < len(valid) - 1)
            valid[self._ends.steps[inside] + 1, self._ends.columns[inside]] = False
        if self._ends.void is not None:
            valid[self._ends.steps[self._ends.void], self._ends.columns[self._ends.void]] = False
        return valid

    @cached_property
    def next_known(self) -> Block:
        """Mask of the known :meth:`next_observations`, bool ``[T, B]``.

        It is false at an episode's end if a ``VectorEnv`` returns no final observation.
        If all are known, the array takes no memory.
        """
        ends = self._ends
        if ends.known is None or ends.known.all():
            return cast("Block", _everywhere(self.terminated))
        known: Block = self.terminated | ~self.terminated
        known[ends.steps[~ends.known], ends.columns[~ends.known]] = False
        return known

    @property
    def final_observations(self) -> Tree:
        """Final observations of episodes, ``[K, *obs]``, in the order of ``final_index``."""
        return self._ends.observations

    @property
    def final_index(self) -> tuple[Block, Block]:
        """Rows and columns of the episode ends, two int64 ``[K]``. ``terminated[final_index]`` tells how they ended."""
        return self._ends.steps, self._ends.columns

    @property
    def successors(self) -> Tree:
        """Former name of ``shifted_observations``."""
        warnings.warn("Rollout.successors is now shifted_observations", DeprecationWarning, stacklevel=2)
        return self.shifted_observations

    def next_observations(self) -> Tree:
        """Return the true next observation of every step, ``[T, B, *obs]``, with final ones at episode ends.

        Observations that are not :attr:`next_known` are NaN in arrays of floats, and 0 in others. The result is a view
        if no episode ended, and otherwise a copy.
        """
        resets_next = self._ends.resets_next
        if not len(self._ends.steps) or (resets_next is not None and resets_next.all()):
            return self.shifted_observations
        return map_trees(self._with_finals, self.shifted_observations, self._ends.observations)

    def next_values(self, values: Any, value_fn: Callable[[Tree], Any]) -> Any:
        """Return the values of the true next observations, ``[T, B]``, for functions of :mod:`parenv.returns`.

        Only the last and the final observations are evaluated. The result has no gradient. Values of unknown
        observations are NaN.

        Args:
            values: ``V(o_t)``, ``[T, B]``, array or tensor as the rollout's fields are.
            value_fn: Function of observations ``[N, *obs]`` that returns values ``[N]`` or ``[N, 1]``.
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

    def transitions(self) -> Transitions[Block]:
        """Flatten to transitions with their true next observations, without steps that are not :attr:`valid`.

        Fields are views if possible.
        """
        T = self.rewards.shape[0]
        flat = _only(self.valid.reshape(-1)) if self.has_resets else _flat
        return Transitions(
            **{name: map_trees(flat, getattr(self, name)) for name in PER_STEP},
            next_observations=map_trees(flat, self.next_observations()),
            env_ids=flat(_rows_of(self.env_ids, T)),
            **{kind: map_trees(flat, getattr(self, kind)) for kind in NAMED},
            next_known=flat(self.next_known),
        )

    def to(self, device: Any = "cpu", *, non_blocking: bool = False) -> Rollout[Tensor]:
        """Return the rollout with tensors as fields. On the CPU they share the memory of the arrays.

        Args:
            device: Torch device.
            non_blocking: Same as in ``torch.Tensor.to``.
        """
        tensor = to_tensors(device, non_blocking)
        of_tensors: Any = self._with_each(tensor, [self._ends], env_ids=tensor(self.env_ids))
        return cast("Rollout[Tensor]", of_tensors)

    def to_tensordict(self, device: Any = "cpu", *, names: Mapping[str, str] | None = None) -> Any:
        """Return the rollout as a ``TensorDict`` of batch size ``[B, T]``, with the keys of TorchRL's collectors.

        The root has ``"observation"`` (or the keys of a Dict space), ``"action"``, ``"infos"``, ``"policy_version"``.
        Its ``"done"``, ``"terminated"`` and ``"truncated"`` are false, since every step is a real one. ``"next"`` has
        the true next observations, the reward, and these three flags of the step. The extra ``log_prob`` becomes
        ``"action_log_prob"``, or the key that ``composite_lp_aggregate`` selects for the losses of TorchRL. The extra
        ``value`` becomes ``"state_value"`` with a last dimension of 1. Other extras keep their names.
        ``("collector", "traj_ids")`` has one id for each part of an episode in a rollout, which no other rollout has,
        so that ``SliceSampler`` joins only consecutive steps. On the CPU, tensors share the memory of the arrays.

        Args:
            device: Torch device.
            names: Other keys for extras, such as ``{"log_prob": "behaviour_log_prob"}``.

        Raises:
            ConfigurationError: ``tensordict`` is not installed, a field has no fixed size, or two have one key.
        """
        from parenv.experience.tensordicts import tensordict_of

        return tensordict_of(self.to(device), dict(names or {}), device)

    def copy(self) -> Self:
        """Return a copy with memory of its own."""
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

    def _with_each(self, function: Callable[[Any], Any], ends: Sequence[Ends], **others: Any) -> Self:
        """Return the rollout with a function applied to each of its blocks."""
        made = {name: map_trees(function, getattr(self, name)) for name in self._blocks}
        ends = [Ends(**{name: map_trees(function, value) for name, value in vars(part).items()}) for part in ends]
        return replace(self, **made, **others, ends=ends)

    @cached_property
    def _ends(self) -> Ends:
        return Ends.joined(self.ends)

    @cached_property
    def has_resets(self) -> bool:
        """True if a step is not a transition."""
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


def _nothing(name: str) -> Any:
    """Make no field."""
    raise KeyError(name)


def _everywhere(like: Any) -> Any:
    """Return an array of true in the shape of another, without memory."""
    return like.new_ones(()).expand(like.shape) if hasattr(like, "expand") else np.broadcast_to(np.True_, like.shape)


def _only(places: Any) -> Callable[[Any], Any]:
    """Return a function that flattens values and keeps some places."""

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
    return joined_axes(value)


def reshaped(values: Any, like: Any) -> Any:
    """Return values in the shape of others, as an array or as a tensor without a gradient."""
    if hasattr(values, "detach"):
        values = values.detach() if hasattr(like, "detach") else as_array(values)
    return values.reshape(like.shape)
