"""TorchRL: its actors as policies, and a pool as a collector for its loops and trainers."""

from parenv.adapters.torchrl.pool_collector import PoolCollector, TensorDictPolicy

__all__ = ["PoolCollector", "TensorDictPolicy"]
