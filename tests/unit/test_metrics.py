"""Check that metrics are flat dicts with stable names that are computed from statistics alone."""

from __future__ import annotations

import importlib
import math
import re
from pathlib import Path

import pytest

from parenv.evaluation import EvaluationResult
from parenv.experience.metrics import EVALUATION, POOL, POPULATION, SESSIONS, TASK, VECTOR_ENV, Metric
from parenv.statistics import EpisodeStatistics, PoolStatistics, PopulationStatistics, VectorStatistics

DOCS = Path(__file__).parents[2] / "docs"
RESULT = EvaluationResult(3, 640, EpisodeStatistics.of([9.0, 11.0], [9, 11], [0.1, 0.2], [0, 1]))
KNOWN = PoolStatistics(
    env_steps=640,
    mean_return=2.5,
    mean_length=20.0,
    rollout_seconds=0.1,
    policy_lag={0: 3, 4: 1},
    environment_seconds=1.0,
    waiting_seconds=3.0,
    driver_seconds={"learning": 0.5},
    refused_connections={"unknown key": 2, "bad message": 1},
    frozen_policies={"runner@12": 100},
    evaluation=RESULT,
)


@pytest.mark.parametrize("table", [POOL, VECTOR_ENV, POPULATION, SESSIONS, EVALUATION, TASK])
def test_names_have_one_prefix_and_occur_once(table: tuple[Metric, ...]) -> None:
    names = [metric.name for metric in table]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(r"([a-z]+/)?[a-z_]+", name)] == []


def test_a_pool_with_known_statistics_has_all_metrics() -> None:
    found = KNOWN.metrics()
    assert list(found) == [metric.name for metric in POOL]
    assert all(type(value) is float for value in found.values())
    wanted = {
        "rollout/env_steps": 640,
        "rollout/mean_return": 2.5,
        "policy/lag_mean": 1,
        "policy/lag_max": 4,
        "policy/frozen": 1,
        "workers/environment_share": 0.25,
        "workers/waiting_share": 0.75,
        "time/learning_seconds": 0.5,
        "time/publishing_seconds": 0,
        "hosts/refused": 3,
        "eval/mean_return": 10,
        "eval/policy_version": 3,
    }
    assert {name: found[name] for name in wanted} == wanted


def test_unknown_metrics_are_left_out() -> None:
    missing = {metric.name for metric in POOL} - PoolStatistics().metrics().keys()
    assert missing == {
        *(f"rollout/{name}" for name in ("mean_return", "mean_length", "seconds")),
        *("policy/lag_mean", "policy/lag_max"),
        *(metric.name for metric in EVALUATION),
        *(f"workers/{part}_share" for part in ("environment", "acting", "learning", "committing", "waiting")),
    }


def test_an_evaluation_has_the_evaluation_metrics_of_its_pool() -> None:
    assert RESULT.metrics() == {name: value for name, value in KNOWN.metrics().items() if name.startswith("eval/")}
    assert RESULT.metrics().keys() == {metric.name for metric in EVALUATION}


def test_vector_envs_and_populations_have_metrics() -> None:
    assert VectorStatistics(2, 0.5, 1.5).metrics() == {
        "workers/restarts": 2,
        "rollout/lost_episodes": 0,
        "time/spinning_seconds": 0.5,
        "workers/spinning_seconds": 1.5,
    }
    figures = PopulationStatistics(env_steps=640, turns=10, copies=2, best_score=7.0, mean_score=math.nan)
    found = figures.metrics()
    assert (found["population/rounds"], found["population/best_score"]) == (10, 7)
    assert {metric.name for metric in POPULATION} - found.keys() == {"population/mean_score"}


def test_the_page_of_metrics_lists_all_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    tables = importlib.import_module("metric_tables")
    page = (DOCS / "reference" / "metrics.md").read_text()
    assert tables.filled(page) == page, "python docs/metric_tables.py writes it"
    for metric in (*POOL, *VECTOR_ENV, *POPULATION, *SESSIONS, *EVALUATION, *TASK):
        assert f"| `{metric.name}` |" in page
