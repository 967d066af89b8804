"""Decides what a sweep does next: which trial begins or goes on, which is stopped early and why, and when the sweep is over.

    scheduler = SweepScheduler(sweep, domains)
    job = scheduler.next()              # a trial to train now, or None
    scheduler.watch(job.trial)          # how far it is; where the budget is spent it is asked to stop
    scheduler.result(job.trial, 20, 5.1)                        # its figure at a step; True: it does badly, and is to stop
    scheduler.ended(job.trial, "finished")

It knows neither Ray nor MLflow. Everything that it decides is first in results.jsonl; made anew from the sweep's folder it stands
where it stood.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pipelines.checkpoints.run_place import RunPlace
from pipelines.config.run import TrainConfig
from pipelines.sweeps.budget import BUDGET, Budget
from pipelines.sweeps.planning import suggest
from pipelines.sweeps.population import Exploit, choose, take_over
from pipelines.sweeps.sweep import Figure, Sweep, Trial
from pipelines.tracking.metrics_file import parse_record
from pipelines.training.progress import Tail
from pipelines.training.stopping import BUCKET_SECONDS, Stop
from tune_spaces import Plateau, Rule, Searcher

Outcome = Literal["finished", "stopped", "failed", "died"]
"""How a trial's workers have let go of it: trained to its end, saved and left, a user's error, or anything else."""
SAVE_SECONDS = 1.0
"""How often a trial's steps are written down; a figure, a begin and an end always are."""


@dataclass(frozen=True)
class Job:
    """A trial, and the step up to which it is trained now."""

    trial: Trial
    run: TrainConfig
    until: int


