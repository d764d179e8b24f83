"""Check that loggers store all metrics, without a network. Skipped for a logger that is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from scripts import printed_by

pytestmark = pytest.mark.more

COLLECT = """
import sys
import numpy as np
from parenv import AsyncWorkerPool, Stop
from parenv.testing import LedgerEnv

with AsyncWorkerPool(
    lambda: LedgerEnv(0), lambda o: np.zeros(len(o), np.int64), num_envs=2, num_workers=0, rollout_length=50
) as pool:
    for _ in pool.rollouts(Stop(env_steps=500)):
        pass
    pool.evaluate(2)
    metrics = pool.metrics()
folder, step = sys.argv[1], int(metrics["rollout/env_steps"])
"""
LOGGERS = {
    "wandb": """
import wandb
with wandb.init(project="parenv", mode="offline", dir=folder) as run:
    run.log(metrics, step=step, commit=True)
    kept = {name: run.summary[name] for name in metrics}
""",
    "mlflow": """
import mlflow
mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
with mlflow.start_run() as run:
    mlflow.log_metrics(metrics, step=step)
kept = mlflow.get_run(run.info.run_id).data.metrics
""",
    "tensorboard": """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter(folder) as writer:
    for name, value in metrics.items():
        writer.add_scalar(name, value, step)
found = EventAccumulator(folder)
found.Reload()
kept = {name: found.Scalars(name)[0].value for name in found.Tags()["scalars"]}
""",
}
COMPARE = """
assert kept.keys() == metrics.keys(), kept
assert all(abs(kept[name] - value) <= 1e-6 * abs(value) for name, value in metrics.items()), kept
print("same")
"""


@pytest.mark.parametrize("library", LOGGERS)
def test_a_logger_stores_all_metrics(library: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    assert printed_by(COLLECT + LOGGERS[library] + COMPARE, str(tmp_path)).splitlines()[-1] == "same"
    assert list(tmp_path.iterdir())
