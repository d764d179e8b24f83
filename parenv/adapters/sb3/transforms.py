"""What the wrappers around a model's vec env do to observations, for policies that act in workers."""

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
    """Nothing.

    >>> Transform()(np.zeros(2), None, {})
    (array([0., 0.]), None)
    """

    def initial(self, batch: int) -> Any:
        """What it keeps for each sub-environment at an episode's beginning, ``[batch, ...]``, or ``None``."""
        return None

    def __call__(self, observations: Any, kept: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
        """Transform observations ``[B, ...]``; they, and what it keeps."""
        return observations, kept


class Transposed(Transform):
    """As ``VecTransposeImage``.

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
    """As ``VecExtractDictObs``.

    >>> Extracted("position")({"position": np.zeros(2), "speed": np.ones(2)}, None, {})[0]
    array([0., 0.])
    """

    def __init__(self, key: str) -> None:
        self._key = key

    def __call__(self, observations: Any, kept: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
        """Take one of several."""
        return observations[self._key], kept


class Stacked(Transform):
    """As ``VecFrameStack`` on arrays.

    >>> stacked = Stacked((4,), -1, np.dtype(np.float32))
    >>> observations, kept = stacked(np.ones((1, 2), np.float32), stacked.initial(1), {})
    >>> observations
    array([[0., 0., 1., 1.]], dtype=float32)
    """

    def __init__(self, shape: tuple[int, ...], axis: int, dtype: Any) -> None:
        self._shape, self._axis, self._dtype = shape, axis, dtype

    def initial(self, batch: int) -> Any:
        """No frames."""
        return np.zeros((batch, *self._shape), self._dtype)

    def __call__(self, observations: Any, kept: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
        """Add a frame, and forget the oldest."""
        size = observations.shape[self._axis]
        stack = np.roll(kept, -size, axis=self._axis)
        newest = [slice(None)] * stack.ndim
        newest[self._axis] = slice(-size, None)
        stack[tuple(newest)] = observations
        return stack, stack


class Normalized(Transform):
    """As ``VecNormalize``, with the statistics that came with the newest version of the policy.

    Args:
        name: by which the settings have them.
        wrapper: a ``VecNormalize`` without its vec env.
    """

    def __init__(self, name: str, wrapper: VecNormalize) -> None:
        self._name, self._wrapper = name, wrapper

    def __call__(self, observations: Any, kept: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
        """Normalize."""
        if self._name in settings:
            self._wrapper.obs_rms = settings[self._name]
        return self._wrapper.normalize_obs(observations), kept


def transforms_of(wrappers: Sequence[VecEnvWrapper], exact: bool) -> list[Transform] | None:
    """What the wrappers of a vec env, the outermost first, do to observations, the innermost first.

    Args:
        wrappers: as they are in the driver.
        exact: whether statistics must be those of the very step.

    Returns:
        ``None`` where that cannot be done by a worker, which does not see all observations of a step.
    """
    found = [_transform_of(one, f"normalize_{position}", exact) for position, one in enumerate(reversed(wrappers))]
    known = [transform for transform in found if transform is not None]
    return known if len(known) == len(found) else None


def unknown_wrapper(wrappers: Sequence[VecEnvWrapper]) -> VecEnvWrapper | None:
    """The first of them of which nobody knows what it does to observations."""
    return next((one for one in wrappers if _transform_of(one, "", False) is None), None)


def statistics_of(wrappers: Sequence[VecEnvWrapper]) -> dict[str, Any]:
    """The settings that bring newer statistics to the transforms of :func:`transforms_of`."""
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
    # What is left out of its state has to be there for it to be pickled once more.
    vars(copied).update(wrapper.__getstate__(), venv=None, class_attributes={}, returns=None)
    return copied
