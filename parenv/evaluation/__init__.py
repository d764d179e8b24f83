"""Evaluation of one policy on many tasks, as a queue of episodes for workers."""

from parenv.evaluation.evaluate import evaluate as evaluate
from parenv.evaluation.report import Comparison as Comparison
from parenv.evaluation.report import EvaluationReport as EvaluationReport
from parenv.evaluation.report import TaskReport as TaskReport
from parenv.evaluation.results import EvaluatedEpisode as EvaluatedEpisode
from parenv.experience.episode_figures import EpisodeFigures as EpisodeFigures
from parenv.experience.episodes import EvaluationResult as EvaluationResult
from parenv.pool.evaluation import PendingEvaluation as PendingEvaluation
