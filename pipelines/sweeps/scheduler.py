"""Decides what a sweep does next: which trial begins or goes on, which is stopped early and why, and when the sweep is over.

    scheduler = SweepScheduler(sweep, domains)
    trial = scheduler.next()            # a trial to train now, or None
    scheduler.watch(trial)              # how far it is; where the budget is spent it is asked to stop
    scheduler.result(trial, 20, 5.1)    # its figure at a step; True: it does badly, and is to stop
    scheduler.ended(trial, "finished")

It knows neither Ray nor MLflow. Everything that it decides is first in results.jsonl; made anew from the sweep's folder it stands
where it stood.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Literal

from common.errors import UserError
from pipelines.config.run import TrainConfig
from pipelines.sweeps.planning import suggest
from pipelines.sweeps.population import Population
from pipelines.sweeps.sweep import BUDGET, Budget, Figure, Sweep, Trial, first_values
from pipelines.training.progress import Tail
from pipelines.training.stopping import Stop
from tune_spaces.drawing import Searcher
from tune_spaces.stopping import Exploit, stopper

Outcome = Literal["finished", "stopped", "failed", "hindered", "died"]
"""How a trial's workers have let go of it: trained to its end, saved and left, a user's error, one that has nothing to do with the
trial (a full disk, MLflow gone), or anything else."""
SAVE_SECONDS = 1.0
"""How often a trial's steps and figures are written into its trial.json; its begin and end always are."""


