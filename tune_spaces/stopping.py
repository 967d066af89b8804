"""Early stopping and populations by Ray Tune's schedulers, fed with results by whoever runs the trials.

    rule = Rule("asha", least=3072, most=27648, reduction=3)      in tokens
    rule.add("000", {"optim.lr": 1e-3}); rule.begin("000")
    rule.result("000", tokens=3072, value=6.1)                    # True: stop it
    rule.waits("000"), rule.choose(), rule.exploits, rule.stopped # where the scheduler pauses trials and changes them
    stops = stopper("plateau"); stops("000", {"value": 6.1, …}), stops.stop_all()

A scheduler plays here on Tune's own records of trials, while Tune's controller runs the real ones. Its state is a pure function of
the calls in their order: making these again restores it, and nothing is pickled.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
    TrialScheduler,
)
from ray.tune.search.sample import Float
from ray.tune.stopper import Stopper

from tune_spaces import SCHEDULERS, STOPPERS
from tune_spaces.drawing import expand, rounded, seeded
from tune_spaces.named import kind_of, make

ELSEWHERE = (PopulationBasedTrainingReplay, ResourceChangingScheduler)
"""These change what a trial takes, or repeat another sweep's changes: they cannot be fed with results."""
COMPARING = (AsyncHyperBandScheduler, MedianStoppingRule)
"""Told of results alone, the last one of a trial and those after a stop too; all others as Tune's controller tells them."""

TIMES = ("tokens", "rungs", "training_iteration")
"""What a scheduler may count in."""


@dataclass(frozen=True)
class Exploit:
    """A trial goes on as another one stands, with other values."""

    trial: str
    source: str
    values: dict[str, Any]
    before: dict[str, Any] = field(default_factory=dict[str, Any])
    """Its own values until then."""


def changes_values(name: str) -> bool:
    """Whether the scheduler changes the values of trials while they run. Raises ValueError where there is none of this name."""
    kind, _ = kind_of(SCHEDULERS.get(name, name))
    return issubclass(kind, PopulationBasedTraining)


