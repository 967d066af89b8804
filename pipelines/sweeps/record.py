"""The events and decisions of a sweep: each metric of a trial counts once, and is on disk before it is acted on.

    record = SweepRecord(sweep)                      # as the folder has it
    decision = record.add(trial, 20, 5.1, "STOP", "asha")
    record.ended(trial, "finished")

It knows neither Ray nor MLflow. `results.jsonl` has a line for each draw, begin, result, exploit and end, in the order in which
they counted.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Literal

from common.errors import UserError
from pipelines.config.run import TrainConfig
from pipelines.reports.sweep_result import MetricPoint, Trial
from pipelines.sweeps.sweep import BUDGET, Budget, Sweep
from pipelines.training.progress import Tail
from pipelines.training.stopping import Stop

Outcome = Literal["finished", "stopped", "failed", "retryable"]
"""How the training of a trial ended: at its last step, saved on request, by a user's error, or retryable. Retryable is an error
that has nothing to do with the trial (a full disk, MLflow gone)."""
SAVE_SECONDS = 1.0
"""How often a trial's steps and metrics are written into its trial.json; its begin and end always are."""


class SweepRecord:
    """The present state of a sweep's trials, and all decisions about them."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.budget = Budget(sweep)
        self.decisions: dict[str, dict[int, str]] = defaultdict(dict)
        """The decision for each trial at each step: STOP, PAUSE or CONTINUE."""
        self._begun: set[str] = set()
        """Trials that this start has begun."""
        self._begun_before: set[str] = set()
        """Trials that an earlier start has begun."""
        self.stops: dict[str, str] = {}
        """By trial: why an earlier start stopped it, if that start was killed before the trial ended."""
        self.busy: set[str] = set()
        """Trials that are being trained, or wait to be trained further."""
        self.retryable = ""
        """Why no trial continues until a person has fixed something; empty if nothing is to be fixed."""
        self.asked = False
        """Whether the sweep was asked to stop."""
        self.ended_by_stopper = False
        """Whether a stopper has ended the sweep."""
        self.on_end: Callable[[Trial], None] = lambda trial: None
        self._values: dict[str, dict[int, float]] = defaultdict(dict)
        """The metric of each trial by tokens read."""
        self._runs: dict[str, TrainConfig] = {}
        self._tails: dict[str, Tail] = {}
        self._since: dict[str, float] = {}
        """By trial that is being trained: since when (seconds of `time.monotonic`)."""
        self._failures: dict[str, str] = {}
        """By trial: why it fails, if its workers died too often. It ends when it hears that it is to leave."""
        self._deaths: dict[str, tuple[int, int]] = {}
        """For each trial, the step at which its workers died last, and how often they died there."""
        self._restore()

    def _restore(self) -> None:
        trials = self.sweep.trials
        for event in self.sweep.events():
            trial = trials.get(event.get("trial") or "")
            if trial is None:
                continue
            if event["event"] == "begin":
                self._begun_before.add(trial.id)
            elif event["event"] == "result":
                self.decisions[trial.id][event["step"]] = event["decision"]
                self._count(trial, event["step"], event["value"])
                trial.reason = event["reason"] or trial.reason  # a budget's stands in trial.json alone
            elif event["event"] == "exploit":
                self._change(trial, event)
            elif event["event"] == "end":
                trial.status = event["status"]
                trial.reason = event["reason"]
        for trial in trials.values():
            if trial.status == "running" or trial.reason.startswith(BUDGET):  # the budget may be larger by now
                if not trial.reason.startswith(BUDGET):
                    self.stops[trial.id] = trial.reason
                trial.status = "pending"
                trial.reason = ""
            self.sweep.save(trial)

    # Before and while a trial is trained

    def run_of(self, trial: Trial) -> TrainConfig:
        """The trial as an ordinary run."""
        if trial.id not in self._runs:
            self._runs[trial.id] = self.sweep.run_of(trial)
        return self._runs[trial.id]

    def closed(self) -> bool:
        """Whether no trial is to begin or to continue any more."""
        return self.asked or self.ended_by_stopper or bool(self.retryable) or bool(self.budget.spent())

    def interrupt(self, trial: Trial, reason: str) -> None:
        """Let no trial continue until a person has fixed what ended this one. The first reason is kept."""
        self.retryable = self.retryable or f"trial {trial.id}: {reason}"

    def begin(self, trial: Trial) -> None:
        """Record that a trial begins, for the first time or again. If no trial is to begin any more, ask it to leave instead."""
        if self.closed():
            self._stop(trial).ask()
            return
        if trial.id not in self._begun:
            word = "continues" if trial.id in self._begun_before else "begins"
            print(f"trial {trial.id} {word}: {trial.described()}", flush=True)
        trial.status = "running"
        trial.recorded = ""
        if trial.id not in self.busy:  # a trial that starts again keeps a request to leave that it has not heard yet
            self._stop(trial).clear()
        self.sweep.save(trial)
        self.sweep.note(event="begin", trial=trial.id, time=time.time())
        self._begun.add(trial.id)
        self.busy.add(trial.id)
        self._since[trial.id] = time.monotonic()
        self._tails[trial.id] = Tail(self.sweep.run_folder(trial).place / "metrics.jsonl")

    def exploit(self, trial: Trial, values: Mapping[str, Any], source: str, step: int) -> None:
        """Record that a trial continues from another one's checkpoint, with other values. Does nothing for a trial that continues
        from its own, and for a copy that is recorded already."""
        event = {"event": "exploit", "trial": trial.id, "from": source, "step": step, "values": dict(values)}
        if values == trial.values and (source == trial.id or copy_in(event) in trial.exploited):
            return
        self.sweep.note(**event, time=time.time())
        self._change(trial, event)
        self.sweep.save(trial)
        told = ", ".join(f"{key} {value}" for key, value in values.items())
        print(f"step {step}: trial {trial.id} continues from {source}, with {told}", flush=True)

    def _change(self, trial: Trial, event: Mapping[str, Any]) -> None:
        trial.values = dict(event["values"])
        trial.best = None  # these metrics are of weights that it no longer has
        trial.last = None
        self._values.pop(trial.id, None)
        self._runs.pop(trial.id, None)
        if copy_in(event) not in trial.exploited:
            trial.exploited.append(copy_in(event))

    # Metrics and decisions

    def known(self, trial: Trial, step: int) -> str | None:
        """The decision on the trial at this step, if one was made before. With STOP, the trial takes over the earlier reason."""
        decision = self.decisions[trial.id].get(step)
        if decision == "STOP":
            trial.reason = trial.reason or self.stops.get(trial.id, "")
        return decision

    def settled_tokens(self) -> int:
        """Tokens at the last but one validation of the furthest trial under way. A population compares from the last one on. All
        tokens if every trial is over.
        """
        config = self.sweep.config.train
        if all(trial.over for trial in self.sweep.trials.values()):
            return config.steps * config.tokens_per_step
        steps = [max(known) for name, known in self.decisions.items() if known and not self.sweep.trials[name].over]
        return max(0, max(steps, default=0) - config.validate_every) * config.tokens_per_step

    def add(self, trial: Trial, step: int, value: float, decision: str, by: str = "") -> None:
        """Write down a new metric and the decision on it; ``by`` names what stops the trial."""
        self._count(trial, step, value)
        reason = self._why(by, trial) if decision == "STOP" else ""
        self.sweep.note(
            event="result",
            trial=trial.id,
            step=step,
            tokens=trial.tokens,
            value=value,
            decision=decision,
            reason=reason,
            time=time.time(),
        )
        self.decisions[trial.id][step] = decision
        if decision == "PAUSE":
            self._count_seconds(trial)
        if reason and (not trial.reason or trial.reason.startswith(BUDGET)):
            trial.reason = reason
        self.sweep.save(trial, SAVE_SECONDS)

    def _count_seconds(self, trial: Trial) -> None:
        """Add what the trial has taken since it began. From now on it waits, until it begins again or ends."""
        if trial.id in self._since:
            trial.seconds += time.monotonic() - self._since.pop(trial.id)

    def _count(self, trial: Trial, step: int, value: float) -> None:
        self._advance_to(trial, step)
        self._values[trial.id][step * self.run_of(trial).tokens_per_step] = value
        trial.last = MetricPoint(step, value)
        if trial.best is None or value < trial.best.value:
            trial.best = trial.last

    def _advance_to(self, trial: Trial, step: int) -> None:
        if step > trial.steps:
            run = self.run_of(trial)
            trial.steps = step
            trial.tokens = step * run.tokens_per_step
            trial.flops = trial.tokens * self.sweep.training_flops_per_token(run)

    def _why(self, by: str, trial: Trial) -> str:
        assert trial.last
        tokens = trial.last.step * self.run_of(trial).tokens_per_step
        others = [known[tokens] for name, known in self._values.items() if name != trial.id and tokens in known]
        beside = f", and the best other trial had {min(others):.3f} there" if others else ""
        return f"{by} stopped it at step {trial.last.step} ({tokens:,} tokens): {trial.last.value:.3f}{beside}"

    def watch(self) -> None:
        """Read the progress of the busy trials. Ask them to save and leave if the budget is spent or the sweep ends."""
        spent = self.budget.spent()
        for name in list(self.busy):
            trial = self.sweep.trials[name]
            records = self._tails[name].records()
            if records:
                self._advance_to(trial, max(record.step for record in records))
                self.sweep.save(trial, SAVE_SECONDS)
            if spent and not trial.reason:
                trial.reason = spent
            if spent or self.asked or self.retryable:
                stop = self._stop(trial)
                if not stop.asked():
                    stop.ask()

    # Ending

    def died(self, trial: Trial, reason: str) -> None:
        """Record that a trial's workers died. It is tried again; after too many deaths at one step it is asked to leave."""
        self._count_seconds(trial)
        step = self.sweep.run_folder(trial).newest_step()
        before, count = self._deaths.get(trial.id, (-1, 0))
        count = count + 1 if step == before else 1
        self._deaths[trial.id] = (step, count)
        if count > self.run_of(trial).max_failures:
            if trial.id in self._failures:
                raise UserError(f"trial {trial.id}: {reason}")  # it dies before it can be asked
            self._failures[trial.id] = reason
            self._stop(trial).ask()
            return
        newest = "its newest checkpoint" if step else "the first step, as it has no checkpoint"
        print(f"trial {trial.id}: {reason}: it starts again from {newest}", flush=True)

    def ended(self, trial: Trial, outcome: Outcome, reason: str = "") -> None:
        """Record how the training of a trial ended. Does nothing for a trial that was over before this start."""
        if trial.over:
            return
        stop = self._stop(trial)
        asked = stop.asked()
        stop.clear()
        if trial.id not in self.busy:
            return
        for record in self._tails.pop(trial.id).records(last=True):
            self._advance_to(trial, record.step)
        self._count_seconds(trial)
        self.busy.remove(trial.id)
        if trial.id in self._failures:
            self._end(trial, "failed", self._failures.pop(trial.id))
        elif outcome in ("finished", "failed"):
            self._end(trial, outcome, reason)
        elif outcome == "retryable":
            self.interrupt(trial, reason)
            trial.status = "pending"
            self.sweep.save(trial)
        elif trial.reason:
            self._end(trial, "stopped", trial.reason)
        elif self._paused(trial) and not self.closed():  # HyperBand stops trials that wait
            self._end(trial, "stopped", self._why(self.sweep.config.scheduler, trial))
        elif self.asked or self.retryable or not asked:
            trial.status = "pending"
            self.sweep.save(trial)
        else:
            self._end(trial, "stopped", "a file `stop` in its folder asked it to")

    def _paused(self, trial: Trial) -> bool:
        """Whether the scheduler has paused the trial at its last metric."""
        return trial.last is not None and self.decisions[trial.id].get(trial.last.step) == "PAUSE"

    def settle(self) -> None:
        """As the command ends, write down the newest metric of trials that Tune has paused, and that they do not run. All others
        were saved when they ended.
        """
        for trial in self.sweep.trials.values():
            if trial.status == "running":
                if not trial.reason:
                    trial.status = "pending"
                self.sweep.save(trial)

    def _end(self, trial: Trial, status: Any, reason: str) -> None:
        trial.status = status
        trial.reason = reason
        if not reason.startswith(BUDGET):
            self.sweep.note(event="end", trial=trial.id, status=status, reason=reason, time=time.time())
        self.sweep.save(trial)
        self._runs.pop(trial.id, None)
        metric = f"{trial.last.value:.4f} at step {trial.last.step}" if trial.last else "no metric"
        print(f"trial {trial.id} {status}: {metric}{', ' + reason if reason else ''}", flush=True)
        self.on_end(trial)

    def _stop(self, trial: Trial) -> Stop:
        return Stop(self.sweep.run_folder(trial).place)


def copy_in(event: Mapping[str, Any]) -> dict[str, Any]:
    """The copy that an exploit event records, as a trial's ``exploited`` has it."""
    return {name: event[name] for name in ("step", "from", "values")}