class SweepScheduler:
    """The decisions of one sweep."""

    def __init__(self, sweep: Sweep, domains: Mapping[str, Any]) -> None:
        config = sweep.config
        self.sweep = sweep
        self._searcher = Searcher(config.search, domains, config.train.seed) if config.suggested else None
        self._suggests = config.suggested
        """Whether the searcher may have more to suggest."""
        self._stopper = stopper(config.stop)
        self._rule = config.rule(domains)
        self._runs: dict[str, TrainConfig] = {}
        self._tails: dict[str, Tail] = {}
        self._seen: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._population = Population(sweep, self._rule, self._seen)
        self._failures: dict[str, tuple[int, int]] = {}
        """Of a trial: the step that it had reached when its workers died, and how often they did there."""
        self._begun = set[str]()
        self._busy: dict[str, float] = {}
        """Trials that are being trained, and since when."""
        self.budget = Budget(sweep)
        self.out_of_budget = self.budget.spent
        self._interrupted = False
        self.on_end: Callable[[Trial], None] = lambda trial: None

    def restore(self) -> None:
        """Go on from the sweep's folder."""
        decided: dict[str, str] = {}
        events, trials = list(self.sweep.events()), self.sweep.trials
        drawn, first = {event["trial"] for event in events if event["event"] == "draw"}, first_values(events)
        for trial in trials.values():
            if trial.id not in drawn:
                self._rule.add(trial.id, first.get(trial.id, trial.values), kept=trial.baseline)
        for event in events:
            kind, trial = event["event"], trials.get(event.get("trial", ""), Trial("", {}))
            if kind == "draw" and self._searcher:
                self._searcher.suggest(event["name"])
                if event["trial"]:
                    self._rule.add(trial.id, event["values"])
                else:
                    self._searcher.complete(event["name"], 0, None)
            elif kind == "begin":
                self._begun.add(trial.id)
                if not event.get("behind"):
                    self._rule.choose(event.get("held", ()))  # which may decide something too
                    self._rule.begin(trial.id)
            elif kind == "result":
                self._hear(trial, event["step"], event["value"])
                if event["decision"] == "stop":
                    decided[trial.id] = event["reason"]
            elif kind == "end":
                trial.status, trial.reason = event["status"], event["reason"]
                decided.pop(trial.id, None)
                self._complete(trial)
            elif kind == "generation":
                self._population.go_on([Exploit(**each) for each in event["exploits"]], event["step"])
            decided |= self._stopped_by_others()
        for trial in trials.values():
            if trial.id in decided:  # killed between the decision and its execution
                self._end(trial, "stopped", decided[trial.id])
            elif trial.status == "running" or trial.reason.startswith(BUDGET):  # that may be larger by now
                trial.status, trial.reason = "pending", ""
                self.sweep.save(trial)  # it may not go on now
            self._rule.rest(trial.id)
        self._population.take_over(self._moves)

    def _moves(self, trial: Trial) -> bool:
        """Whether it is trained, or has to be until it stands where it is to wait."""
        return trial.id in self._busy or self._behind(trial)

    @property
    def busy(self) -> list[Trial]:
        """The trials that are being trained."""
        return [self.sweep.trials[name] for name in sorted(self._busy)]

    # Going on

    def waiting(self) -> bool:
        """Whether there is anything left to train."""
        return (bool(self._allowed()) or self._more()) and not self._closed()

    def _closed(self) -> bool:
        """Whether no trial is to begin or go on any more."""
        return self._interrupted or bool(self.out_of_budget())

    def _allowed(self) -> list[Trial]:
        """The trials that are not over, and may begin or go on; where a stopper has ended the sweep, those that have begun."""
        first = islice(self.sweep.trials.values(), self.sweep.config.trials or None)
        ended = self._stopper.stop_all()
        return [trial for trial in first if not trial.over and (not ended or trial.id in self._begun)]

    def next(self) -> Trial | None:
        """A trial to train now; None when there is none, or when the sweep's budget is spent."""
        ready = self.ready()
        self._heed()
        if not ready and self._more() and not self._closed() and self._searcher:
            try:
                trial = suggest(self.sweep, self._searcher)
            except UserError as error:
                self._suggests, trial = False, None
                print(f"note: {error}", flush=True)
            if trial:
                self._rule.add(trial.id, trial.values)
                ready = self.ready()
        if ready:
            self.start(ready)
        return ready

    def _more(self) -> bool:
        """Whether a searcher may suggest another trial."""
        most = min(self.sweep.config.trials or self.sweep.config.samples, self.sweep.config.samples)
        return self._suggests and len(self.sweep.trials) < most and not self._stopper.stop_all()

    def ready(self) -> Trial | None:
        """The trial that is known and is to be trained now."""
        if self._closed():
            return None
        free = {trial.id: trial for trial in self._allowed() if trial.id not in self._busy}
        for trial in free.values():
            if self._behind(trial) or trial.id in self._rule.left:
                return trial
        trials, concerned = self.sweep.trials.values(), self._population.concerned
        others = [t.id for t in trials if not t.over and (t.id not in free or t in concerned)]
        if chosen := self._rule.choose(others):
            return self.sweep.trials[chosen]
        ended = self._stopper.stop_all() and not self._busy  # those that have not begun will not
        nobody = not self._more() and not concerned and all(t.over or t.id in free or ended for t in trials)
        return next(iter(free.values()), None) if nobody else None  # all wait, and for nobody

    def stays(self, trial: Trial, step: int) -> bool:
        """Whether a trial that is at this step waits there for the others."""
        return self._rule.waits(trial.id) and trial.last is not None and step >= trial.last.step

    def _behind(self, trial: Trial) -> bool:
        """Whether it was killed before it had saved the step at which it is to wait."""
        if not self._rule.waits(trial.id) or trial.last is None:
            return False
        return self.sweep.run_place(trial).newest_step() < trial.last.step

    def start(self, trial: Trial) -> None:
        """Have a trial trained, for the first time or again."""
        if not (behind := self._behind(trial) or trial in self._population.concerned):
            self._rule.begin(trial.id)
        held = [name for name in sorted(self._busy) if self._rule.waits(name)]
        trial.status, trial.recorded = "running", ""
        self._runs.pop(trial.id, None)  # its values may be others since
        self._stop(trial).clear()
        self.sweep.save(trial)
        self.sweep.note(event="begin", trial=trial.id, behind=behind, held=held, time=time.time())
        self._begun.add(trial.id)
        self._busy[trial.id] = time.monotonic()
        self._tails[trial.id] = Tail(self.sweep.run_place(trial).place / "metrics.jsonl")

    def run_of(self, trial: Trial) -> TrainConfig:
        if trial.id not in self._runs:
            self._runs[trial.id] = self.sweep.run_of(trial)
        return self._runs[trial.id]

    # Listening

    def watch(self, trial: Trial, last: bool = False) -> None:
        """Read how far the trial has come; have it stopped when the budget is spent."""
        if records := self._tails[trial.id].records(last):
            self._come(trial, max(record.step for record in records))
            self.sweep.save(trial, SAVE_SECONDS)
        if not trial.reason and (spent := self.out_of_budget()):
            trial.reason = spent
            self._stop(trial).ask()

    def _come(self, trial: Trial, step: int) -> None:
        if step > trial.steps:
            run = self.run_of(trial)
            trial.steps, trial.tokens = step, step * run.tokens_per_step
            trial.flops = trial.tokens * self.sweep.flops_per_token(run)

    def result(self, trial: Trial, step: int, value: float) -> bool:
        """A figure of the trial. Whether it is to stop for that; a figure that was told before decides nothing anew."""
        if step in self._seen[trial.id]:
            return False
        name, run = self._hear(trial, step, value), self.run_of(trial)
        stop = bool(name) and not trial.baseline and step < run.steps
        reason = self._why(name, trial) if stop else ""
        decision = "stop" if stop else "wait" if self._rule.waits(trial.id) else "continue"
        told = dict(trial=trial.id, step=step, tokens=step * run.tokens_per_step, value=value)
        self.sweep.note(event="result", **told, decision=decision, reason=reason, time=time.time())
        self.sweep.save(trial, SAVE_SECONDS)
        if stop and (not trial.reason or trial.reason.startswith(BUDGET)):
            trial.reason = reason
        self._heed()
        return stop

    def _hear(self, trial: Trial, step: int, value: float) -> str:
        """Take in a figure of the trial. What stops it there, by its name; empty for nothing."""
        config, run = self.sweep.config, self.run_of(trial)
        tokens = step * run.tokens_per_step
        self._come(trial, step)
        bad = self._rule.result(trial.id, tokens, value, last=step >= run.steps)
        told = {"tokens": tokens, "value": value, "training_iteration": tokens}
        flat = self._stopper(trial.id, told) or self._stopper.stop_all()
        self._seen[trial.id][step] = value
        trial.last = Figure(step, value)
        if trial.best is None or value < trial.best.value:
            trial.best = trial.last
        if self._searcher:
            self._searcher.result(trial.id, tokens, value)
        return config.scheduler if bad else config.stop if flat else ""

    def _why(self, name: str, trial: Trial) -> str:
        assert trial.last
        best = min(other.best.value for other in self.sweep.trials.values() if other.best)
        at = f"step {trial.last.step} ({trial.last.step * self.run_of(trial).tokens_per_step:,} tokens)"
        return f"{name} stopped it at {at}: {trial.last.value:.3f}, and the best trial had {best:.3f}"

    def _stopped_by_others(self) -> dict[str, str]:
        """Trials that the scheduler has stopped where they waited, and why."""
        found = [trial for trial in map(self.sweep.trials.__getitem__, self._rule.stopped) if not trial.baseline]
        self._rule.stopped.clear()
        return {trial.id: self._why(self.sweep.config.scheduler, trial) for trial in found if trial.last}

    def _heed(self) -> None:
        """End those; one that holds its actor saves first."""
        for name, reason in self._stopped_by_others().items():
            trial = self.sweep.trials[name]
            if name in self._busy:
                trial.reason = trial.reason or reason
            elif not trial.over:
                self._end(trial, "stopped", reason)

    # Ending

    def ended(self, trial: Trial, outcome: Outcome, said: str = "") -> None:
        """The trial's workers have let go of it."""
        self.watch(trial, last=True)
        trial.seconds += time.monotonic() - self._busy.pop(trial.id)
        asked = self._stop(trial).asked()
        self._stop(trial).clear()
        if outcome in ("finished", "failed"):
            self._end(trial, outcome, said)
        elif outcome == "hindered":
            trial.status, trial.reason = "pending", ""  # what was decided of it is in results.jsonl
            self.sweep.save(trial)
        elif outcome == "died" and not trial.reason and not asked:
            self._died(trial, said)
        elif trial.reason:
            self._end(trial, "stopped", trial.reason)
        elif self._interrupted or self._rule.waits(trial.id) or not asked:
            trial.status = "pending"  # to go on
            self.sweep.save(trial)
        else:
            self._end(trial, "stopped", "a file `stop` in its folder asked it to")
        self._rule.rest(trial.id)
        self._population.take_over(self._moves)

    def _died(self, trial: Trial, said: str) -> None:
        step, (before, count) = self.sweep.run_place(trial).newest_step(), self._failures.get(trial.id, (-1, 0))
        count = count + 1 if step == before else 1
        self._failures[trial.id] = (step, count)
        if count > self.run_of(trial).max_failures:
            self._end(trial, "failed", said)
            return
        newest = "its newest checkpoint" if step else "the first step, as it has no checkpoint"
        print(f"trial {trial.id}: {said}: it starts again from {newest}", flush=True)
        trial.status = "pending"
        self.sweep.save(trial)

    def _end(self, trial: Trial, status: Any, reason: str) -> None:
        trial.status, trial.reason = status, reason
        if not reason.startswith(BUDGET):
            self.sweep.note(event="end", trial=trial.id, status=status, reason=reason, time=time.time())
            self._complete(trial)
        self.sweep.save(trial)
        self.on_end(trial)
        self._heed()

    def _complete(self, trial: Trial) -> None:
        self._rule.end(trial.id)
        self._runs.pop(trial.id, None)
        self._tails.pop(trial.id, None)
        if self._searcher:
            self._searcher.complete(trial.id, trial.tokens, trial.last.value if trial.last else None)

    def _stop(self, trial: Trial) -> Stop:
        return Stop(self.sweep.run_place(trial).place)

    def interrupt(self) -> None:
        """The sweep was asked to stop: its trials save and leave."""
        for trial in () if self._interrupted else self.busy:
            self._stop(trial).ask()
        self._interrupted = True
