"""What training refuses: changed fields and stores of a run, bad words, damaged files, and losses that are no numbers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from common.places import Place
from data_prep.document_table import write_table
from data_prep.store import SegmentStore
from pipelines.checkpoints.run_file import presets_with
from pipelines.config.dotted import with_fields
from pipelines.config.run import to_json
from pipelines.prepare import PrepareConfig, prepare
from pipelines.presets import PRESETS
from tests.small_corpus import contents, flip
from tests.small_runs import forget, without_run_name
from tests.small_sweep import small_sweep

Train = Callable[..., Path]


@pytest.mark.parametrize(
    ("run", "store", "refused"),
    [
        ("store", "runs/store", True),
        ("store/text", "runs/store", True),
        ("store/text/a", "runs/store", True),
        ("mine", "runs/mine/data", True),
        ("store/a", "runs/store", False),
        ("mine", "runs", False),
    ],
)
def test_a_run_whose_removal_would_remove_the_corpus_is_refused(run: str, store: str, refused: bool) -> None:
    config = with_fields(PRESETS["small-rec"], {"run": run, "root": "runs", "data.store": store})
    if not refused:
        assert config.located().run == run
        return
    with pytest.raises(
        UserError, match=rf"run is '{run}', and its folder would share files with .*/{store}/text/: choose"
    ):
        config.located()


class TestRefusals:
    """One sentence that names the value and the remedy; what is there stays as it was."""

    def test_a_changed_field(self, train: Train) -> None:
        folder = train("--steps", "10")
        before = contents(folder)
        with pytest.raises(
            ValueError,
            match=r"trained with optim.lr=0.002, and this command says 0.1: .*--allow-change steps optim\.lr$",
        ):
            train("--steps", "20", "--optim.lr", "0.1", "--allow-change", "steps")
        assert contents(folder) == before

    def test_dropout_at_other_places(self, train: Train) -> None:
        folder = train("--model.dropout-places", "usual")
        whole = without_run_name(contents(folder / "checkpoints" / "step-00000020"))
        forget(folder, 15, 20)
        with pytest.raises(UserError, match=r"trained with model.dropout_places=usual, and this command says meliad"):
            train()
        train("--model.dropout-places", "usual")
        assert without_run_name(contents(folder / "checkpoints" / "step-00000020")) == whole

    def test_another_store(
        self,
        train: Train,
        make_config: Callable[..., PrepareConfig],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        train("--steps", "10")
        (tmp_path / "corpus" / "train" / "new.txt").write_text("one more document\n")
        other = str(tmp_path / "other")
        prepare(make_config(store=other))
        words = ("--steps", "20", "--data.store", other, "--allow-change", "steps")
        with pytest.raises(ValueError, match=r"made from another store .*--allow-change store"):
            train(*words)
        capsys.readouterr()
        train(*words, "store")
        assert "State begins anew" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            (
                ("optim.name", "--optim.name", "adafactor"),
                r"with optim.name=adamw, and the moments .*=adafactor: .* --run, which",
            ),
            (("model", "--model.layers", "3"), r"begun with model.layers=2, and its weights .* with model.layers=3: "),
            (
                ("model.states", "--model.states", "8"),
                r"begun with model.states=4, and its weights .*=8: .* --run, which",
            ),
            (
                ("model.states", "model.window", "--model.states", "8", "--model.window", "4"),
                r"begun with model.states=4, and its weights cannot be used with model.states=8: ",
            ),
            (
                ("model", "--model.d-model", "24", "--model.mlp-dim", "48"),
                r"with model.d_model=16, model.mlp_dim=32, .* with model.d_model=24, model.mlp_dim=48: ",
            ),
        ],
    )
    def test_another_optimizer_or_size_for_weights_that_do_not_fit(
        self, train: Train, fields: tuple[str, ...], message: str
    ) -> None:
        folder = train("--steps", "1", "--validate-every", "0")
        before = contents(folder)
        words = ("--steps", "20", "--allow-change", "steps", *fields)
        with pytest.raises(UserError, match=message) as caught:
            train(*words)
        assert "state_dict" not in str(caught.value) and "\n" not in str(caught.value)
        assert contents(folder) == before

    def test_another_seed_begins_state_anew_though_each_lane_has_read_as_much(
        self,
        train: Train,
        tmp_path: Path,
        make_config: Callable[..., PrepareConfig],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        for number in range(8):  # so long that no lane comes to a second one
            text = "".join(f"{number} and {i}\n" for i in range(400))
            (tmp_path / "corpus" / "train" / f"long{number}.txt").write_text(text)
        for path in (tmp_path / "corpus" / "train").glob("doc*"):
            path.unlink()
        store = str(tmp_path / "long")
        prepare(make_config(store=store))
        words = ("--data.store", store, "--checkpoint.every", "2")
        folder = train("--steps", "2", *words)
        cursor = json.loads((folder / "checkpoints/step-00000002/checkpoint.json").read_text())["cursor"]
        assert len(set(cursor)) == 1
        capsys.readouterr()
        train("--steps", "4", *words, "--seed", "7", "--allow-change", "seed", "steps")
        assert "State begins anew" in capsys.readouterr().out

    @pytest.mark.parametrize("window", ["4", "16"])
    def test_a_model_of_another_state_begins_it_anew(
        self, window: str, train: Train, capsys: pytest.CaptureFixture[str]
    ) -> None:
        train("--steps", "5")
        capsys.readouterr()
        again = ("--model.window", window, "--allow-change", "model.window", "steps")
        folder = train("--steps", "8", *again)
        assert "than before: State begins anew" in capsys.readouterr().out
        assert (folder / "checkpoints" / "step-00000008").is_dir()

    def test_another_vocabulary(self, train: Train, make_config: Callable[..., PrepareConfig], tmp_path: Path) -> None:
        train("--steps", "10")
        other = str(tmp_path / "other")
        prepare(make_config(store=other, tokenizer="sentencepiece:300"))
        with pytest.raises(ValueError, match=r"was trained with another tokenizer .* than .*/tokenizer$"):
            train("--steps", "20", "--data.store", other, "--allow-change", "steps", "store")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("--num-workers", "5"), "data.lanes is 4, which 5 workers cannot share: each needs a lane of its own"),
            (("--data.lanes", "0", "--num-workers", "0"), "data.lanes is 0: it must be at least 1"),
            (("--data.segment-length", "0"), "data.segment_length is 0: it must be at least 1"),
            (("--data.segment-length", "33"), "not a multiple of the model's block of 8 tokens: choose 32"),
            (("--data.segment-length", "8"), "learns its recurrence across blocks, so choose at least 16"),
            (("--data.corpus", "tex"), "tex"),
            (("--data.corpus", "text/"), "data.corpus is 'text/': it must be the name of a corpus in data.store"),
            (("--data.corpus", ""), "data.corpus is '': it must be the name of a corpus in data.store"),
            (("--steps", "0"), "steps is 0"),
            (("--steps", "many"), "steps"),
            (("--model.stats", "4"), r"did you mean --model.states\?"),
            (("--lr", "1e-3"), r"did you mean --optim.lr\?"),
            (("--model.layers", "0"), "model.layers is 0: it must be at least 1"),
            (("--optim.max-grad-norm", "-1"), "optim.max_grad_norm is -1.0: it must be at least 0"),
            (("--optim.betas", "1.5", "0.9"), r"optim.betas is \(1.5, 0.9\): each must be"),
            (("--allow-change", "optim.lrr"), r"allow_change has 'optim.lrr', .* did you mean 'optim.lr'\?"),
            (("--allow-change", "steps", "store", "model.stats"), r"'model.stats', .* did you mean 'model.states'\?"),
            (("--allow-change", "tracking", "model.name", "stor"), r"allow_change has 'stor', .* did you mean 'store'"),
            (("--validate-tokens", "-5"), "validate_tokens is -5: it must be at least 0"),
            (("--hang-seconds", "-1"), "hang_seconds is -1.0: it must be at least 0"),
            (("--run", ""), "run is '': it must be the name of a folder below --root"),
            (("--run", "../x"), "run is '../x'"),
            (("--run", "mlflow.db"), "run is 'mlflow.db', and mlflow.db below --root is for MLflow or for reports"),
            (("--run", "mlartifacts/one"), "and mlartifacts below --root is for MLflow or for reports"),
            (("--run", "reports"), "and reports below --root is for MLflow or for reports: choose another name"),
            (("--use-gpu", "yes"), "use_gpu is yes, and torch cannot use a GPU for each process"),
            (("--tracking.uri", "postgresql://me:pa?ss@host/db"), "a character that hides its end"),
            (("--tracking.uri", "http://me:pa#ss@127.0.0.1:1"), "a character that hides its end"),
            (("--tracking.uri", "http://m e:pass@127.0.0.1:1"), "a character that hides its end"),
            (("--tracking.uri", "postgresql://m'e:pass@host/db"), "a character that hides its end"),
            (("--optim.lr", "inf"), "optim.lr is inf: it must be finite"),
            (
                ("--data.order", "listed"),
                "invalid choice 'listed' for argument '--data.order'.*--help lists the options",
            ),
        ],
    )
    def test_bad_words(self, train: Train, words: tuple[str, ...], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            train(*words)

    def test_seeds_of_64_bits(self, train: Train) -> None:
        """A time in nanoseconds, say."""
        folder = train("--steps", "1", "--seed", "1764074521000000000", name="wide")
        assert (folder / "checkpoints" / "step-00000001").is_dir()

    def test_a_run_in_another_run(self, train: Train, tmp_path: Path) -> None:
        """It would be deleted with the other's checkpoints."""
        train("--steps", "1", name="one")
        for name in ("one/two", "one/checkpoints/step-00000001"):
            with pytest.raises(UserError, match=r"which would lie in the run .*/runs/one, .*: choose another name"):
                train("--steps", "1", name=name)
        with pytest.raises(UserError, match=r"which would lie in the run .*/runs/one, .*: choose another name"):
            train("--steps", "1", "--root", str(tmp_path / "runs/one"), name="two")
        assert os.listdir(tmp_path / "runs/one/checkpoints") == ["step-00000001"]

    def test_a_run_in_the_folder_of_a_sweep(self, train: Train, tmp_path: Path) -> None:
        """No command could read it: they take the folder for a sweep."""
        sweep = small_sweep(tmp_path / "runs/searched")
        before = os.listdir(sweep)
        with pytest.raises(UserError, match=r"runs/searched is a sweep: choose another --run"):
            train("--steps", "1", name="searched")
        assert os.listdir(sweep) == before

    def test_weights_that_are_no_numbers_are_not_saved(self, train: Train, tmp_path: Path) -> None:
        """Though the loss, which is of the weights before the step, was one."""
        with pytest.raises(UserError, match=r"a weight became nan by step 1: lower optim\.lr"):
            train("--optim.lr", "1e38", "--schedule.warmup-steps", "0", "--checkpoint.every", "1", name="wild")
        assert not (tmp_path / "runs" / "wild" / "checkpoints").exists()

    def test_a_changed_byte_in_a_part(self, train: Train, store: Path) -> None:
        part = next((store / "text" / "train").glob("part-*.arrow"))
        flip(part)
        with pytest.raises(ValueError, match=r"part-\d+.arrow is damaged"):
            train("--steps", "60")

    def test_a_damaged_or_missing_manifest(self, train: Train, store: Path) -> None:
        manifest = store / "text" / "train" / "manifest.json"
        text = manifest.read_text()
        manifest.write_text(text.replace('"tokens": 6', '"tokens": 7', 1) if '"tokens": 6' in text else text[:-40])
        with pytest.raises(ValueError, match=r"manifest.json is damaged"):
            train()
        manifest.unlink()
        with pytest.raises(ValueError, match="prepare"):
            train()

    def test_a_missing_tokenizer(self, train: Train, store: Path, tmp_path: Path) -> None:
        shutil.rmtree(store / "text" / "tokenizer")
        with pytest.raises(
            UserError,
            match=r"text/tokenizer/tokenizer\.json is missing: run the same prepare command again, which restores",
        ):
            train()
        assert not (tmp_path / "runs").exists()

    @pytest.mark.parametrize("split", ["train", "validation"])
    def test_a_split_without_tokens(self, train: Train, store: Path, split: str) -> None:
        folder = Place.parse(store / "text" / split)
        manifest = SegmentStore.open(folder).manifest
        entries = [replace(document, tokens=0) for document in manifest.documents]
        columns = {name: [getattr(entry, name) for entry in entries] for name in vars(entries[0])}
        table = write_table(folder, [columns])
        empty = replace(manifest, table=table, totals=replace(manifest.totals, tokens=0))
        (folder / "manifest.json").write_atomically(empty.to_json())
        with pytest.raises(
            UserError, match=f"text/{split} has no document with any token: prepare it again with another"
        ):
            train()

    def test_a_loss_that_is_no_number(self, train: Train) -> None:
        wild = ("--optim.lr", "1e30", "--optim.max-grad-norm", "0", "--validate-every", "0")
        with pytest.raises(
            UserError, match=r"the loss became .*optim.max_grad_norm; no checkpoint was saved, so .* begins anew$"
        ):
            train(*wild)
        train("--steps", "5", "--validate-every", "0", name="begun")
        allowed = ("--allow-change", "steps", "optim.lr", "optim.max-grad-norm")
        with pytest.raises(UserError, match=r"the loss became .* resumes from the checkpoint of step 5$"):
            train(*wild, *allowed, name="begun")

    def test_a_second_process_of_the_same_run(self, train: Train) -> None:
        from common.lock import file_lock

        folder = train("--steps", "5")
        with file_lock(folder, "a test"), pytest.raises(ValueError, match="another training run is writing to"):
            train("--steps", "10", "--allow-change", "steps")


