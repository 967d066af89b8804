"""A sweep and its folder. The folder is the sweep's whole memory: a sweep resumes from these files, however it ended.

    <root>/<sweep>/
        sweep.json          what is varied, how, and the command; another sweep is refused
        results.jsonl       every draw, begin, validation and end in the order in which they counted, with what was decided
        budget.json         seconds that the sweep has taken so far
        trials/003/         an ordinary run, and trial.json: its values, status, reason, steps, best and last value
        best.json           the winner: its values, its command, and its config, which pipelines.train takes in place of a preset

Each line of results.jsonl is written before it is acted on. Feeding the lines again to the scheduler and to the searcher restores
the state of both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import parse_json, write_atomically
from common.lock import LOCK
from common.places import staged_for
from data_prep.store import SegmentStore
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.config.run import TrainConfig, flatten, to_json
from pipelines.reports.sweep_result import Trial, fetch_sweep, ranked, read_trial
from pipelines.sweeps.command import SweepConfig, changes_learning
from pipelines.terminal import cli
from pipelines.tracking.metrics_file import opened_at_end
from tune_spaces.drawing import Draw

SCHEMA = 1
"""Version of sweep.json; raised by any change that an older tune would not understand."""
CHANGEABLE = (
    "train",
    "max_concurrent_trials",
    "workers",
    "time_budget_s",
    "token_budget",
    "max_trials",
    "num_cpus",
    "dry_run",
)
"""Fields of a sweep that may differ when it is resumed."""
BUDGET = "the sweep's budget"
"""Beginning of a trial's reason, if a larger budget would continue the trial."""


