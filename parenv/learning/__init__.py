"""Helpers for learners: replay ratio, ensembles, averaged gradients, leagues, copies to a GPU, recurrent networks."""

from parenv.learning.distributed import all_reduce_gradients
from parenv.learning.ensemble import Ensemble
from parenv.learning.league import League
from parenv.learning.limiter import RateLimiter
from parenv.learning.pipeline import pipeline
from parenv.learning.prefetch import prefetch
from parenv.learning.unrolling import unroll

__all__ = ["Ensemble", "League", "RateLimiter", "all_reduce_gradients", "pipeline", "prefetch", "unroll"]
