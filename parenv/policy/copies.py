"""Copies of policies that share no state, also of those that only one of the two ways of Python can copy."""

from __future__ import annotations

import copy
from typing import Any

import cloudpickle

from parenv.errors import NotPicklableError, embedded
from parenv.process.user_code import dumps


def copied(policy: Any) -> Any:
    """Return a deep copy of a policy or of policies, or a copy by a pickle if there is no deep copy.

    Raises:
        NotPicklableError: There is neither.
    """
    return _first(policy, copy.deepcopy, _by_pickle)


def copied_for_worker(policies: Any) -> Any:
    """Return a copy by a pickle, as a process gets it, or a deep copy if there is no pickle.

    Raises:
        NotPicklableError: There is neither.
    """
    return _first(policies, _by_pickle, copy.deepcopy)


def _by_pickle(value: Any) -> Any:
    return cloudpickle.loads(dumps(value))


def _first(value: Any, way: Any, other: Any) -> Any:
    try:
        return way(value)
    except Exception:
        try:
            return other(value)
        except Exception as error:
            raise NotPicklableError(
                f"the policy cannot be copied: {embedded(error)}. Pass PolicyFactory(make), whose function makes it "
                "for each worker, or remove the part that cannot be copied."
            ) from error
