"""Rollouts, gradients and statistics that a pool yields. Workers build the same rollouts for ``postprocess``."""
