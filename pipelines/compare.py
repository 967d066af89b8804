"""Compare runs or sweeps: a table, and curves over tokens, FLOPs and wall time.

    python -m pipelines.compare runs/demo-rec runs/demo-slide
    python -m pipelines.compare runs/sweep                        # one sweep: its trials, and its charts anew
    python -m pipelines.compare runs/sweep-a runs/sweep-b         # several: the best trial of each
    python -m pipelines.compare 3f2a…(32 characters) runs/mine --tracking.uri http://host:5000

Each argument is a folder, or the id of a run in MLflow (for a sweep's run: the runs below it).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from common.errors import UserError
from common.files import digest, parse_json
from common.places import Place
from pipelines.checkpoints.run_folder import RunFolder, is_sweep, root_of
from pipelines.config.run import REPORTS, TrackingConfig
from pipelines.inference.report_folder import HOME, first_writable
from pipelines.inference.targets import tracked_as
from pipelines.reports.comparison import PICTURES, Comparison, compare, comparison_table, seeds_of, write_comparison
from pipelines.reports.finished_runs import collect
from pipelines.reports.index import refresh_index
from pipelines.reports.sweep_report import report_sweep
from pipelines.terminal import cli
from pipelines.terminal.commands import program
from pipelines.terminal.output import print_wide
from pipelines.tracking import Tracker
from pipelines.tracking.client import check_tracking


@dataclass(frozen=True)
class CompareConfig:
    """Runs and sweeps to compare."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN...")]
    """Folders or URIs of runs or sweeps, or ids of runs in MLflow."""
    trials: Literal["auto", "best", "all"] = "auto"
    """Trials of a sweep to compare: the best one, or all with a result. auto: all if the sweep is compared with nothing else."""
    root: str = ""
    """Folder or URI of all runs; by default that of the first run or sweep, or `runs` if only ids are named or nothing can be
    written there. Ids are looked up in its mlflow.db unless --tracking.uri names a server."""
    output: str = ""
    """Folder or URI of the table and the curves: a new or empty one, or that of an earlier report. By default
    `reports/compare-<names>` below the root."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError(f"name at least one run or sweep: {program()} runs/demo-rec runs/demo-slide")


def root_for(asked: str, compared: Sequence[Place]) -> Place:
    """The folder of all runs: as ``asked``, or the one that holds the first of the ``compared`` runs and sweeps, or `runs` where
    nothing can be written there.
    """
    if asked:
        return Place.parse(asked)
    beside = [root_of(place, config_of(place).get("run", "")) for place in compared if place.is_dir()][:1]
    places = [*beside, Place.parse(HOME)]
    chosen = next((place for place in places if (place / REPORTS).is_writable()), places[-1])
    if chosen != places[0]:
        print(f"note: {places[0]} cannot be written: the report goes below {chosen}", flush=True)
    return chosen


def below(all_runs: Place, place: Place) -> str:
    """A run's path below the folder of all runs, such as sweep/trials/003. For a run elsewhere: its last part and a checksum of its
    path. An MLflow id stays as it is.
    """
    root, path = (os.path.abspath(each.path) if each.is_local else each.path for each in (all_runs, place))
    if path.startswith(f"{root.rstrip('/')}/"):
        return os.path.relpath(path, root)
    return f"{place.name}-{digest(path)[:8]}" if place.is_dir() else place.name


def config_of(place: Place) -> dict[str, Any]:
    """The config of the run at a place; empty where that is a sweep, an id, or something else, which is refused later."""
    with suppress(OSError, ValueError):
        config = parse_json((place / "config.json").read_bytes())
        return config if isinstance(config, dict) else {}
    return {}


def run_config_of(place: Place) -> dict[str, Any]:
    """The config of the run at a place; for a sweep, that of a trial that has begun."""
    config = config_of(place)
    if config or not is_sweep(place):
        return config
    return next(filter(None, (config_of(file.place) for file in (place / "trials").list())), {})


def tracking_for(asked: TrackingConfig, compared: Sequence[Place]) -> TrackingConfig:
    """Where to track: as ``asked``, or where the first of the ``compared`` runs is tracked."""
    if asked.uri or asked.backend == "none":
        return asked.located()
    for config in map(run_config_of, compared):
        match config.get("tracking"):
            case {"uri": str(), "backend": str(), "experiment": str()} as tracked:
                return tracked_as(tracked, asked)
    return asked.located()


def main(argv: list[str]) -> None:
    """Compare runs, sweeps and runs of MLflow: print a table, draw the curves. Raises UserError for bad input."""
    config = cli.parse(CompareConfig, argv, __doc__)
    every = config.trials == "all" or (config.trials == "auto" and len(config.runs) == 1)
    places = [Place.parse(name) for name in config.runs]
    config = replace(config, tracking=tracking_for(config.tracking, places))
    all_runs = root_for(config.root, places)
    root = RunFolder(all_runs / REPORTS, trains=True).folder.parent  # for a bucket: the local folder of MLflow's file
    check_tracking(config.tracking, root)
    comparison = compare(collect(config.runs, config.tracking, root, every))
    which = "" if config.trials == "auto" else f"-{config.trials}"
    name = cli.file_name("compare-" + "-vs-".join(below(all_runs, place) for place in places) + which)
    output = first_writable([Place.parse(config.output) if config.output else all_runs / REPORTS / name])
    target = RunFolder(output)  # for a bucket it is written in a working folder first
    paths = write_comparison(comparison, target.folder)
    target.publish_report(paths, PICTURES)
    charts = chart_sweeps(places)

    print_wide(comparison_table(comparison), 150)
    several = seeds_of(comparison)
    if several:
        print_wide(several, 150)
    for note in comparison.notes:
        print(f"note: {note}")
    for path in [*paths, *charts]:
        print(f"  {cli.shown(path)}")
    if not target.is_local:
        print(f"  {output}")
    refresh_index(target.folder)
    track(config, places, comparison, root, paths)


def chart_sweeps(places: Sequence[Place]) -> list[Path]:
    """Draw the charts of the sweeps among these places anew. Returns their files. Where that fails, a warning says why."""
    charts: list[Path] = []
    for sweep in (RunFolder(place) for place in places if is_sweep(place)):
        with cli.as_a_warning(f"no report of the sweep {sweep.place.name}"):
            made = report_sweep(sweep.folder)  # for a bucket: the copy that was fetched to compare
            sweep.publish(*(f"report/{path.name}" for path in made))
            charts += made
    return charts


def track(
    config: CompareConfig, places: Sequence[Place], comparison: Comparison, root: Path, paths: Sequence[Path]
) -> None:
    """Log the table and the curves to an MLflow run of their own. ``root``: the folder of MLflow's file."""
    tracker = Tracker.start(
        replace(config.tracking, system_metrics="off"),
        root=root,
        run_folder=paths[0].parent,
        run_name="compare " + " ".join(place.name[:40] for place in places),
        params={f"compared.{i}": run.name for i, run in enumerate(comparison.runs)},
        tags={"stage": "compare", "metric": comparison.metric, "notes": "; ".join(comparison.notes)},
    )
    tracker.log_artifacts(*paths)
    tracker.finish()


if __name__ == "__main__":
    cli.run(main)
