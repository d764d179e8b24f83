"""Act by a version of the policy: convert observations to what the policy takes, and its actions to arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np

from parenv.envs.fitting import Fit
from parenv.errors import PolicyOutputError
from parenv.memory.layout import Extra, torch_dtype
from parenv.memory.spaces import Leaf, flatten, is_single, unflatten
from parenv.memory.trees import array_or_list, as_array, as_tensor, copy_of, copy_with, leaves_in, map_trees
from parenv.policy.made_policies import made_again
from parenv.policy.policy import Policy, TorchPolicy, apply_settings, as_policy
from parenv.policy.snapshots import WeightsReader, module_of
from parenv.worker.writing import RolloutWriter

_WAYS_OUT = (
    'Wrap a network that returns logits or a tuple in TorchPolicy(module, method="...", outputs=("actions", ...)), '
    "or in a callable that returns the actions."
)


class ActionFit:
    """Converts the actions of a policy to the action space.

    Args:
        actions: Leaves of the space.
        fit: Rules for actions that do not fit.

    Attributes:
        dtype: Dtype of the space, if it is a single array; otherwise ``None``.
        shape: Shape of one action of such a space.
    """

    def __init__(self, actions: Sequence[Leaf], fit: Fit) -> None:
        self._actions, self._fit = actions, fit
        # A single array of this dtype and shape is taken without further checks. None matches nothing.
        single = is_single(actions)
        self.dtype = np.dtype(actions[0].dtype) if single else None
        self.shape = actions[0].shape if single else ()

    def fitted(self, by_leaf: Sequence[Any], batch: int) -> Sequence[Any]:
        """Convert actions by leaf to arrays or lists that can be written into rows of the space.

        Raises:
            PolicyOutputError: The actions do not fit the space.
        """
        if self.dtype is not None:
            values = _array(by_leaf[0])
            if type(values) is np.ndarray and values.dtype is self.dtype and values.shape == (batch, *self.shape):
                return (values,)
        return [self._fitted(leaf, values, batch) for leaf, values in zip(self._actions, by_leaf, strict=True)]

    def kept(self, by_leaf: Sequence[Any], batch: int) -> Sequence[Any]:
        """Convert as :meth:`fitted` does, but keep tensors that fit on their device."""
        pairs = zip(self._actions, by_leaf, strict=True)
        all_fit = all(_is_fitting_tensor(leaf, values, batch) for leaf, values in pairs)
        return by_leaf if all_fit else self.fitted(by_leaf, batch)

    def by_leaf(self, actions: Any) -> list[Any]:
        """Split actions into leaves.

        Raises:
            PolicyOutputError: The actions are not nested like the space.
        """
        try:
            return flatten(self._actions, actions)
        except (KeyError, IndexError, TypeError) as error:
            names = ", ".join(leaf.name or "values without a fixed size" for leaf in self._actions)
            raise PolicyOutputError(
                f"the policy must return actions nested like the action space, with {names}: "
                f"{type(error).__name__} {error}"
            ) from error

    def _fitted(self, leaf: Leaf, values: Any, batch: int) -> Any:
        if leaf.dtype is None:
            return list(values) if isinstance(values, tuple) else array_or_list(values)
        array, wanted = np.asarray(_array(values)), (batch, *leaf.shape)
        if array.shape == wanted and array.dtype == leaf.dtype:
            return array
        problem: str | None = "the shape differs"
        if array.shape == wanted:
            guise = leaf.integral and array.dtype.kind in "iub" and np.array_equal(array.astype(leaf.dtype), array)
            problem = None if guise else self._fit.problem("action", leaf, array)
            if problem is None:
                return array
        raise PolicyOutputError(
            f"the policy must return actions{leaf.name} of shape {wanted} and dtype {np.dtype(leaf.dtype)} for {batch} "
            f"sub-environments, got shape {array.shape} and dtype {array.dtype} ({problem}). {_WAYS_OUT}"
        )


def _array(values: Any) -> Any:
    try:
        return array_or_list(values)
    except ValueError as error:
        raise PolicyOutputError(
            f"the policy must return an array of actions, got a {type(values).__name__}. {_WAYS_OUT}"
        ) from error


def _is_fitting_tensor(leaf: Leaf, values: Any, batch: int) -> bool:
    is_tensor = leaf.dtype is not None and hasattr(values, "detach") and values.shape == (batch, *leaf.shape)
    return is_tensor and values.dtype == torch_dtype(leaf.dtype)


NO_INFOS: Mapping[str, Any] = {}


class Actor:
    """A worker's version of the policy. The caller keeps the carry.

    Args:
        policy: Policy of the user, in a copy of this worker.
        observations: Leaves of the observation space.
        actions: Leaves of the action space.
        device: Device on which the policy acts.
        weights: Function that makes the reader of flat weights for a module. Default: no version is loaded.
        fit: Rules for actions that do not fit their space.

    Attributes:
        actions: Converter of actions.
        infos_taken: Names of infos that the policy takes.
    """

    _act: Callable[..., Any]

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
        """Load another version.

        Args:
            place: Place of its weights in shared memory, for a policy with a module.
            snapshot: Pickled settings, and the policy itself if it has no module. Empty: no settings, and the first
                policy of the worker.
        """
        if self._weights is not None:
            self._weights.load(place)
        settings, policy = cloudpickle.loads(snapshot) if snapshot else ({}, None)
        policy = made_again(policy)
        if policy is not None or self._given is not self._first:
            self._use(self._first if policy is None else policy)
        if settings or self._settings:
            self._settings = settings
            self._apply(settings)

    def settle(self, settings: Mapping[str, Any]) -> None:
        """Add these settings to the present ones."""
        if settings:
            self._settings = {**self._settings, **settings}
            self._apply(self._settings)

    @contextlib.contextmanager
    def deterministic(self, wanted: bool) -> Iterator[None]:
        """Make a context in which ``settings["deterministic"]`` has this value."""
        self._apply({**self._settings, "deterministic": wanted})
        if wanted and isinstance(self._policy, TorchPolicy) and self._policy.deterministic_method is None:
            self._act = self._watched_act
        try:
            yield
        finally:
            self._act = self._policy.act
            self._apply(self._settings)

    def initial_carry(self, batch: int) -> Any:
        """Return the carry at the beginning of an episode. Tensors are on the device of the policy."""
        with self._context():
            carry = self._policy.initial_carry(batch)
        return carry if self.device == "cpu" else map_trees(self._placed, carry)

    def act(
        self, rows: Sequence[Any], carry: Any, infos: Mapping[str, Any] = NO_INFOS
    ) -> tuple[Sequence[Any], Mapping[str, Any], Any]:
        """Act on one batch of observations.

        Args:
            rows: Observations, one array or list ``[B, ...]`` per leaf.
            carry: Carry of the policy.
            infos: Infos of the observations, arrays ``[B, ...]``. The policy gets those that it takes.

        Returns:
            Actions by leaf, extras and the carry, in arrays, lists or tensors as the policy returned them.

        Raises:
            PolicyOutputError: The actions are not nested like the space.
        """
        return self.act_on(self._observe(rows), carry, infos)

    def act_on(
        self, observations: Any, carry: Any, infos: Mapping[str, Any] = NO_INFOS
    ) -> tuple[Sequence[Any], Mapping[str, Any], Any]:
        """Act on observations that :meth:`observing` has made, see :meth:`act`."""
        if infos:
            infos = {name: self._convert(value) for name, value in infos.items() if name in self.infos_taken}
        if self._policy.takes_tensors:
            with self._context():
                actions, extras, carry = self._act(observations, carry, **infos)
        # Entering and leaving even a null context costs as much as a step of a cheap environment, and so does an empty
        # dict of arguments.
        elif infos:
            actions, extras, carry = self._act(observations, carry, **infos)
        else:
            actions, extras, carry = self._act(observations, carry)
        return (actions,) if self._one_action else self.actions.by_leaf(actions), extras, carry

    @property
    def plain_act(self) -> Callable[[Any, Any], Any] | None:
        """The ``act`` of the policy, if it maps a single numpy array to another and nothing is checked."""
        plain = self._one_action and is_single(self._observations) and not self.fit.finite
        return self._act if plain and not self._policy.takes_tensors else None

    def observing(self, writer: RolloutWriter) -> Callable[[int], Any]:
        """Return a function ``(step) -> observations`` for the rollout that is being written."""
        block = writer.own.get(("observations", 0))
        if self.device != "cpu" or not is_single(self._observations) or type(block) is not np.ndarray:
            return lambda step: self._observe(writer.observations[step])
        if not self._policy.takes_tensors:
            # A copy: the policy may keep and change it, and torch warns of arrays that are not writable.
            return lambda step: block[step].copy()
        import torch

        with self._context():
            return torch.from_numpy(block).unbind().__getitem__

    def with_rows(self, carry: Any, other: Any, columns: Sequence[int]) -> Any:
        """Return a copy of the carry with some rows of another carry."""
        rows = list(columns)
        with self._context():
            return map_trees(lambda values, others: copy_with(values, rows, others[rows]), carry, other)

    def own_carry(self, carry: Any) -> Any:
        """Return a copy of the carry that shares no memory with a slot."""
        with self._context():
            return map_trees(copy_of, carry)

    def postprocess(self, function: Callable[[Any, Any], Any], rollout: Any) -> dict[str, Any]:
        """Call ``postprocess`` of the user with a rollout of arrays; return arrays or tensors by name."""
        import torch

        with torch.no_grad():
            returned = function(self._given, rollout.to(self.device))
        if not isinstance(returned, Mapping):
            raise PolicyOutputError(f"postprocess must return a dict of arrays, got {type(returned).__name__}")
        return {str(name): value for name, value in returned.items()}

    def _watched_act(self, observations: Any, carry: Any, **infos: Any) -> Any:
        """Act once, and warn if this drew random numbers."""
        policy = self._policy
        assert isinstance(policy, TorchPolicy)
        self._act, before = policy.act, _random_state_on(self.device)
        found = policy.act(observations, carry, **infos)
        if not before.equal(_random_state_on(self.device)):
            method = f"{type(policy.module).__name__}.{policy.method}"
            self.fit.warn_once(
                "deterministic",
                f"An evaluation with deterministic=True draws random numbers, because {method} acts as in training. "
                "Pass TorchPolicy(..., deterministic_method=...), or evaluate with deterministic=False.",
            )
        return found

    def _use(self, policy: Any) -> None:
        self._given = policy
        self._policy: Policy = as_policy(policy)
        self._act = self._policy.act
        self.infos_taken = self._policy.infos_taken()
        self._convert: Callable[[Any], Any] = self._tensor if self._policy.takes_tensors else _own_array
        self._context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        self._observe: Callable[[Sequence[Any]], Any] = self._observer(_own_array)
        if self._policy.takes_tensors:
            import torch

            # One context is reused, since making it takes as long as entering it. It is never nested.
            context = torch.inference_mode()
            self._context = lambda: context
            on_cpu = is_single(self._observations) and self.device == "cpu"
            self._observe = self._observer(as_tensor if on_cpu else self._tensor)

    def _observer(self, convert: Callable[[Any], Any]) -> Callable[[Sequence[Any]], Any]:
        """Return a function that makes the policy's observations from rows by leaf."""
        if is_single(self._observations):
            return lambda rows: convert(rows[0])
        return lambda rows: map_trees(convert, unflatten(self._observations, rows))

    def _apply(self, settings: Mapping[str, Any]) -> None:
        apply_settings(self._policy, settings)
        if self._given is not self._policy:
            apply_settings(self._given, settings)

    def _tensor(self, value: Any) -> Any:
        return value if isinstance(value, list) else self._placed(as_tensor(value))

    def _placed(self, value: Any) -> Any:
        """Move a tensor to the device of the policy; return anything else unchanged."""
        return value.to(self.device) if hasattr(value, "to") else value