def test_what_models_and_spaces_refuse_is_a_users_error(tmp_path: Path) -> None:
    """They know nothing of ours, and raise ValueError."""
    from pipelines import tune  # imports Ray

    with pytest.raises(UserError, match="unknown space 'stats'"):
        tune.main(["stats", "--root", str(tmp_path)])
    with pytest.raises(UserError, match=r"model\.states is 0"):
        with_fields(PRESETS["demo-rec"], {"model.states": 0})
    values = to_json(PRESETS["demo-rec"])
    for model, sentence in (
        ({"name": "rnn"}, "model 'rnn' is unknown"),
        ({"name": "rec", "odd": 1}, "no field 'odd'"),
        ({"name": "mixers", "layers": ["gru"]}, r"layers is .*: it must be a list, each one of delta, "),
    ):
        (tmp_path / "run.json").write_text(json.dumps({**values, "model": model}))
        with pytest.raises(UserError, match=sentence):
            presets_with(PRESETS, [str(tmp_path / "run.json")])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"steps": 2.5}, "steps is 2.5: it must be a whole number"),
        ({"optim.name": "sgd"}, "optim.name is 'sgd': it must be one of adamw, adafactor"),
        ({"precision": "fp16"}, "precision is 'fp16': it must be one of auto, float32, bfloat16"),
        ({"optim.betas": [0.9]}, r"optim.betas is \(0.9,\): it must be a list of 2, each a number"),
        ({"num_workers": 1.5}, "num_workers is 1.5: it must be a whole number or a word"),
        ({"checkpoint.keep": True}, "checkpoint.keep is True: it must be a whole number"),
        ({"data.corpus": 3}, "data.corpus is 3: it must be a word"),
        ({"placement.strategy": "far"}, "placement.strategy is 'far': it must be one of pack, spread, strict-spread"),
        ({"allow_change": [1]}, r"allow_change is \(1,\): it must be a list, each a word"),
        ({"optim": 1}, "has no field 'optim': did you mean 'optim.lr'"),
        ({"model": 1}, "model cannot be set: another model has other fields"),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused_wherever_it_comes_from(
    values: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        with_fields(PRESETS["demo-rec"], values)
    (field, value), config = *values.items(), to_json(PRESETS["demo-rec"])
    part, _, name = field.rpartition(".")
    if isinstance(config.get(field), dict):
        return
    (config[part] if part else config)[name] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=sentence):
        presets_with(PRESETS, [str(tmp_path / "config.json")])


def test_one_value_is_a_list_of_one() -> None:
    assert to_json(with_fields(PRESETS["demo-rec"], {"model.recurrent_layers": 2}))["model"]["recurrent_layers"] == [2]
