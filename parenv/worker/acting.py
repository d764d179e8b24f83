"""Acting: the worker's snapshot of the policy, with arrays on one side and whatever the policy likes on the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np

from parenv.envs.fitting import Fit
from parenv.errors import PolicyOutputError
from parenv.experience.rollout import map_trees
from parenv.memory.layout import Extra
from parenv.memory.spaces import Leaf, flatten, is_single, unflatten
from parenv.policy.policy import Policy, apply_settings, as_policy
from parenv.policy.snapshots import WeightsReader, module_of
from parenv.worker.writing import to_array

NO_INFOS: Mapping[str, Any] = {}


class ActionFit:
    """Makes what the policy returns fit the action space.

    Args:
        actions: leaves of the space.
        fit: how they must fit.
    """

    def __init__(self, actions: Sequence[Leaf], fit: Fit) -> None:
        self._actions, self._fit = actions, fit
        self._batch, self._like = -1, list[tuple[Any, tuple[int, ...]]]()

    def fitted(self, by_leaf: Sequence[Any], batch: int) -> Sequence[Any]:
        """Actions by leaf as arrays, or lists, that can be written into rows of their space.

        Raises:
            PolicyOutputError: they do not fit the space.
        """
        if batch != self._batch:
            self._batch = batch
            self._like = [(leaf.dtype and np.dtype(leaf.dtype), (batch, *leaf.shape)) for leaf in self._actions]
        for values, (dtype, shape) in zip(by_leaf, self._like, strict=True):
            if type(values) is not np.ndarray or values.dtype is not dtype or values.shape != shape:
                return [self._fitted(leaf, values, batch) for leaf, values in zip(self._actions, by_leaf, strict=True)]
        return by_leaf

    def _fitted(self, leaf: Leaf, values: Any, batch: int) -> Any:
        array = to_array(values)
        if leaf.dtype is None:
            return array
        array = np.asarray(array)
        self._check(leaf, array, batch)
        return array

    def by_leaf(self, actions: Any) -> list[Any]:
        """What the policy returned, taken apart.

        Raises:
            PolicyOutputError: it is not nested as the space is.
        """
        try:
            return flatten(self._actions, actions)
        except (KeyError, IndexError, TypeError) as error:
            raise PolicyOutputError(
                f"the policy must return actions nested as the action space is, with {_named(self._actions)}: "
                f"{type(error).__name__} {error}"
            ) from error

    def _check(self, leaf: Leaf, array: Any, batch: int) -> None:
        wanted = (batch, *leaf.shape)
        if array.shape == wanted and array.dtype == leaf.dtype:
            return
        if array.shape == wanted:
            guise = leaf.integral and array.dtype.kind in "iub" and np.array_equal(array.astype(leaf.dtype), array)
            problem = None if guise else self._fit.problem("action", leaf, array)
            if problem is None:
                return
        else:
            problem = "its shape is another"
        raise PolicyOutputError(
            f"the policy returned actions{leaf.name} of shape {array.shape} and dtype {array.dtype}, but the space "
            f"needs shape {wanted} and dtype {np.dtype(leaf.dtype)} for {batch} sub-environments ({problem}). "
            'A network that returns logits or a tuple goes through TorchPolicy(module, method="...", '
            'outputs=("actions", ...)) or a callable that picks the actions'
        )


class Actor:
    """A worker's snapshot of the policy. The carry is its user's to keep.

    Args:
        policy: what the user gave, in a copy of this worker's own.
        observations: leaves of the observation space.
        actions: leaves of the action space.
        device: where the policy acts.
        weights: makes the reader of the flat weights for a module, or ``None`` where none will come.
        fit: how actions must fit their space.

    Attributes:
        actions: makes actions fit.
        infos_taken: names of infos that the policy takes.
    """

    def __init__(
        self,
        policy: Any,
        observations: Sequence[Leaf],
        actions: Sequence[Leaf],
        device: str,
        weights: Callable[[Any], WeightsReader] | None = None,
        fit: Fit | None = None,
    ) -> None:
        self._observations, self._one_action = observations, is_single(actions)
        self.device = device
        self.fit = fit or Fit()
        self.actions = ActionFit(actions, self.fit)
        self._first = policy
        self._use(policy)
        module = module_of(policy)
        if module is not None:
            module.to(device)
        self._weights = None if module is None or weights is None else weights(module)
        self._settings: Mapping[str, Any] = dict(getattr(policy, "settings", {}))

    def load(self, place: int, snapshot: bytes) -> None:
        """Become another version.

        Args:
            place: where its weights lie in shared memory, for a policy with a module.
            snapshot: pickled settings, and the policy itself where it has no module; empty for no settings and the
                policy that the worker began with.
        """
        if self._weights is not None:
            self._weights.load(place)
        settings, policy = cloudpickle.loads(snapshot) if snapshot else ({}, None)
        if policy is not None or self._given is not self._first:
            self._use(self._first if policy is None else policy)
        if settings or self._settings:
            self._settings = settings
            self._apply(settings)

    def settle(self, settings: Mapping[str, Any]) -> None:
        """Have these settings beside the others."""
        if settings:
            self._settings = {**self._settings, **settings}
            self._apply(self._settings)

    @contextlib.contextmanager
    def deterministic(self, wanted: bool) -> Iterator[None]:
        """Have ``settings["deterministic"]`` say so meanwhile."""
        self._apply({**self._settings, "deterministic": wanted})
        try:
            yield
        finally:
            self._apply(self._settings)

    def initial_carry(self, batch: int) -> Any:
        """The carry at the beginning of an episode; tensors of it are where the policy acts."""
        with self._context():
            carry = self._policy.initial_carry(batch)
        return carry if self.device == "cpu" else map_trees(self._placed, carry)

    def act(
        self, rows: Sequence[Any], carry: Any, infos: Mapping[str, Any] = NO_INFOS
    ) -> tuple[Sequence[Any], Mapping[str, Any], Any]:
        """Act on one batch of observations.

        Args:
            rows: one array or list per leaf.
            carry: the policy's.
            infos: what came with the observations, arrays ``[B, ...]``; the policy gets those that it takes.

        Returns:
            Actions by leaf, extras and the carry, in arrays, lists or tensors as the policy returned them.

        Raises:
            PolicyOutputError: the actions are not nested as the space is.
        """
        if infos:
            infos = {name: self._convert(value) for name, value in infos.items() if name in self.infos_taken}
        if self._policy.takes_tensors:
            with self._context():
                actions, extras, carry = self._act(self._observe(rows), carry, **infos)
        else:  # Entering and leaving even a null context costs as much as a step of a cheap environment.
            actions, extras, carry = self._act(self._observe(rows), carry, **infos)
        return (actions,) if self._one_action else self.actions.by_leaf(actions), extras, carry

    def with_rows(self, carry: Any, other: Any, columns: Sequence[int]) -> Any:
        """A copy of the carry with the rows of these sub-environments from another one."""
        rows = list(columns)

        def replaced(values: Any, others: Any) -> Any:
            values = _cloned(values)
            values[rows] = others[rows]
            return values

        with self._context():
            return map_trees(replaced, carry, other)

    def own_carry(self, carry: Any) -> Any:
        """A copy of the carry that shares no memory with a rollout slot."""
        with self._context():
            return map_trees(_cloned, carry)

    def postprocess(self, function: Callable[[Any, Any], Any], rollout: Any) -> dict[str, Any]:
        """Call the user's ``postprocess`` on a rollout of arrays; what it returned, as arrays."""
        import torch

        with torch.no_grad():
            returned = function(self._given, rollout.to(self.device))
        if not isinstance(returned, Mapping):
            raise PolicyOutputError(f"postprocess must return a dict of arrays, got {type(returned).__name__}")
        return {str(name): to_array(value) for name, value in returned.items()}

    def _use(self, policy: Any) -> None:
        self._given = policy
        self._policy: Policy = as_policy(policy)
        self._act: Callable[..., Any] = self._policy.act
        self.infos_taken = self._policy.infos_taken()
        self._convert: Callable[[Any], Any] = self._tensor if self._policy.takes_tensors else _read_only
        self._context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        self._observe: Callable[[Sequence[Any]], Any] = self._observer(_read_only)
        if self._policy.takes_tensors:
            import torch

            self._context = torch.inference_mode
            on_cpu = is_single(self._observations) and self.device == "cpu"
            self._observe = self._observer(torch.from_numpy if on_cpu else self._tensor)

    def _observer(self, convert: Callable[[Any], Any]) -> Callable[[Sequence[Any]], Any]:
        """What makes the policy's observations of rows by leaf."""
        if is_single(self._observations):
            return lambda rows: convert(rows[0])
        return lambda rows: map_trees(convert, unflatten(self._observations, rows))

    def _apply(self, settings: Mapping[str, Any]) -> None:
        apply_settings(self._policy, settings)
        if self._given is not self._policy:
            apply_settings(self._given, settings)

    def _tensor(self, value: Any) -> Any:
        import torch

        return value if isinstance(value, list) else self._placed(torch.from_numpy(value))

    def _placed(self, value: Any) -> Any:
        """A tensor where the policy acts; anything else as it is."""
        return value.to(self.device) if hasattr(value, "to") else value


