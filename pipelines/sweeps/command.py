"""A sweep's command line, and all that can be said against it before anything is begun.

config = read_command(["lr+states", "--preset", "small-rec", "--samples", "12"])
check(config, domains)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from data_prep.credentials import without_credentials
from data_prep.errors import UserError, nearest
from data_prep.places import Place
from data_prep.store import SegmentStore
from pipelines.config.run import flatten, to_json
from pipelines.presets import PRESETS
from pipelines.sweeps.config import rule_of
from pipelines.sweeps.population import PERTURBABLE
from pipelines.sweeps.sweep import CHANGEABLE_OF_RUN, SweepConfig
from pipelines.terminal import cli
from tune_spaces import SPACES, Plateau
from tune_spaces.drawing import Searcher, fields

ABOUT = "Search over a preset: trials on Ray Tune, several at once, bad ones stopped early. Repeating the command resumes it."


def read_command(argv: Sequence[str]) -> SweepConfig:
    """The command line as a sweep. Raises UserError."""
    if argv and argv[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:20}{space.about}" for name, space in SPACES.items())
        print(f"usage: {cli.program()} SPACE [options]\n\n{ABOUT}\n\nspace (joined by +):\n{listed}")
        print("  FIELD=a,b,c         any field of the preset\n  FIELD=low..high     on a logarithmic scale\n")
        print(f"{cli.program()} SPACE --help lists the options; SPACE --preset NAME --help those of that preset.")
        sys.exit(0)
    if not argv or argv[0].startswith("-"):
        raise UserError(f"name a space first: {cli.program()} lr (known: {', '.join(SPACES)})")
    space = argv[0]
    named = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    named.add_argument("--preset", nargs="?")  # before all others: they are those of this preset
    preset = named.parse_known_args(argv)[0].preset
    preset = preset or ("pg19-rec-fixed-skip" if space.startswith("rec-table") else "small-rec")
    if preset not in PRESETS:
        raise UserError(f"unknown preset {preset!r}: {nearest(preset, PRESETS)}")
    metric: Any = (
        "validation/bits_per_byte" if "data.store" in space or space == "rec-table-5" else "validation/bits_per_token"
    )
    search: Any = "grid" if space.startswith("rec-table") else "random"
    default = SweepConfig(space, replace(PRESETS[preset], run=""), preset, metric=metric, search=search)
    config = cli.parse(SweepConfig, argv[1:], ABOUT, default=default, prog=f"{cli.program()} {space}")
    name = config.train.run or f"{preset}-{space}".translate(str.maketrans({c: "-" for c in "+=,./"}))
    numbers = config.train.workers
    if numbers[0] < 2 or len(numbers) > 1:  # a trial's workers are its own throughout
        config = replace(config, train=replace(config.train, num_workers=max(1, numbers[0])))
    return replace(config, train=replace(config.train, run=name).located())


def check(config: SweepConfig, domains: dict[str, Any]) -> None:
    """Raise ValueError, in a sentence, for a sweep that could only fail."""
    run, every = config.train, config.train.validate_every
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
    if config.metric.startswith("validation/") and not 0 < every <= run.steps:
        raise UserError(
            f"validate_every is {every} and steps {run.steps}, so that no trial would ever be validated: choose --validate-every "
            f"{max(1, run.steps // 9)}"
        )
    if config.metric.endswith("states_cleared") and "model.states" not in flatten(to_json(run)):
        raise UserError(
            f"{config.preset} has no states, so that {config.metric} is never logged: choose another --metric"
        )
    first = (every or run.log_every) * run.tokens_per_step
    if 0 < config.tokens < first:
        raise UserError(
            f"a budget of {config.tokens:,} tokens ends before the first trial's first figure, after {first:,} tokens: raise "
            "--tokens, or lower --validate-every"
        )
    if config.rung_tokens >= config.whole:
        raise UserError(
            f"rung_tokens is {config.rung_tokens:,}, and a whole trial has {config.whole:,}: nothing would be stopped"
        )
    for name in fields(domains):
        if any(name == free or name.startswith(f"{free}.") for free in CHANGEABLE_OF_RUN):
            raise UserError(f"{name} does not change what a trial learns: vary something else")
        if name == "steps" and config.equal != "steps":
            raise UserError(
                f"the space varies steps, which --equal {config.equal} chooses for each trial: add --equal steps"
            )
    if config.populates:
        if fixed := [name for name in fields(domains) if name not in PERTURBABLE]:
            raise UserError(
                f"{config.scheduler} changes the fields of a sweep while its trials run, and {fixed[0]} cannot change in the "
                f"middle of a run (a checkpoint would not fit it): vary {' or '.join(PERTURBABLE)}, or choose --scheduler asha"
            )
        if config.suggested:
            raise UserError(
                f"{config.scheduler} chooses by itself as it goes on: with --search {config.search} use --scheduler asha"
            )
        if every >= run.steps:
            raise UserError(
                f"{config.scheduler} compares trials at each validation, and the first is at step {every} of {run.steps}: lower it"
            )
        if config.metric.startswith("train/"):
            raise UserError(
                f"{config.scheduler} compares trials where they are validated, and {config.metric} is no such figure"
            )
    if rule_of(config, domains).own:
        print(
            f"note: {config.scheduler} is not Ray Tune's own: after a kill it is told all results again, and goes on as before "
            "only if it decides by these alone"
        )
    Plateau(config.stop)
    if config.suggested:
        Searcher(config.search, domains, run.seed)
    if "data.store" not in fields(domains):
        for split in ("train", "validation") if every else ("train",):
            SegmentStore.open(run.data.store, run.data.corpus, split)
