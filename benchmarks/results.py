"""Measurements as data: `results/<study>/results.json` keeps them, and a page beside it is rendered from it.

    python -m benchmarks.results                renders results/<study>/index.md for every study
    python -m benchmarks.results --check        ends with status 2 if a page is not what its JSON gives
    python -m benchmarks.pipeline_cost --record the same benchmark, whose result is recorded as well

A study's JSON has a `title`, a `text` (paragraphs below the title), a list `records`, and may have `summaries`, tables whose cells
are those of records (`benchmarks.summaries`), with their `models`. A record has these fields; empty ones are left out:

    name         heading of the record on the page
    text         paragraphs before the result
    columns, rows    the result, a table: its headings, and a list of cells (numbers or Markdown) for each row
    notes        paragraphs after the result
    command      the command that measured it
    commit       short hash of the code that was measured
    fingerprint  of the split that was scored, or of the one that was read in training
    machine      processors or accelerator, "2 × AMD EPYC"
    date         of the measurement, or of its first report; YYYY-MM-DD

A benchmark with `--record` gives its result to a `Recorder`, which replaces the record of the same name, command, commit and
machine. Others stay, so that no measurement is lost.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.summaries import Column, Models, Summary
from common.errors import UserError
from common.files import parse_json, write_atomically
from common.lock import file_lock
from pipelines.terminal import cli
from pipelines.tracking.commit import git_commit

FOLDER = Path(__file__).parents[1] / "results"
JSON = "results.json"
PAGE = "index.md"
NONE = "–"
"""Stands in an empty cell."""

Cell = int | float | str


@dataclass(frozen=True)
class BenchConfig:
    """Pages to render."""

    folder: str = str(FOLDER)
    """Folder of the studies."""
    check: bool = False
    """Write nothing, and fail if a page is missing or out of date."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One result, or a table of them, with what is needed to measure it again. The module's docstring describes the fields."""

    name: str
    text: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    notes: Sequence[str] = ()
    command: str = ""
    commit: str = ""
    fingerprint: str = ""
    machine: str = ""
    date: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a record needs a name")
        if not all(self.columns):
            raise ValueError(f"{self.name}: every column needs a heading")
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"{self.name}: every row needs {len(self.columns)} cells, as many as there are columns")

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The fields that two measurements of the same thing have in common."""
        return self.name, self.command, self.commit, self.machine


@dataclass(frozen=True, kw_only=True)
class Study:
    """The content of one results.json."""

    title: str
    text: Sequence[str] = ()
    models: Models = field(default_factory=dict[str, Sequence[str]])
    summaries: Sequence[Summary] = ()
    records: Sequence[Record] = ()


def record(
    study: str,
    name: str,
    *,
    command: str,
    columns: Sequence[str] = (),
    rows: Sequence[Sequence[Cell]] = (),
    text: Sequence[str] = (),
    fingerprint: str = "",
    folder: Path = FOLDER,
) -> None:
    """Record a result in ``folder``/``study``, which is made if need be, and render its page. Commit, machine and date are those of
    now. Both files are written whole or not at all.

    Raises UserError if the folder cannot be written or its JSON is no study.
    """
    new = Record(
        name=name,
        text=text,
        columns=columns,
        rows=rows,
        command=command,
        commit=git_commit(FOLDER.name, digits=7),
        fingerprint=fingerprint,
        machine=machine.processors(),
        date=time.strftime("%Y-%m-%d"),
    )
    place = folder / study
    with writing(place), file_lock(place, "another benchmark", patience=60.0):
        path = place / JSON
        old = read(path) if path.exists() else Study(title=study.replace("_", " ").capitalize())
        records = [each for each in old.records if each.key != new.key]
        same_name = [at for at, each in enumerate(records) if each.name == name]
        at = same_name[-1] + 1 if same_name else len(records)
        records.insert(at, new)
        updated = replace(old, records=records)
        page = render(updated, folder)
        write_atomically(path, dump(updated).encode())
        write_atomically(place / PAGE, page.encode())


@dataclass(frozen=True)
class Recorder:
    """Records what one run of a benchmark measures, in a study; does nothing where ``active``, its ``--record``, is false.

    Raises UserError when it is made, before anything is measured, if nothing can be recorded in ``folder``.
    """

    study: str
    module: str
    """The benchmark, as after `python -m`."""
    argv: Sequence[str]
    """The words that it was started with."""
    active: bool
    folder: Path = field(default_factory=lambda: FOLDER)

    def __post_init__(self) -> None:
        if self.active and self.folder.is_dir() and not os.access(self.folder, os.W_OK):
            raise not_writable(self.folder, "no write access")

    def table(
        self,
        name: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Cell]],
        *,
        text: Sequence[str] = (),
        fingerprint: str = "",
    ) -> None:
        """Record a table: its headings, and as many cells in each row."""
        if self.active:
            record(
                self.study, name, command=command_of(self.module, self.argv), columns=columns, rows=rows, text=text,
                fingerprint=fingerprint, folder=self.folder,
            )  # fmt: skip


def not_writable(folder: Path, reason: str | None) -> UserError:
    return UserError(f"{folder} cannot be written ({reason}): give write access to it, or leave --record out")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """An OSError within becomes a UserError that names the folder."""
    try:
        yield
    except OSError as error:
        raise not_writable(folder, error.strerror) from error


def read(path: Path) -> Study:
    """The study of a results.json. Raises UserError if the file is no study."""
    try:
        content = parse_json(path.read_text("utf-8"))
        records = [Record(**each) for each in content.pop("records", [])]
        summaries = [_summary(**each) for each in content.pop("summaries", [])]
        return Study(**content, summaries=summaries, records=records)
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no study ({error}): correct it, or restore it with git") from error


def _summary(*, columns: Sequence[Mapping[str, str]], **fields: Any) -> Summary:
    return Summary(columns=[Column(**each) for each in columns], **fields)


def dump(study: Study) -> str:
    """JSON in which a table's row is one line and empty fields are left out."""
    fields = [f' "title": {_json(study.title)}', f' "text": {_list(study.text, 1)}']
    if study.models:
        rows = [f"  {_json(name)}: {_json(names)}" for name, names in study.models.items()]
        fields.append(' "models": {\n' + ",\n".join(rows) + "\n }")
    if study.summaries:
        fields.append(f' "summaries": {_objects(study.summaries)}')
    fields.append(f' "records": {_objects(study.records)}')
    return ",\n".join(["{\n" + fields[0], *fields[1:]]) + "\n}\n"


