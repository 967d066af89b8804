"""The way back: an exported folder, also one that transformers' Trainer or PEFT has tuned, stands where a run does."""

from __future__ import annotations

import csv
import errno
import json
import math
import resource
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.models.auto.tokenization_auto import AutoTokenizer

from benchmarks import killing
from common.errors import UserError
from data_prep.store import SegmentStore
from data_prep.tokenizers import BytesTokenizer, tokenizer_from_spec
from pipelines import doctor, embed, evaluate, export, generate, tune
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.checkpoints.exported import Exported
from pipelines.train import main as train_main
from pipelines.training.beginning import sized_json
from recur_models import GPT2Config
from studies import continuations, tokens
from tests.small_corpus import contents
from tests.small_runs import values_of

pytestmark = pytest.mark.usefixtures("short_documents")

Train = Callable[..., Path]
QUIET = ("--tracking.backend", "none")
SHORT = ("--steps", "2", "--validate-every", "0")
HERE = ("--num-workers", "0", "--use-gpu", "no", *QUIET)


@pytest.fixture
def exported(train_model: Train, tmp_path: Path) -> Callable[..., Path]:
    """A small run of a model, exported."""

    def make(model: str = "slide") -> Path:
        run = train_model(model, *SHORT, name="first")
        export.main([str(run), "--output", str(tmp_path / "exported")])
        return tmp_path / "exported"

    return make


def test_who_may_read_an_export_may_read_its_files(exported: Callable[..., Path]) -> None:
    folder = exported()
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir() if path.is_file()} == {
        folder.stat().st_mode & 0o666
    }


