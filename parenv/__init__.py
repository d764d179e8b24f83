"""Parallel workers for any Gymnasium environment and any PyTorch training loop."""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from parenv.version import VERSION

if TYPE_CHECKING:
    from parenv import adapters as adapters
    from parenv import bench as bench
    from parenv import checkpoints as checkpoints
    from parenv import cli as cli
    from parenv import errors as errors
    from parenv import evaluation as evaluation
    from parenv import exporting as exporting
    from parenv import hosts as hosts
    from parenv import learning as learning
    from parenv import population as population
    from parenv import progress as progress
    from parenv import returns as returns
    from parenv import rollouts as rollouts
    from parenv import sessions as sessions
    from parenv import statistics as statistics
    from parenv import testing as testing
    from parenv.checkpoints import SaveBest as SaveBest
    from parenv.checkpoints import load_checkpoint as load_checkpoint
    from parenv.checkpoints import resumable as resumable
    from parenv.checkpoints import save_checkpoint as save_checkpoint
    from parenv.envs.entry_point import entry_point as entry_point
    from parenv.errors import ConfigurationError as ConfigurationError
    from parenv.errors import ParenvError as ParenvError
    from parenv.errors import SubEnvironmentError as SubEnvironmentError
    from parenv.errors import WorkerDiedError as WorkerDiedError
    from parenv.errors import WorkerError as WorkerError
    from parenv.errors import WorkerTimeoutError as WorkerTimeoutError
    from parenv.evaluation import evaluate as evaluate
    from parenv.exporting import export as export
    from parenv.options import GradientOptions as GradientOptions
    from parenv.options import RestartPolicy as RestartPolicy
    from parenv.options import Stop as Stop
    from parenv.options import WorkerOptions as WorkerOptions
    from parenv.policy.policy import Action as Action
    from parenv.policy.policy import Policy as Policy
    from parenv.policy.policy import PolicyFactory as PolicyFactory
    from parenv.policy.policy import TorchPolicy as TorchPolicy
    from parenv.pool.pool import AsyncWorkerPool as AsyncWorkerPool
    from parenv.population import Population as Population
    from parenv.process.cores import recommended_num_workers as recommended_num_workers
    from parenv.records import record_dataset as record_dataset
    from parenv.rollouts import Episode as Episode
    from parenv.rollouts import Gradient as Gradient
    from parenv.rollouts import Rollout as Rollout
    from parenv.rollouts import Transitions as Transitions
    from parenv.sessions import SessionPool as SessionPool
    from parenv.vector.env import ParallelVectorEnv as ParallelVectorEnv
    from parenv.vector.make import make_vec as make_vec

_NAMES = {
    "checkpoints": "SaveBest load_checkpoint resumable save_checkpoint",
    "envs.entry_point": "entry_point",
    "errors": "ConfigurationError ParenvError SubEnvironmentError WorkerDiedError WorkerError WorkerTimeoutError",
    "evaluation": "evaluate",
    "exporting": "export",
    "options": "GradientOptions RestartPolicy Stop WorkerOptions",
    "policy.policy": "Action Policy PolicyFactory TorchPolicy",
    "pool.pool": "AsyncWorkerPool",
    "population": "Population",
    "process.cores": "recommended_num_workers",
    "records": "record_dataset",
    "rollouts": "Episode Gradient Rollout Transitions",
    "sessions": "SessionPool",
    "vector.env": "ParallelVectorEnv",
    "vector.make": "make_vec",
}
"""Names of a first program, by the module that has them. A name is imported when it is used first."""
_MODULES = [
    "adapters",
    "bench",
    "checkpoints",
    "cli",
    "errors",
    "evaluation",
    "exporting",
    "hosts",
    "learning",
    "population",
    "progress",
    "returns",
    "rollouts",
    "sessions",
    "statistics",
    "testing",
]
# Version 0.2 had them here. 0.4 has them in these modules only.
_MOVED = {
    "checkpoints": "ResumableRun",
    "errors": (
        "GradientError HostLostError NotDataError NotPicklableError ObservationError PolicyLagError PolicyOutputError "
        "PoolBusyError PoolClosedError ProtocolError ReplayError RestartLimitError WorkerMemoryError"
    ),
    "evaluation": "EvaluatedEpisode EvaluationReport EvaluationResult PendingEvaluation",
    "hosts": "RayPlacement RemotePlacement",
    "population": "Fitness Generational LogUniform Member Report Tournament Uniform",
    "rollouts": "AgentEpisodes AgentRollout EpisodesByPolicy RolloutsByPolicy",
    "statistics": "EnvFailures EpisodeStatistics PoolStatistics PopulationStatistics VectorStatistics",
}
_MODULE_OF, _MOVED_TO = ({n: module for module, names in of.items() for n in names.split()} for of in (_NAMES, _MOVED))
__version__ = VERSION
__all__ = sorted(_MODULE_OF)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"parenv.{name}")
        if name in _MOVED_TO:
            place = f"parenv.{_MOVED_TO[name]}"
            warnings.warn(f"parenv.{name} is {place}.{name} now", DeprecationWarning, stacklevel=2)
            return getattr(import_module(place), name)
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'parenv' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"parenv.{_MODULE_OF[name]}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_MODULE_OF})
