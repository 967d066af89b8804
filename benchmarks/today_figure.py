"""Draws docs/today.png from the recorded results: recall over state tracking, for all models that have both.

    python -m benchmarks.today_figure

`python -m pipelines.paper today figure-1` draws such a picture from runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks import results
from benchmarks.summaries import number, plain
from pipelines.terminal import cli
from studies.papers.picture import plot
from studies.papers.results import Results
from studies.papers.today import RECALL, S3, STATE, TABLES

TABLE = TABLES["figure-1"]
SOURCES = {
    RECALL: ("All models: recall", "16 pairs"),
    S3: ("All models: state tracking", "S3"),
    STATE.name: ("All models: text", "State, bytes a lane"),
}
"""Where each column of the figure stands: a summary of results/today, and a column of it."""


@dataclass(frozen=True)
class BenchConfig:
    """The file to write."""

    output: Path = Path(__file__).parents[1] / "docs" / "today.png"
    """Picture to write."""


def recorded() -> Results:
    """The figure's values, as results/today has them; of several seeds the first."""
    study = results.read(results.FOLDER / "today" / results.JSON)
    tables = {each.name: each for each in study.summaries}
    labels = {
        name: label
        for label in (row.label for row in TABLE.rows)
        for name in study.models
        if label in (name, *study.models[name])
    }
    cells: dict[tuple[str, str], tuple[float, ...]] = {}
    for column, (name, heading) in SOURCES.items():
        at = tables[name].headings().index(heading)
        for row in tables[name].rows(study.models, results.finder(study, results.FOLDER)):
            value = number(plain(row[at]))
            if value is not None:
                cells[labels[row[0]], column] = (value,)
    return Results("today figure-1", TABLE, "tiny", (0,), cells)


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    print(f"The picture is {plot(recorded(), config.output)}")


if __name__ == "__main__":
    cli.run(main)