def check_actions(of: Sequence[Leaf], space: Any, actions: Sequence[Any], batch: int) -> None:
    """Check that a batch of actions, of the right shapes and dtypes, is in the action space.

    Raises:
        PolicyOutputError: it is not.
    """
    for leaf, values in zip(of, actions, strict=True):
        if leaf.dtype is None and len(values) != batch:
            raise PolicyOutputError(
                f"the policy returned {len(values)} actions{leaf.name} for {batch} sub-environments"
            )
    if all(leaf.dtype is not None and np.dtype(leaf.dtype).kind in "iub" for leaf in of):
        for row in range(batch):
            action = unflatten(
                of, [np.asarray(values).astype(leaf.dtype)[row] for leaf, values in zip(of, actions, strict=True)]
            )
            if not space.contains(action):
                raise PolicyOutputError(f"the policy returned the action {action!r}, which is not in {space}")


def _named(of: Sequence[Leaf]) -> str:
    return ", ".join(leaf.name or "values without a fixed size" for leaf in of)


def extras_of(arrays: Mapping[str, Any], leading: tuple[int, ...], by: str) -> tuple[Extra, ...]:
    """Shape and dtype of extras.

    Args:
        arrays: each ``[*leading, ...]``.
        leading: the dimensions that every one must begin with.
        by: who returned them, ``"policy"`` or ``"postprocess"``.

    Raises:
        PolicyOutputError: an extra does not begin with these dimensions or has no numeric dtype.
    """
    extras = []
    for name, value in arrays.items():
        array = np.asarray(to_array(value))
        if array.shape[: len(leading)] != leading or array.dtype.kind not in "?biufc":
            raise PolicyOutputError(
                f"{by} returned {name!r} of shape {array.shape} and dtype {array.dtype}; "
                f"it must be numeric and its shape begin with {leading}"
            )
        extras.append(Extra(name, array.shape[len(leading) :], array.dtype.str, by == "postprocess"))
    return tuple(extras)


