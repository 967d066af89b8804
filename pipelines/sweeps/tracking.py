"""A sweep in MLflow: a run of its own, with a child for each trial, however that ended.

    tracking = SweepTracking(sweep, command)
    config = tracking.as_child(config)      # of a trial: its run will stand below the sweep's
    tracking.end(trial)                     # why it ended, and what its own process could not send
    tracking.close("FINISHED")

What MLflow lacks of trials that ended earlier is sent first (`log_missing_ends`).
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from common.errors import first_cause
from data_prep.store import SegmentStore
from pipelines.checkpoints.run_folder import RECORDS, RunFolder, root_of
from pipelines.config.run import TrainConfig
from pipelines.inference.registering import register_winner
from pipelines.reports.sweep_report import report_sweep
from pipelines.reports.sweep_result import Trial
from pipelines.sweeps.sweep import Sweep
from pipelines.terminal.cli import as_a_warning
from pipelines.tracking import Tracker
from pipelines.tracking.identity import FAILURE, TAG_LENGTH, saved_run
from pipelines.tracking.metrics_file import read_records
from pipelines.tracking.mlflow_run import Status
from pipelines.training.worker import start_tracker

STATUSES: dict[str, Any] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
PARENT_SECONDS = 60.0
"""How long the start waits for MLflow to make the sweep's run. Where it is silent, trials are put below it at their end."""


class SweepTracking:
    """The sweep's run in MLflow, and facts about its trials that their own processes cannot log, such as why they were stopped."""

    def __init__(self, sweep: Sweep, command: str) -> None:
        config = sweep.config
        self._sweep = sweep
        self._tracking = config.train.tracking
        self._root = root_of(sweep.run.folder, config.train.run)
        # A larger budget makes trials pending again whose ends were logged: the axis continues after these.
        logged = [record.step for record in read_records(sweep.folder / "metrics.jsonl")]
        self._ends = max([sum(trial.over for trial in sweep.trials.values()), *logged])
        self._tracker = Tracker.start(
            replace(self._tracking, system_metrics="off"),
            root=self._root,
            run_folder=sweep.folder,
            run_name=config.train.run,
            params={key: value for key, value in vars(config).items() if key not in ("train", "typed", "dry_run")},
            tags={"sweep": config.train.run, "command": command, "fields": ", ".join(sweep.fields)},
            resume_step=self._ends,
            place=sweep.run.place,
            publish=partial(sweep.run.publish, "mlflow_run.json"),
        )
        self._pool = ThreadPoolExecutor(1)
        self._silent = False
        self.run_id = ""
        deadline = time.monotonic() + PARENT_SECONDS
        while self._tracking.backend == "mlflow" and not self.run_id and time.monotonic() < deadline:
            self.run_id = self._tracker.run_id or ""
            time.sleep(0.05)

    def as_child(self, run: TrainConfig) -> TrainConfig:
        """The same run, as a child of the sweep's."""
        self.run_id = self.run_id or self._tracker.run_id or ""
        return replace(run, tracking=replace(run.tracking, parent=self.run_id))

    def log_missing_ends(self) -> None:
        """Log the ends of trials that MLflow lacks: it was silent, an earlier start was killed, or the sweep is a copy or has
        another name.
        """
        for trial in self._sweep.trials.values():
            if trial.over:
                self._pool.submit(self._log_end, trial)

    def _recorded(self) -> str:
        return "none" if self._tracking.backend == "none" else self.run_id

    def end(self, trial: Trial) -> None:
        """Note how a trial ended."""
        self._ends += 1
        best = self._sweep.best()
        if best:
            self._tracker.log({"sweep/best": best.best_value}, self._ends)
        self._pool.submit(self._log_end, trial)

    def _log_end(self, trial: Trial) -> None:
        # An error in this thread would be lost.
        with as_a_warning(f"MLflow has no record of how trial {trial.id} ended", Exception):
            self._record(trial)

    def _has(self, trial: Trial) -> bool:
        """Whether MLflow has the end of the trial, under the present name of its run."""
        run = self._sweep.run_of(trial)
        name = saved_run(RunFolder.of(run).folder).get("name", run.run)
        return trial.recorded != "" and trial.recorded == self._recorded() and name == run.run

    def _record(self, trial: Trial) -> None:
        if self._silent or self._has(trial):
            return
        for name in ("metrics.jsonl", "config.json"):  # for a sweep in a bucket
            self._sweep.run.fetch(f"trials/{trial.id}/{name}")
        run = self.as_child(self._sweep.run_of(trial))
        RunFolder.of(run).fetch(*RECORDS)
        run = replace(run, tracking=replace(run.tracking, system_metrics="off", on_failure="continue"))
        store = SegmentStore.open(run.data.store, run.data.corpus, "train")
        tracker = start_tracker(run, store, over=True)
        tags = {
            "sweep": self._sweep.config.train.run,
            "trial": trial.id,
            "trial.status": trial.status,
            "trial.reason": trial.reason,
            "trial.exploited": trial.described_copies(),
        }
        for key, value in tags.items():
            if value or key == "trial.reason":  # an earlier start may have given another
                tracker.set_tag(key, value)
        sent = tracker.finish(STATUSES[trial.status])
        trial.recorded = self._recorded() if sent else ""
        RunFolder.of(run).publish(*RECORDS)
        self._silent = not sent
        self._sweep.save(trial)
        self._report(final=False)

    def _report(self, final: bool) -> None:
        """Write the trials' table and charts to the sweep's folder and its run. An error here is only a warning."""
        with as_a_warning("no report of the sweep"):
            for path in report_sweep(self._sweep.folder, self._tracker, final=final):
                self._sweep.run.publish(f"report/{path.name}")

    def fail(self, error: Exception) -> None:
        """Note what ended the sweep."""
        self._tracker.set_tag(FAILURE, first_cause(error, most=TAG_LENGTH))

    def close(self, status: Status) -> None:
        self._pool.shutdown()
        if self._sweep.trials:
            self._report(final=True)
        self._tracker.finish(status)
        if status == "FINISHED":
            varied = {"data.store", "data.corpus"} & set(self._sweep.fields)
            store = "" if varied else self._sweep.config.train.data.store
            register_winner(self._sweep.run, self._tracking, self._root, store)
