"""What is written down of a run, and read back: recordings, timelines, checkpoints, states to go on from.

The core imports this door and nothing behind it, and only once somebody asks for one of these.
"""

from parenv.records.checkpoint import load_checkpoint as load_checkpoint
from parenv.records.checkpoint import save_checkpoint as save_checkpoint
from parenv.records.recorder import Recorder as Recorder
from parenv.records.replayer import Replayer as Replayer
from parenv.records.resuming import pool_state as pool_state
from parenv.records.resuming import resume_pool as resume_pool
from parenv.records.save_best import SaveBest as SaveBest
from parenv.records.trace import trace_of as trace_of
