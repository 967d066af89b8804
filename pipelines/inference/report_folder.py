"""The folder that a report is written to: beside the run that it is about, or where the user asks for it.

output = output_for(config.output, targets[0].run, "rec-vs-slide", config.split)  # UserError where it would spoil files
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from common.errors import UserError
from common.places import Place
from pipelines.checkpoints.run_folder import RunFolder, reports_of
from pipelines.config.run import REPORTS
from pipelines.terminal import cli

HOME = "runs"
"""Folder of all runs by default, where `make ui` looks; also of reports whose run cannot be written to."""
PARTIAL = ".partial"
"""Subfolder of the report with the partial results of an unfinished evaluation."""
OF_REPORTS = ("report.json", "comparison.csv", "tokens.html", "continuations.md", PARTIAL)
"""Names that mark a folder as a report's. Every command but `tokens` makes one of them first."""
LOSSES = ".arrow"
"""Ending of the files of losses, which `tokens` writes before its page. A record stands beside each, with the ending .json."""
UNFINISHED_LOSSES = ".token-losses-"
"""Prefix of the name of a folder in which `tokens` makes such a file."""
OF_OTHERS = {
    "config.json": "a run or a model",
    "sweep.json": "a sweep",
    "checkpoint.json": "a checkpoint",
    "manifest.json": "a split of a store",
    "_embeddings.json": "embeddings",
}
"""Files that mark a folder as something else's, and whose."""


def output_for(asked: str, run: RunFolder | None, name: str, split: str) -> Place:
    """The place of the report: ``asked`` if given, else a folder of this name in `reports` beside the run, or beside the sweep that
    it is a trial of. The split is appended to the name if it is not test.

    Where that cannot be written, the folder is below `HOME`. Its name then has a digest of the run's place, since runs of one name
    may lie in several places. Raises UserError, before anything is scored, where it cannot be written either.
    """
    name = cli.file_name(name if split == "test" else f"{name}-{split}")
    reports = Place.parse(HOME) / REPORTS
    if asked:
        places = [Place.parse(asked)]
    elif run is None:
        places = [reports / name]
    else:
        digest = xxhash.xxh3_64_hexdigest(run.place.recorded.encode(errors="surrogateescape"))[:8]
        places = [reports_of(run) / name, reports / cli.file_name(f"{name}-{digest}")]
    chosen = first_writable(places)
    if chosen != places[0]:
        print(f"note: {places[0].parent} cannot be written: the report goes to {chosen}", flush=True)
    return chosen


def first_writable(places: Sequence[Place]) -> Place:
    """The first of the folders to which a report can be written.

    Raises UserError if there is none, or if the folder holds other files, which a report could replace.
    """
    found = next((place for place in places if place.is_writable() and not place.is_file()), None)
    if found is None:
        raise UserError(f"the report cannot be written to {places[-1]}: name another folder with --output")
    names = {entry.name for entry in found.list()}
    records = {name.removesuffix(LOSSES) + ".json" for name in names if name.endswith(LOSSES)} & names
    for name, what in OF_OTHERS.items():
        if name in names - records:
            raise UserError(
                f"{found / name} belongs to {what}, which a report would spoil: name another folder with --output"
            )
    foreign = sorted(name for name in names if not name.startswith("."))
    is_report = records or any(name in OF_REPORTS or name.startswith(UNFINISHED_LOSSES) for name in names)
    if foreign and not is_report:
        raise UserError(
            f"{found} has files of its own, such as {foreign[0]}, and the report could replace some: name a new or empty folder "
            "with --output"
        )
    return found
