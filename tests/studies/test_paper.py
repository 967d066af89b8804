"""The command that makes a paper's table: what it trains and reads, once, however often it is killed; and what it refuses."""

from __future__ import annotations

import importlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from pipelines.prepare import PrepareConfig, prepare
from pipelines.presets import PRESETS
from pipelines.training import scoring
from pipelines.training.jobs import Job, JobRecord, run_jobs
from studies import paper
from studies.paper import PaperConfig
from studies.papers import PAPERS, plan, trainings
from studies.papers.tables import BY_WORD, COSTS, Column, Data, Row, Run, Table
from studies.papers.trainings import StudyFolder
from tests.small_corpus import flip
from tests.small_runs import values_of

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


def test_a_table_of_fewer_tokens_says_so(make: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    facts = make("one", "--only", "slide", "--columns", "bits", "--tokens", "300")["facts"]
    (folder,) = (tmp_path / "one").glob("small-slide*")
    steps = int(folder.name.split("-steps-")[1].split("-")[0])
    (read,) = (fact for fact in facts if fact.startswith("tokens read in training"))
    assert read.endswith(", since --tokens 300 replaces the presets' numbers") and steps == 2


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
    assert "trained at fewer than the 3 rates: small-slide (2)" in third["facts"]
    for name, folder in folders.items():  # as a task's validation adds: errors are few where bits are many
        point = {"step": 4, "time": 9.0, "metrics": {"validation/error_rate": 0.5 if name == best else 0.1}}
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(f"{json.dumps(point)}\n")
    assert make("one", *words)["runs"]["slide"] == list(folders.keys() - {best})


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
    said = "time is left out: slide, which it is divided by, has none here"
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
        (["today", "table-1", "--columns", "no"], "code, bits per byte; PG-19, bits per byte; "),
        (["gpt2", "table-1", "--only", "rex"], "nothing with 'rex' in its name: GPT-2, overlap 0"),
        (["gpt2", "table-1", "--set", "steps"], "--set steps: write a name and its value"),
        (["gpt2", "table-1", "--set", "stepz=3"], "no field 'stepz': did you mean 'steps'"),
        (["gpt2", "table-1", "--set", "steps=abc"], "steps is 'abc': give a value such as"),
        (["gpt2", "table-1", "--set", "optim.lr=NaN"], "optim.lr is 'NaN': give a value such as 0.0"),
        (["gpt2", "table-1", "--set", "data.corpus=text"], "--set data.corpus=text: that is each training's own"),
        (["gpt2", "table-1", "--flop-rate", "-1"], "--flop-rate is -1"),
        (["gpt2", "table-1", "--tokens", "-1"], "--tokens is -1: give how many each training reads"),
        (["gpt2", "table-1", "--tokens", "9", "--set", "steps=5"], "--tokens and --set steps"),
        (["gpt2", "table-1", "--no-train"], "leave out --no-train"),
        (["gpt2", "table-1", "--source", "pg20=x"], "no corpus 'pg20': did you mean 'pg19'"),
        (["gpt2", "table-1", "--split", "tests"], "unknown split 'tests': did you mean 'test'"),
        (["gpt2", "table-1", "--seeds", "1", "1"], r"--seeds are \(1, 1\): give numbers of 0 or more, and each once"),
        (["gpt2", "table-1", "--seeds", "1", "-1"], r"--seeds are \(1, -1\): give numbers of 0 or more"),
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


def test_all_trainings_read_as_many_tokens_as_asked(tmp_path: Path) -> None:
    asked = paper.PaperConfig("gpt2", "smollm2", root=tmp_path, tokens=200_000)
    assert asked.command().endswith("--tokens 200000") and "tokens-200000" in asked.name()
    made = asked.plan().trainings(prepared=False)
    left_out = [200_000 - training.config.steps * training.config.tokens_per_step for training in made]
    assert len(made) == 39 and all(
        0 <= tokens < training.config.tokens_per_step for tokens, training in zip(left_out, made, strict=True)
    )
    assert {training.config.steps for training in made} >= {33, 100, 200}
    assert {training.config.schedule.warmup_steps for training in made} == {9, 10}  # of 100, for a tenth of the steps
    few = paper.PaperConfig("gpt2", "smollm2", root=tmp_path, tokens=1).plan().trainings(prepared=False)
    assert {training.config.steps for training in few} == {1}
    first = paper.PaperConfig("gpt2", "smollm2", root=tmp_path).plan().trainings(prepared=False)[0]
    same = paper.PaperConfig("gpt2", "smollm2", root=tmp_path, tokens=2_000_000).plan().trainings(prepared=False)[0]
    assert same.name == first.name and same.config.schedule.warmup_steps == 100


@pytest.mark.parametrize(
    ("fields", "set_by_hand", "warm_up"),
    [
        ({}, {}, 5),
        ({}, {"schedule.warmup_steps": 3}, 3),
        ({"schedule.name": "inverse-sqrt"}, {}, 50),  # its peak depends on the warm-up
    ],
)
def test_a_training_of_fewer_tokens_warms_up_for_the_same_share_of_steps(
    tmp_path: Path, fields: dict[str, Any], set_by_hand: dict[str, Any], warm_up: int
) -> None:
    tokens = 100 * trainings.PRESETS["small-slide"].tokens_per_step
    place = trainings.StudyFolder(tmp_path, set=set_by_hand, tokens=tokens)
    run = Run("small-slide", TEXT, {"steps": 1000, "schedule.warmup_steps": 50, **fields})
    config = place.training(run, 0).config
    assert config.steps == 100 and config.schedule.warmup_steps == warm_up


def test_steps_are_timed_where_they_are_small(tmp_path: Path) -> None:
    place = trainings.StudyFolder(tmp_path)
    cost = place.training(Run("small-slide", TEXT, TINY), 0).cost()
    assert 0 < cost.seconds < 60 and cost.timed and cost.tokens == 4 * 4 * 32
    assert 16 * cost.parameters < cost.bytes < 20 * cost.parameters  # with the State of four lanes
    large = place.training(Run("pg19-slide-13L", TEXT), 0).cost()
    # Adafactor keeps no second moment of each weight.
    assert 12 * large.parameters < large.bytes < 13 * large.parameters
    assert large.seconds == pytest.approx(large.flops / trainings.A100.flop_per_second) and not large.timed
    small = replace(cost, seconds=9.0)
    assert paper.total_time([small], 0, 1, trainings.A100) == "9 s as timed here"
    both = f"9 s as timed here and {large.seconds / 3600:,.0f} h (*) at 1.25e+14 FLOP/s, 40 % of an A100's"
    assert paper.total_time([small, large], 0, 1, trainings.A100).startswith(both)


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


def test_large_steps_have_the_median_time_of_their_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = trainings.StudyFolder(tmp_path).training(Run("small-rec", TEXT, REC), 0)
    monkeypatch.setattr(trainings, "MEASURED_FLOPS", 0)
    assert training.ms_per_step() is None
    training.folder.mkdir()
    points = [(n, {"train/tokens": 128 * n, "train/tokens_per_second": 256.0 * n}) for n in (1, 2, 8)]
    lines = [json.dumps({"step": step, "time": 0, "metrics": metrics}) + "\n" for step, metrics in points]
    (training.folder / "metrics.jsonl").write_text("".join(lines))
    assert training.ms_per_step() == 1e3 * 128 / 512


def test_a_table_of_tasks_names_no_corpus_in_place_of_texts() -> None:
    for column, expected in (("Random Walk", ""), ("Enwik8", "python-source")):
        plan = PaperConfig("staircase", "table-1", columns=(column,), corpus="python-source").plan()
        assert plan.results("").corpus == expected


def test_a_corpus_in_place_of_texts_leaves_tasks_alone(tmp_path: Path) -> None:
    place = trainings.StudyFolder(tmp_path, corpus="text")
    for task in (Data("mqar", options=("--pairs", "4")), Data("names", "bytes")):
        assert place.data(task) == task
    assert place.data(Data("pg19", "bytes", ("--books", "2"))) == Data("text", "bytes")
