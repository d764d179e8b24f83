"""Results of ``statistics()``, ``episodes`` and ``failures`` of pools, vector envs, populations and sessions."""

from parenv.experience.episodes import EpisodeStatistics as EpisodeStatistics
from parenv.experience.failures import EnvFailures as EnvFailures
from parenv.pool.statistics import PoolStatistics as PoolStatistics
from parenv.population.schedule import PopulationStatistics as PopulationStatistics
from parenv.sessions.statistics import SessionStatistics as SessionStatistics
from parenv.vector.backend import VectorStatistics as VectorStatistics
