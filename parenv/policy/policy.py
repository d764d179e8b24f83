"""Policies, which choose actions for observations."""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from parenv.errors import ConfigurationError, PolicyOutputError


class Action(NamedTuple):
    """Result of a policy for a batch of ``B`` observations.

    Args:
        actions: Actions ``[B, *action]``, nested like the action space.
        extras: Arrays ``[B, ...]`` that are stored in ``Rollout.extras``, such as ``log_prob`` and ``value``. Default:
            none.
        carry: Recurrent state for the next step, as arrays ``[B, ...]`` in any nesting. Default: ``None``.

    >>> Action([0, 1], {"log_prob": [-0.7, -0.7]})
    Action(actions=[0, 1], extras={'log_prob': [-0.7, -0.7]}, carry=None)
    """

    actions: Any
    extras: Mapping[str, Any] = {}
    carry: Any = None


class Policy(ABC):
    """Base class for policies of any kind.

    Each worker acts with a pickled copy of the policy. ``publish`` replaces the copy. If the policy has a ``module``,
    ``publish`` only copies the module's parameters and buffers, which is much faster.

    Attributes:
        settings: Values that ``publish(policy, name=value)`` has set. ``settings["deterministic"]`` is true during an
            evaluation without exploration. The module of a :class:`TorchPolicy` does not receive settings: store an
            exploration rate in a buffer, which is published with the weights.
        module: ``torch.nn.Module`` whose parameters and buffers are the only part that changes between versions.
            Default: ``None``, ``publish`` replaces the whole policy.
        takes_tensors: Whether :meth:`act` is called with tensors on the worker's device, under ``inference_mode``.
            Default: ``False``, it is called with numpy arrays.

    >>> from parenv import AsyncWorkerPool
    >>> class Lean(Policy):
    ...     def act(self, observations, carry):
    ...         return Action(observations[:, 2] > self.settings.get("upright", 0.0), {"angle": observations[:, 2]})
    >>> with AsyncWorkerPool("CartPole-v1", Lean(), num_workers=0, rollout_length=4) as pool:
    ...     version = pool.publish(Lean(), upright=0.01)
    ...     rollout = next(pool.rollouts())
    >>> rollout.extras["angle"].shape
    (4, 1)
    """

    settings: Mapping[str, Any] = {}
    module: Any = None
    takes_tensors: bool = False

    @abstractmethod
    def act(self, observations: Any, carry: Any) -> Action:
        """Choose actions for a batch of observations.

        A subclass can add parameters with names of the pool's ``infos``, such as ``action_mask``. They receive the
        infos of these observations, as arrays ``[B, ...]``.

        Args:
            observations: Observations ``[B, *obs]``, nested like the space. The policy may change numpy arrays, because
                they are copies.
            carry: Carry of the last call. Rows whose episode has ended are reset to :meth:`initial_carry`.

        Returns:
            Actions, extras and the next carry.
        """

    def infos_taken(self) -> frozenset[str]:
        """Return the names of the infos that the policy takes: its parameters beside observations and carry."""
        return _parameters_of_all(self._acting())

    def _acting(self) -> Sequence[tuple[Callable[..., Any], int]]:
        """Return the functions that act, each with the number of its first arguments that are not infos."""
        return ((self.act, 2),)

    def initial_carry(self, batch: int) -> Any:
        """Return the carry at the beginning of an episode, as arrays ``[batch, ...]``, or ``None`` (default)."""
        return None


class FunctionPolicy(Policy):
    """Policy of a plain callable ``observations -> actions`` on numpy arrays.

    Args:
        function: Callable. It can have parameters with the names of infos, like :meth:`Policy.act`.
    """

    def __init__(self, function: Any) -> None:
        self.function = function

    def act(self, observations: Any, carry: Any, **infos: Any) -> Action:
        """Call the function."""
        return Action(self.function(observations, **infos))

    def _acting(self) -> Sequence[tuple[Callable[..., Any], int]]:
        return ((self.function, 1),)


