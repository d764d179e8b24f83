"""Parallel workers for any Gymnasium environment and any PyTorch training loop."""

import sys as _sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if _sys.platform != "linux":
    raise ImportError(
        f"parenv needs Linux, got {_sys.platform}: its workers use memfd, pidfd and eventfd. "
        "Run it in a container, or on Windows in WSL 2."
    )

from parenv.envs.entry_point import entry_point
from parenv.errors import (
    ConfigurationError,
    GradientError,
    HostLostError,
    NotDataError,
    NotPicklableError,
    ObservationError,
    ParenvError,
    PolicyLagError,
    PolicyOutputError,
    PoolBusyError,
    PoolClosedError,
    ProtocolError,
    ReplayError,
    RestartLimitError,
    SubEnvironmentError,
    WorkerDiedError,
    WorkerError,
    WorkerMemoryError,
    WorkerTimeoutError,
)
from parenv.experience.agent_rollouts import AgentEpisodes, AgentRollout, EpisodesByPolicy, RolloutsByPolicy
from parenv.experience.episodes import EpisodeStatistics, EvaluationResult
from parenv.experience.failures import EnvFailures
from parenv.experience.gradient import Gradient
from parenv.experience.rollout import Rollout
from parenv.experience.transitions import Transitions
from parenv.experience.whole_episodes import Episode
from parenv.options import GradientOptions, RayPlacement, RemotePlacement, RestartPolicy, Stop, WorkerOptions
from parenv.policy.policy import Action, Policy, PolicyFactory, TorchPolicy
from parenv.pool.evaluation import PendingEvaluation
from parenv.pool.pool import AsyncWorkerPool
from parenv.pool.statistics import PoolStatistics
from parenv.population.population import Population
from parenv.population.schedule import PopulationStatistics, Report
from parenv.population.selection import Generational, LogUniform, Tournament, Uniform
from parenv.process.cores import recommended_num_workers
from parenv.vector.backend import VectorStatistics
from parenv.vector.env import ParallelVectorEnv
from parenv.vector.make import make_vec
from parenv.version import VERSION as _VERSION
from parenv.worker.member import Fitness, Member

if TYPE_CHECKING:
    from parenv import adapters as adapters
    from parenv import bench as bench
    from parenv import cli as cli
    from parenv import evaluation as evaluation
    from parenv import exporting as exporting
    from parenv import learning as learning
    from parenv import progress as progress
    from parenv import returns as returns
    from parenv import testing as testing
    from parenv.evaluation import EvaluatedEpisode as EvaluatedEpisode
    from parenv.evaluation import EvaluationReport as EvaluationReport
    from parenv.evaluation import evaluate as evaluate
    from parenv.exporting import export as export
    from parenv.records import ResumableRun as ResumableRun
    from parenv.records import SaveBest as SaveBest
    from parenv.records import load_checkpoint as load_checkpoint
    from parenv.records import record_dataset as record_dataset
    from parenv.records import resumable as resumable
    from parenv.records import save_checkpoint as save_checkpoint

__version__ = _VERSION

__all__ = [
    "Action",
    "AgentEpisodes",
    "AgentRollout",
    "AsyncWorkerPool",
    "ConfigurationError",
    "EnvFailures",
    "Episode",
    "EpisodeStatistics",
    "EpisodesByPolicy",
    "EvaluatedEpisode",
    "EvaluationReport",
    "EvaluationResult",
    "Fitness",
    "Generational",
    "Gradient",
    "GradientError",
    "GradientOptions",
    "HostLostError",
    "LogUniform",
    "Member",
    "NotDataError",
    "NotPicklableError",
    "ObservationError",
    "ParallelVectorEnv",
    "ParenvError",
    "PendingEvaluation",
    "Policy",
    "PolicyFactory",
    "PolicyLagError",
    "PolicyOutputError",
    "PoolBusyError",
    "PoolClosedError",
    "PoolStatistics",
    "Population",
    "PopulationStatistics",
    "ProtocolError",
    "RayPlacement",
    "RemotePlacement",
    "ReplayError",
    "Report",
    "RestartLimitError",
    "RestartPolicy",
    "ResumableRun",
    "Rollout",
    "RolloutsByPolicy",
    "SaveBest",
    "Stop",
    "SubEnvironmentError",
    "TorchPolicy",
    "Tournament",
    "Transitions",
    "Uniform",
    "VectorStatistics",
    "WorkerDiedError",
    "WorkerError",
    "WorkerMemoryError",
    "WorkerOptions",
    "WorkerTimeoutError",
    "entry_point",
    "evaluate",
    "export",
    "load_checkpoint",
    "make_vec",
    "recommended_num_workers",
    "record_dataset",
    "resumable",
    "save_checkpoint",
]
_MODULES = ("adapters", "bench", "cli", "evaluation", "exporting", "learning", "progress", "returns", "testing")
_RECORDS = ("ResumableRun", "SaveBest", "load_checkpoint", "record_dataset", "resumable", "save_checkpoint")
_EVALUATION = ("EvaluatedEpisode", "EvaluationReport", "evaluate")
_PACKAGE_OF = {**dict.fromkeys(_RECORDS, "records"), **dict.fromkeys(_EVALUATION, "evaluation"), "export": "exporting"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a module when it is used, because some modules need torch or an optional library."""
        if name in _MODULES:
            return import_module(f"parenv.{name}")
        if name in _PACKAGE_OF:
            return getattr(import_module(f"parenv.{_PACKAGE_OF[name]}"), name)
        raise AttributeError(f"module 'parenv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_PACKAGE_OF})
