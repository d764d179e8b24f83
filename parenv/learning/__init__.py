"""Help for the user's own loop on the learner's side: the pace of replay, ensembles, gradients, copies to a GPU."""

from parenv.learning.distributed import all_reduce_gradients
from parenv.learning.ensemble import Ensemble
from parenv.learning.limiter import RateLimiter
from parenv.learning.pipeline import pipeline
from parenv.learning.prefetch import prefetch

__all__ = ["Ensemble", "RateLimiter", "all_reduce_gradients", "pipeline", "prefetch"]