class SweepScheduler:
    """The decisions of one sweep."""

    def __init__(self, sweep: Sweep, domains: Mapping[str, Any]) -> None:
        config = sweep.config
        self.sweep, self._domains = sweep, domains
        self._searcher = Searcher(config.search, domains, config.train.seed) if config.suggested else None
        self._plateau = Plateau(config.stop)
        self._rule = Rule(config.rule, config.rung_tokens or max(1, config.whole // 9), config.whole, config.reduction)
        self._runs: dict[str, TrainConfig] = {}
        self._tails: dict[str, Tail] = {}
        self._seen: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._failures: dict[str, tuple[int, int]] = {}
        """Of a trial: the step that it had reached when its workers died, and how often they did there."""
        self._looked: dict[str, float] = {}
        self._saved: dict[str, float] = {}
        self._busy: set[str] = set()
        self._generation = 0
        self.budget = Budget(sweep)
        self._interrupted = False
        self.on_end: Callable[[Trial], None] = lambda trial: None

    def restore(self) -> None:
        """Go on from the sweep's folder."""
        decided: dict[str, str] = {}
        for event in self.sweep.events():
            if event["event"] == "draw" and self._searcher:
                self._searcher.suggest(event["name"])
                if event["trial"] is None:
                    self._searcher.complete(event["name"], 0, None)
                elif event["trial"] not in self.sweep.trials:
                    self.sweep.trials[event["trial"]] = Trial(event["trial"], event["values"])
            elif event["event"] == "result":
                trial = self.sweep.trials[event["trial"]]
                self._rule.add(trial.id)
                self._rule.result(trial.id, event["tokens"], event["value"])
                self._plateau.result(trial.id, event["tokens"], event["value"])
                self._score(trial, event["step"], event["tokens"], event["value"])
                if event["decision"] == "stop":
                    decided[trial.id] = event["reason"]
            elif event["event"] == "end":
                trial = self.sweep.trials[event["trial"]]
                trial.status, trial.reason = event["status"], event["reason"]
                decided.pop(trial.id, None)
                if self._searcher:
                    self._searcher.complete(trial.id, trial.tokens, trial.last.value if trial.last else None)
            elif event["event"] == "generation":
                self._generation = event["step"]
                for exploit in event["exploits"]:
                    self._exploit(Exploit(**exploit), event["step"])
        for trial in self.sweep.trials.values():
            if trial.id in decided:  # killed between the decision and its execution
                self._end(trial, "stopped", decided[trial.id])
            elif trial.status == "running" or trial.reason.startswith(BUDGET):  # that may be larger by now
                trial.status, trial.reason = "pending", ""

    @property
    def busy(self) -> list[Trial]:
        """The trials that are being trained."""
        return [self.sweep.trials[name] for name in sorted(self._busy)]

    # Going on

    def waiting(self) -> bool:
        """Whether there is anything left to train."""
        some = any(not trial.over for trial in list(self.sweep.trials.values())[: self.sweep.config.trials or None])
        more = self._searcher is not None and len(self.sweep.trials) < self.sweep.config.samples
        return (some or more) and not self._closed()

    def _closed(self) -> bool:
        """Whether no trial is to begin or go on any more."""
        return self._interrupted or bool(self.out_of_budget()) or self._plateau.over()

    def next(self) -> Job | None:
        """A trial to train now; None when there is none, or when the sweep's budget is spent."""
        if ready := self.ready():
            return self.start(ready)
        most = min(self.sweep.config.trials or self.sweep.config.samples, self.sweep.config.samples)
        if self._searcher and len(self.sweep.trials) < most and not self._closed():
            return self.start(suggest(self.sweep, self._searcher))
        return None

    def ready(self) -> Trial | None:
        """The first trial that is known and can be trained now."""
        if self._closed():
            return None
        allowed = list(self.sweep.trials.values())[: self.sweep.config.trials or None]
        return next((t for t in allowed if not t.over and t.id not in self._busy and self._until(t)), None)

    def stays(self, trial: Trial, step: int) -> bool:
        """Whether a trial that is at this step waits there for the others."""
        if self.sweep.config.scheduler != "pbt":
            return False
        return self._generation + self.sweep.config.train.validate_every <= step < self._run(trial).steps

    def _until(self, trial: Trial) -> int:
        """The step up to which the trial may go on by now; 0 for not at all."""
        steps = self._run(trial).steps
        if self.sweep.config.scheduler != "pbt":
            return steps
        target = min(self._generation + self.sweep.config.train.validate_every, steps)
        return target if target == steps or self._reached(trial) < target else 0

    def _reached(self, trial: Trial) -> int:
        """The newest step of the trial that is saved."""
        return RunPlace.of(self._run(trial)).newest_step()

    def start(self, trial: Trial) -> Job:
        """Have a trial trained, for the first time or again."""
        self._rule.add(trial.id)
        until = self._until(trial)
        trial.status, trial.recorded = "running", False
        self._stop(trial).clear()
        self.sweep.save(trial)
        self.sweep.note(event="begin", trial=trial.id, until=until, time=time.time())
        self._busy.add(trial.id)
        self._tails[trial.id] = Tail(self.sweep.run_place(trial).place / "metrics.jsonl")
        return Job(trial, self._run(trial), until)

    def _run(self, trial: Trial) -> TrainConfig:
        if trial.id not in self._runs:
            self._runs[trial.id] = self.sweep.run_of(trial)
        return self._runs[trial.id]

    # Listening

    def watch(self, trial: Trial) -> None:
        """Read how far the trial has come; have it stopped when the budget is spent."""
        now = time.monotonic()
        if not self.sweep.run.is_local and now - self._looked.get(trial.id, 0.0) < BUCKET_SECONDS:
            return
        self._looked[trial.id], before = now, trial.steps
        for record in filter(None, map(parse_record, self._tails[trial.id].lines())):
            self._come(trial, record.step)
        if trial.steps > before and now - self._saved.get(trial.id, 0.0) > SAVE_SECONDS:
            self._saved[trial.id] = now
            self.sweep.save(trial)
        if not trial.reason and (spent := self.out_of_budget()):
            trial.reason = spent
            self._stop(trial).ask()

    def _come(self, trial: Trial, step: int) -> None:
        if step > trial.steps:
            run = self._run(trial)
            trial.steps, trial.tokens = step, step * run.tokens_per_step
            trial.flops = trial.tokens * self.sweep.flops_per_token(run)

    def result(self, trial: Trial, step: int, value: float) -> bool:
        """A figure of the trial. Whether it is to stop for that; a figure that was told before decides nothing anew."""
        if step in self._seen[trial.id]:
            return False
        run = self._run(trial)
        tokens = step * run.tokens_per_step
        self._come(trial, step)
        bad, flat = self._rule.result(trial.id, tokens, value), self._plateau.result(trial.id, tokens, value)
        name = self.sweep.config.scheduler if bad else self.sweep.config.stop
        stop = (bad or flat) and not trial.baseline and step < run.steps
        best = min((t.best.value for t in self.sweep.trials.values() if t.best), default=value)
        reason = f"{name} stopped it at step {step} ({tokens:,} tokens): {value:.3f}, and the best trial had {best:.3f}"
        self.sweep.note(
            event="result",
            trial=trial.id,
            step=step,
            tokens=tokens,
            value=value,
            decision="stop" if stop else "continue",
            reason=reason if stop else "",
            time=time.time(),
        )
        self._score(trial, step, tokens, value)
        self.sweep.save(trial)
        if stop and (not trial.reason or trial.reason.startswith(BUDGET)):
            trial.reason = reason
        return stop

    def _score(self, trial: Trial, step: int, tokens: int, value: float) -> None:
        self._seen[trial.id][step] = value
        trial.last = Figure(step, value)
        if trial.best is None or value < trial.best.value:
            trial.best = trial.last
        if self._searcher:
            self._searcher.result(trial.id, tokens, value)

    # Ending

    def ended(self, trial: Trial, outcome: Outcome, said: str = "", seconds: float = 0.0) -> None:
        """The trial's workers have let go of it."""
        self.watch(trial)
        self._busy.discard(trial.id)
        trial.seconds += seconds
        stop = self._stop(trial)
        asked = stop.asked()
        stop.clear()
        if outcome in ("finished", "failed"):
            self._end(trial, outcome, said)
        elif outcome == "died" and not trial.reason and not asked:
            self._died(trial, said)
        elif trial.reason:
            self._end(trial, "stopped", trial.reason)
        elif self._interrupted or self.sweep.config.scheduler == "pbt":
            trial.status = "pending"  # to go on
            self.sweep.save(trial)
        else:
            self._end(trial, "stopped", "a file `stop` in its folder asked it to")
        if self.sweep.config.scheduler == "pbt":
            self._next_generation()

    def _died(self, trial: Trial, said: str) -> None:
        step, (before, count) = self._reached(trial), self._failures.get(trial.id, (-1, 0))
        count = count + 1 if step == before else 1
        self._failures[trial.id] = (step, count)
        if count > self._run(trial).max_failures:
            self._end(trial, "failed", said)
            return
        print(f"trial {trial.id}: {said}: it goes on from its newest checkpoint", flush=True)
        trial.status = "pending"
        self.sweep.save(trial)

    def _end(self, trial: Trial, status: Any, reason: str) -> None:
        trial.status, trial.reason = status, reason
        if not reason.startswith(BUDGET):
            if self._searcher:
                self._searcher.complete(trial.id, trial.tokens, trial.last.value if trial.last else None)
            self.sweep.note(event="end", trial=trial.id, status=status, reason=reason, time=time.time())
        self.sweep.save(trial)
        self.on_end(trial)

    def _next_generation(self) -> None:
        """When every trial has come as far: the worst go on from the best."""
        members = [trial for trial in self.sweep.trials.values() if trial.status != "failed"]
        step = self._generation + self.sweep.config.train.validate_every
        figures = {trial.id: self._seen[trial.id].get(step) for trial in members}
        late = [trial for trial in members if trial.id in self._busy or self._reached(trial) < step]
        if late or not members or step >= self._run(members[0]).steps or None in figures.values():
            return
        whole = {key: value for key, value in figures.items() if value is not None}
        values = {trial.id: trial.values for trial in members}
        preset = [trial.id for trial in members if trial.baseline]
        exploits = choose(whole, values, self._domains, self.sweep.config.train.seed, step, keep=preset)
        self.sweep.note(
            event="generation", step=step, exploits=[asdict(exploit) for exploit in exploits], time=time.time()
        )
        self._generation = step
        for exploit in exploits:
            self._exploit(exploit, step)
            told = ", ".join(f"{key} {value}" for key, value in exploit.values.items())
            print(f"step {step}: trial {exploit.trial} goes on from {exploit.source}, with {told}", flush=True)

    def _exploit(self, exploit: Exploit, step: int) -> None:
        """Idempotent: a kill may have come in the middle of it."""
        trial, source = self.sweep.trials[exploit.trial], self.sweep.trials[exploit.source]
        trial.values = dict(exploit.values)
        # What it had before is nobody's weights now.
        trial.best = trial.last = Figure(step, self._seen[source.id][step])
        self._runs.pop(trial.id, None)
        if any(before["step"] == step for before in trial.exploited):
            return
        ours, theirs = (self.sweep.run_place(each).checkpoints for each in (trial, source))
        take_over(theirs, ours, step)  # nobody has gone on from this step before all have taken over
        trial.exploited.append({"step": step, "from": exploit.source, "values": exploit.values})
        self.sweep.save(trial)

    def _stop(self, trial: Trial) -> Stop:
        return Stop(self.sweep.run_place(trial).place)

    def interrupt(self) -> None:
        """The sweep was asked to stop: its trials save and leave."""
        self._interrupted = True
        for name in self._busy:
            self._stop(self.sweep.trials[name]).ask()

    def out_of_budget(self) -> str:
        """Why no more is trained; empty while there is some left."""
        return self.budget.spent()
