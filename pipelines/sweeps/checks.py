"""A sweep that could only fail is refused before its first trial, in one sentence.

config, domains = read_and_check(["lr+states", "--preset", "small-rec", "--num-samples", "12"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.credentials import without_credentials
from common.errors import UserError, given_by_user, nearest
from common.places import Place
from pipelines.presets import PRESETS
from pipelines.sweeps.command import SweepConfig, changes_learning, read_command
from pipelines.sweeps.values import check_values, fitting
from tune_spaces import combine, fields

PERTURBABLE = ("optim.lr", "optim.max_grad_norm", "schedule.min_lr_ratio")
"""Fields that a run reads anew at every step. Weight decay and betas are in the optimizer's own state."""


def read_and_check(words: Sequence[str]) -> tuple[SweepConfig, dict[str, Any]]:
    """The sweep and its domains. Raises UserError for wrong options, and for a sweep that could only fail."""
    config = read_command(words)
    with given_by_user(ValueError):
        domains = combine(config.space, config.flat)
        check(config, domains)
    return config, domains


def check(config: SweepConfig, domains: dict[str, Any]) -> None:
    """Raise ValueError, in a sentence, for a sweep that could only fail."""
    from tune_spaces.drawing import Searcher
    from tune_spaces.stopping import pauses_trials, stopper

    check_files(config)
    check_lengths(config)
    check_presets(config, domains)
    check_varied(config, domains)
    if config.populates:
        check_population(config, domains)
    config.make_scheduler(domains)
    if pauses_trials(config.scheduler):
        check_waiting(config, domains)
    stopper(config.stop)
    if config.suggested:
        Searcher(config.search, domains, config.train.seed)
    note_own_decisions(config)


def check_files(config: SweepConfig) -> None:
    """Raise UserError where a trial's files would show credentials, or could not be written."""
    if without_credentials(config.space) != config.space:
        raise UserError(
            "the space holds credentials, which each trial's files would show: give them in the environment"
        )
    place = Place.parse(config.train.root)
    tracking = config.train.tracking
    if not place.is_local and tracking.in_own_file:
        raise UserError(
            f"--root is {place}, and MLflow's own file cannot be in a bucket: name a server by --tracking.uri, or add "
            "--tracking.backend none"
        )


def check_lengths(config: SweepConfig) -> None:
    """Raise UserError where a trial has no result to be compared by, or none before the sweep ends."""
    run = config.train
    option = "log-every"
    every = run.log_every
    if config.metric.startswith("validation/"):
        if not run.validate_every:
            raise UserError(
                f"validate_every is {run.validate_every}, so that no trial would ever be validated: choose --validate-every "
                f"{max(1, run.steps // 9)}"
            )
        option = "validate-every"
        every = run.validate_every
    first = min(every, run.steps) * run.tokens_per_step
    if 0 < config.token_budget < first:
        raise UserError(
            f"a budget of {config.token_budget:,} tokens ends before the first trial's first result, after {first:,} tokens: raise "
            f"--token-budget, or lower --{option}"
        )
    if config.rung_tokens >= config.tokens_per_trial:
        raise UserError(
            f"--rung-tokens is {config.rung_tokens:,}, and a whole trial has {config.tokens_per_trial:,}, so nothing would be "
            "stopped: give less, or --scheduler none"
        )
    if first == config.tokens_per_trial and config.scheduler in ("asha", "median"):
        print(
            f"note: a trial's first result is its last, so {config.scheduler} stops none early: lower --{option} to stop some",
            flush=True,
        )


def check_presets(config: SweepConfig, domains: Mapping[str, Any]) -> None:
    """Raise UserError where the space names a preset that does not exist."""
    for value in getattr(domains.get("preset"), "categories", ()):
        if value not in PRESETS:
            raise UserError(
                f"unknown preset {value!r} in the space {config.space}: {nearest(str(value), PRESETS, '--presets lists them')}"
            )


def check_varied(config: SweepConfig, domains: Mapping[str, Any]) -> None:
    """Raise UserError where a field cannot be varied, or a value makes no run."""
    for name in fields(domains):
        if name == "model.name":
            raise UserError(f"model.name cannot be varied: {another_model(config, domains)}")
        if not changes_learning(name):
            raise UserError(f"{name} does not change what a trial learns: vary something else")
        if name == "data.store" and config.equalize == "flops":
            own_store = Place.parse(config.train.data.store) / config.train.data.corpus
            if not own_store.is_dir():
                raise UserError(
                    f"--equalize flops counts from the preset's own store, and {own_store} is not one: choose another --equalize"
                )
        if name == "steps" and config.equalize != "steps":
            raise UserError(
                f"the space varies steps, which --equalize {config.equalize} chooses for each trial: add --equalize steps"
            )
    check_values(config.space, config.metric, config.run_with, domains, config.own_values(fields(domains)))


def another_model(config: SweepConfig, domains: Mapping[str, Any]) -> str:
    """A hint on how to compare models, with the presets that the names in the space probably mean."""
    named = [str(value) for value in getattr(domains.get("model.name"), "categories", ())]
    own = config.train.model.name
    meant = [name for name in (config.preset.replace(own, other) for other in named) if name in PRESETS]
    example = f"preset={','.join(meant)}" if len(meant) > 1 else "preset=small-rec,small-slide"
    return f"another model has other fields, which its presets set: vary preset, as in {example}"


def check_population(config: SweepConfig, domains: Mapping[str, Any]) -> None:
    """Raise UserError where a scheduler that changes running trials cannot change these."""
    run = config.train
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
    if run.validate_every >= run.steps:
        raise UserError(
            f"{config.scheduler} compares trials at each validation, and the first is at step {run.validate_every} of {run.steps}: "
            "lower --validate-every"
        )
    if config.metric.startswith("train/"):
        raise UserError(
            f"{config.scheduler} compares trials at validations: choose a validation metric in place of {config.metric}"
        )


def check_waiting(config: SweepConfig, domains: Mapping[str, Any]) -> None:
    """Raise UserError where a scheduler waits for trials that would never begin, or lacks the searcher that it needs. Else note how
    its sweep resumes.
    """
    from tune_spaces.drawing import grid
    from tune_spaces.stopping import needs_searcher

    if needs_searcher(config.scheduler) and not config.suggested:
        raise UserError(
            f"{config.scheduler} works with a searcher alone: add --search bohb, or choose ray.tune.schedulers:HyperBandScheduler"
        )
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


def note_own_decisions(config: SweepConfig) -> None:
    """Print a note for each scheduler, searcher and stopper that may not decide the same again after a kill."""
    from tune_spaces.named import Named

    for text in (config.scheduler, config.search, config.stop):
        if ":" in text and not Named.parse(text).is_exact:
            print(
                f"note: {text} may decide by more than results, such as the clock. After a kill it gets all results again: it "
                "resumes exactly only if it decides from them alone"
            )
