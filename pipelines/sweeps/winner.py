"""What a sweep has found, in its folder: the winner, its command and its preset file.

write_best(sweep, trial)                # <sweep>/best.json
conclude(sweep)                         # prints it all
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from pipelines.checkpoints.run_file import as_preset
from pipelines.config.dotted import options
from pipelines.presets import PRESETS
from pipelines.reports.sweep_findings import print_findings
from pipelines.reports.sweep_result import read_sweep
from pipelines.sweeps.budget import BUDGET
from pipelines.sweeps.sweep import Sweep, Trial
from pipelines.terminal import cli


def winner_command(sweep: Sweep, best: Trial) -> str:
    """The command that trains the winner again."""
    run = sweep.run_of(best)
    preset = best.values.get("preset", sweep.config.preset)
    name = f"{sweep.config.train.run}-best"
    run = replace(run, run=name, allow_change=(), root=cli.shown(run.root) or ".")
    base = replace(PRESETS[preset], run="")
    return shlex.join(["python", "-m", "pipelines.train", preset, *options(run, base)])


def write_best(sweep: Sweep, best: Trial) -> None:
    """best.json: the best trial so far."""
    values = {"trial": best.id, "values": best.values, **(sweep.named(best.best) or {})}
    config = as_preset(replace(sweep.run_of(best), run=f"{sweep.config.train.run}-best", allow_change=()))
    rest = {"metric": sweep.config.metric, "command": winner_command(sweep, best), "exploited": best.exploited}
    sweep.write("best.json", values | rest | {"config": config})


def conclude(sweep: Sweep, spent: str = "") -> int:
    """Say what was found and what to do next; ``spent``: that the budget is. Returns the exit status."""
    if spent:
        left = [trial for trial in sweep.trials.values() if not trial.over or trial.reason.startswith(BUDGET)]
        print(f"{spent}: {len(left)} trials are not done; the same command with a larger budget goes on with them")
    return print_findings(read_sweep(sweep.folder), sweep.run.place)