class Rule:
    """When a trial is stopped, waits or goes on as another one, by the lower-is-better value that it has after so many tokens.

    - asha: stopped at rungs of ``least``, ``least · reduction``, … tokens, unless among the best 1/``reduction`` of those so far.
    - median: from ``least`` tokens on, when its best is worse than the median of the others' running means.
    - pbt: all are compared every ``every`` tokens, and the worst quarter goes on from the best, with other values.
    - an import path: any other scheduler of Ray Tune's, or one's own. Time is in tokens; HyperBand's in ``rungs`` of ``least``.

    Raises ValueError for what is none, or cannot be played here.
    """

    def __init__(
        self,
        name: str,
        least: int,
        most: int,
        reduction: int = 3,
        every: int = 1,
        domains: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        path, ranges = SCHEDULERS.get(name, name), domains or {}
        bounds = {key: [domain.lower, domain.upper] for key, domain in ranges.items() if isinstance(domain, Float)}
        offered: dict[str, Any] = {
            "time_attr": "tokens",
            "metric": "value",
            "mode": "min",
            "grace_period": least,
            "max_t": max(most, least + 1),
            "reduction_factor": reduction,
            "stop_last_trials": False,  # a trial ends by itself
            "perturbation_interval": every,
            "hyperparam_mutations": {key: getattr(domain, "categories", domain) for key, domain in ranges.items()},
            "hyperparam_bounds": bounds,
            "log_config": False,
            "synch": True,
        }
        logging.getLogger("ray.tune.schedulers").setLevel(logging.ERROR)
        kind, given = kind_of(path)
        if issubclass(kind, HyperBandScheduler):
            offered |= {"time_attr": "rungs", "max_t": max(1, most // least)}
        if odd := sorted(set(given.get("hyperparam_mutations") or ()) - ranges.keys()):
            raise ValueError(f"{name}: this sweep does not vary {odd[0]}: it varies {', '.join(ranges)}")
        if (counted := given.get("time_attr", "tokens")) not in TIMES:
            raise ValueError(
                f"{name}: results have no {counted!r}: count in {' or '.join(TIMES[:2])}, or leave time_attr out"
            )
        self._rule: Any = make(path, **offered)
        if not isinstance(self._rule, TrialScheduler) or isinstance(self._rule, ELSEWHERE):
            raise ValueError(
                f"{name} is no scheduler that decides by results alone, so that a sweep could not go on with it after a kill: "
                "choose asha, median or pbt"
            )
        if not given.get("synch", True):
            raise ValueError(f"{name}: the State of a trial fits others at the same step alone: leave synch=False out")
        self._rule.set_search_properties("value", "min")  # one that has them already heeds it not
        self.compares_all = isinstance(self._rule, (PopulationBasedTraining, HyperBandScheduler))
        """Whether trials wait until all others have come."""
        self.exploits: list[Exploit] = []
        """Decided since they were last taken out."""
        self.stopped: list[str] = []
        """Trials that were stopped by another one's result, since they were last taken out."""
        self._least, self._seed, self._domains = least, seed, ranges
        self._trials: dict[str, Trial] = {}
        self._told: dict[str, dict[str, Any]] = {}
        self._values: dict[str, dict[str, Any]] = {}
        self._kept: set[str] = set()
        self.left: set[str] = set()
        """Trials that it has stopped, and wants to hear no more of."""

    def add(self, name: str, values: Mapping[str, Any] | None = None, kept: bool = False) -> None:
        """A trial that is known from now on; ``kept``: it stays as it is."""
        if name not in self._trials:
            trial = self._trials[name] = Trial("trial", config=dict(values or {}), trial_id=name, stub=True)
            self._kept |= {name} if kept else set()
            self.change(name, values or {})
            with seeded(f"{self._seed}/{name}"):
                self._rule.on_trial_add(self, trial)

    def change(self, name: str, values: Mapping[str, Any]) -> None:
        """Its values are these, whatever was decided, and it has a checkpoint of its own by name."""
        trial: Any = self._trials[name]
        self._values[name] = dict(values)
        trial.set_config(dict(values))
        own = SimpleNamespace(checkpoint=SimpleNamespace(path=name), metrics={})
        trial.run_metadata.checkpoint_manager.register_checkpoint(own)

    def begin(self, name: str) -> None:
        """It is being trained."""
        self._trials[name].set_status(Trial.RUNNING)

    def rest(self, name: str) -> None:
        """It is not, and is to go on."""
        if self._trials[name].status == Trial.RUNNING:
            self._trials[name].set_status(Trial.PENDING)

    def waits(self, name: str) -> bool:
        """Whether it is to stand where it is until it is chosen."""
        return self._trials[name].status == Trial.PAUSED

    def result(self, name: str, tokens: int, value: float, last: bool = False) -> bool:
        """Whether to stop it."""
        if name in self.left or (last and not isinstance(self._rule, COMPARING)):
            return False
        trial = self._trials[name]
        trial.set_status(Trial.RUNNING)
        rungs = tokens / self._least
        self._told[name] = {"tokens": tokens, "rungs": rungs, "value": value, "training_iteration": tokens}
        decision = self._tell(trial)
        if decision in (TrialScheduler.PAUSE, TrialScheduler.NOOP):
            trial.set_status(Trial.PAUSED)
        if decision == TrialScheduler.STOP and not isinstance(self._rule, COMPARING):
            self.left.add(name)
        return decision == TrialScheduler.STOP

    def _tell(self, trial: Trial) -> str:
        told = self._told[trial.trial_id]
        with seeded(f"{self._seed}/{told['tokens']}"):  # whoever comes last
            decision = self._rule.on_trial_result(self, trial, dict(told))
        for name, other in self._trials.items() if isinstance(self._rule, PopulationBasedTraining) else ():
            if other.checkpoint is None or (source := other.checkpoint.path) == name:
                continue
            before = self._values[name]
            changed = {key: rounded(self._domains.get(key), value) for key, value in other.config.items()}
            values = before if name in self._kept else expand(changed)
            self.change(name, values)
            if name not in self._kept:
                self.exploits.append(Exploit(name, source, values, before))
        return decision

    def end(self, name: str) -> None:
        """It is over."""
        trial = self._trials[name]
        told = trial.is_finished() or isinstance(self._rule, COMPARING)
        trial.set_status(Trial.TERMINATED)
        if told:
            return
        self._rule.on_trial_remove(self, trial)
        waiting = [trial for name, trial in self._trials.items() if name in self._told and self.waits(name)]
        if waiting and isinstance(self._rule, PopulationBasedTraining):  # they may have waited for this one alone
            self._tell(waiting[0])

    def choose(self, hidden: Collection[str] = ()) -> str | None:
        """The trial that is to be trained next; ``hidden`` ones cannot be."""
        states = {name: self._trials[name].status for name in hidden}
        for name in states:
            self._trials[name].set_status(Trial.RUNNING)
        chosen = self._rule.choose_trial_to_run(self)
        for name, status in states.items():
            self._trials[name].set_status(status)
        return None if chosen is None else chosen.trial_id

    # What a scheduler asks of Tune's controller

    search_alg = SimpleNamespace(searcher=SimpleNamespace(on_pause=lambda trial: None, on_unpause=lambda trial: None))

    def get_trials(self) -> list[Trial]:
        return list(self._trials.values())

    def get_live_trials(self) -> list[Trial]:
        return [trial for trial in self._trials.values() if not trial.is_finished()]

    def stop_trial(self, trial: Trial) -> None:
        name = trial.trial_id
        self.left.add(name)
        self.stopped.append(name)
        trial.set_status(Trial.PENDING if name in self._kept else Trial.TERMINATED)
        self._rule.on_trial_remove(self, trial)

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:
        trial.set_status(Trial.PAUSED)

    def _schedule_trial_save(self, trial: Trial, result: Any = None) -> Any:
        return trial.checkpoint


def stopper(name: str) -> Stopper:
    """When a trial has come to rest: Tune's TrialPlateauStopper, or any other stopper by its import path; none never."""
    instead = "choose plateau, or write ray.tune.stopper:Name(field=value, …)"

    def made() -> Stopper:
        return make(STOPPERS.get(name, name), Stopper, instead, metric="value", mode="min")

    tried = made()
    try:
        tried("trial", {"tokens": 1, "value": 1.0, "training_iteration": 1}), tried.stop_all()
    except Exception as error:  # whatever it is, the first result would end in it
        raise ValueError(f"{name} fails at a result ({type(error).__name__}: {error}): {instead}") from error
    return made()