def carry_of(carry: Any, batch: int, path: tuple[str | int, ...] = ()) -> tuple[Leaf, ...]:
    """The leaves of a policy's carry.

    Args:
        carry: arrays or tensors ``[batch, ...]``, nested in dicts and tuples, or ``None``.
        batch: sub-environments of this worker.
        path: where this part lies in the whole.

    Raises:
        PolicyOutputError: something else is in it.
    """
    if carry is None and not path:
        return ()
    if isinstance(carry, Mapping):
        return tuple(leaf for key, part in carry.items() for leaf in carry_of(part, batch, (*path, str(key))))
    if isinstance(carry, tuple):
        return tuple(leaf for i, part in enumerate(carry) for leaf in carry_of(part, batch, (*path, i)))
    array = np.asarray(None if carry is None else to_array(carry))
    if array.shape[:1] != (batch,) or array.dtype.kind not in "?biufc":
        raise PolicyOutputError(
            f"the policy's carry{Leaf(path).name} has shape {array.shape} and dtype {array.dtype}; it must be numeric, "
            f"with one row for each of the {batch} sub-environments, in dicts and tuples only"
        )
    return (Leaf(path, array.shape[1:], array.dtype.str),)


def _read_only(value: Any) -> Any:
    if isinstance(value, list):
        return value
    view = value.view()
    view.setflags(write=False)
    return view


def _cloned(value: Any) -> Any:
    if value is None:
        return None
    return value.clone() if hasattr(value, "clone") else np.array(value)
