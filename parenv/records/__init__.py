"""What is written down of a run, and read back: recordings, timelines, checkpoints, states to go on from.

The core imports this door and nothing behind it, and only once somebody asks for one of these.
"""

from parenv.records.checkpoint import load_checkpoint, save_checkpoint
from parenv.records.recorder import Recorder
from parenv.records.replayer import Replayer
from parenv.records.resuming import pool_state, resume_pool
from parenv.records.save_best import SaveBest
from parenv.records.trace import trace_of

__all__ = [
    "Recorder",
    "Replayer",
    "SaveBest",
    "load_checkpoint",
    "pool_state",
    "resume_pool",
    "save_checkpoint",
    "trace_of",
]