class TorchPolicy(Policy):
    """Policy of a torch module that returns actions, in the style of CleanRL or any other.

    Args:
        module: Module that acts.
        method: Name of its method that acts. The method is called with observations, with the carry if ``outputs``
            contains one, and with the pool's infos that its parameters name. Default: ``"get_action_and_value"``.
        outputs: Names of all values that the method returns, in order: ``"actions"``, optionally ``"carry"``, any names
            for extras, and ``None`` for each value to leave out. Default: actions, log-probability, nothing, value.
        deterministic_method: Name of the method that acts in ``evaluate(deterministic=True)``. It returns actions only,
            or the same outputs. Default: ``None``, ``method`` acts there too, with a warning if it draws random
            numbers.
        initial_carry: Function ``initial_carry(batch)`` that returns the carry at the beginning of an episode. Default:
            the module's method with this name.

    >>> import torch
    >>> class Agent(torch.nn.Linear):
    ...     def get_action_and_value(self, observations):
    ...         distribution = torch.distributions.Categorical(logits=self(observations))
    ...         actions = distribution.sample()
    ...         return actions, distribution.log_prob(actions), distribution.entropy(), torch.zeros(len(observations))
    >>> policy = TorchPolicy(Agent(4, 2), outputs=("actions", "log_prob", None, "value"))
    >>> sorted(policy.act(torch.zeros(3, 4), None).extras)
    ['log_prob', 'value']
    """

    takes_tensors = True

    def __init__(
        self,
        module: Any,
        method: str = "get_action_and_value",
        outputs: tuple[str | None, ...] = ("actions", "log_prob", None, "value"),
        *,
        deterministic_method: str | None = None,
        initial_carry: Any = None,
    ) -> None:
        methods = [name for name in (method, deterministic_method) if name is not None]
        for name in methods:
            if not callable(getattr(module, name, None)):
                raise ConfigurationError(
                    f"TorchPolicy must get the name of a method of {type(module).__name__}, got {name!r}. Pass another "
                    "name."
                )
        if "actions" not in outputs:
            raise ConfigurationError(f'TorchPolicy.outputs must name "actions", got {outputs!r}')
        self.module = module
        self.method = method
        self.outputs = tuple(outputs)
        self.deterministic_method = deterministic_method
        places = {name: i for i, name in enumerate(self.outputs) if name is not None}
        self._actions_at, self._carry_at = places.pop("actions"), places.pop("carry", None)
        self._extras_at = tuple(places.items())
        self._initial_carry = initial_carry
        self._methods = tuple(dict.fromkeys(methods))
        self._taken = {name: parameters_of(*acting) for name, acting in zip(self._methods, self._acting(), strict=True)}

    def __getattr__(self, name: str) -> Any:
        where = f". Use policy.module.{name}" if hasattr(vars(self).get("module"), name) else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{where}", name=name, obj=self)

    def act(self, observations: Any, carry: Any, **infos: Any) -> Action:
        """Call the method and return its values by their names."""
        method = self.method
        if self.deterministic_method is not None and self.settings.get("deterministic"):
            method = self.deterministic_method
        arguments = (observations,) if self._carry_at is None else (observations, carry)
        if infos:
            infos = {name: value for name, value in infos.items() if name in self._taken[method]}
        returned = getattr(self.module, method)(*arguments, **infos)
        if not isinstance(returned, tuple):
            return Action(returned, {}, carry)
        if len(returned) != len(self.outputs):
            raise PolicyOutputError(
                f"TorchPolicy.outputs must have a name for each of the {len(returned)} values that "
                f"{type(self.module).__name__}.{method} returned, got {self.outputs}. Use None for values to leave out."
            )
        carry = returned[self._carry_at] if self._carry_at is not None else None
        return Action(returned[self._actions_at], {name: returned[i] for name, i in self._extras_at}, carry)

    def _acting(self) -> Sequence[tuple[Callable[..., Any], int]]:
        given = 1 if self._carry_at is None else 2
        return tuple((getattr(self.module, name), given) for name in self._methods)

    def log_prob(self, observations: Any, actions: Any) -> Any:
        """Return the log-probabilities ``[N]`` of given actions.

        Args:
            observations: Observations ``[N, *obs]``.
            actions: Actions ``[N, *action]``, for the method's parameter ``action`` or ``actions``.

        Raises:
            ConfigurationError: The method has no such parameter, does not return ``log_prob``, or has a carry.
        """
        taken = parameters_of(getattr(self.module, self.method), 1)
        name = next((name for name in ("action", "actions") if name in taken), None)
        at = dict(self._extras_at).get("log_prob")
        if name is None or at is None or self._carry_at is not None:
            raise ConfigurationError(
                f"{type(self.module).__name__}.{self.method} cannot compute the log-probability of given actions. It "
                'needs a parameter action=None, as in CleanRL, "log_prob" in TorchPolicy.outputs, and no carry.'
            )
        return getattr(self.module, self.method)(observations, **{name: actions})[at]

    def initial_carry(self, batch: int) -> Any:
        """Return the carry from the argument of that name, or from the module, or ``None``."""
        function = self._initial_carry or getattr(self.module, "initial_carry", None)
        return function(batch) if function is not None else None


