"""The papers' tables: their numbers are the papers', every row can be built, and a table is made once, however often killed."""

from __future__ import annotations

import importlib
import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from PIL import Image

from common.errors import UserError
from pipelines.prepare import PrepareConfig, prepare
from pipelines.presets import PRESETS
from pipelines.training import scoring
from pipelines.training.jobs import Job, JobRecord, run_jobs
from studies import paper
from studies.paper import PaperConfig
from studies.papers import PAPERS, plan, trainings
from studies.papers.picture import draw, drawn_columns, plot
from studies.papers.results import Results
from studies.papers.tables import BY_WORD, COSTS, PARAMETERS, Column, Data, Row, Run, Table
from studies.papers.trainings import StudyFolder
from tests.shared_data import need
from tests.small_corpus import flip
from tests.small_runs import values_of

ALL = [(name, table) for name, tables in PAPERS.items() for table in tables]


@pytest.mark.parametrize("scale", ["tiny", "paper"])
@pytest.mark.parametrize(("name", "table"), ALL)
def test_every_row_builds_and_has_a_cost(
    name: str, table: str, scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--root", str(tmp_path), "--dry-run", "--flop-rate", "1e11"]
    assert paper.main([name, table, "--scale", scale, *where]) == 0
    *rows, last = capsys.readouterr().out.splitlines()
    count = int(re.match(r"(\d+) of \1 trainings to do: ", last)[1])  # pyrefly: ignore
    shown = [row for row in rows if row.endswith((" s", "min"))]
    assert len(shown) == count > 0 and not list(tmp_path.iterdir())
    keys = {column.of for column in PAPERS[name][table].columns} - {""}
    for row in PAPERS[name][table].rows:
        assert {run.preset for runs in row.runs.values() for run in runs.values()} <= PRESETS.keys(), row.label
        assert not keys or set(row.runs.get(scale, {})) <= keys, row.label
        assert row.runs or row.paper, row.label


def numbers(paper: str, marker: str, until: str, label: str, count: int) -> list[float]:
    """So many numbers that follow a label, between two places of a paper's text."""
    text = need("..", "papers", f"{paper}.txt").read_text()
    part = text[text.index(marker) :]
    part = re.sub(r"<[^>]*>|\\pm 0.01|\\times 10\^8|\[\d+\]", " ", part[: part.index(until)])
    after = part[part.index(label) + len(label) :]
    return [float(found.replace(",", "")) for found in re.findall(r"(?<![\w.:])\d[\d,]*(?:\.\d+)?(?![\w:])", after)][
        :count
    ]


@pytest.mark.parametrize(
    "label", ["XL:1024", "Rec:lstm:single", "Rec:fixed:skip", "Feedback:lstm:single", "Memorizing Trans. 64k"]
)
def test_block_recurrents_table_1_is_the_papers(label: str) -> None:
    (row,) = [row for row in PAPERS["block-recurrent"]["table-1"].rows if row.label == label]
    found = numbers("block-recurrent-transformers", "Table 1: Average", "4.2 Benefit", label, 7)
    lengths = (
        2 if label.startswith(("XL", "Rec:lstm:dual", "Feedback:lstm", "Mem")) else 0
    )  # cells that span rows stand once
    assert found[lengths : lengths + len(row.paper)] == list(row.paper.values())


def test_a_number_of_reddit_is_of_the_model_that_has_it_in_table_2() -> None:
    tables = PAPERS["staircase"]
    of = {row.paper["test ppl"]: row.runs["paper"][""] for row in tables["table-2"].rows}
    for row in (*tables["table-1"].rows[1:], *tables["figure-2"].rows):
        assert row.runs["paper"]["Reddit"] == of[row.paper["Reddit"]], row.label
    assert [row.x for row in tables["figure-2"].rows] == [0, 1, 1, 2, 4, 8]


def test_the_other_numbers_are_the_papers() -> None:
    text = "block-recurrent-transformers"
    tables = PAPERS["block-recurrent"]
    for label in ("Rec:fixed:skip", "XL:512:13-layer"):
        ours = [row.paper["bits per token"] for row in tables["table-4"].rows if row.label.startswith(label)]
        assert numbers(text, "Table 4: Bits", "Performance on large", label, 6) == ours
    small = numbers(text, "Table 3: Changing", "Appendix E", "Number of states", 25)
    ours = {row.label: row.paper["bits per token"] for row in tables["table-3"].rows}
    assert small[:4] == [128, ours["Rec:fixed:skip, window 128"], ours["Slide:12L, window 128"], 128]
    assert small[-2:] == [2048, ours["Rec:fixed:skip, 2048 states"]]
    (vocabulary,) = [row for row in tables["table-5"].rows if row.label == "SPM 512"]
    assert numbers(text, "Table 5: Test", "Figure 7", "512", 4) == list(vocabulary.paper.values())
    gpt2 = [row.paper for row in PAPERS["gpt2"]["table-2"].rows]
    first, ours = "adding-recurrence-to-pretrained-transformers", [list(row.values()) for row in gpt2]
    found = numbers(first, "300 token window\t0\t172.25", "Table 2", "300 token window", 36)
    assert found[:4] == [0, *ours[0][:2], ours[0][2] / 1e8] and found[-4:] == [200, *ours[8][:2], ours[8][2] / 1e8]
    found = numbers(first, "300 token window\t0\t172.25", "Table 2", "(Ours)", 20)
    assert found[-4:] == [50, *ours[-1][:2], ours[-1][2] / 1e8]
    for label, row in (("Transformer-XL 9", 0), ("Staircase\t117M\t8\t256\t32", 8)):
        values = PAPERS["staircase"]["table-2"].rows[row].paper
        found = numbers("staircase-attention", "Table 2: **Detailed", "baseline performs poorly", label, 3)
        assert found == [values["validation ppl"], values["test ppl"], values["batch time, ms"]]


def results(cells: dict[str, tuple[float, ...]]) -> Results:
    """Our results for rows that the paper has at 1, 2, 3 and 3."""
    rows = tuple(Row(label, {"bits": value}) for label, value in zip("abcd", (1.0, 2.0, 3.0, 3.0), strict=True))
    table = Table("A table", (Column("bits", "bits_per_token"),), rows)
    return Results("mine", table, "tiny", (0, 1), {(label, "bits"): values for label, values in cells.items()})


def test_orderings_that_hold_and_that_do_not_are_named() -> None:
    found = results({"a": (1.5, 1.6), "b": (1.9, 2.3), "c": (2.1, 2.2), "d": (1.0, 1.1)}).ordering(
        Column("bits", "bits_per_token")
    )
    assert found.holds == [("a", "b"), ("a", "c")] and found.fails == [("a", "d"), ("b", "d")]
    assert found.undecided == [("b", "c")]  # c and d are equal in the paper
    few = results({"a": (3.0, 3.1, 2.9), "b": (3.01,), "c": (2.5,), "d": (2.5,)})
    found = few.ordering(Column("bits", "bits_per_token"))
    assert ("a", "b") in found.undecided and ("b", "c") in found.fails  # b's one seed has no spread
    assert "not of all 2 seeds: b (bits) of 1; c (bits) of 1; d (bits) of 1" in few.sentences()
    text = results({"a": (1.5,), "b": (1.0,)}).markdown()
    assert "| a | 1.000 | 1.500 |" in text and "| c | 3.000 | – |" in text
    assert "of 1 pairs of rows that the paper puts apart, 0 are in its order here" in text and "not: a below b" in text
    one = replace(results({"a": (1.5,), "b": (1.0,)}), seeds=(0,))
    assert any("one seed" in said for said in one.remarks()) and "one seed" not in text
    worth = Column("cleared", "states_cleared", form="+.2f")  # of which the paper says nothing
    both = replace(one, table=replace(one.table, columns=(*one.table.columns, worth)), cells={("a", "cleared"): (0.5,)})
    headings, ((*first,), *_) = both.grid()
    assert headings == ["", "bits, paper", "bits, ours", "cleared"] and first == ["a", "1.000", "–", "+0.50"]
    assert both.title() == "mine (A table), ours at scale tiny, seed 0"
    assert "| 1.550 ± 0.071 |" in results({"a": (1.5, 1.6)}).markdown()


def test_a_column_of_the_best_seed_has_its_value_and_the_range_of_all() -> None:
    bits = Column("bits", "bits_per_token", form=".1f", best=True)
    seeds: dict[str, tuple[float, ...]] = {
        "a": (1.5, 1.9, 9.0),
        "b": (2.5, 2.41, 3.0),
        "c": (2.4, 2.8, 2.6),
        "d": (0.1,),
    }
    best = {("a", "bits"): 1.9, ("b", "bits"): 2.41, ("c", "bits"): 2.4}  # by validation, which is not always the least
    found = results(seeds)
    found = replace(found, table=replace(found.table, columns=(bits, PARAMETERS)), best=best, seeds=(0, 1, 2))
    found = replace(found, cells={**found.cells, ("a", "parameters"): (9e6, 9e6, 9e6)})
    _, (first, second, _, alone) = found.grid()
    assert (
        first == ["a", "1.0", "1.9 (1.5 to 9.0)", "9,000,000"] and second[2] == "2.4 (2.4 to 3.0)" and alone[2] == "0.1"
    )
    ordering = found.ordering(bits)
    assert ordering.holds == [("a", "b"), ("a", "c")] and ordering.undecided == [("b", "c")]
    assert found.spread(found.table.rows[0], bits) == (pytest.approx(0.4), pytest.approx(7.1))
    assert any(said.startswith("bits: that of the seed which is the best on validation") for said in found.sentences())
    assert "bits, level: b below c" in found.sentences() and "±" not in found.markdown()


def test_a_picture_has_no_panel_that_nobody_has_a_value_for(tmp_path: Path) -> None:
    bits, worth, time = (
        Column("bits", "bits_per_token"),
        Column("cleared", "states_cleared"),
        Column("ms", "ms_per_step"),
    )
    both = results({"a": (1.5,), "b": (1.0,)})
    both = replace(
        both, table=replace(both.table, columns=(bits, worth)), cells={**both.cells, ("a", "cleared"): (0.5,)}
    )
    assert drawn_columns(both) == ([bits], ["paper", "ours"])
    curves = tuple(replace(row, paper={}, x=place) for place, row in enumerate(both.table.rows, 1))
    ours = replace(both, table=replace(both.table, columns=(bits, worth, time), rows=curves, x="size"))
    assert drawn_columns(ours) == ([bits, worth], ["ours"])  # the time was not measured
    assert drawn_columns(replace(ours, cells={})) == ([bits, worth, time], ["ours"])
    small, large = (Image.open(plot(made, tmp_path / f"{made.table.x}.png")) for made in (ours, both))
    assert small.height < large.height
    sized = replace(ours, table=replace(ours.table, columns=(bits, PARAMETERS)), cells={("a", "parameters"): (9e6,)})
    assert drawn_columns(sized) == ([bits], ["ours"])  # a size is no curve
    alone = replace(ours, table=replace(ours.table, columns=(bits,), x="bits"))
    assert drawn_columns(alone) == ([bits], ["ours"])  # asked for by --columns


@pytest.mark.parametrize(
    ("places", "ticks"), [((50, 3260), [50, 100, 200, 500, 1000, 2000]), ((128, 2048), [128, 256, 512, 1024, 2048])]
)
def test_ticks_are_round_numbers(places: tuple[int, int], ticks: list[int]) -> None:
    rows = tuple(Row(label, {}, x=place) for label, place in zip("ab", places, strict=True))
    made = results({"a": (1.5,), "b": (1.0,)})
    made = replace(made, table=replace(made.table, rows=rows, x="size"))
    axes = Figure().subplots()
    draw(made, axes, made.table.columns[0], False)
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == pytest.approx(ticks)


def test_a_circles_radius_is_proportional_to_the_parameters() -> None:
    """The staircase paper's Figure 3."""
    table = PAPERS["staircase"]["figure-3"]
    labels = ("Transformer-XL 2x deep", "Staircase, 2 steps", "Universal, 2 steps")
    table = replace(table, rows=tuple(row for row in table.rows if row.label in labels))
    counts = {"Transformer-XL 2x deep": 6e5, "Staircase, 2 steps": 4e5, "Universal, 2 steps": 1e5}
    times = {"Transformer-XL 2x deep": 30.0, "Staircase, 2 steps": 20.0, "Universal, 2 steps": 10.0}
    cells = {(label, "parameters"): (count,) for label, count in counts.items()}
    cells |= {(label, "batch time, ms"): (time,) for label, time in times.items()}
    cells |= {(label, "test ppl"): (5.0,) for label in labels}
    made = Results("staircase figure-3", table, "tiny", (0,), cells)
    assert [column.name for column in drawn_columns(made)[0]] == ["validation ppl", "test ppl"]
    (column,) = [column for column in table.columns if column.name == "test ppl"]
    for of_paper, expected in ((True, [218 / 218, 117 / 218, 29 / 218]), (False, [1.0, 4 / 6, 1 / 6])):
        axes = Figure().subplots()
        draw(made, axes, column, of_paper)
        circles = [found for found in axes.collections if isinstance(found, PathCollection)]
        areas = sorted((area for found in circles for area in found.get_sizes()), reverse=True)
        assert [(area / areas[0]) ** 0.5 for area in areas] == pytest.approx(expected)
        legend = axes.get_legend()
        assert legend and legend.get_title().get_text().endswith("218M" if of_paper else "600k")
    headings, rows = made.grid()
    assert headings[1:3] == ["parameters, paper", "parameters, ours"]
    assert rows[0][1:3] == ["218,000,000", "600,000"]


def test_a_corpus_in_place_of_the_papers_is_named() -> None:
    """Beside our values, since the column has the name of the paper's corpus."""
    made = replace(results({"a": (1.5,), "b": (1.9,)}), corpus="python-source")
    assert made.title().startswith("mine (A table), ours at scale tiny, text of python-source, seeds 0, 1")
    assert made.to_json()["corpus"] == "python-source"


def test_many_models_in_a_figure_can_be_told_apart() -> None:
    """Today's Figure 1 has more rows than there are colours; its circles' areas are the sizes of State."""
    table = PAPERS["today"]["figure-1"]
    sizes = {row.label: 1000.0 * (number + 1) for number, row in enumerate(table.rows)}
    cells = {(label, table.size): (size,) for label, size in sizes.items()}
    cells |= {(label, table.x): (5.0 * number,) for number, label in enumerate(sizes)}
    (column,) = [column for column in table.columns if column.name not in (table.x, table.size)]
    cells |= {(label, column.name): (50.0,) for label in sizes}
    axes = Figure().subplots()
    draw(Results("today figure-1", table, "tiny", (0,), cells), axes, column, False)
    looks = {(line.get_color(), line.get_marker()) for line in axes.lines if line.get_marker() not in ("", "None", "_")}
    assert len(looks) == len(sizes) > 20
    circles = [found for found in axes.collections if isinstance(found, PathCollection)]
    areas = sorted(float(area) for found in circles for area in found.get_sizes())
    assert [area / areas[-1] for area in areas] == pytest.approx(
        [size / max(sizes.values()) for size in sizes.values()]
    )
    legend = axes.get_legend()
    assert legend and legend.get_bbox_to_anchor().x0 > axes.bbox.x1


def test_percentages_are_drawn_from_0_to_100() -> None:
    table = replace(PAPERS["today"]["table-1"], rows=PAPERS["today"]["table-1"].rows[:1])
    (parity,) = [column for column in table.columns if column.name.startswith("parity")]
    axes = Figure().subplots()
    results = Results("today table-1", table, "tiny", (0,), {(table.rows[0].label, parity.name): (43.0,)})
    draw(results, axes, parity, False)
    low, high = axes.get_xlim()
    assert low < 0 and high > 100
    assert drawn_columns(results) == ([parity], ["ours"])


TINY: dict[str, Any] = {
    "model.layers": 2, "model.d_model": 16, "model.heads": 2, "model.head_dim": 8, "model.mlp_dim": 32, "model.window": 8,
    "data.lanes": 4, "data.segment_length": 32, "steps": 4, "num_workers": 0, "use_gpu": "no", "validate_every": 0,
    "checkpoint.every": 2, "tracking.backend": "none", "log_every": 1,
}  # fmt: skip
TEXT = Data("text", "bytes")
REC = {**TINY, "model.recurrent_layers": (2,), "model.states": 4}
MINE = Table(
    "Two models",
    (
        Column("bits", "bits_per_token"),
        Column("time", "relative_time"),
    ),
    (
        Row("rec", {"bits": 3.0, "time": 1.0}, {"tiny": {"": Run("small-rec", TEXT, REC)}}),
        Row("slide", {"bits": 3.1}, {"tiny": {"": Run("small-slide", TEXT, TINY)}}),
        Row("another's", {"bits": 2.0}),
    ),
    base="slide",
    cumulative=True,
)


@pytest.fixture
def make(
    make_config: Callable[..., PrepareConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Make the table of two rows of four steps, in this process; returns its JSON."""
    prepare(make_config(store=str(tmp_path / "stores/bytes")))
    monkeypatch.setitem(PAPERS, "mine", {"table-1": MINE})

    done: list[str] = []

    def run(name: str, *words: str, killed_after: int = 99) -> dict[str, Any]:
        def run_here(asked: Sequence[Job], at_once: int = 1, record: JobRecord | None = None) -> list[Job]:
            for number, job in enumerate(asked):
                if number == killed_after:
                    raise KeyboardInterrupt
                importlib.import_module(f"pipelines.{job.module}").main(job.argv)
                done.append(job.name)
                if record:
                    record.keep(job)
            return []

        done.clear()
        monkeypatch.setattr(plan, "run_jobs", run_here)
        where = ["--root", str(tmp_path / name), "--store", str(tmp_path / "stores"), "--flop-rate", "1e11"]
        assert paper.main(["mine", "table-1", *where, *words]) == 0
        folder = max((tmp_path / name / "tables").iterdir(), key=lambda path: (path / "table.md").stat().st_mtime_ns)
        assert {path.name for path in folder.iterdir()} == {"table.md", "table.json", "table.png", "cumulative.png"}
        return {**json.loads((folder / "table.json").read_text()), "done": list(done)}

    return run


@pytest.mark.long
def test_a_table_is_made_once_however_often_it_is_killed(make: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no training of mine table-1 is done"):
        make("one", "--no-train")
    whole = make("one")
    assert len(whole["done"]) == 2 + 2 and [len(row["ours"]) for row in whole["rows"]] == [1, 1, 1, 1, 0, 0]
    assert whole["rows"][3]["ours"] == [1.0] and whole["orderings"].keys() == {"bits"}  # slide's time, against its own

    def ours(values: dict[str, Any]) -> list[Any]:
        return [row["ours"] for row in values["rows"] if row["metric"] != "relative_time"]

    with pytest.raises(KeyboardInterrupt):
        make("two", killed_after=1)
    again = make("two")
    assert ours(again) == ours(whole) and len(again["done"]) == 1 + 2
    report = next((tmp_path / "two/reports").glob("small-rec*")) / "report.json"
    report.write_bytes(report.read_bytes()[:500])  # cut short: it is made again, and nothing else
    third = make("two")
    assert ours(third) == ours(whole) and len(third["done"]) == 1
    shown = make("two", "--no-train", "--only", "rec", "--columns", "bits")
    assert shown["done"] == [] and ours(shown) == ours(whole)[:1]


def test_every_metric_of_a_stack_of_mixers_is_measured(
    make: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"model.layers": ("delta", "window"), "model.key_dim": 4, "model.value_dim": 8, "model.chunk": 4}
    fields = {name: value for name, value in (TINY | sizes).items() if name != "model.head_dim"}
    metrics = (*COSTS, *BY_WORD, "bits_per_byte", "states_cleared", "tokens_per_second", "written_per_second")
    columns = tuple(Column(metric, metric) for metric in metrics)
    row = Row("delta", {}, {"tiny": {"": Run("small-delta", TEXT, fields)}})
    monkeypatch.setitem(PAPERS["mine"], "table-1", Table("A stack", columns, (row,), cumulative=True))
    found = {cell["column"]: cell["ours"] for cell in make("mixers")["rows"]}
    assert [name for name in found if len(found[name]) != 1] == []
    assert found["layers"] == [2.0]


def test_a_table_has_a_folder_for_each_choice_of_what_it_holds() -> None:
    def name(**asked: Any) -> str:
        return PaperConfig("today", "table-1", **asked).name()

    assert name() == "today-table-1-tiny"
    assert name(columns=("MQAR 16",), split="validation") == "today-table-1-tiny-columns-MQAR-16-split-validation"
    assert name(seeds=(0, 1), rates=(0.002,)) == "today-table-1-tiny-seeds-0-1-rates-0.002"
    assert "secret" not in name(set=("tracking.uri=http://me:secret@host",))


def test_a_training_on_data_of_other_options_has_another_name(tmp_path: Path) -> None:
    run = Run("small-rec", Data("text", "bytes", ("--pieces", "2")), REC)
    plain = StudyFolder(tmp_path).training(run, 0).name
    assert StudyFolder(tmp_path, options={"text": {"pieces": "2"}}).training(run, 0).name == plain
    often = StudyFolder(tmp_path, set={"validate_every": 7})
    assert often.training(run, 0).name == plain
    best = replace(run, checkpoint="best")
    assert often.training(best, 0).name != StudyFolder(tmp_path).training(best, 0).name == plain
    other = StudyFolder(tmp_path, options={"text": {"pieces": "3"}}).training(run, 0).name
    assert other != plain and "bytes-pieces-3" in other


def test_another_corpus_takes_the_place_of_text_and_not_of_tasks(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path, corpus="python-source")
    assert study.data(Data("pg19", "bytes")) == Data("python-source", "bytes")
    for task in (Data("names", "bytes"), Data("mqar")):
        assert study.data(task) == task


def test_a_store_of_each_sign_of_an_option() -> None:
    stores = {Data("mqar", options=("--power", power)).store(Path("stores")).name for power in ("1", "-1", ".5", "-.5")}
    assert stores == {"symbols-power-1", "symbols-power-minus-1", "symbols-power-.5", "symbols-power-minus-.5"}


def test_the_best_seed_is_that_of_the_validation(
    make: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_best = replace(MINE, columns=(replace(MINE.columns[0], best=True),))
    monkeypatch.setitem(PAPERS, "mine", {"table-1": of_best})
    seeds = ("--only", "slide", "--seeds", "0", "1", "--set", "tracking.backend=none")
    without = make("one", *seeds)
    (row,) = without["rows"]
    assert row["best"] is None and row["ours"] == []  # nothing was validated: none is the best
    assert len([fact for fact in without["facts"] if "was never validated" in fact]) == 2
    (row,) = make("two", *seeds, "validate_every=4")["rows"]
    validated = []
    for seed in (0, 1):
        (folder,) = (tmp_path / "two").glob(f"small-slide*seed-{seed}")
        validated += values_of(folder, "validation/bits_per_token")
    assert len(validated) == 2 and row["best"] == row["ours"][validated.index(min(validated))]


def test_a_row_has_the_rate_that_is_best_on_validation(make: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    own = PRESETS["small-slide"].optim.lr
    words = ("--only", "slide", "--columns", "bits", "--set", "validate_every=4", "--rates", f"{own:g}", "0.1")
    first = make("one", *words)
    folders = {folder.name: folder for folder in (tmp_path / "one").glob("small-slide*seed-0")}
    assert first["done"][:2] == [f"train {name}" for name in sorted(folders, key=len)]  # lr-0.1 is in the longer name
    validated = {name: values_of(folder, "validation/bits_per_token")[-1] for name, folder in folders.items()}
    best = min(validated, key=lambda name: validated[name])
    assert len(folders) == 2 and first["runs"]["slide"] == [best]
    both = make("one", *words, "--seeds", "0", "1")
    other = best.removesuffix("0") + "1"
    assert both["runs"]["slide"] == [best, other]
    assert [name for name in both["done"] if name.startswith("train")] == [f"train {other}"]
    at_own = int("lr-0.1" not in best)
    said = (
        f"learning rates: the best on validation with seed 0, {own:g} in {at_own}, 0.1 in {1 - at_own} of the trainings"
    )
    assert said in both["facts"]
    third = make("one", *words, "0.2", "--no-train")
    assert "not trained at all 3 rates: small-slide of 2" in third["facts"]


def test_names_are_asked_for_when_the_table_is_written(
    make: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--train", "20", "--validation", "2", "--test", "5", "--distances", "1", "3")
    few = Data("names", "bytes", options)
    words = ["names", *options, "--store", str(few.store(tmp_path / "stores")), "--num-workers", "0"]
    importlib.import_module("pipelines.prepare").main(words)
    columns = (Column("one", "names_wrong", windows=1), Column("three", "names_wrong", windows=3))
    sizes = {**TINY, "model.window": 16}
    row = Row("slide", {}, {"tiny": {"": Run("recall-slide", few, sizes)}})
    monkeypatch.setitem(PAPERS["mine"], "table-1", Table("Names", columns, (row,), cumulative=True))
    assert [cell["ours"] for cell in make("names")["rows"]] == [[100.0], [100.0]]


def test_a_table_by_words_says_why_program_code_has_none(
    make: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = (Column("words", "word_perplexity"), Column("tokens per word", "tokens_per_word"))
    by_word = replace(MINE, columns=(*MINE.columns, *columns), cumulative=True)
    monkeypatch.setitem(PAPERS, "mine", {"table-1": by_word})

    def words(made: dict[str, Any]) -> list[int]:
        per_token, by_word = ([len(row["ours"]) for row in made["rows"] if row["metric"] == each] for each in BY_WORD)
        assert per_token == by_word
        return by_word

    of_text = make("one", "--only", "slide")
    for module in (plan, scoring):
        monkeypatch.setattr(module, "CODE", {"text"})
    of_code = make("two", "--only", "slide")
    assert words(of_text) == [1] and words(of_code) == [0]
    said = "text is program code, of which no metric is given by word"
    assert said in of_code["facts"] and said not in of_text["facts"]


def test_where_the_base_of_times_is_left_out_the_table_says_so(make: Callable[..., dict[str, Any]]) -> None:
    said = "time is against slide, which has none here"
    assert said in make("one", "--only", "rec")["facts"] and said not in make("one")["facts"]


def test_a_training_whose_last_checkpoint_is_damaged_is_named(
    make: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("one", "--only", "slide")
    monkeypatch.setattr(plan, "run_jobs", run_jobs)
    (run,) = (tmp_path / "one").glob("small-slide*")
    weights = max((run / "checkpoints").iterdir()) / "model.safetensors"
    flip(weights, -1)
    shutil.rmtree(tmp_path / "one/reports")
    where = {"root": tmp_path / "one", "store": tmp_path / "stores"}
    asked = paper.PaperConfig("mine", "table-1", **where, only=("slide",)).plan()
    assert [job.name for job in asked.make(1, tmp_path / "here")] == [f"evaluate {run.name}-test"]


def test_a_split_that_stays_empty_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAPERS, "mine", {"table-1": MINE})
    monkeypatch.setattr(paper, "run_jobs", lambda asked: [])
    with pytest.raises(UserError, match=r"prepare text, bytes left a split empty: .*\.log says what to do"):
        paper.main(["mine", "table-1", "--root", str(tmp_path), "--source", "text=few"])


def test_no_secret_is_written_or_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = paper.PaperConfig("gpt2", "table-1", set=("tracking.uri=http://me:hidden@host", "steps=5"))
    assert config.command().endswith("--set tracking.uri=http://host steps=5")
    source = "pg19=s3://me:hidden@bucket"
    asked = paper.PaperConfig("block-recurrent", "table-1", scale="paper", root=tmp_path, source=(source,)).plan()
    monkeypatch.setattr(type(asked), "trainings", lambda self, prepared=True: made if not prepared else ["one"])
    made = [asked.study.training(asked.table.rows[0].runs["paper"]["PG19 tokens"], 0)]
    paper.prepare(asked, train=False)
    said = capsys.readouterr().out
    assert "--source s3://bucket" in said and "hidden" not in said


def test_a_corpus_in_place_of_anothers_keeps_the_vocabulary(tmp_path: Path) -> None:
    place = trainings.StudyFolder(tmp_path, corpus="python-source")
    of_books = PAPERS["gpt2"]["table-2"].rows[0].runs["paper"][""]
    assert place.training(of_books, 0).vocab_size() == of_books.data.vocabulary == 50_258


def test_the_columns_of_a_pictures_x_and_circles_are_never_left_out() -> None:
    table = PAPERS["block-recurrent"]["table-4"]
    assert plan.part_of(table, "table-4", columns=("bits",)).columns == table.columns
    table = PAPERS["staircase"]["figure-3"]
    kept = plan.part_of(table, "figure-3", columns=("test",)).columns
    assert [column.name for column in kept] == ["parameters", "test ppl", "batch time, ms"]


def test_two_models_are_compared_token_by_token_once_both_are_trained(
    make: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        PAPERS, "mine", {"table-1": replace(MINE, tokens=("slide", "rec"), token_words=("--by", "token"))}
    )
    asked = paper.PaperConfig("mine", "table-1", root=tmp_path / "one", store=tmp_path / "stores").plan()
    make("one", "--only", "rec")
    assert asked.comparison_jobs(tmp_path / "here") == []

    def fails(jobs: Sequence[Job], *_: object) -> list[Job]:
        return [job for job in jobs if job.module == "tokens"]

    make("one", "--only", "slide")
    (job,) = asked.comparison_jobs(tmp_path / "here")
    models = [json.loads((Path(word).parents[1] / "config.json").read_text())["model"]["name"] for word in job.argv[:2]]
    assert job.module == "tokens" and models == ["slide", "rec"] and "--by token" in " ".join(job.words)
    validation = replace(
        asked, table=replace(asked.table, columns=(replace(asked.table.columns[0], split="validation"),))
    )
    (of_validation,) = validation.comparison_jobs(tmp_path / "here")
    assert "--split test" in " ".join(job.words) and "--split validation" in " ".join(of_validation.words)
    monkeypatch.setattr(plan, "run_jobs", fails)
    where = ["--root", str(tmp_path / "one"), "--store", str(tmp_path / "stores"), "--flop-rate", "1e11"]
    assert paper.main(["mine", "table-1", *where]) == 1


def test_a_training_of_another_preset_or_store_is_not_taken_for_the_rows(
    make: Callable[..., dict[str, Any]],
    make_config: Callable[..., PrepareConfig],
    text_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make("one", "--only", "rec")
    preset = PRESETS["small-rec"]
    with monkeypatch.context() as patch:  # the preset has changed since
        patch.setitem(PRESETS, "small-rec", replace(preset, optim=replace(preset.optim, lr=1.0)))
        with pytest.raises(UserError, match=r"was trained with optim.lr=0.002, and this command says 1.0"):
            make("one")
    (text_folder / "train/more.txt").write_text("one more document\n")
    prepare(make_config(store=str(tmp_path / "stores/bytes"), overwrite=True))
    with pytest.raises(UserError, match=r"was trained on another store than .*: name another --root, or remove"):
        make("one", "--only", "rec")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["today", "table-1", "--rates", "0.1", "0.1"], r"--rates are \(0.1, 0.1\): give learning rates above 0"),
        (["today", "table-1", "--only", "mamba2", "--set", "model.householders=2"], "no layer reads it: name delta"),
        (["today", "table-1", "--rates", "0.1", "--set", "optim.lr=1"], "--rates and --set optim.lr"),
        (["block-recurrent", "table-3"], r"prepare pg19 .* --source FOLDER .*--corpus python-source"),
        (["block-recurrent", "table-3", "--corpus", "python-source"], "prepare python-source, .* failed: .* says why"),
        (["block-recurrent", "table-9"], "there is no 'table-9': "),
        (["gpt3", "table-1"], "there is no 'gpt3': did you mean 'gpt2'"),
        (["gpt2", "table-1", "--only", "rex"], "nothing with 'rex' in its name: GPT-2, overlap 0"),
        (["gpt2", "table-1", "--set", "steps"], "--set steps: write a name and its value"),
        (["gpt2", "table-1", "--set", "stepz=3"], "no field 'stepz': did you mean 'steps'"),
        (["gpt2", "table-1", "--set", "steps=abc"], "steps is 'abc': give a value such as"),
        (["gpt2", "table-1", "--set", "optim.lr=NaN"], "optim.lr is 'NaN': give a value such as 0.0"),
        (["gpt2", "table-1", "--set", "data.corpus=text"], "--set data.corpus=text: that is each training's own"),
        (["gpt2", "table-1", "--flop-rate", "-1"], "--flop-rate is -1"),
        (["gpt2", "table-1", "--no-train"], "leave out --no-train"),
        (["gpt2", "table-1", "--source", "pg20=x"], "no corpus 'pg20': did you mean 'pg19'"),
        (["gpt2", "table-1", "--split", "tests"], "unknown split 'tests': did you mean 'test'"),
        (["gpt2", "table-1", "--seeds", "1", "1"], "each seed once"),
        (["gpt2", "table-1", "--store", "s3://bucket/stores"], "--store is s3:/bucket/stores, a URI"),
        (["gpt2", "table-1", "--set", "model.pretrained=/nowhere", "--dry-run"], "/nowhere, which is neither a folder"),
        (["block-recurrent", "table-3", "--source", "pg19=/mnt/MY_FOLDER"], "prepare pg19, .* failed: .* says why"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "run_jobs", list)  # every job of preparing fails
    with pytest.raises(UserError, match=sentence):
        paper.main([*words, "--root", str(tmp_path)])


def test_steps_are_timed_where_they_are_small(tmp_path: Path) -> None:
    place = trainings.StudyFolder(tmp_path)
    cost = place.training(Run("small-slide", TEXT, TINY), 0).cost()
    assert 0 < cost.seconds < 60 and cost.tokens == 4 * 4 * 32 and cost.bytes == 16 * cost.parameters
    large = place.training(Run("pg19-slide-13L", TEXT), 0).cost()
    assert large.bytes == 12 * large.parameters  # Adafactor keeps no second moment of each weight
    assert large.seconds == pytest.approx(large.flops / trainings.ASSUMED_RATE)


@pytest.mark.parametrize(("checkpoint", "value"), [("newest", 2.5), ("best", 2.0)])
def test_the_last_validation_counts_or_the_least_where_the_best_is_scored(
    checkpoint: Any, value: float, tmp_path: Path
) -> None:
    training = trainings.StudyFolder(tmp_path).training(replace(Run("small-rec", TEXT, REC), checkpoint=checkpoint), 0)
    assert training.validated(errors=False) == math.inf
    training.folder.mkdir()
    bits = (3.0, 2.0, 2.5)
    points = [{"step": i, "time": i, "metrics": {"validation/bits_per_token": each}} for i, each in enumerate(bits)]
    (training.folder / "metrics.jsonl").write_text("".join(f"{json.dumps(point)}\n" for point in points))
    assert training.validated(errors=False) == value and training.validated(errors=True) == math.inf


def test_either_rows_seeds_may_leave_a_pair_undecided() -> None:
    found = results({"a": (2.0, 2.0), "b": (1.5, 2.9)}).ordering(Column("bits", "bits_per_token"))
    assert found.undecided == [("a", "b")]


def test_large_steps_have_the_median_time_of_their_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = trainings.StudyFolder(tmp_path).training(Run("small-rec", TEXT, REC), 0)
    monkeypatch.setattr(trainings, "MEASURED_FLOPS", 0)
    assert training.ms_per_step() is None
    training.folder.mkdir()
    points = [(n, {"train/tokens": 128 * n, "train/tokens_per_second": 256.0 * n}) for n in (1, 2, 8)]
    lines = [json.dumps({"step": step, "time": 0, "metrics": metrics}) + "\n" for step, metrics in points]
    (training.folder / "metrics.jsonl").write_text("".join(lines))
    assert training.ms_per_step() == 1e3 * 128 / 512


def test_a_corpus_in_place_of_texts_leaves_tasks_alone(tmp_path: Path) -> None:
    place = trainings.StudyFolder(tmp_path, corpus="text")
    assert place.data(Data("mqar", options=("--pairs", "4"))) == Data("mqar", options=("--pairs", "4"))
    assert place.data(Data("pg19", "bytes", ("--books", "2"))) == Data("text", "bytes")
