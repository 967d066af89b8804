"""The tables of the GPT-2 paper: which text is read, which checkpoint is scored, and that fine-tuning begins with weights."""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tyro

from common.errors import UserError
from data_prep.corpora import CORPORA
from pipelines import evaluate
from pipelines.inference.targets import load_targets
from pipelines.prepare import PrepareConfig, prepare
from pipelines.presets import PRESETS
from pipelines.terminal import cli
from pipelines.train import main as train
from pipelines.training.jobs import Job, JobRecord
from pipelines.training.optim import build_optimizer
from pipelines.tune import main as tune
from studies import continuations, paper
from studies.papers import PAPERS, plan, trainings
from studies.papers.gpt2 import DATA, EPOCHS, LANES, LLAMAS, ROWS, SMOLLM2_DATA, WINDOWS
from studies.papers.tables import READ_NO_TEXT, Data, Run
from tests.studies.test_paper import REC, TEXT

GPT2 = PAPERS["gpt2"]
FINE_TUNED = [*ROWS, *LLAMAS]


@pytest.mark.parametrize("scale", ["tiny", "paper"])
def test_wikitext_is_read_raw_even_beside_its_tokenised_form(scale: str, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        for form, word in (("tokens", "<unk>"), ("raw", "Valkyria")):
            (tmp_path / f"wiki.{split}.{form}").write_text(f" \n = A title = \n \n {word} . \n")
    for row in GPT2["table-1"].rows:
        (run,) = row.runs[scale].values()
        options = ("--source", str(tmp_path), *run.data.options)
        corpus: Any = tyro.cli(CORPORA["wikitext"], args=options)
        (document,) = corpus.read(corpus.sources("train"))
        assert "Valkyria" in document.text and "<unk>" not in document.text, row.label


@pytest.mark.parametrize(
    ("pretrained", "tokenizer"), [("/models/own", "/models/own"), ("none", "FOLDER"), ("", "FOLDER")]
)
@pytest.mark.parametrize("data", [SMOLLM2_DATA, *DATA["paper"].values()])
def test_a_pretrained_models_store_is_prepared_with_the_tokenizer_in_its_folder(
    data: Data, pretrained: str, tokenizer: str, tmp_path: Path
) -> None:
    given = {"model.pretrained": pretrained} if pretrained else {}
    study = trainings.StudyFolder(tmp_path, sources={data.corpus: "books"}, set=given)
    words = study.preparation_job(data).words
    assert words[words.index("--tokenizer") + 1] == tokenizer
    assert study.store(data).name.startswith(f"{data.tokenizer}-") and "own" not in study.store(data).name


def test_a_table_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    asked = paper.PaperConfig("gpt2", "smollm2", root=tmp_path, set=("model.pretrained=/models/own", "seed_=/a/b"))
    assert asked.command().endswith("--set model.pretrained=own seed_=/a/b")
    assert "model.pretrained=own" in asked.name() and "models-own" not in asked.name()


def test_costs_are_read_off_the_split_that_the_table_scores() -> None:
    figure = paper.PaperConfig("gpt2", "figure-5").plan()
    assert {figure.scored(column, "").split for column in figure.table.columns} == {"validation"}
    both = paper.PaperConfig("block-recurrent", "table-1").plan()
    time = next(column for column in both.table.columns if column.metric in READ_NO_TEXT)
    assert both.scored(time, "arXiv").split == "test"


@pytest.mark.parametrize("scale", ["tiny", "paper"])
@pytest.mark.parametrize("table", GPT2)
def test_the_checkpoint_that_is_the_best_on_validation_is_scored(table: str, scale: str) -> None:
    for row in GPT2[table].rows:
        for run in row.runs[scale].values():
            assert run.checkpoint == "best", row.label


def test_a_run_that_got_worse_is_scored_where_it_was_best(
    make_config: Callable[..., PrepareConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(make_config(store=str(tmp_path / "stores/bytes")))
    place = trainings.StudyFolder(tmp_path / "runs", tmp_path / "stores")
    fields = {**REC, "optim.lr": 3.0, "schedule.warmup_steps": 0, "validate_every": 2, "validate_tokens": 200}
    of_best = place.training(Run("small-rec", TEXT, fields, checkpoint="best"), 0)
    train(of_best.job().argv)
    evaluate.main(of_best.evaluation_job("validation").argv)
    place.record.keep(of_best.evaluation_job("validation"))
    found = of_best.evaluation("validation")
    newest = replace(of_best, checkpoint="newest")
    assert found and found.step == 2 and newest.evaluation("validation") is None
    assert [training.scored().step for training in (of_best, newest)] == [2, 4]  # pyrefly: ignore
    unvalidated = place.training(Run("small-rec", TEXT, {**fields, "validate_every": 0}, checkpoint="best"), 1)
    train(unvalidated.job().argv)
    assert unvalidated.lacks_best() and not of_best.lacks_best() and not newest.lacks_best()
    capsys.readouterr()
    config = evaluate.EvaluateConfig((str(unvalidated.folder),), checkpoint="best", split="validation")
    assert [subject.checkpoint.step for subject in load_targets(config)] == [4]
    assert "was not validated at step 4, which is read" in capsys.readouterr().out


def test_validation_is_measured_every_2_million_tokens() -> None:
    place = trainings.StudyFolder(Path("nowhere"))
    for table in ("table-1", "table-2", "figure-4"):
        for row in GPT2[table].rows:
            config = place.training(row.runs["paper"][""], 0).config
            assert config.validate_every == config.checkpoint.every, (
                row.label
            )  # one that is saved is one that is validated
            assert 0.95 * 2e6 <= config.validate_every * config.tokens_per_step <= 2e6, row.label
            assert config.validate_tokens == 0


def test_smollm2_saves_what_it_validates() -> None:
    place = trainings.StudyFolder(Path("nowhere"))
    for row in GPT2["smollm2"].rows:
        config = place.training(row.runs["tiny"][""], 0).config
        assert config.validate_every % config.checkpoint.every == 0, row.label
        assert 9 <= config.steps // config.validate_every <= 11, row.label


@pytest.mark.parametrize(("name", "scales"), [("smollm2", set()), ("smollm2-rec", {30}), ("smollm2-rec-layers", {30})])
def test_smollm2_has_a_rate_of_its_own_where_it_has_recurrent_parameters(name: str, scales: set[float]) -> None:
    config = PRESETS[name]
    model: Any = config.model
    sizes: dict[str, Any] = {"pretrained": "none", "layers": 5, "d_model": 8, "heads": 1, "kv_heads": 1, "mlp_dim": 8}
    optimizer = build_optimizer(replace(model, **sizes, positions=100).build(8), config.optim)
    assert {group["lr_scale"] for group in optimizer.param_groups if "lr_scale" in group} == scales


def test_the_presets_do_not_clip_gradients() -> None:
    for name in FINE_TUNED:
        assert PRESETS[name].optim.max_grad_norm == 0, name


@pytest.mark.parametrize("preset", FINE_TUNED)
def test_two_epochs_are_two_with_the_padding_behind_each_document(preset: str) -> None:
    config, epochs = PRESETS[preset], EPOCHS[PRESETS[preset].data.corpus]
    padded = epochs.tokens + epochs.documents * config.model.block / 2
    assert config.steps * config.tokens_per_step / padded == pytest.approx(2, abs=0.005)
    assert config.data.segment_length == WINDOWS * config.model.block and config.data.lanes == LANES


@pytest.mark.parametrize(
    "preset",
    ["wikitext-gpt2-overlap-0", "pg19-gpt2-rec-overlap-50", "pg19-llama-rec-overlap-50", "pg19-mamba2"],
)
def test_fine_tuning_without_pretrained_weights_is_refused(preset: str, store: Path, tmp_path: Path) -> None:
    words = [preset, "--data.store", str(store), "--data.corpus", "text", "--root", str(tmp_path), "--num-workers", "0"]
    with pytest.raises(UserError, match=r"--model\.pretrained FOLDER.*--model\.pretrained none"):
        train(words)
    assert not list(tmp_path.glob(f"{preset}*"))
    sweep = ["optim.lr=1e-4,1e-3", "--preset", *words, "--search", "grid"]
    with pytest.raises(UserError, match=r"--model\.pretrained FOLDER"):
        tune(sweep)


def test_a_paper_table_of_pretrained_weights_is_refused_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["gpt2", "table-1", "--scale", "paper", "--root", str(tmp_path)]
    with pytest.raises(UserError, match=r"--set model\.pretrained=FOLDER"):
        paper.main([*words, "--source", "wikitext=folder"])
    assert not list(tmp_path.iterdir())
    assert paper.main([*words, "--dry-run", "--flop-rate", "1e14"]) == 0
    assert "--set model.pretrained=FOLDER" in capsys.readouterr().out


def test_frozen_weights_need_no_gradients_and_moments(tmp_path: Path) -> None:
    place = trainings.StudyFolder(tmp_path)
    rows = {row.label: run for row in GPT2["smollm2"].rows for run in row.runs["paper"].values()}
    frozen = next(run for run in rows.values() if run.fields.get("model.trained") == "recurrence")
    run = replace(frozen, fields={**frozen.fields, "model.pretrained": "none"})
    cost = place.training(run, 0).cost(rate=1e14)
    assert 4 * cost.parameters < cost.bytes < 5 * cost.parameters


@pytest.mark.parametrize(("scale", "share"), [("paper", 1), ("tiny", 5)])
def test_figure_5_has_a_baseline_curve_for_each_overlap_of_table_1(scale: str, share: int) -> None:
    """Figure 4's points and further baseline curves, up to overlap 50, each over windows of 200 to 600 (section 5.2)."""
    curves: dict[str, list[tuple[int, int]]] = {}
    for row in GPT2["figure-5"].rows:
        (run,) = row.runs[scale].values()
        window = trainings.StudyFolder(Path("nowhere")).training(run, 0).config.model.to_json()["window"]
        curves.setdefault(row.series, []).append((share * window, share * run.read.get("overlap", 0)))
    windows = (200, 300, 400, 500, 600)
    baselines = {
        f"GPT-2 overlap {overlap}" if overlap else "GPT-2": [(window, overlap) for window in windows]
        for overlap in (0, 5, 10, 30, 50)
    }
    assert curves == {**baselines, "Recurrent": [(window, 0) for window in windows]}
    assert GPT2["figure-5"].rows[: len(GPT2["figure-4"].rows)] == GPT2["figure-4"].rows
    assert "30 and 50" in GPT2["figure-5"].note[scale]


@pytest.mark.parametrize("scale", ["tiny", "paper"])
@pytest.mark.parametrize("name", ["table-3", "table-4"])
def test_tables_3_and_4_continue_validation_passages_behind_one_window(name: str, scale: str) -> None:
    table = GPT2[name]
    (row,) = table.rows
    run = row.runs[scale][""]
    model: Any = trainings.StudyFolder(Path("nowhere")).training(run, 0).config.model
    assert (model.name, model.window, model.overlap) == ("gpt2-rec", {"paper": 300, "tiny": 60}[scale], 0)
    assert run == next(other.runs[scale][""] for other in GPT2["table-2"].rows if other.label == row.label)
    config = cli.parse(continuations.ContinuationsConfig, ["run", *table.continued], description="")
    assert (config.places, config.blocks, config.new_tokens) == (4, 1, 80)
    assert [column.split for column in table.columns] == ["validation"]
    assert not row.paper and "gives no number" in table.note[scale]


def test_tables_3_and_4_continue_different_places() -> None:
    first, second = (
        cli.parse(continuations.ContinuationsConfig, ["run", *GPT2[name].continued], description="")
        for name in ("table-3", "table-4")
    )
    assert first.seed != second.seed


def test_a_table_of_continuations_prints_them_once_its_model_is_trained(
    make_config: Callable[..., PrepareConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(make_config(store=str(tmp_path / "stores/bytes")))
    fields = {**REC, "validate_every": 2, "validate_tokens": 200}
    row = replace(GPT2["table-3"].rows[0], runs={"tiny": {"": Run("small-rec", TEXT, fields, checkpoint="best")}})
    short = (*GPT2["table-3"].continued, "--new-tokens", "8")
    monkeypatch.setitem(PAPERS, "mine", {"table-3": replace(GPT2["table-3"], rows=(row,), continued=short)})
    config = paper.PaperConfig("mine", "table-3", root=tmp_path / "runs", store=tmp_path / "stores")
    asked, folder = config.plan(), tmp_path / "runs/tables/mine-table-3-tiny"
    assert asked.continuation_jobs(folder) == [] and asked.pages(folder) == []

    def run_here(asked: Sequence[Job], at_once: int, record: JobRecord | None = None) -> list[Job]:
        with redirect_stdout(io.StringIO()):  # a job's output goes to its log
            for job in asked:
                importlib.import_module(f"pipelines.{job.module}").main(job.argv)
                if record:
                    record.keep(job)
        return []

    monkeypatch.setattr(plan, "run_jobs", run_here)
    words = ["mine", "table-3", "--root", str(config.root), "--store", str(config.store), "--flop-rate", "1e11"]
    assert paper.main(words) == 0
    printed = capsys.readouterr().out
    report = json.loads((folder / "continuations/continuations.json").read_text())
    (training,) = asked.trainings()
    (job,) = replace(asked, seeds=(0, 1)).continuation_jobs(folder)
    assert (job.module, job.argv[0]) == ("continuations", str(training.scored_folder))
    assert report["title"].startswith(f"{training.name}, step {training.scored().step}, on text/validation")  # pyrefly: ignore
    assert len(report["passages"]) == 4
    assert asked.pages(folder) == [folder / "continuations/continuations.md"]
    assert "continuations/continuations.md" in printed
    assert "recurrence alone" in printed and "bits per token with the recurrent State" in printed
    (folder / "continuations/continuations.json").write_text("{")
    with pytest.raises(UserError, match=r"continuations\.json is damaged .*remove it"):
        asked.passages(folder)
