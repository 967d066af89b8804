"""The options of `pipelines.tune` besides those of a run, and all checks of them that need no trial.

config, domains = read_and_check(["lr+states", "--preset", "small-rec", "--num-samples", "12"])
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from common.checks import check_fields
from common.credentials import without_credentials
from common.errors import UserError, given_by_user, nearest
from common.places import Place
from pipelines.config.dotted import changes, with_fields
from pipelines.config.parts import times
from pipelines.config.run import TrainConfig, flatten, may_change, to_json
from pipelines.presets import PRESETS, catalogue
from pipelines.sweeps.values import check_values, fitting
from pipelines.terminal import cli
from pipelines.tracking.metrics import check_compared
from tune_spaces import SCHEDULERS, SEARCHERS, SPACES, STOPPERS, combine

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler

ABOUT = "Search over a preset: trials on Ray Tune, several at once, bad ones stopped early. Repeating the command resumes it."
NAMES = {"search": ("random", "grid", *SEARCHERS), "scheduler": tuple(SCHEDULERS), "stop": tuple(STOPPERS)}
"""Known names for the fields that also take an import path."""
PERTURBABLE = ("optim.lr", "optim.max_grad_norm", "schedule.min_lr_ratio")
"""Fields that a run reads anew at every step. Weight decay and betas are in the optimizer's own state."""


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
    """Trials in all, the preset's among them; a grid has one for each combination."""
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

    def __post_init__(self) -> None:
        check_compared("metric", self.metric)
        for name, known in NAMES.items():
            if getattr(self, name) not in known and ":" not in getattr(self, name):
                raise UserError(f"{name} is {getattr(self, name)!r}: {nearest(getattr(self, name), known)}")
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
    def whole(self) -> int:
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
        return {field: self.flat[field] for field in fields}

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
    def least(self) -> int:
        """Tokens before a trial may be stopped: ASHA's first rung."""
        return self.rung_tokens or max(1, self.whole // 9)

    def rule(self, domains: Mapping[str, Any]) -> TrialScheduler:
        """The scheduler of the trials. Raises ValueError where it cannot be made."""
        from tune_spaces.stopping import scheduler

        every = self.train.validate_every * self.train.tokens_per_step
        lengths = {"least": self.least, "most": self.whole, "reduction": self.reduction, "every": every}
        return scheduler(self.scheduler, domains, **lengths)


def read_and_check(words: Sequence[str]) -> tuple[SweepConfig, dict[str, Any]]:
    """The sweep and its domains. Raises UserError for wrong options, and for a sweep that could only fail."""
    config = read_command(words)
    with given_by_user(ValueError):
        domains = combine(config.space, config.flat)
        check(config, domains)
    return config, domains


def changes_learning(field: str) -> bool:
    """Whether another value of a run's field makes trials learn otherwise, and so makes another sweep."""
    return not may_change(field) or field in ("data.store", "validate_every", "validate_tokens")


def read_command(argv: Sequence[str]) -> SweepConfig:
    """The command line as a sweep. Raises UserError."""
    if argv and argv[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:20}{space.about}" for name, space in SPACES.items())
        print(f"usage: {cli.program()} SPACE [options]\n\n{ABOUT}\n\nspace (joined by +):\n{listed}")
        print("  FIELD=a,b,c         a field of the preset: numbers, names, true or false")
        print("  FIELD=low..high     on a logarithmic scale\n")
        print(f"{cli.program()} SPACE --help lists the options; SPACE --preset NAME --help those of that preset.")
        print(f"{cli.program()} --presets WORD... lists the presets that match all words.")
        sys.exit(0)
    if argv and argv[0] == "--presets":
        print(catalogue.search(argv[1:]))
        sys.exit(0)
    if not argv or argv[0].startswith("-"):
        raise UserError(f"name a space first: {cli.program()} lr (known: {', '.join(SPACES)})")
    space = argv[0]
    named = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    named.add_argument("--preset", nargs="?")  # first: the preset decides which other options there are
    preset = named.parse_known_args(argv)[0].preset
    spaces = [SPACES[part] for part in space.split("+") if part in SPACES]
    listed = [part.partition("=")[2].split(",")[0] for part in space.split("+") if part.startswith("preset=")]
    preset = preset or next((each.preset for each in spaces if each.preset), "") or next(iter(listed), "small-rec")
    if preset not in PRESETS:
        raise UserError(f"unknown preset {preset!r}: {nearest(preset, PRESETS, '--presets lists them')}")
    usual = f"validation/bits_per_{'byte' if 'data.store' in space else 'token'}"
    metric = next((each.metric for each in spaces if each.metric), usual)
    search = next((each.search for each in spaces if each.search), "random")
    run = replace(PRESETS[preset], run="")
    default = SweepConfig(space, run, preset, metric=metric, search=search)
    config = cli.parse(SweepConfig, argv[1:], ABOUT, default=default, prog=f"{cli.program()} {space}")
    options = {word[2:].partition("=")[0].replace("-", "_").replace(".no_", ".") for word in argv if word[:2] == "--"}
    config = replace(config, typed=tuple(sorted(options & config.flat.keys() - {"preset", "run"})))
    name = config.train.run or cli.file_name(f"{preset}-{space}".translate(str.maketrans({c: "-" for c in "+=,./"})))
    workers = max(1, config.train.workers[0])  # the number of a trial's workers never changes
    return replace(config, train=replace(config.train, run=name, num_workers=workers).located())


def check(config: SweepConfig, domains: dict[str, Any]) -> None:
    """Raise ValueError, in a sentence, for a sweep that could only fail."""
    from tune_spaces.drawing import Searcher, fields, grid
    from tune_spaces.named import is_exact
    from tune_spaces.stopping import compares_all, stopper

    run = config.train
    every = config.train.validate_every
    if without_credentials(config.space) != config.space:
        raise UserError(
            "the space holds credentials, which each trial's files would show: give them in the environment"
        )
    place = Place.parse(run.root)
    if not place.is_local and run.tracking.backend == "mlflow" and not run.tracking.uri:
        raise UserError(
            f"--root is {place}, and MLflow's own file cannot be in a bucket: name a server by --tracking.uri, or add "
            "--tracking.backend none"
        )
    if config.metric.startswith("validation/") and not every:
        raise UserError(
            f"validate_every is {every}, so that no trial would ever be validated: choose --validate-every "
            f"{max(1, run.steps // 9)}"
        )
    often, steps = ("validate", every) if config.metric.startswith("validation/") else ("log", run.log_every)
    first = min(steps, run.steps) * run.tokens_per_step
    if 0 < config.token_budget < first:
        raise UserError(
            f"a budget of {config.token_budget:,} tokens ends before the first trial's first result, after {first:,} tokens: raise "
            f"--token-budget, or lower --{often}-every"
        )
    if config.rung_tokens >= config.whole:
        raise UserError(
            f"rung_tokens is {config.rung_tokens:,}, and a whole trial has {config.whole:,}: nothing would be stopped"
        )
    for value in getattr(domains.get("preset"), "categories", ()):
        if value not in PRESETS:
            raise UserError(
                f"unknown preset {value!r} in the space {config.space}: {nearest(str(value), PRESETS, '--presets lists them')}"
            )
    for name in fields(domains):
        if name == "model.name":
            raise UserError(f"model.name cannot be varied: {another_model(config, domains)}")
        if not changes_learning(name):
            raise UserError(f"{name} does not change what a trial learns: vary something else")
        if name == "data.store" and config.equalize == "flops":
            own_store = Place.parse(run.data.store) / run.data.corpus
            if not own_store.is_dir():
                raise UserError(
                    f"--equalize flops counts from the preset's own store, and {own_store} is not one: choose another --equalize"
                )
        if name == "steps" and config.equalize != "steps":
            raise UserError(
                f"the space varies steps, which --equalize {config.equalize} chooses for each trial: add --equalize steps"
            )
    check_values(config.space, config.metric, config.run_with, domains, config.own_values(fields(domains)))
    if config.populates:
        fixed = [name for name in fields(domains) if name not in PERTURBABLE]
        if fixed:
            raise UserError(
                f"{config.scheduler} changes the fields of a sweep while its trials run, and {fixed[0]} cannot change in the "
                f"middle of a run (a checkpoint would not fit it): vary {' or '.join(PERTURBABLE)}, or choose --scheduler asha"
            )
        if config.suggested:
            raise UserError(
                f"{config.scheduler} chooses values itself as trials run: with --search {config.search} use --scheduler asha"
            )
        if every >= run.steps:
            raise UserError(
                f"{config.scheduler} compares trials at each validation, and the first is at step {every} of {run.steps}: lower it"
            )
        if config.metric.startswith("train/"):
            raise UserError(
                f"{config.scheduler} compares trials at validations: choose a validation metric in place of {config.metric}"
            )
    config.rule(domains)
    if compares_all(config.scheduler):
        planned = config.num_samples
        if config.max_trials and config.search == "grid":
            combinations = fitting(grid(domains, config.grid_points), config.run_with)
            own = config.own_values(fields(domains))
            planned = len(combinations) + (own is not None and own not in combinations)
        if config.max_trials and config.max_trials < planned:
            raise UserError(
                f"{config.scheduler} waits until all {planned} trials can be compared, and --max-trials {config.max_trials} leaves "
                "some out: lower --num-samples or --grid-points instead"
            )
        if config.max_concurrent_trials:
            raise UserError(
                f"{config.scheduler} lets trials wait for each other, so all that fit must begin: leave out "
                "--max-concurrent-trials"
            )
        print(
            f"note: {config.scheduler} pauses trials and changes them. After a kill each trial continues from its newest "
            "checkpoint and values, so the sweep does not resume exactly"
        )
    stopper(config.stop)
    if config.suggested:
        Searcher(config.search, domains, run.seed)
    for named in (config.scheduler, config.search, config.stop):
        if ":" in named and not is_exact(named):
            print(
                f"note: {named} may decide by more than results, such as the clock. After a kill it gets all results again: it "
                "resumes exactly only if it decides from them alone"
            )


def another_model(config: SweepConfig, domains: Mapping[str, Any]) -> str:
    """A hint on how to compare models, with the presets that the names in the space probably mean."""
    named = [str(value) for value in getattr(domains.get("model.name"), "categories", ())]
    own = config.train.model.name
    meant = [name for name in (config.preset.replace(own, other) for other in named) if name in PRESETS]
    example = f"preset={','.join(meant)}" if len(meant) > 1 else "preset=small-rec,small-slide"
    return f"another model has other fields, which its presets set: vary preset, as in {example}"
