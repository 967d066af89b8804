"""The options of `pipelines.tune` besides those of a run, read from its command line.

config = read_command(["lr+states", "--preset", "small-rec", "--num-samples", "12"])
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from common.checks import check_fields
from common.errors import UserError, nearest
from pipelines.config.dotted import changes, with_fields
from pipelines.config.parts import times
from pipelines.config.run import TrainConfig, flatten, may_change, to_json
from pipelines.presets import PRESETS, catalogue
from pipelines.terminal import cli
from pipelines.tracking.metrics import check_compared
from tune_spaces import SCHEDULERS, SEARCHERS, SPACES, STOPPERS, parts_of

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler

ABOUT = "Search over a preset: trials on Ray Tune, several at once, bad ones stopped early. Repeating the command resumes it."
NAMES = {"search": ("random", "grid", *SEARCHERS), "scheduler": tuple(SCHEDULERS), "stop": tuple(STOPPERS)}
"""Known names for the fields that also take an import path."""
PATHS = {
    "search": "ray.tune.search.hyperopt:HyperOptSearch",
    "scheduler": "ray.tune.schedulers:HyperBandScheduler",
    "stop": "ray.tune.stopper:MaximumIterationStopper(max_iter=9)",
}
"""An import path for each of these fields, as an example."""


@dataclass(frozen=True)
class SweepConfig:
    """A sweep over a preset. Repeating the command resumes it. The fields of a run come after those of the sweep."""

    space: tyro.conf.Suppress[str]
    """The search space: named spaces and fields joined by +."""
    train: Annotated[TrainConfig, tyro.conf.arg(name="")]
    """The run that is varied; `run` names the sweep."""
    preset: str = "small-rec"
    """Named run around which the space is laid."""
    typed: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Fields of the run that the command line names: every preset that is compared gets their values."""
    num_samples: int = 12
    """Trials in all, the preset's among them; a grid has one for each combination. A rerun with more adds trials."""
    search: str = "random"
    """How values are chosen. random: independent draws. grid: every combination. optuna (pip install optuna) and bohb (pip
    install hpbandster ConfigSpace) suggest values from the results so far. Or another searcher of Ray Tune's by its import path,
    with arguments: 'ray.tune.search.hyperopt:HyperOptSearch(n_initial_points=5)'."""
    grid_points: int = 3
    """Values of a range in a grid."""
    scheduler: str = "asha"
    """Which trials stop early. asha: those not among the best of a rung. median: those worse than the others' median. none: no
    trial. pbt: no trial, but at each validation the worst quarter continues from the best quarter's checkpoints with other rates.
    Or another scheduler of Ray Tune's by its import path (docs/sweeps.md); its time is in tokens, HyperBand's in rungs:
    'ray.tune.schedulers:HyperBandScheduler', 'ray.tune.schedulers:ASHAScheduler(brackets=2)', 'ray.tune.schedulers.pb2:PB2'."""
    stop: str = "none"
    """Which other trials stop. none: no others. plateau: those whose last four results have a standard deviation of at most 0.01.
    Or a stopper of Ray Tune's by its import path: 'ray.tune.stopper:TrialPlateauStopper(std=0.001, num_results=6)'."""
    reduction: int = 3
    """asha: one trial in this many continues from a rung to the next."""
    rung_tokens: int = 0
    """Tokens before a trial may be stopped (asha: its first rung); 0 is a ninth of a trial."""
    equalize: Literal["tokens", "flops", "steps"] = "tokens"
    """The budget that every trial shares with the preset; a trial's steps follow from it."""
    metric: str = "validation/bits_per_token"
    """Metric to minimise: any that is better when lower, of validation or training (pipelines/tracking/metrics.py). Use
    validation/bits_per_byte to compare vocabularies."""
    max_concurrent_trials: int = 0
    """Most trials at once; 0 for as many as fit."""
    baseline: Literal["yes", "no"] = "yes"
    """Whether the preset itself is the first trial. It is never stopped early, except by schedulers that pause trials, such as
    HyperBand."""
    workers: Literal["reuse", "fresh"] = "reuse"
    """reuse: the actors of a finished trial take the next one. fresh: each trial starts new actors."""
    time_budget_s: float = 0
    """Budget of wall time, over all starts of the command; 0 for none."""
    token_budget: int = 0
    """Budget of training tokens over all trials; 0 for none."""
    max_trials: int = 0
    """Budget of trials to begin; 0 for none."""
    num_cpus: int = 0
    """CPUs that the sweep may use of this machine; 0 for all."""
    dry_run: bool = False
    """Print the trials and what they cost, then exit."""

    def __post_init__(self) -> None:
        check_compared("metric", self.metric)
        for name, known in NAMES.items():
            given = getattr(self, name)
            if given not in known and ":" not in given:
                raise UserError(
                    f"{name} is {given!r}: {nearest(given, known)}; or name a class by its import path, as in {PATHS[name]}"
                )
        budgets = ("rung_tokens", "max_concurrent_trials", "time_budget_s", "token_budget", "max_trials", "num_cpus")
        check_fields("", self, num_samples=1, grid_points=1, reduction=2, **dict.fromkeys(budgets, 0))

    @property
    def populates(self) -> bool:
        """Whether trials continue from each other's checkpoints. Raises ValueError for an unknown scheduler."""
        from tune_spaces.stopping import changes_values  # imports Ray Tune: seconds, as below

        return changes_values(self.scheduler)

    @property
    def suggested(self) -> bool:
        """Whether a searcher chooses trials by the results of those before."""
        return self.search not in ("random", "grid")

    @property
    def tokens_per_trial(self) -> int:
        """Tokens of a whole trial, if all trials have the same number."""
        return self.train.steps * self.train.tokens_per_step

    @property
    def flat(self) -> dict[str, Any]:
        """The preset's fields by dotted names, and its own name: the values around which a space is laid."""
        return {"preset": self.preset, **flatten(to_json(self.train))}

    def own_values(self, fields: Sequence[str]) -> dict[str, Any] | None:
        """The preset's values of these fields, for its own trial; None without such a trial, or where presets or stores are
        varied."""
        if self.baseline == "no" or {"preset", "data.store"} & set(fields):
            return None
        values = self.flat
        return {field: values[field] for field in fields}

    def run_with(self, values: Mapping[str, Any]) -> TrainConfig:
        """The run with a trial's values, by their dotted names. Raises ValueError where they do not fit together."""
        base = self.train
        fields = dict(values)
        if "preset" in fields:
            base = PRESETS[fields.pop("preset")]
            known = flatten(to_json(base)).keys() - {"model.name"}
            overridden = {name: self.flat[name] for name in self.typed} | changes(self.train, PRESETS[self.preset])
            base = with_fields(base, {field: value for field, value in overridden.items() if field in known})
        return with_fields(base, fields)

    @property
    def most_at_once(self) -> int | None:
        """The limit on trials at once that the options set; None without one. The machines may hold fewer, and more later."""
        limits = [self.max_concurrent_trials] if self.max_concurrent_trials else []
        if self.num_cpus:
            taken = self.train.workers[0] * self.train.placement.cpus
            limits.append(max(1, times({"CPU": self.num_cpus}, {"CPU": taken})))
        return min(limits, default=None)

    @property
    def first_rung_tokens(self) -> int:
        """Tokens before a trial may be stopped: ASHA's first rung."""
        return self.rung_tokens or max(1, self.tokens_per_trial // 9)

    def make_scheduler(self, domains: Mapping[str, Any]) -> TrialScheduler:
        """The scheduler of the trials. Raises ValueError where it cannot be made."""
        from tune_spaces.stopping import scheduler

        return scheduler(
            self.scheduler,
            domains,
            rung_tokens=self.first_rung_tokens,
            trial_tokens=self.tokens_per_trial,
            reduction=self.reduction,
            validation_tokens=self.train.validate_every * self.train.tokens_per_step,
        )


def changes_learning(field: str) -> bool:
    """Whether another value of a run's field makes trials learn otherwise, and so makes another sweep."""
    return not may_change(field) or field in ("data.store", "validate_every", "validate_tokens")


def print_help() -> None:
    """Print the named spaces, and how a space is written."""
    listed = "\n".join(f"  {name:20}{space.about}" for name, space in SPACES.items())
    print(f"usage: {cli.program()} SPACE [options]\n\n{ABOUT}\n\nspace (joined by +):\n{listed}")
    print("  FIELD=a,b,c         a field of the preset: numbers, names, true or false")
    print("  FIELD=low..high     on a logarithmic scale\n")
    print(f"{cli.program()} SPACE --help lists the options; SPACE --preset NAME --help those of that preset.")
    print(f"{cli.program()} --presets WORD... lists the presets that match all words.")


def preset_option(argv: Sequence[str]) -> str | None:
    """The preset that the command line names. It is read first, since it decides which other options there are."""
    named = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    named.add_argument("--preset", nargs="?")
    return named.parse_known_args(argv)[0].preset


def default_sweep(space: str, preset: str | None) -> SweepConfig:
    """The sweep over a space without further options: around ``preset``, or one that the space names. Raises UserError where there
    is no such preset.
    """
    parts = parts_of(space)
    spaces = [SPACES[part] for part in parts if part in SPACES]
    varied = [part.removeprefix("preset=").split(",")[0] for part in parts if part.startswith("preset=")]
    usual = f"validation/bits_per_{'byte' if 'data.store' in space else 'token'}"
    presets = [each.preset for each in spaces if each.preset] + varied
    preset = preset or next(iter(presets), "small-rec")
    if preset not in PRESETS:
        if "/" in preset or Path(preset).exists():
            raise UserError(
                f"--preset {preset} is a path: name the preset of that run, and give its other values as options"
            )
        raise UserError(f"unknown preset {preset!r}: {nearest(preset, PRESETS, '--presets lists them')}")
    return SweepConfig(
        space,
        replace(PRESETS[preset], run=""),
        preset,
        metric=next(filter(None, (each.metric for each in spaces)), usual),
        search=next(filter(None, (each.search for each in spaces)), "random"),
    )


def typed_fields(argv: Sequence[str], config: SweepConfig) -> tuple[str, ...]:
    """The fields of the run that the command line names, sorted, without those that each preset has of its own."""
    words = [word.removeprefix("--").partition("=")[0] for word in argv if word.startswith("--")]
    named = {word.replace("-", "_").replace(".no_", ".") for word in words}
    return tuple(sorted(named & config.flat.keys() - {"preset", "run"}))


def read_command(argv: Sequence[str]) -> SweepConfig:
    """The command line as a sweep. Raises UserError."""
    if argv and argv[0] in ("-h", "--help"):
        print_help()
        sys.exit(0)
    if argv and argv[0] == "--presets":
        print(catalogue.search(argv[1:]))
        sys.exit(0)
    if not argv or argv[0].startswith("-"):
        raise UserError(f"name a space first: {cli.program()} lr (known: {', '.join(SPACES)})")
    space = re.sub(r"\s*(\+|,|=|\.\.)\s*", r"\1", argv[0].strip())  # blanks make no other sweep
    config = cli.parse(
        SweepConfig,
        argv[1:],
        ABOUT,
        default=default_sweep(space, preset_option(argv)),
        prog=f"{cli.program()} {space}",
    )
    config = replace(config, typed=typed_fields(argv, config))
    name = config.train.run or cli.file_name(re.sub("[+=,./]", "-", f"{config.preset}-{space}"))
    workers = max(1, config.train.workers[0])  # the number of a trial's workers never changes
    return replace(config, train=replace(config.train, run=name, num_workers=workers).located())
