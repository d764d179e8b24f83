"""Records of a run: recordings and replays, timelines, checkpoints, and states to continue from.

The pool imports this module only if one of them is used, and no other module of the package.
"""

from parenv.records.checkpoint import load_checkpoint as load_checkpoint
from parenv.records.checkpoint import save_checkpoint as save_checkpoint
from parenv.records.dataset import record_dataset as record_dataset
from parenv.records.recording import Recorder as Recorder
from parenv.records.recording import Replayer as Replayer
from parenv.records.resumable import ResumableRun as ResumableRun
from parenv.records.resumable import resumable as resumable
from parenv.records.save_best import SaveBest as SaveBest
from parenv.records.trace import trace_to as trace_to
