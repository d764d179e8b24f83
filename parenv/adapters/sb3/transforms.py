"""Transforms of observations that workers apply in place of the wrappers around a model's vec env."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnvWrapper,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)


class Transform:
    """Leaves observations as they are.

    >>> Transform()(np.zeros(2), None, {})
    (array([0., 0.]), None)
    """

    def initial(self, batch: int) -> Any:
        """Return the state at the beginning of an episode, ``[batch, ...]``, or ``None``."""
        return None

    def __call__(self, observations: Any, kept: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return transformed observations ``[B, ...]`` and the new state."""
        return observations, kept


class Transposed(Transform):
    """Transposes images like ``VecTransposeImage``.

    >>> Transposed([])(np.zeros((1, 4, 5, 3)), None, {})[0].shape
    (1, 3, 4, 5)
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys

    def __call__(self, observations: Any, kept: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
        """Transpose images."""
        transposed = VecTransposeImage.transpose_image
        if isinstance(observations, dict):
            return observations | {key: transposed(observations[key]) for key in self._keys}, kept
        return transposed(observations), kept


class Extracted(Transform):
    """Takes one entry of a dict like ``VecExtractDictObs``.

    >>> Extracted("position")({"position": np.zeros(2), "speed": np.ones(2)}, None, {})[0]
    array([0., 0.])
    """

    def __init__(self, key: str) -> None:
        self._key = key

    def __call__(self, observations: Any, kept: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
        """Take the entry."""
        return observations[self._key], kept


class Stacked(Transform):
    """Stacks arrays like ``VecFrameStack``.

    >>> stacked = Stacked((4,), -1, np.dtype(np.float32))
    >>> observations, kept = stacked(np.ones((1, 2), np.float32), stacked.initial(1), {})
    >>> observations
    array([[0., 0., 1., 1.]], dtype=float32)
    """

    def __init__(self, shape: tuple[int, ...], axis: int, dtype: Any) -> None:
        self._shape, self._axis, self._dtype = shape, axis, dtype

    def initial(self, batch: int) -> Any:
        """Return a stack without frames."""
        return np.zeros((batch, *self._shape), self._dtype)

    def __call__(self, observations: Any, kept: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
        """Add a frame, and drop the oldest."""
        size = observations.shape[self._axis]
        stack = np.roll(kept, -size, axis=self._axis)
        newest = [slice(None)] * stack.ndim
        newest[self._axis] = slice(-size, None)
        stack[tuple(newest)] = observations
        return stack, stack


class Normalized(Transform):
    """Normalizes like ``VecNormalize``, with the statistics in the settings of the policy's version.

    Args:
        name: Name of the statistics in the settings.
        wrapper: ``VecNormalize`` without its vec env.
    """

    def __init__(self, name: str, wrapper: VecNormalize) -> None:
        self._name, self._wrapper = name, wrapper

    def __call__(self, observations: Any, kept: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
        """Normalize."""
        if self._name in settings:
            self._wrapper.obs_rms = settings[self._name]
        return self._wrapper.normalize_obs(observations), kept


def transforms_of(wrappers: Sequence[VecEnvWrapper], exact: bool) -> list[Transform] | None:
    """Return the transforms of a vec env's wrappers, or ``None`` if a worker cannot apply one of them.

    Args:
        wrappers: Wrappers in the main process, the outermost first.
        exact: Whether statistics must include every step. A worker cannot compute them, because it has the observations
            of its own environments only.

    Returns:
        Transforms, the innermost first.
    """
    found = [_transform_of(one, f"normalize_{position}", exact) for position, one in enumerate(reversed(wrappers))]
    known = [transform for transform in found if transform is not None]
    return known if len(known) == len(found) else None


def unknown_wrapper(wrappers: Sequence[VecEnvWrapper]) -> VecEnvWrapper | None:
    """Return the first wrapper without a known transform."""
    return next((one for one in wrappers if _transform_of(one, "", False) is None), None)


def statistics_of(wrappers: Sequence[VecEnvWrapper]) -> dict[str, Any]:
    """Return the settings with the newest statistics for the transforms of :func:`transforms_of`."""
    return {
        f"normalize_{position}": wrapper.obs_rms
        for position, wrapper in enumerate(reversed(wrappers))
        if isinstance(wrapper, VecNormalize) and wrapper.norm_obs and wrapper.training
    }


def _transform_of(wrapper: Any, name: str, exact: bool) -> Transform | None:
    kind = type(wrapper)
    if kind in (VecMonitor, VecCheckNan):
        return Transform()
    if kind is VecTransposeImage:
        return Transform() if wrapper.skip else Transposed(getattr(wrapper, "image_space_keys", []))
    if kind is VecExtractDictObs:
        return Extracted(wrapper.key)
    if kind is VecFrameStack and not hasattr(wrapper.stacked_obs, "sub_stacked_observations"):
        stack = wrapper.stacked_obs
        return Stacked(stack.stacked_shape, stack.stack_dimension, stack.observation_space.dtype)
    if kind is VecNormalize and not (exact and wrapper.norm_obs and wrapper.training):
        return Normalized(name, _without_venv(wrapper)) if wrapper.norm_obs else Transform()
    return None


def _without_venv(wrapper: VecNormalize) -> VecNormalize:
    copied = VecNormalize.__new__(VecNormalize)
    # VecNormalize.__getstate__ deletes these attributes, and fails if one is missing.
    vars(copied).update(wrapper.__getstate__(), venv=None, class_attributes={}, returns=None)
    return copied
