"""Tianshou: parallel environments for its collectors and trainers."""

from parenv.adapters.tianshou.parallel_venv import ParallelVenv

__all__ = ["ParallelVenv"]
