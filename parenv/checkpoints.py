"""Checkpoints: saved by hand, of the best agent, and of runs that survive preemption."""

from parenv.records.checkpoint import load_checkpoint as load_checkpoint
from parenv.records.checkpoint import save_checkpoint as save_checkpoint
from parenv.records.resumable import ResumableRun as ResumableRun
from parenv.records.resumable import resumable as resumable
from parenv.records.save_best import SaveBest as SaveBest
