"""The block-recurrent paper's tables: which splits and texts its numbers come from, and what is said beside them."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from data_prep.documents import SPLITS
from data_prep.store import SegmentStore
from pipelines import prepare as prepare_command
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from pipelines.tracking.score import Evaluation, Score
from studies import paper
from studies import tokens as tokens_command
from studies.papers import PAPERS
from studies.papers.block_recurrent import SCALES
from studies.papers.plan import metric_of
from studies.papers.tables import Column, Data, Metric
from studies.papers.trainings import StudyFolder
from tests.shared_data import need
from tests.small_archives import put

ROOT = Path(__file__).parents[2]
TABLES = PAPERS["block-recurrent"]


def test_a_corpus_is_scored_on_the_split_that_appendix_c_names() -> None:
    expected = {"PG19 bytes": "test", "PG19 tokens": "test", "arXiv": "test", "GitHub": "validation"}
    assert {column.of: column.split for column in TABLES["table-1"].columns if column.of} == expected


def test_appendix_c_reports_test_for_pg19_and_arxiv_and_validation_for_github() -> None:
    text = need("..", "papers", "block-recurrent-transformers.txt").read_text()
    details = text[text.index("## Appendix C Training Details") : text.index("### C.1 Dataset")]
    assert re.findall(r"Reported results are for the \W(\w+)\W split", details) == ["test", "test", "validation"]


def test_the_step_time_needs_no_other_split_than_the_numbers_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ("step time", "GitHub")
    config = paper.PaperConfig("block-recurrent", "table-1", only=("Slide:12L",), columns=columns)
    monkeypatch.setattr(type(config.plan().study), "is_prepared", lambda self, data: True)
    assert {column.split for _, column, _ in config.plan().cells()} == {"validation"}
    both = paper.PaperConfig("block-recurrent", "table-1", only=("Slide:12L",))
    scored = {(training.data.corpus, column.split) for _, column, training in both.plan().cells()}
    assert scored == {("pg19", "test"), ("arxiv", "test"), ("python-source", "validation")}
    asked = paper.PaperConfig("block-recurrent", "table-1", only=("Slide:12L",), split="test")
    assert {column.split for _, column, _ in asked.plan().cells()} == {"test"}


@pytest.mark.parametrize("scale", ["paper", "tiny"])
def test_arxiv_is_restricted_to_mathematics_as_in_section_4(scale: str) -> None:
    data = {run.data for row in TABLES["table-1"].rows for name, run in row.runs[scale].items() if name == "arXiv"}
    assert [part.options for part in data] == [("--subject", "math")]


def place_of(**fields: Any) -> tuple[StudyFolder, Any]:
    """The place of a plan of Table 1, and its data of arXiv."""
    plan = paper.PaperConfig("block-recurrent", "table-1", columns=("arXiv",), only=("Slide:12L",), **fields).plan()
    (training,) = plan.trainings(prepared=False)
    return plan.study, training.data


def test_paper_passes_the_metadata_and_the_subject_on_to_prepare(tmp_path: Path) -> None:
    put(tmp_path, {f"papers/2101.0000{n}/main.tex": b"\\documentclass{a}\\begin{document}x" for n in range(6)})
    subjects = ("math.AG", "hep-th", "cs.LG math.CO", "math-ph", "math.NT", "stat.ML")
    records = [{"id": f"2101.0000{n}", "title": "t", "categories": each} for n, each in enumerate(subjects)]
    (tmp_path / "m.json").write_text("\n".join(map(json.dumps, records)))
    given = {"source": (f"arxiv={tmp_path / 'papers'}",), "options": (f"arxiv.metadata={tmp_path / 'm.json'}",)}
    place, data = place_of(root=tmp_path, **given)
    words = [word.replace("sentencepiece:4000", "bytes") for word in place.preparation_job(data).words]
    prepare_command.main(words)
    splits = [SegmentStore.open(place.store(data), "arxiv", split) for split in SPLITS]
    ids = {document.id for split in splits for document in split.manifest.documents}
    assert ids == {"2101.00000", "2101.00002", "2101.00004"}


def test_a_subject_may_be_another_or_none() -> None:
    place, data = place_of(options=("arxiv.subject=cs",))
    assert data.options == ("--subject", "cs") and place.store(data).name == "sentencepiece-4000-subject-cs"
    assert " --subject cs --source FOLDER --metadata FILE " in " ".join(place.preparation_job(data).words)
    place, data = place_of(options=("arxiv.subject=",))
    assert data.options == () and "--metadata" not in place.preparation_job(data).words


def test_without_metadata_arxiv_is_left_out_with_the_command_that_prepares_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = paper.PaperConfig("block-recurrent", "table-1", root=tmp_path, source=("arxiv=papers",)).plan()
    run_jobs = list[Any]()
    monkeypatch.setattr(paper, "run_jobs", lambda jobs: run_jobs.extend(jobs) or [])
    with pytest.raises(UserError, match=r"prepare arxiv .* --subject math --source papers --metadata FILE "):
        paper.prepare(asked, train=False)
    monkeypatch.setattr(StudyFolder, "is_prepared", lambda self, data: data.corpus == "python-source")
    paper.prepare(asked, train=True)
    said = capsys.readouterr().out
    assert not run_jobs and "--subject math --source papers" in said
    assert "give --options arxiv.metadata=FILE, or arxiv.subject= to read the papers of all subjects" in said


def test_options_of_a_corpus_are_checked_and_stand_in_the_tables_command() -> None:
    options = ("arxiv.metadata=/home/me/m.json", "arxiv.subject=cs", "github.endings=.py .c")
    config = paper.PaperConfig("block-recurrent", "table-1", options=options)
    assert config.command().endswith("--options arxiv.subject=cs 'github.endings=.py .c'")
    for option, said in (
        ("arxiv.sbject=x", "--options arxiv.sbject=x: arxiv has no option 'sbject': did you mean 'subject'"),
        ("arxv.subject=x", "there is no corpus 'arxv': did you mean 'arxiv'"),
        ("arxiv.source=x", "--options arxiv.source=x: give --source arxiv=x"),
        ("subject=math", "--options subject=math: write a corpus, its option and a value, as in arxiv.subject=math"),
        ("arxiv.subject", "--options arxiv.subject: write a corpus, its option and a value"),
    ):
        with pytest.raises(UserError, match=re.escape(said)):
            paper.PaperConfig("block-recurrent", "table-1", options=(option,))


def documented(heading: str) -> dict[str, list[str]]:
    """The rows of a table of docs/models.md by their first cell: the table that follows these words."""
    text = (ROOT / "docs" / "models.md").read_text("utf-8")
    lines = text[text.index(heading) :].splitlines()
    rows = itertools.takewhile(lambda line: line.startswith("|"), itertools.dropwhile(lambda x: x[:1] != "|", lines))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]
    return {first: rest for first, *rest in cells[2:]}


def millions(preset: str) -> str:
    """Parameters without embeddings, as the documents write them."""
    costs = PRESETS[preset].model.costs(32_000)
    count = (costs.parameters - costs.embedding_parameters) / 1e6
    return f"{count:,.1f}" if count < 350 else f"{count:,.0f}"


def test_the_documents_have_the_parameters_of_the_scaling_study_beside_the_papers() -> None:
    rows = documented("Parameters of the scaling study")
    paper_counts = {row.label.split(", ")[1]: row.paper["parameters"] for row in TABLES["table-4"].rows}
    assert list(rows) == list(SCALES)
    for scale, (in_paper, rec, xl) in rows.items():
        assert float(in_paper.replace(",", "")) * 1e6 == paper_counts[scale]
        assert [rec, xl] == [millions(f"pg19-scale-{scale}-rec"), millions(f"pg19-scale-{scale}-xl")]
    assert [rows["40M"][1], rows["1.3B"][1], rows["40M"][2], rows["1.3B"][2]] == ["40.4", "1,279", "40.9", "1,309"]


def test_the_documents_have_the_parameters_of_the_six_cells_beside_the_papers_164() -> None:
    rows = documented("Parameters of the six cells")
    assert {name: cells[0] for name, cells in rows.items()} == {
        "Rec:fixed:skip": "160.5",
        "Rec:lstm:skip": "164.7",
        "Rec:fixed:dual": "168.9",
        "Rec:fixed:single": "170.9",
        "Rec:lstm:single": "179.3",
        "Rec:lstm:dual": "181.4",
    }
    for name, (count,) in rows.items():
        assert count == millions(f"pg19-{name.lower().replace(':', '-')}")


@pytest.mark.parametrize(("paper", "table"), [(name, table) for name, tables in PAPERS.items() for table in tables])
@pytest.mark.parametrize("scale", ["tiny", "paper"])
def test_each_table_says_at_each_scale_whose_vocabulary_it_has_and_which_parameters(
    paper: str, table: str, scale: str
) -> None:
    made = PAPERS[paper][table]
    note = made.note.get(scale, "")
    kinds = {column.metric for column in made.columns}
    assert re.search(r"pieces|GPT-2's \d|symbols|bytes", note), note
    if "parameters" in kinds:
        assert "embeddings" in note, note
    if "flops_without_output" in kinds:
        assert "without the output layer" in note, note
    if "word_perplexity" in kinds:
        assert "per word" in note or "Words are" in note, note
    if "validation" in {column.split for column in made.columns} and paper == "block-recurrent":
        assert "validation" in note, note


def test_figures_4_to_6_print_no_number_of_table_4_as_their_own() -> None:
    for name in ("figure-4", "figure-5", "figure-6"):
        table = TABLES[name]
        assert not any(row.paper for row in table.rows)
        assert set(table.note) == {"tiny", "paper"}
        assert all("gives no number" in note and "Table 4" in note for note in table.note.values())


@pytest.mark.parametrize(("name", "models"), [("figure-4", 2), ("figure-5", 1)])
def test_figures_4_and_5_are_over_five_books_with_the_top_four_tokens_of_each(name: str, models: int) -> None:
    table = TABLES[name]
    words = [*map(str, range(models)), *table.token_words]
    config = cli.parse(tokens_command.TokensConfig, words, description="")
    assert len(table.tokens) == models
    assert (config.documents, config.per_document, config.by) == (5, 4, "token")


def test_table_2_has_the_papers_layers_and_vocabularies() -> None:
    text = need("..", "papers", "block-recurrent-transformers.txt").read_text()
    part = text[text.index("Table 2: Comparison") : text.index("#### 4.5")]
    cells = [re.findall(r"<td>(.*?)</td>", line) for line in part.split("<tr>")[2:]]
    rows = TABLES["table-2"].rows
    assert [int(row[1]) for row in cells] == [row.paper["layers"] for row in rows] == [36, 22, 60, 24, 24]
    kilo = [float(row[4].removesuffix("k")) for row in cells]
    assert kilo == [row.paper["vocabulary"] / 1000 for row in rows] == [32, 98, 32, 32, 32]


def test_ours_in_table_2_are_the_models_layers_and_the_tokenizers_pieces(store: Path, tmp_path: Path) -> None:
    training = StudyFolder(tmp_path).training(TABLES["table-2"].rows[-1].runs["paper"]["PG19"], 0)
    data = replace(training.config.data, store=str(store), corpus="text")
    training = replace(training, data=Data("text", "bytes"), config=replace(training.config, data=data))
    score = Score(1.0, tokens=2, words=1, bytes=2, documents=1, bucket=2, bucket_nats=(1.0,), bucket_tokens=(2,))
    evaluation = Evaluation("x", "rec", 1, 1, 1, "", "text/test", "", score, None, None)
    metrics: tuple[Metric, ...] = ("layers", "vocabulary")
    assert [metric_of(Column(metric, metric), training, evaluation) for metric in metrics] == [24, 256]


LAYERS = {
    "rec-fixed-skip": (12, (10,)),
    "rec-fixed-skip-13L": (13, (10,)),
    "rec-fixed-skip-layers-9-10": (12, (9, 10)),
    "rec-fixed-skip-layers-4-10": (12, (4, 10)),
}
TINY_LAYERS = ((4, (3,)), (5, (3,)), (4, (2, 3)), (4, (1, 3)))


def test_section_4_3_adds_a_recurrent_layer_or_one_that_is_not() -> None:
    rows = TABLES["section-4.3"].rows
    for scale, expected in (("paper", list(LAYERS.values())), ("tiny", list(TINY_LAYERS))):
        models: list[Any] = [PRESETS[run.preset].model for row in rows for run in row.runs[scale].values()]
        assert [(model.layers, model.recurrent_layers) for model in models] == expected
        assert {(model.gate, model.cell) for model in models} == {("fixed", "skip")}
        assert {run.data.tokenizer for row in rows for run in row.runs["paper"].values()} == {"FOLDER/t5.model"}
    assert {f"pg19-{name}" for name in LAYERS} <= set(PRESETS) and not any(row.paper for row in rows)
    notes = TABLES["section-4.3"].note
    assert set(notes) == {"tiny", "paper"} and all("did not improve" in note for note in notes.values())