@dataclass
class Sweep:
    """A sweep under way: its config, trials and files."""

    config: SweepConfig
    fields: list[str]
    trials: dict[str, Trial] = field(default_factory=dict)
    grown: bool = False
    """Whether it had begun with a smaller --num-samples."""
    _vocab_sizes: dict[tuple[str, str], int] = field(default_factory=dict)
    _saved: dict[str, float] = field(default_factory=dict)

    @property
    def run(self) -> RunFolder:
        """The sweep's folder, or its place in a bucket with a working folder on this machine."""
        return RunFolder.of(self.config.train)

    @property
    def folder(self) -> Path:
        """The sweep's folder, or the working folder here of a sweep in a bucket."""
        return self.run.folder

    def run_of(self, trial: Trial) -> TrainConfig:
        """The trial as an ordinary run: of equal cost, with a checkpoint at every validation. Raises ValueError when its values
        do not fit.
        """
        config = self.config
        run = config.run_with(trial.values)
        if config.equalize == "tokens":
            run = replace(run, steps=max(1, round(config.tokens_per_trial / run.tokens_per_step)))
        elif config.equalize == "flops":
            whole = config.tokens_per_trial * self.training_flops_per_token(config.train)
            run = replace(run, steps=max(1, round(whole / (run.tokens_per_step * self.training_flops_per_token(run)))))
        every = run.validate_every
        if every and every % run.checkpoint.every:
            run = replace(run, checkpoint=replace(run.checkpoint, every=every))
        if config.metric.startswith("validation/"):  # the checkpoint of its best value is then kept
            run = replace(run, checkpoint=replace(run.checkpoint, best_by=config.metric))
        allowed = tuple({*run.allow_change, *self.fields}) if config.populates else run.allow_change
        return replace(run, run=f"{config.train.run}/trials/{trial.id}", allow_change=tuple(sorted(allowed)))

    def training_flops_per_token(self, run: TrainConfig) -> float:
        """FLOPs per token that training needs."""
        where = (run.data.store, run.data.corpus)
        if where not in self._vocab_sizes:
            split = "validation" if run.validate_every else "train"
            self._vocab_sizes[where] = SegmentStore.open(*where, split).vocab_size
        return run.model.costs(self._vocab_sizes[where]).training_flops_per_token

    # Files

    def open_folder(self) -> bool:
        """Open the sweep's folder. Returns whether the sweep has begun, so that its trials are known.

        Raises UserError if the folder is another sweep's.
        """
        path = self.folder / "sweep.json"
        fetch_sweep(self.run, "results.jsonl", "budget.json", "registered.json")
        if not path.exists():
            others = (file.name for file in self.run.place.list() if file.name != LOCK)
            if any(staged_for(name) != path.name for name in others):  # a kill may leave sweep.json half-written
                raise UserError(f"{self.shown} holds something else than a sweep: choose another --run")
            return False
        try:
            saved = parse_json(path.read_text("utf-8"))
            if saved["schema"] != SCHEMA:
                raise UserError(f"{path} was written by another version of Throughline: choose another --run")
            theirs = dict(saved["identity"])
            plan = {each["id"]: Trial(**each) for each in saved["plan"]}
            if not all(name.isdigit() for name in plan):
                raise ValueError("a trial's id is no number")
        except UserError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged ({error}): choose another --run") from None
        ours = self._identity()
        for key in ours | theirs:
            if key == "num_samples" and self._may_grow(theirs.get(key)):
                self.grown = True
            elif ours.get(key) != theirs.get(key):
                raise UserError(
                    f"{self.shown} holds another sweep, with {key}={theirs.get(key)}, and this command says "
                    f"{ours.get(key)}: choose another --run"
                )
        self._load_trials(plan)
        return True

    def _may_grow(self, before: Any) -> bool:
        """Whether --num-samples is larger than ``before``, and adds trials: not to a grid, nor where trials wait for each other."""
        from tune_spaces.stopping import pauses_trials  # imports Ray Tune: seconds

        config = self.config
        grows = config.search != "grid" and not pauses_trials(config.scheduler)
        return grows and isinstance(before, int) and config.num_samples > before

    def _identity(self) -> dict[str, Any]:
        """Fields that identify a sweep; a different value is refused on resume."""
        left_out = (*CHANGEABLE, "typed")  # `typed` matters only where presets are compared
        names = (each.name for each in dataclasses.fields(self.config) if each.name not in left_out)
        typed = {"typed": list(self.config.typed)} if "preset" in self.fields else {}
        run = flatten(to_json(self.config.train))
        # The store may move, but must be the same.
        fixed = {key: value for key, value in run.items() if changes_learning(key) and key != "data.store"}
        return {name: getattr(self.config, name) for name in names} | typed | fixed | self._store()

    def _store(self) -> dict[str, str]:
        """The fingerprint of the store that trials are trained on; empty where each may have another one."""
        if {"data.store", "data.corpus", "preset"} & set(self.fields):
            return {}
        data = self.config.train.data
        return {"store": SegmentStore.open(data.store, data.corpus, "train").manifest.fingerprint}

    def write_plan(self, command: str) -> None:
        """Write sweep.json, with the identity and the trials of a sweep that is new or has grown, as one file."""
        names = ("space", "preset", "num_samples", "search", "scheduler", "metric")
        values = {
            "schema": SCHEMA,
            "name": self.config.train.run,
            **{name: getattr(self.config, name) for name in names},
        }
        values |= {"seed": self.config.train.seed, "mode": "min", "fields": self.fields, "command": command}
        plan = [{"id": t.id, "values": t.values, "baseline": t.baseline} for t in self.trials.values()]
        baseline = next((trial.values for trial in self.trials.values() if trial.baseline), {})
        values |= {"baseline": baseline, "plan": plan, "identity": self._identity()}
        self.write("sweep.json", values)

    @property
    def shown(self) -> str:
        """The sweep's place, as shown to a person."""
        return cli.shown(self.run.place.recorded)

    def run_folder(self, trial: Trial) -> RunFolder:
        """The folder of the trial's run."""
        return RunFolder(self.run.place / f"trials/{trial.id}", trains=True)

    def write(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a small JSON file of the sweep, also into its bucket, unless it holds these values already."""
        path = self.folder / name
        data = json.dumps(values, indent=1).encode()
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
            self.publish(name)

    def publish(self, name: str) -> None:
        """Copy a file into the bucket of a sweep in one, with retries. Raises OSError if the bucket is silent for some 20 s."""
        for wait in (1, 4, 16, 0):
            try:
                return self.run.publish(name)
            except OSError:
                if not wait:
                    raise
                time.sleep(wait)

    def save(self, trial: Trial, every: float = 0.0) -> None:
        """Write the trial's trial.json, at most once in ``every`` seconds: the sweep waits until the disk has it."""
        if every and time.monotonic() - self._saved.get(trial.id, 0.0) <= every:
            return
        self._saved[trial.id] = time.monotonic()
        self.write(f"trials/{trial.id}/trial.json", trial.to_json(self.config.metric))

    def note(self, **event: Any) -> None:
        """Append an event as a line of results.jsonl."""
        line = json.dumps(event).encode() + b"\n"
        with open(opened_at_end(self.folder / "results.jsonl"), "ab", buffering=0) as file:
            while line:  # a disk that becomes full takes only a part of it
                line = line[file.write(line) :]
        self.publish("results.jsonl")

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of results.jsonl, without torn lines."""
        path = self.folder / "results.jsonl"
        for line in path.read_bytes().split(b"\n") if path.exists() else ():
            with contextlib.suppress(ValueError):  # a line torn by a kill, written again later
                event = parse_json(line)
                if isinstance(event, dict) and "event" in event:
                    yield event

    def drawn(self) -> list[Draw]:
        """The searcher's suggestions of earlier starts, in order."""
        draws = [event for event in self.events() if event["event"] == "draw"]
        return [Draw(event["name"], event["trial"], event["values"]) for event in draws]

    def _load_trials(self, plan: dict[str, Trial]) -> None:
        """The trials of earlier starts. If a trial.json is missing or damaged, the plan and results.jsonl have its contents."""
        known = plan | {draw.trial: Trial(draw.trial, dict(draw.values)) for draw in self.drawn() if draw.trial}
        for path in (self.folder / "trials").glob("*/trial.json"):
            if not path.parent.name.isdigit():
                continue  # a copy that somebody has made
            try:
                known[path.parent.name] = read_trial(path, self.config.metric)
            except UserError:
                if path.parent.name not in known:
                    raise
                print(f"warning: {path} is damaged: it is made again of results.jsonl", file=sys.stderr, flush=True)
        self.trials.update(sorted(known.items(), key=lambda item: int(item[0])))

    @property
    def known(self) -> list[Trial]:
        """The known trials, at most ``max_trials`` of them."""
        return list(self.trials.values())[: self.config.max_trials or None]

    @property
    def left(self) -> list[Trial]:
        """The trials that are not over, and those that a larger budget would continue."""
        return [trial for trial in self.trials.values() if not trial.over or trial.reason.startswith(BUDGET)]

    def best(self) -> Trial | None:
        """The trial with the lowest value; the earliest of equals."""
        return next(iter(ranked(self.trials.values())), None)


class Budget:
    """The budget of a sweep over all starts of its command: seconds and tokens."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._began = time.monotonic()
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # counts the seconds of earlier starts
            self._began -= float(parse_json((sweep.folder / "budget.json").read_text("utf-8"))["seconds"])

    def keep(self) -> None:
        """Write down the seconds that all starts have taken so far."""
        self._sweep.write("budget.json", {"seconds": time.monotonic() - self._began})

    def spent(self) -> str:
        """The message that the budget is spent; empty while some is left."""
        config = self._sweep.config
        if config.time_budget_s and time.monotonic() - self._began >= config.time_budget_s:
            return f"{BUDGET} of {config.time_budget_s:g} s is spent"
        if config.token_budget and sum(trial.tokens for trial in self._sweep.trials.values()) >= config.token_budget:
            return f"{BUDGET} of {config.token_budget:,} tokens is spent"
        return ""
