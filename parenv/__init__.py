"""Parallel workers for any Gymnasium environment and any PyTorch training loop."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from parenv.version import VERSION

if TYPE_CHECKING:
    from parenv import adapters as adapters
    from parenv import bench as bench
    from parenv import cli as cli
    from parenv import errors as errors
    from parenv import evaluation as evaluation
    from parenv import exporting as exporting
    from parenv import learning as learning
    from parenv import population as population
    from parenv import progress as progress
    from parenv import records as records
    from parenv import returns as returns
    from parenv import testing as testing
    from parenv.envs.entry_point import entry_point as entry_point
    from parenv.errors import ConfigurationError as ConfigurationError
    from parenv.errors import GradientError as GradientError
    from parenv.errors import HostLostError as HostLostError
    from parenv.errors import NotDataError as NotDataError
    from parenv.errors import NotPicklableError as NotPicklableError
    from parenv.errors import ObservationError as ObservationError
    from parenv.errors import ParenvError as ParenvError
    from parenv.errors import PolicyLagError as PolicyLagError
    from parenv.errors import PolicyOutputError as PolicyOutputError
    from parenv.errors import PoolBusyError as PoolBusyError
    from parenv.errors import PoolClosedError as PoolClosedError
    from parenv.errors import ProtocolError as ProtocolError
    from parenv.errors import ReplayError as ReplayError
    from parenv.errors import RestartLimitError as RestartLimitError
    from parenv.errors import SubEnvironmentError as SubEnvironmentError
    from parenv.errors import WorkerDiedError as WorkerDiedError
    from parenv.errors import WorkerError as WorkerError
    from parenv.errors import WorkerMemoryError as WorkerMemoryError
    from parenv.errors import WorkerTimeoutError as WorkerTimeoutError
    from parenv.evaluation import EvaluatedEpisode as EvaluatedEpisode
    from parenv.evaluation import EvaluationReport as EvaluationReport
    from parenv.evaluation import evaluate as evaluate
    from parenv.experience.agent_rollouts import AgentEpisodes as AgentEpisodes
    from parenv.experience.agent_rollouts import AgentRollout as AgentRollout
    from parenv.experience.agent_rollouts import EpisodesByPolicy as EpisodesByPolicy
    from parenv.experience.agent_rollouts import RolloutsByPolicy as RolloutsByPolicy
    from parenv.experience.episodes import EpisodeStatistics as EpisodeStatistics
    from parenv.experience.episodes import EvaluationResult as EvaluationResult
    from parenv.experience.failures import EnvFailures as EnvFailures
    from parenv.experience.gradient import Gradient as Gradient
    from parenv.experience.rollout import Rollout as Rollout
    from parenv.experience.transitions import Transitions as Transitions
    from parenv.experience.whole_episodes import Episode as Episode
    from parenv.exporting import export as export
    from parenv.options import GradientOptions as GradientOptions
    from parenv.options import RayPlacement as RayPlacement
    from parenv.options import RemotePlacement as RemotePlacement
    from parenv.options import RestartPolicy as RestartPolicy
    from parenv.options import Stop as Stop
    from parenv.options import WorkerOptions as WorkerOptions
    from parenv.policy.policy import Action as Action
    from parenv.policy.policy import Policy as Policy
    from parenv.policy.policy import PolicyFactory as PolicyFactory
    from parenv.policy.policy import TorchPolicy as TorchPolicy
    from parenv.pool.evaluation import PendingEvaluation as PendingEvaluation
    from parenv.pool.pool import AsyncWorkerPool as AsyncWorkerPool
    from parenv.pool.statistics import PoolStatistics as PoolStatistics
    from parenv.population.population import Population as Population
    from parenv.population.schedule import PopulationStatistics as PopulationStatistics
    from parenv.population.schedule import Report as Report
    from parenv.population.selection import Generational as Generational
    from parenv.population.selection import LogUniform as LogUniform
    from parenv.population.selection import Tournament as Tournament
    from parenv.population.selection import Uniform as Uniform
    from parenv.process.cores import recommended_num_workers as recommended_num_workers
    from parenv.records import ResumableRun as ResumableRun
    from parenv.records import SaveBest as SaveBest
    from parenv.records import load_checkpoint as load_checkpoint
    from parenv.records import record_dataset as record_dataset
    from parenv.records import resumable as resumable
    from parenv.records import save_checkpoint as save_checkpoint
    from parenv.vector.backend import VectorStatistics as VectorStatistics
    from parenv.vector.env import ParallelVectorEnv as ParallelVectorEnv
    from parenv.vector.make import make_vec as make_vec
    from parenv.worker.member import Fitness as Fitness
    from parenv.worker.member import Member as Member

_NAMES = {
    "envs.entry_point": "entry_point",
    "errors": (
        "ConfigurationError GradientError HostLostError NotDataError NotPicklableError ObservationError "
        "ParenvError PolicyLagError PolicyOutputError PoolBusyError PoolClosedError ProtocolError ReplayError "
        "RestartLimitError SubEnvironmentError WorkerDiedError WorkerError WorkerMemoryError "
        "WorkerTimeoutError"
    ),
    "evaluation": "evaluate EvaluatedEpisode EvaluationReport",
    "experience.agent_rollouts": "AgentEpisodes AgentRollout EpisodesByPolicy RolloutsByPolicy",
    "experience.episodes": "EpisodeStatistics EvaluationResult",
    "experience.failures": "EnvFailures",
    "experience.gradient": "Gradient",
    "experience.rollout": "Rollout",
    "experience.transitions": "Transitions",
    "experience.whole_episodes": "Episode",
    "exporting": "export",
    "options": "GradientOptions RayPlacement RemotePlacement RestartPolicy Stop WorkerOptions",
    "policy.policy": "Action Policy PolicyFactory TorchPolicy",
    "pool.evaluation": "PendingEvaluation",
    "pool.pool": "AsyncWorkerPool",
    "pool.statistics": "PoolStatistics",
    "population.population": "Population",
    "population.schedule": "PopulationStatistics Report",
    "population.selection": "Generational LogUniform Tournament Uniform",
    "process.cores": "recommended_num_workers",
    "records": "load_checkpoint record_dataset resumable ResumableRun save_checkpoint SaveBest",
    "vector.backend": "VectorStatistics",
    "vector.env": "ParallelVectorEnv",
    "vector.make": "make_vec",
    "worker.member": "Fitness Member",
}
"""Public names by the module that has them. A name is imported when it is used first, with what it needs."""
_MODULES = [
    "adapters",
    "bench",
    "cli",
    "errors",
    "evaluation",
    "exporting",
    "learning",
    "population",
    "progress",
    "records",
    "returns",
    "testing",
]
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
__version__ = VERSION
__all__ = sorted(_MODULE_OF)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"parenv.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'parenv' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"parenv.{_MODULE_OF[name]}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_MODULE_OF})
