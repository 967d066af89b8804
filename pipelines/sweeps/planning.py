"""The trials of a sweep. Before it begins: the preset itself, and those of a grid or of random draws. As it runs: those that a
searcher suggests.

planned = open_or_plan(sweep, domains)    # nothing is written yet
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.errors import UserError, given_by_user, last_part
from pipelines.reports.sweep_result import Trial
from pipelines.sweeps.sweep import Sweep
from pipelines.terminal.output import print_wide
from pipelines.terminal.tables import counted, plain_table, short
from tune_spaces.drawing import Searcher, draw, grid

MAX_DRAWS = 200
"""Most attempts to draw a trial: a draw that was made before, or that does not fit, is drawn again."""
NEXT_ATTEMPT = 1_000_003
"""Distance between the numbers of a trial's attempts, so that no attempt is the first one of another trial."""


def open_or_plan(sweep: Sweep, domains: Mapping[str, Any]) -> bool:
    """Read the sweep's folder, or plan the trials of a new sweep, or the further ones of a larger --num-samples.

    Returns whether sweep.json has this plan; else it is to be written. Raises UserError.
    """
    begun = sweep.open_folder()
    if begun and not sweep.grown:
        return True
    config = sweep.config
    baseline = config.own_values(sweep.fields)
    if baseline is not None and not begun:
        add(sweep, baseline, baseline=True)
    if config.search == "grid" and not begun:
        plan_grid(sweep, domains)
    elif config.search == "random":
        plan_random(sweep, domains)
    if not sweep.trials and not config.suggested:
        raise UserError(f"nothing of the space {config.space} fits {config.preset}: vary something else")
    return False


def plan_grid(sweep: Sweep, domains: Mapping[str, Any]) -> None:
    """Add a trial for each combination of the grid that fits together, but for the preset's own values."""
    baseline = sweep.config.own_values(sweep.fields)
    with given_by_user(ValueError):
        combinations = [values for values in grid(domains, sweep.config.grid_points) if values != baseline]
    added = [add(sweep, values) for values in combinations if fits(sweep, values)]
    left_out = len(combinations) - len(added)
    if left_out:
        print(f"  note    {left_out} combinations of the grid do not fit together and are left out", flush=True)


def plan_random(sweep: Sweep, domains: Mapping[str, Any]) -> None:
    """Add random trials until there are ``num_samples``, or none is found that is new and fits together."""
    drawn = sum(not trial.baseline for trial in sweep.trials.values())
    for index in range(drawn, drawn + sweep.config.num_samples - len(sweep.trials)):
        values = draw_new(sweep, domains, index)
        if values is None:
            print(f"  note    the space has no more than {len(sweep.trials)} different trials", flush=True)
            return
        add(sweep, values)


def draw_new(sweep: Sweep, domains: Mapping[str, Any], index: int) -> dict[str, Any] | None:
    """Values of no trial yet that fit together; None after `MAX_DRAWS` attempts. ``index`` numbers the sweep's random trials."""
    before = [trial.values for trial in sweep.trials.values()]
    for attempt in range(MAX_DRAWS):
        values = draw(domains, sweep.config.train.seed, index + attempt * NEXT_ATTEMPT)
        if values not in before and fits(sweep, values):
            return values
    return None


def suggest(sweep: Sweep, searcher: Searcher) -> Trial | None:
    """Add the trial that a searcher suggests, if it has one now; each draw is a line of results.jsonl.

    Raises UserError where none of `MAX_DRAWS` suggestions fits.
    """
    number = f"{len(sweep.trials):03d}"
    for attempt in range(MAX_DRAWS):
        name = f"{number}.{attempt}" if attempt else number
        values = searcher.suggest(name)
        if values is None:
            return None
        fitting = fits(sweep, values)
        sweep.note(event="draw", name=name, trial=number if fitting else None, values=values)
        if fitting:
            trial = add(sweep, values)
            sweep.save(trial)
            return trial
        searcher.complete(name, 0, None)
    raise UserError(f"--search {sweep.config.search} suggests nothing more that fits {sweep.config.preset}")


def fits(sweep: Sweep, values: dict[str, Any]) -> bool:
    """Whether these values make a run."""
    try:
        sweep.run_of(Trial("", values))
    except ValueError:
        return False
    return True


def add(sweep: Sweep, values: dict[str, Any], baseline: bool = False) -> Trial:
    """Add a trial of these values. Raises UserError where no new run should begin with them."""
    trial = Trial(f"{len(sweep.trials):03d}", values, baseline=baseline)
    with given_by_user(ValueError):
        sweep.run_of(trial).model.check_new()
    sweep.trials[trial.id] = trial
    return trial


def print_plan(sweep: Sweep) -> None:
    """Print the trials that are planned so far, what each costs if it runs to its end, and the sum of those that are left."""
    config = sweep.config
    known = sweep.known
    left = [trial for trial in sweep.left if trial in known]
    rows = list[list[str]]()
    tokens = 0
    flops = 0.0
    for trial in sweep.trials.values():
        run = sweep.run_of(trial)
        size = run.steps * run.tokens_per_step
        cost = size * sweep.training_flops_per_token(run)
        if trial in left:
            tokens += size
            flops += cost
        name = f"{trial.id} (preset)" if trial.baseline else trial.id
        values = (str(trial.values[field]) for field in sweep.fields)
        rows.append([name, *values, f"{run.steps:,}", short(size), f"{cost:.2e}", trial.status])
    names = [last_part(field) for field in sweep.fields]
    print_wide(plain_table(("trial", *names, "steps", "tokens", "FLOPs", "status"), rows), 180)
    print(f"{len(left)} of {counted(len(rows), 'trial')} to do, at most {short(tokens)} tokens and {flops:.2e} FLOPs")
    further = min(config.max_trials or config.num_samples, config.num_samples) - len(rows)
    if config.suggested and further > 0:
        print(f"{config.search} suggests {further} more as trials end")
