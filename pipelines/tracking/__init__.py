"""Sends a run's metrics to MLflow, from rank 0 alone, without ever holding up the loop. The only package that imports mlflow.

    tracker = Tracker.start(TrackingConfig(), root, run_folder, "demo-rec", params, tags, dataset, resume_step=0)
    tracker.log({"train/bits_per_token": 5.1}, step=10)      # one line in <run>/metrics.jsonl, and into the queue: microseconds
    tracker.finish("FINISHED")                               # waits, within bounds, until all of it is sent

One idempotent function, `Tracker.upload_missing`, sends what MLflow lacks, in order. A thread calls it, from the start to the end,
and again while the server is silent. `<run>/mlflow_run.json` says which run in MLflow this is (identity.py): the same command
continues it, and sends what MLflow lacks of metrics.jsonl and nothing that it has: after any number of kills every metric has every
step once. Steps that are trained again with other fields go into a new run, since MLflow's points never change.
"""

from pipelines.tracking.client import TrackingError
from pipelines.tracking.mlflow_run import DatasetInfo
from pipelines.tracking.reading import StoredRun, read_run
from pipelines.tracking.tracker import Tracker

__all__ = ["DatasetInfo", "StoredRun", "Tracker", "TrackingError", "read_run"]