def _objects(items: Sequence[Record | Summary]) -> str:
    """A list of objects, each field on lines of its own, as deep as a study's lists are."""
    objects = []
    for item in items:
        fields = [f'   "{key}": {_field(value)}' for key, value in filled(asdict(item)).items()]
        objects.append("  {\n" + ",\n".join(fields) + "\n  }")
    return "[\n" + ",\n".join(objects) + "\n ]" if objects else "[\n ]"


def _field(value: object) -> str:
    """The items of a list on lines of their own, at the depth of a record's fields."""
    if not isinstance(value, (list, tuple)):
        return _json(value)
    return _list([filled(item) if isinstance(item, dict) else item for item in value], 3)


def filled(item: Mapping[str, Any]) -> dict[str, Any]:
    """An object without its empty fields."""
    return {key: value for key, value in item.items() if value}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _list(items: Sequence[object], indent: int) -> str:
    if not items:
        return "[]"
    space = " " * indent
    return "[\n" + ",\n".join(f"{space} {_json(item)}" for item in items) + f"\n{space}]"


def render(study: Study, folder: Path = FOLDER) -> str:
    """The page of a study, in Markdown. ``folder`` has the other studies, from which its summaries may take cells.

    Raises UserError if a summary names what no record has.
    """
    blocks = [f"# {study.title}", _paragraphs(study.text)]
    for summary in study.summaries:
        blocks.append(f"## {summary.name}")
        try:
            table = _table(summary.headings(), summary.rows(study.models, finder(study, folder)))
        except UserError:
            raise
        except ValueError as error:
            raise UserError(f"{study.title}, {summary.name}: {error}: correct the summaries in its {JSON}") from error
        blocks += [_paragraphs(summary.text), table]
    heading = ""
    for each in study.records:
        if each.name != heading:
            blocks.append(f"## {each.name}")
        heading = each.name
        table = _table(each.columns, each.rows) if each.columns else ""
        blocks += [_paragraphs(each.text), table, _source(each), _paragraphs(each.notes)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def finder(own: Study, folder: Path) -> Callable[[str, str], Record]:
    """A function that finds the newest record of a name, in the study of a name; "" is the study itself."""

    def find(study: str, name: str) -> Record:
        records = read(folder / study / JSON).records if study else own.records
        found = [each for each in records if each.name == name]
        if not found:
            raise ValueError(f"no record is named {name!r}")
        return found[-1]

    return find


def _paragraphs(texts: Sequence[str]) -> str:
    """Paragraphs with a blank line between two, and none between two items of a list."""
    joined = ""
    for before, text in zip(["", *texts], texts, strict=False):
        gap = "\n" if before.startswith("- ") and text.startswith("- ") else "\n\n"
        joined += (gap if joined else "") + text
    return joined


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    cells = [[str(cell) or NONE for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *cells])


def _source(each: Record) -> str:
    """Where a result comes from: its command, and a line with commit, fingerprint, machine and date."""
    code = "\n".join(f"    {line}" for line in each.command.splitlines())
    parts = [
        f"Commit {each.commit}" if each.commit else "",
        f"fingerprint {each.fingerprint}" if each.fingerprint else "",
        each.machine,
        each.date,
    ]
    line = ", ".join(part for part in parts if part)
    return "\n\n".join(block for block in (code, f"{line[0].upper()}{line[1:]}." if line else "") if block)


def command_of(module: str, argv: Sequence[str]) -> str:
    """The command line that measures again what ``module`` was started for, without `--record`."""
    return shlex.join(["python", "-m", module, *(word for word in argv if word not in ("--record", "--no-record"))])


def main(argv: list[str]) -> None:
    config = cli.parse(BenchConfig, argv, __doc__)
    folder = Path(config.folder)
    studies = sorted(folder.glob(f"*/{JSON}"))
    if not studies:
        raise UserError(f"{folder} has no study (a folder with {JSON}): name the folder with --folder")
    stale = []
    for path in studies:
        page = path.with_name(PAGE)
        text = render(read(path), folder)
        if page.exists() and page.read_text("utf-8") == text:
            continue
        stale.append(os.path.relpath(page))
        if not config.check:
            with writing(path.parent):
                write_atomically(page, text.encode())
    if config.check and stale:
        raise UserError(f"out of date: {', '.join(stale)}; run python -m benchmarks.results")
    print(
        f"{len(studies)} studies, {len(stale)} pages rendered"
        if not config.check
        else f"{len(studies)} studies are current"
    )


if __name__ == "__main__":
    cli.run(main)