@dataclass(frozen=True)
class PolicyFactory:
    """Policy that each worker makes itself, for policies that cannot be pickled.

    Pass it instead of the policy to :class:`~parenv.AsyncWorkerPool`, as a named policy too, or to
    :func:`~parenv.evaluate`. This process and each worker call ``make``. Workers then get the parameters and buffers of
    the module that this process has made, and later the published ones. Everything else of the policy must be the same
    after each call of ``make``.

    Args:
        make: Function without arguments that returns a new :class:`Policy`, ``torch.nn.Module``, or callable
            ``observations -> actions``. Its module must be on the CPU. The function must be picklable, but its result
            need not be.

    >>> import threading
    >>> import torch
    >>> from parenv import AsyncWorkerPool
    >>> class Agent(torch.nn.Linear):
    ...     def __init__(self):
    ...         super().__init__(4, 2)
    ...         self.lock = threading.Lock()  # It cannot be pickled.
    ...     def forward(self, observations):
    ...         return super().forward(observations).argmax(-1)
    >>> agent = Agent()
    >>> with AsyncWorkerPool("CartPole-v1", PolicyFactory(Agent), num_workers=1, rollout_length=4) as pool:
    ...     version = pool.publish(agent)
    ...     rollout = next(pool.rollouts())
    >>> rollout.actions.shape
    (4, 1)
    """

    make: Callable[[], Policy | Callable[..., Any]]

    def __post_init__(self) -> None:
        if is_module(self.make) or isinstance(self.make, Policy) or not callable(self.make):
            raise ConfigurationError(
                f"PolicyFactory.make must be a function that returns a new policy, got {self.make!r}. Pass "
                "PolicyFactory(make), where make() returns it."
            )

    def __deepcopy__(self, memo: Any) -> PolicyFactory:
        return self  # Each call makes a new policy, so a copy of policies needs no copy of the function.


PolicyLike: TypeAlias = Policy | Callable[..., Any] | PolicyFactory
"""Policy argument of a pool: a :class:`Policy`, a ``torch.nn.Module``, a callable ``observations -> actions``, or a
:class:`PolicyFactory` of one of these."""


def as_policy(policy: Any) -> Policy:
    """Return a policy argument as a :class:`Policy`.

    Raises:
        ConfigurationError: The argument is not a policy, a module or a callable.
    """
    if isinstance(policy, Policy):
        return policy
    if is_module(policy):
        return TorchPolicy(policy, "forward", ("actions",))
    if callable(policy):
        return FunctionPolicy(policy)
    hint = ""
    if hasattr(policy, "predict"):
        hint = ". Pass lambda observations: model.predict(observations)[0]"
    elif isinstance(policy, PolicyFactory):
        hint = ". Pass the policy itself"
    raise ConfigurationError(
        f"policy must be a Policy, a torch.nn.Module or a callable observations -> actions, got {policy!r}{hint}"
    )


def is_module(value: Any) -> bool:
    """Return whether a value is a ``torch.nn.Module``, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def infos_needed(policy: Policy) -> frozenset[str]:
    """Return the names of the infos without which a policy cannot act: their parameters have no default."""
    return policy.infos_taken() & _parameters_of_all(policy._acting(), needed=True)


def _parameters_of_all(functions: Sequence[tuple[Callable[..., Any], int]], needed: bool = False) -> frozenset[str]:
    return frozenset[str]().union(*(parameters_of(function, given, needed) for function, given in functions))


def parameters_of(function: Callable[..., Any], given: int, needed: bool = False) -> frozenset[str]:
    """Return the names of a function's keyword parameters, without the first ones; none if it has no signature.

    Args:
        function: Any callable.
        given: Number of first arguments to leave out.
        needed: Whether to leave out parameters with a default. Default: ``False``.

    >>> sorted(parameters_of(lambda observations, action_mask=None: ..., 1))
    ['action_mask']
    """
    kinds = inspect.Parameter
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        if not hasattr(function, "schema"):
            return frozenset()
        # A method of a TorchScript module that was saved and loaded has only a schema, whose first argument is self.
        parameters = [
            kinds(
                one.name,
                kinds.POSITIONAL_OR_KEYWORD,
                default=one.default_value if one.has_default_value() else kinds.empty,
            )
            for one in function.schema.arguments[1:]
        ]
    by_position = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    left = [p for p in parameters if p not in by_position[:given] and not (needed and p.default is not p.empty)]
    return frozenset(p.name for p in left if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY))


def apply_settings(policy: Any, settings: Mapping[str, Any]) -> None:
    """Set ``policy.settings`` of the user's object, unless the object forbids it."""
    with suppress(AttributeError):
        policy.settings = dict(settings)