def test_a_disk_without_room_for_the_weights(train_model: Train, tmp_path: Path) -> None:
    run = train_model("slide", *SHORT, name="first")
    output = tmp_path / "exported"
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))  # a file of weights is larger, and no other
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            export.main([str(run), "--output", str(output)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(output))
    assert not list(tmp_path.glob("*exported*"))


def examples(store: Path, split: str, most: int) -> list[dict[str, list[int]]]:
    """Each document of a split as Trainer reads one, its first tokens."""
    text = SegmentStore.open(store, "text", split)
    found = []
    for document, length in enumerate(text.lengths.tolist()):
        ids = [text.bod_id, *text.tokens(document, 0, min(length, most)).tolist()]
        found.append({"input_ids": ids, "labels": ids})
    return found


def tuned(folder: Path, store: Path, target: Path) -> float:
    """Tune an export for 40 steps with transformers' Trainer and an adapter of PEFT's, merge and save it. Trainer's loss on the
    test split.
    """
    trainer_module: Any = import_module("transformers.trainer")
    arguments: Any = import_module("transformers.training_args")
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    peft: Any = import_module("peft")
    model = peft.get_peft_model(model, peft.LoraConfig(r=4))
    settings = arguments.TrainingArguments(
        str(target.with_name("trainer")), max_steps=40, per_device_train_batch_size=1, per_device_eval_batch_size=1,
        learning_rate=1e-2, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
        gradient_checkpointing=True,
    )  # fmt: skip
    trainer = trainer_module.Trainer(
        model, settings, train_dataset=examples(store, "train", 100), eval_dataset=examples(store, "test", 1 << 20)
    )
    trainer.train()
    model = trainer.model.merge_and_unload()
    model.save_pretrained(target)
    return trainer_module.Trainer(model, settings, eval_dataset=trainer.eval_dataset).evaluate()["eval_loss"]


def bits_of(report: Path) -> float:
    with open(report / "table.csv", newline="") as file:
        return float(next(csv.DictReader(file))["bits_per_token"])


@pytest.mark.long
@pytest.mark.parametrize("model", ["llama", "rec fixed:skip"])
def test_a_tuned_export_scores_as_in_trainer_and_is_trained_further(
    model: str, exported: Callable[..., Path], store: Path, tmp_path: Path
) -> None:
    folder = exported(model)
    loss = tuned(folder, store, tmp_path / "tuned")
    where = ["--store", str(store), *QUIET, "--num-workers", "1"]
    evaluate.main([str(folder), *where, "--output", str(tmp_path / "before")])
    evaluate.main([str(tmp_path / "tuned"), *where, "--output", str(tmp_path / "after")])
    bits = bits_of(tmp_path / "after")
    assert bits * math.log(2) == pytest.approx(loss, rel=1e-5)
    assert abs(bits - bits_of(tmp_path / "before")) > 0.01

    evaluate.main([str(tmp_path / "tuned"), *where, "--split", "validation", "--output", str(tmp_path / "validation")])
    words = [str(tmp_path / "tuned"), "--run", "more", "--root", str(tmp_path / "runs"), "--data.store", str(store)]
    still = ["--optim.lr", "0", "--optim.weight-decay", "0", "--steps", "1", "--validate-every", "1"]
    train_main([*words, *still, "--validate-tokens", "0", *HERE])
    begun = values_of(tmp_path / "runs" / "more", "validation/bits_per_token")
    assert begun == [pytest.approx(bits_of(tmp_path / "validation"), rel=1e-5)]


def test_every_command_of_a_run_takes_its_export(
    exported: Callable[..., Path], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported("rec fixed:skip")
    ends = folder / "generation_config.json"
    ends.write_text(json.dumps(json.loads(ends.read_text()) | {"eos_token_id": [256, 10]}))  # as a tuned model may have
    before = contents(folder)
    run = tmp_path / "runs" / "first"
    monkeypatch.chdir(tmp_path)
    where = ("--store", str(store), *QUIET)
    one = ("--num-workers", "1")
    evaluate.main([str(folder), str(run), *where, *one])
    reports = tmp_path / "runs" / "reports"
    (compared,) = reports.glob("exported-vs-first-*")  # and a checksum of the folder's weights
    with open(compared / "table.csv", newline="") as file:
        first, second, _ = csv.DictReader(file)  # the last is the unigram model
    names = [row.pop("name") for row in (first, second)]
    assert names == ["exported", "first"] and first == second
    tokens.main([str(folder), *where, *one])
    continuations.main([str(folder), *where, "--places", "1", "--new-tokens", "8"])
    names = [path.name for path in reports.iterdir() if path.is_dir()]
    continued = list(reports.glob("continuations-exported-places-1-new-tokens-8-*"))
    assert len(continued) == 1
    mark = compared.name.removeprefix("exported-vs-first-").removesuffix("-newest")
    tokens_of = f"tokens-exported-cleared-vs-exported-{mark}"
    assert set(names) == {compared.name, tokens_of, *(path.name for path in continued)}
    embed.main([str(folder), "--store", str(store), "--output", "embedded"])
    export.main([str(folder), "--store", str(store), "--output", "again"])
    again = contents(tmp_path / "again")
    assert again["model.safetensors"] == before["model.safetensors"] and contents(folder) == before
    assert Exported.open(folder).eos_ids == (256, 10) and Exported.open("again").eos_ids == (10,)
    assert Exported.open("again").trained == Exported.open(folder).trained | {"run": "exported"}
    written = (folder / "config.json").read_text() + (tmp_path / "again" / "config.json").read_text()
    assert str(tmp_path) not in written


def test_an_export_is_exported_without_its_store(
    exported: Callable[..., Path],
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = exported()
    store.rename(tmp_path / "elsewhere")
    monkeypatch.chdir(folder)
    for output in (".", str(folder)):
        with pytest.raises(UserError, match="exists already: name a new folder with --output"):
            export.main([str(folder), "--output", output])
    monkeypatch.chdir(tmp_path)
    export.main([str(folder), "--output=-again"])
    assert "pipelines.generate ./-again --prompt" in capsys.readouterr().out
    again = tmp_path / "-again"
    different = {name for name, data in contents(again).items() if contents(folder).get(name) != data}
    assert different == {"config.json", "README.md"}, "they name the run after its folder"
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=f"the tokenizer in {folder}/tokenizer is damaged: export the checkpoint again"):
        export.main([str(folder), "--output", str(tmp_path / "third")])


def test_a_run_that_began_with_an_export_resumes_without_it(
    exported: Callable[..., Path], store: Path, tmp_path: Path
) -> None:
    folder = exported()
    words = [str(folder), "--run", "more", "--root", str(tmp_path / "runs"), "--data.store", str(store), *HERE]
    words += ["--steps", "4", "--checkpoint.every", "2", "--validate-every", "0"]
    train_main(words)
    last = tmp_path / "runs" / "more" / "checkpoints" / "step-00000004"
    config = json.loads((last.parent.parent / "config.json").read_text())
    assert config["initial_weights"] == str(folder) and config["data"]["lanes"] == 4
    expected = Checkpoint.open(last).weights()
    shutil.rmtree(last)
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"neither a preset nor an existing folder: .* resumes without the folder"):
        train_main(words)
    for trained in (last.parent.parent, next(last.parent.glob("step-*"))):
        with pytest.raises(
            UserError, match=rf"{trained} is trained already: train .*/more/config.json to continue .* export"
        ):
            train_main([str(trained)])
    train_main([str(last.parent.parent / "config.json")])
    found = Checkpoint.open(last).weights()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_run_keeps_the_model_of_the_weights_that_it_begins_with(
    exported: Callable[..., Path], store: Path, tmp_path: Path
) -> None:
    folder = exported()
    where = ["--run", "more", "--root", str(tmp_path / "runs"), "--data.store", str(store), *HERE, *SHORT]
    with pytest.raises(
        UserError,
        match=r"is a slide with model.heads 2, and this run has 4: leave out --model.heads, or give --model.heads 2",
    ):
        train_main([str(folder), *where, "--model.heads", "4"])
    with pytest.raises(
        UserError, match="is a slide, and this run trains a rec: name the folder in place of the preset"
    ):
        train_main(["small-rec", *where, "--initial-weights", str(folder)])
    assert not (tmp_path / "runs" / "more").exists()
    train_main([str(folder), *where, "--model.dropout", "0.3"])


def test_a_sweep_varies_no_field_that_its_initial_weights_decide(
    exported: Callable[..., Path], store: Path, tmp_path: Path
) -> None:
    words = ["--preset", *killing.MODELS["slide"], *killing.TINY, *QUIET, "--data.store", str(store)]
    words += ["--root", str(tmp_path / "sweeps"), "--initial-weights", str(exported()), "--dry-run"]
    for search in ("grid", "optuna"):
        with pytest.raises(
            UserError, match=r"model\.heads=2,4 cannot be searched with heads 4: .* model\.heads 2, and this"
        ):
            tune.main(["model.heads=2,4", "--search", search, *words])
    with pytest.raises(SystemExit):
        tune.main(["model.dropout=0.1,0.3", "--search", "grid", *words])


def test_text_is_prepared_with_the_tokenizer_in_an_exported_folder(exported: Callable[..., Path], store: Path) -> None:
    folder = exported()
    own = tokenizer_from_spec(str(folder))
    trained_on = SegmentStore.open(store, "text", "train").manifest.tokenizer
    assert isinstance(own, BytesTokenizer) and own.fingerprint == trained_on.fingerprint
    shutil.rmtree(folder / "tokenizer")  # as in a folder that transformers has saved again
    with pytest.raises(
        UserError, match=r"has begin-of-document as one more token.* give the folder that pipelines.export made"
    ):
        tokenizer_from_spec(str(folder))


def test_empty_sizes_are_those_of_the_published_model() -> None:
    assert sized_json(GPT2Config(pretrained="none")) == sized_json(GPT2Config(pretrained="none", layers=12))


def resized(folder: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(264)
    model.save_pretrained(folder)


def adapter_alone(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


def unrecorded(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    del values["trained"]
    (folder / "config.json").write_text(json.dumps(values))


def misrecorded(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    values["trained"]["lanes"] = "all"
    (folder / "config.json").write_text(json.dumps(values))


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def half_a_config(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text[: len(text) // 2])


def half_the_weights(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def of_transformers(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama"}')


def test_folders_that_cannot_be_used_are_refused(exported: Callable[..., Path], store: Path, tmp_path: Path) -> None:
    folder = exported()
    where = ["--store", str(store), *QUIET, "--output", str(tmp_path / "report")]
    with pytest.raises(UserError, match="does not say where its store is: name the store with --store"):
        evaluate.main([str(folder), *QUIET])
    for number, (spoil, message) in enumerate(
        {
            resized: r"embeddings of 264 ids, and its tokenizer 257: call resize_token_embeddings\(257\)",
            adapter_alone: r"holds an adapter and no model: merge it first, with PEFT's merge_and_unload\(\)",
            unrecorded: r"does not say which corpus it was trained on: export its run again",
            misrecorded: r"has trained.lanes='all': export the checkpoint again",
            without_weights: r"has no model.safetensors; it has pytorch_model.bin, .*: export the checkpoint again, or save",
            of_transformers: r"is a model of transformers' own, 'llama'",
            without_config: r"has no config.json, which names its model: export the checkpoint again",
            half_a_config: r"config.json is damaged \(.*\): export the checkpoint again",
            half_the_weights: r"model.safetensors cannot be read \(.*\): export the checkpoint again",
        }.items()
    ):
        spoiled = Path(shutil.copytree(folder, tmp_path / f"spoiled-{number}"))
        spoil(spoiled)
        with pytest.raises(UserError, match=message):
            evaluate.main([str(spoiled), *where])
    with pytest.raises(UserError, match="does not record the tokenizer"):
        evaluate.main([str(tmp_path / "spoiled-2"), *where, "--corpus", "text"])
    for name, message in {
        "spoiled-1": "holds an adapter and no model",
        "spoiled-5": "is a model of transformers' own, 'llama'.*--model.pretrained",
        "spoiled-5/config.json": "is a model of transformers' own, 'llama'",
    }.items():
        with pytest.raises(UserError, match=message):
            train_main([str(tmp_path / name), "--run", "more"])
    with pytest.raises(UserError, match=r"exported/config.json is that of an exported folder: name the folder"):
        train_main([str(folder / "config.json"), "--run", "more"])
    for saved in (folder, tmp_path / "spoiled-5"):
        with pytest.raises(UserError, match="is a saved model, which has no checkpoints: name the folder of its run"):
            doctor.main([str(saved)])
    assert not (tmp_path / "report").exists()


def with_weights(folder: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A copy of an export whose weights are changed in place."""
    shutil.copytree(folder, target)
    weights = load_file(target / "model.safetensors")
    change(weights)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_weights_that_are_not_numbers_are_refused_by_every_command(
    exported: Callable[..., Path], store: Path, tmp_path: Path
) -> None:
    folder = exported()
    damaged = with_weights(folder, tmp_path / "nan", lambda w: w["model.embedding.weight"][3, 2].fill_(math.nan))
    huge = with_weights(folder, tmp_path / "huge", lambda w: [tensor.mul_(1e30) for tensor in w.values()])
    (tmp_path / "book.txt").write_text("Once upon a time")
    book = ["--file", str(tmp_path / "book.txt"), "--output", str(tmp_path / "embedded")]
    for spoiled, problem in ((damaged, "has values in model.embedding.weight that are"), (huge, "are")):
        with pytest.raises(UserError, match=f"{problem} not numbers, so"):
            generate.main([str(spoiled), "--prompt", "a", "--max-new-tokens", "3"])
        with pytest.raises(UserError, match=f"{problem} not numbers, so"):
            embed.main([str(spoiled), *book])
    assert not (tmp_path / "embedded" / "_embeddings.json").exists()
    report = ["--store", str(store), *QUIET, "--output", str(tmp_path / "report")]
    for command, more in ((tokens, ["--clear", "everything"]), (continuations, [])):
        with pytest.raises(UserError, match=r"has values in model\.embedding\.weight that are not numbers"):
            command.main([str(damaged), *report, *more])


@pytest.mark.parametrize("begin", [1_000_000, -5, True, "a"])
def test_a_begin_of_document_that_no_model_has_is_refused(exported: Callable[..., Path], begin: object) -> None:
    folder = exported()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "begin_of_document_id": begin}))
    with pytest.raises(UserError, match=f"has begin_of_document_id={begin!r}: export the checkpoint again"):
        generate.main([str(folder), "--prompt", "a"])


def test_a_tokenizer_that_has_more_ids_than_the_model_is_refused(exported: Callable[..., Path]) -> None:
    folder = exported()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["hello"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(UserError, match=r"gives the id 257, and the model has 257 embeddings: call resize_token_embed"):
        generate.main([str(folder), "--prompt", "hello"])


def test_weights_may_be_in_several_files_of_another_dtype_and_without_a_tokenizer(
    exported: Callable[..., Path], store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = exported()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "halves", max_shard_size="8KB")
    found = Exported.open(tmp_path / "halves")
    assert len(found.files) > 1
    for name, tensor in Exported.open(folder).weights().items():
        assert torch.equal(found.weights()[name], tensor.bfloat16().float())
    words = ["--prompt", "a", "--max-new-tokens", "3", "--seed", "0"]
    with pytest.raises(UserError, match="name the store with --store"):
        generate.main([str(tmp_path / "halves"), *words])
    generate.main([str(tmp_path / "halves"), *words, "--store", str(store)])
    assert capsys.readouterr().out
