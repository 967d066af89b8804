"""The choice of a learning rate: each run is trained at several with one seed, and the best on validation counts.

    rates = Rates(study, seed=0, tried=(2e-3, 4e-3, 8e-3))
    rates.runs(run)         # the run at each rate
    rates.chosen(run)       # the run at the best rate on validation, of those at which it is trained

The best rate has the fewest errors where a task labels its tokens, and the fewest bits per token elsewhere, or if errors are equal.
Bits would mislead on a task: a model that is sure of its few errors beyond the trained lengths has many bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipelines.presets import PRESETS
from studies.papers.tables import Run
from studies.papers.trainings import StudyFolder

FIELD = "optim.lr"


@dataclass(frozen=True)
class Rates:
    """The rates that are tried; with none, every run has its own."""

    study: StudyFolder
    seed: int
    """The seed of the trainings that decide."""
    tried: tuple[float, ...] = ()

    def own(self, run: Run) -> float:
        """The learning rate of a run: its own field's, or else its preset's."""
        return run.fields.get(FIELD, PRESETS[run.preset].optim.lr)

    def runs(self, run: Run) -> list[Run]:
        """The run at each rate. A training is named after a rate that is not its preset's."""
        made = [
            run if rate == self.own(run) else replace(run, fields={**run.fields, FIELD: rate}) for rate in self.tried
        ]
        return made or [run]

    def trained(self, run: Run) -> list[Run]:
        """The run at those rates at which it is trained, the best on validation first."""
        done = [each for each in self.runs(run) if self.study.training(each, self.seed).is_done()]
        return sorted(done, key=self.score)

    def score(self, run: Run) -> tuple[float, float]:
        """Validation's share of errors, infinite where no token is labelled, and bits per token: the least is the best."""
        training = self.study.training(run, self.seed)
        return training.validated(errors=True), training.validated(errors=False)

    def chosen(self, run: Run) -> Run:
        """The run at the best rate; before it is trained at any, at the first."""
        if len(self.tried) < 2:
            return self.runs(run)[0]
        trained = self.trained(run)
        return trained[0] if trained else self.runs(run)[0]

    def facts(self, runs: Sequence[Run]) -> list[str]:
        """Sentences on which rates were chosen, and on runs that were not trained at all of them."""
        if not self.tried:
            return []
        trainings = {self.study.training(run, self.seed).name: run for run in runs}
        trained = [(run, self.trained(run)) for run in trainings.values()]
        counts = Counter(self.own(found[0]) for _, found in trained if found)
        named = ", ".join(f"{rate:g} in {counts[rate]}" for rate in self.tried)
        few = [f"{run.preset} ({len(found)})" for run, found in trained if 0 < len(found) < len(self.tried)]
        said = [f"learning rates: the best on validation with seed {self.seed}, {named} of the trainings"]
        return [*said, f"trained at fewer than the {len(self.tried)} rates: {'; '.join(few)}"] if few else said