def _random_state_on(device: str) -> Any:
    import torch

    return torch.cuda.get_rng_state(device) if device.startswith("cuda") else torch.get_rng_state()


def check_actions(of: Sequence[Leaf], space: Any, actions: Sequence[Any], batch: int) -> None:
    """Check that a batch of actions with the right shapes and dtypes is in the action space.

    Raises:
        PolicyOutputError: An action is not in the space.
    """
    for leaf, values in zip(of, actions, strict=True):
        if leaf.dtype is None and len(values) != batch:
            raise PolicyOutputError(
                f"the policy must return one action{leaf.name} for each of {batch} sub-environments, got {len(values)}"
            )
    if all(leaf.dtype is not None and np.dtype(leaf.dtype).kind in "iub" for leaf in of):
        columns = [np.asarray(values).astype(leaf.dtype) for leaf, values in zip(of, actions, strict=True)]
        for row in range(batch):
            action = unflatten(of, [values[row] for values in columns])
            if not space.contains(action):
                raise PolicyOutputError(f"the policy must return actions in {space}, got {action!r}")


def extras_of(arrays: Mapping[str, Any], leading: tuple[int, ...], by: str) -> tuple[Extra, ...]:
    """Return shape and dtype of extras.

    Args:
        arrays: Arrays ``[*leading, ...]`` by name.
        leading: First dimensions of each array.
        by: Source of the extras, ``"policy"`` or ``"postprocess"``.

    Raises:
        PolicyOutputError: An extra does not begin with these dimensions, or is not numeric.
    """
    extras = []
    for name, value in arrays.items():
        array = as_array(value)
        if array.shape[: len(leading)] != leading or array.dtype.kind not in "?biufc":
            raise PolicyOutputError(
                f"the extra {name!r} of {by} must be numeric with a shape that begins with {leading}, got shape "
                f"{array.shape} and dtype {array.dtype}"
            )
        extras.append(Extra(name, array.shape[len(leading) :], array.dtype.str, by == "postprocess"))
    return tuple(extras)


def carry_of(carry: Any, batch: int) -> tuple[Leaf, ...]:
    """Return the leaves of a policy's carry.

    Raises:
        PolicyOutputError: The carry is not made of numeric arrays with a row for each of ``batch`` sub-environments.
    """
    found = [] if carry is None else list(leaves_in(carry))
    for path, value in found:
        array = as_array(value)
        if isinstance(value, list) or array.shape[:1] != (batch,) or array.dtype.kind not in "?biufc":
            raise PolicyOutputError(
                f"the policy's carry{Leaf(path).name} must be numeric with one row for each of {batch} "
                f"sub-environments, got a {type(value).__name__} of shape {array.shape} and dtype {array.dtype}. "
                "Return arrays or tensors, nested only in dicts and tuples."
            )
    return rows_as_leaves(found)


def rows_as_leaves(found: Iterable[tuple[tuple[str | int, ...], Any]]) -> tuple[Leaf, ...]:
    """Return the leaves of which these arrays have rows."""
    arrays = [(path, as_array(value)) for path, value in found]
    return tuple(Leaf(path, array.shape[1:], array.dtype.str) for path, array in arrays)


def _own_array(value: Any) -> Any:
    return copy_of(array_or_list(value))
