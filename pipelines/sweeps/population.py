"""What a population's trials share (--scheduler pbt): the worst go on from copies of the best ones' checkpoints.

    population = Population(sweep, rule, {"000": {60: 5.1}, …})
    population.concerned                # who must have saved before
    population.take_over(moves)         # tells of a trial whether it is still to come there

Ray Tune's scheduler compares all at the same step (tune_spaces/stopping.py). A checkpoint holds weights, optimizer, generators and
the State of every lane; as all trials read the same lanes, the copy's State fits the documents at hand. What the copy changes must
not change a shape or what a step reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from pipelines.checkpoints.checkpoint import CheckpointError
from pipelines.checkpoints.taking_over import find, take_over
from pipelines.sweeps.sweep import Figure, Sweep, Trial
from tune_spaces.stopping import Exploit, Rule


class Population:
    """The trials of a sweep that go on from each other."""

    def __init__(self, sweep: Sweep, rule: Rule, figures: Mapping[str, Mapping[int, float]]) -> None:
        self._sweep, self._rule, self._figures = sweep, rule, figures

    @property
    def concerned(self) -> list[Trial]:
        """Trials that are to go on as others, and those others: neither is trained before."""
        return [self._sweep.trials[name] for each in self._rule.exploits for name in (each.trial, each.source)]

    def take_over(self, moves: Callable[[Trial], bool]) -> None:
        """Do what is due, once all that are concerned have saved, but for one that has failed."""
        concerned = self.concerned
        if not concerned or any(map(moves, concerned)):
            return
        step = max(trial.last.step for trial in concerned if trial.last)
        over = {trial.id for trial in concerned if trial.over}  # where a stopper has ended it
        sources = {each.source for each in self._rule.exploits if each.trial not in over}
        saved = {name for name in sources if self._has_saved(self._sweep.trials[name], step)}
        possible = [each for each in self._rule.exploits if each.source in saved and each.trial not in over]
        told = [asdict(each) for each in possible]
        self._sweep.note(event="generation", step=step, exploits=told, time=time.time())
        self.go_on(possible, step)
        for each in possible:
            values = ", ".join(f"{key} {value}" for key, value in each.values.items())
            print(f"step {step}: trial {each.trial} goes on from {each.source}, with {values}", flush=True)

    def _has_saved(self, trial: Trial, step: int) -> bool:
        """Whether its checkpoint of the step is there to be taken over. What is noted is done, so that this is seen before."""
        try:
            find(self._sweep.run_place(trial).checkpoints, step)
        except CheckpointError as error:
            print(f"step {step}: nobody goes on from trial {trial.id}: {error}", flush=True)
            return False
        return True

    def go_on(self, exploits: Sequence[Exploit], step: int) -> None:
        """Do these, in place of what was due. Idempotent: a kill may have come in the middle of it."""
        for each in self._rule.exploits:
            self._rule.change(each.trial, each.before)
        self._rule.exploits.clear()
        for each in exploits:
            trial, source = self._sweep.trials[each.trial], self._sweep.trials[each.source]
            self._rule.change(trial.id, each.values)
            trial.values = dict(each.values)
            # What it had before is nobody's weights now.
            trial.best = trial.last = Figure(step, self._figures[source.id][step])
            if not any(before["step"] == step for before in trial.exploited):
                theirs, ours = (self._sweep.run_place(one).checkpoints for one in (source, trial))
                take_over(theirs, ours, step)  # nobody has gone on from this step before all have taken over
                trial.exploited.append({"step": step, "from": each.source, "values": each.values})
                self._sweep.save(trial)
