"""Compare runs or sweeps: a table, and curves over tokens, FLOPs and wall time.

    python -m pipelines.compare runs/demo-rec runs/demo-slide
    python -m pipelines.compare runs/sweep                        # one sweep: its trials, and its charts anew
    python -m pipelines.compare runs/sweep-a runs/sweep-b         # several: the best trial of each
    python -m pipelines.compare 3f2a…(32 characters) runs/mine --tracking.uri http://host:5000

What is compared is a folder, or the id of a run in MLflow (of a sweep's run: the runs below it).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from data_prep.errors import UserError
from pipelines import cli
from pipelines.compared import collect
from pipelines.comparing import Comparison, compare, comparison_table, write_comparison
from pipelines.sweep_report import is_sweep, report_sweep
from pipelines.tracking import Tracker, TrackingConfig


@dataclass(frozen=True)
class CompareConfig:
    """What is compared."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Folders of runs or sweeps, or ids of runs in MLflow."""
    trials: Literal["auto", "best", "all"] = "auto"
    """Of a sweep: its best trial, or all that have a figure; auto takes all where nothing else is compared."""
    root: Path = Path("runs")
    """Folder of all runs, with the mlflow.db that ids are looked up in unless --tracking.uri names a server."""
    output: str = ""
    """Folder of the table and the curves; by default `reports/compare-<names>` below the root."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError("name at least one run or sweep: python -m pipelines.compare runs/demo-rec runs/demo-slide")


def main(argv: list[str]) -> None:
    config = cli.parse(CompareConfig, argv, description=(__doc__ or "").split("\n\n")[0])
    config = replace(config, tracking=config.tracking.located())
    every = config.trials == "all" or (config.trials == "auto" and len(config.runs) == 1)
    root = config.root.absolute()
    comparison = compare(collect(config.runs, config.tracking, root, every))
    titles = [Path(name).name[:40] for name in config.runs]
    folder = (
        Path(config.output).absolute()
        if config.output
        else root / "reports" / cli.file_name("compare-" + "-vs-".join(titles))
    )
    paths = write_comparison(comparison, folder)
    charts: list[Path] = []
    for name in config.runs:
        if is_sweep(Path(name)):
            charts += report_sweep(Path(name))
    track(config, comparison, titles, root, folder, paths)

    Console(width=max(Console().width, 150)).print(comparison_table(comparison))
    for note in comparison.notes:
        print(f"note: {note}")
    for path in [*paths, *charts]:
        print(f"  {cli.shown(path)}")


def track(
    config: CompareConfig, comparison: Comparison, titles: list[str], root: Path, folder: Path, paths: list[Path]
) -> None:
    """The table and the curves as a run of their own in MLflow."""
    tracker = Tracker.start(
        replace(config.tracking, system_metrics="off"),
        root=root,
        run_folder=folder,
        run_name="compare " + " ".join(titles),
        params={f"compared.{i}": run.name for i, run in enumerate(comparison.runs)},
        tags={"stage": "compare", "metric": comparison.metric, "notes": "; ".join(comparison.notes)},
    )
    for path in paths:
        tracker.log_artifact(path)
    tracker.finish()


if __name__ == "__main__":
    cli.run(main)
