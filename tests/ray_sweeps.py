"""Sweeps in the tests' Ray session, whose driver can be killed, and their results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pipelines.reports.sweep_result import Trial
from pipelines.sweeps.capacity import TrialCapacity
from pipelines.sweeps.checks import read_and_check
from pipelines.sweeps.planning import open_or_plan
from pipelines.sweeps.record import SweepRecord
from pipelines.sweeps.running import Done, run_trials
from pipelines.sweeps.sweep import Sweep
from tune_spaces import fields


class Killed(Exception):
    """The driver dies: what it has not written is lost."""


class Mortal(SweepRecord):
    """A record whose driver dies instead of writing down a metric, after so many new ones."""

    left = -1

    def add(self, trial: Trial, step: int, value: float, decision: str, by: str = "") -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1
        super().add(trial, step, value, decision, by)


class Here:
    """A sweep in the tests' Ray session, as pipelines.tune runs it; one trial at a time unless the words say more."""

    def __init__(self, words: list[str]) -> None:
        self.config, self.domains = read_and_check(words)
        self.sweep = Sweep(self.config, fields(self.domains))
        if not open_or_plan(self.sweep, self.domains):
            self.sweep.write_plan("command")

    def done(self, kill_after: int = -1) -> Done:
        record = Mortal(self.sweep)
        record.left = kill_after
        return run_trials(record, self.domains, TrialCapacity(self.config), "command")

    def run(self, kill_after: int = -1) -> Sweep:
        self.done(kill_after)
        return self.sweep


Make = Callable[..., Here]
"""The fixture `here`: a sweep of a space with further words."""
GRID = ("optim.lr=1e-3,1e-2", "--search", "grid", "--scheduler", "none", "--model.dropout", "0")
ASHA = ("optim.lr=1e-7,1e-6,3e-3,1e-2", "--search", "grid", "--validate-every", "2", "--rung-tokens", "512")


def ends(sweep: Sweep) -> list[Any]:
    """Each trial's outcome, from its file."""
    paths = [sweep.folder / "trials" / name / "trial.json" for name in sweep.trials]
    saved = [json.loads(path.read_text()) for path in paths]
    return [[trial[key] for key in ("id", "values", "status", "steps", "best", "last", "reason")] for trial in saved]


def results(sweep: Sweep) -> list[tuple[str, int, float, str]]:
    """Each metric that counted, and the decision that followed."""
    recorded = [event for event in sweep.events() if event["event"] == "result"]
    return [(event["trial"], event["step"], event["value"], event["decision"]) for event in recorded]
