"""A trained model and its tokenizer, from wherever they are: a run's folder, a checkpoint's, or one that `pipelines.export` made.

trained = load(Path("runs/demo-rec"))
trained.tokenizer.encode("def f():"), trained.model
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from common.errors import UserError, first_cause, given_by_user
from common.model_folder import check_is_no_adapter
from common.places import Place
from data_prep.documents import check_split
from data_prep.store import SegmentStore
from data_prep.tokenizers import (
    TOKENIZER_FOLDER,
    SymbolsTokenizer,
    Tokenizer,
    TokenizerError,
    bod_id,
    chat_of,
    load_tokenizer,
)
from data_prep.tokenizers.base import encoding_errors
from pipelines.checkpoints import retention
from pipelines.checkpoints.checkpoint import Checkpoint, Snapshot, check_fits
from pipelines.checkpoints.errors import CheckpointError, retry_if_removed
from pipelines.checkpoints.exported import CODE, Exported, check_is_ours, is_exported
from pipelines.checkpoints.run_folder import TRAIN_FIRST, find_run

if TYPE_CHECKING:  # a run is looked for before torch is needed, which takes seconds to import
    import torch

    from recur_models import ModelConfig, RecurrentModel


Form = Literal["throughline", "transformers"]
"""The classes of an exported folder: ours, or transformers' own of the model."""


class TextTokenizer(Protocol):
    """The interface that generation needs of a tokenizer; those of `data_prep.tokenizers` have it."""

    def encode(self, text: str) -> np.ndarray: ...

    def decode(self, ids: list[int]) -> str: ...


class ExportedTokenizer:
    """The tokenizer beside exported weights, without begin-of-document."""

    def __init__(self, folder: Path, bod_id: int, vocab_size: int) -> None:
        from transformers.models.auto.tokenization_auto import AutoTokenizer

        import recur_models.hf  # noqa: F401  (makes the tokenizers known to AutoTokenizer)

        tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
        self.transformers = tokenizer
        self.folder = folder
        self.bod_id = bod_id
        self.vocab_size = vocab_size
        self.labels = not tokenizer("")["input_ids"]  # such texts have no begin-of-document

    def encode(self, text: str) -> np.ndarray:
        """Ids of a text. Names of special tokens in it are ordinary text. Raises TokenizerError for a text that has no ids."""
        with encoding_errors(str(self.folder)):
            ids = self.transformers(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return np.asarray(self.checked(ids), dtype=np.int64)

    def checked(self, ids: list[int]) -> list[int]:
        """The ids. Raises TokenizerError if the model has no embedding of one of them, as after `add_tokens` alone."""
        largest = max(ids, default=0)
        if largest >= self.vocab_size:
            raise TokenizerError(
                f"the tokenizer in {self.folder} gives the id {largest:,}, and the model has {self.vocab_size:,} embeddings: "
                "call resize_token_embeddings before saving the model, or restore the tokenizer"
            )
        return ids

    def decode(self, ids: list[int]) -> str:
        return self.transformers.decode([index for index in ids if index != self.bod_id])


@dataclass(frozen=True)
class Trained:
    """A model to be used, in evaluation mode, on the CPU."""

    place: str
    model: RecurrentModel
    tokenizer: TextTokenizer
    bod_id: int
    """Id of the begin-of-document token, which precedes a text."""
    labels: bool = False
    """Whether the model predicts labels of symbols and no text. Its inputs have no begin-of-document."""
    checkpoint: Snapshot | None = None
    """The checkpoint or exported folder that the model was loaded from."""
    eos_ids: Sequence[int] = ()
    """Ids that end a text."""


def device() -> torch.device:
    """The device of a command that uses a model: a GPU if there is one."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@retry_if_removed
def load(path: str | Path, store: str = "", corpus: str = "", best: bool = False) -> Trained:
    """The model and tokenizer at this path or URI. ``best``: a run's best checkpoint, and not its newest.

    Raises:
        CheckpointError: there is no model, or it is damaged.
        ValueError: the tokenizer is not where the run had it (``store`` says where it is), or not the run's.
    """
    checkpoint = find_model(path, best)
    if isinstance(checkpoint, Exported) and (checkpoint.folder / "tokenizer_config.json").is_file():
        exported = tokenizer_beside(checkpoint)
        return Trained(
            place=str(path),
            model=model_of(checkpoint),
            tokenizer=exported,
            bod_id=checkpoint.bod_id,
            labels=exported.labels,
            checkpoint=checkpoint,
            eos_ids=checkpoint.eos_ids,
        )
    tokenizer = tokenizer_of(checkpoint, store, corpus)
    return Trained(
        place=str(checkpoint.folder),
        model=model_of(checkpoint),
        tokenizer=tokenizer,
        bod_id=bod_id(tokenizer),
        labels=isinstance(tokenizer, SymbolsTokenizer),
        checkpoint=checkpoint,
        eos_ids=eos_ids(checkpoint, tokenizer),
    )


def tokenizer_beside(exported: Exported) -> ExportedTokenizer:
    """The tokenizer in an exported folder. Raises CheckpointError if it cannot be read."""
    try:
        return ExportedTokenizer(exported.folder, exported.bod_id, exported.meta["vocab_size"])
    except UserError:
        raise
    except Exception as error:  # transformers raises many kinds for an incomplete folder
        raise CheckpointError(
            f"the tokenizer in {exported.folder} cannot be read ({first_cause(error)}): export the checkpoint again"
        ) from None


def find_model(path: str | Path, best: bool = False) -> Checkpoint | Exported:
    """The exported folder at this path, or the checkpoint that `find_checkpoint` finds there."""
    return Exported.open(path) if is_exported(path) else find_checkpoint(path, best)


def find_checkpoint(path: str | Path, best: bool = False) -> Checkpoint:
    """The checkpoint at this path or URI: a checkpoint's folder, or the newest good one of a run's folder. ``best``: the run's best
    checkpoint of those validated at their own step, if there is one.
    """
    check_is_no_adapter(path)
    check_is_ours(path)
    run, name = find_run(path)
    if name and run.is_local:
        return Checkpoint.open(Path(Place.parse(path).path))
    if name and run.checkpoints / name != Place.parse(path):
        raise CheckpointError(
            f"{Place.parse(path)} is a checkpoint outside of a run's folder `checkpoints`: copy it to this machine, and name "
            "the copy"
        )
    if name:
        return run.open_checkpoint(name)
    found, complaints = retention.open_best(run) if best else (None, [])
    if found is None:
        found, complaints = run.newest()
    _warn_of(complaints)
    if found is not None:
        return found
    if not run.is_local and (run.place / CODE).exists():
        raise CheckpointError(f"{run.place} is an exported folder: copy it to this machine, and name the copy")
    raise CheckpointError(f"{str(path) or run.place} holds no checkpoint: {TRAIN_FIRST}")


def _warn_of(passed_over: list[str]) -> None:
    for complaint in passed_over:
        print(f"warning: passed over a checkpoint: {complaint}", file=sys.stderr)


def config_of(checkpoint: Snapshot) -> ModelConfig:
    """The model's config. Raises UserError for a model that this version does not know."""
    from recur_models import model_from_json

    with given_by_user(ValueError):
        return model_from_json(checkpoint.meta["config"]["model"])


def with_windows(config: ModelConfig, windows: Mapping[str, int], folder: Path, allow: str) -> ModelConfig:
    """The config with other values of the fields that control how a text is read.

    Args:
        folder: of the model, for errors.
        allow: the option that allows values for which the weights are not trained; empty if any value will do.

    Raises UserError for a field or a value that the model cannot take.
    """
    for name, value in windows.items():
        if name not in config.reading_fields:
            raise UserError(f"{folder} is a {config.name}, whose {name} cannot change: leave out --{name}")
        trained = getattr(config, name)
        if name in config.trained_reading_fields and value != trained and allow:
            raise UserError(
                f"{folder} is a {config.name}, trained with model.{name} {trained} and not {value}; its recurrence fits only "
                f"the windows of its training: leave out --{name}, or add {allow}"
            )
    with given_by_user(ValueError):
        return replace(config, **windows)


def model_of(checkpoint: Snapshot, config: ModelConfig | None = None) -> RecurrentModel:
    """The saved model in evaluation mode. ``config``: another one for its weights. Raises UserError as `config_of` does."""
    config = config or config_of(checkpoint)
    return config.restore(checkpoint.meta["vocab_size"], checkpoint.weights()).eval()


def weights_damaged(found: str) -> UserError:
    """The error for a model that computes something other than numbers. ``found``: what, as "its loss is not a number"."""
    return UserError(f"{found}, so its weights are damaged: name another checkpoint")


def place_of(checkpoint: Snapshot, store: str = "", corpus: str = "") -> tuple[str, str]:
    """The store and the corpus in it: as given, or as the checkpoint's run had them.

    Raises UserError where neither names it. An exported folder, for example, names no place of a machine.
    """
    data = checkpoint.meta["config"]["data"]
    found = store or data["store"]
    if not found:
        raise UserError(f"{checkpoint.folder} does not say where its store is: name the store with --store")
    corpus = corpus or data["corpus"]
    if not corpus:
        raise UserError(f"{checkpoint.folder} does not say which corpus it was trained on: export its run again")
    return found, corpus


def open_split(checkpoint: Snapshot, split: str, store: str = "", corpus: str = "", override: str = "") -> SegmentStore:
    """A split of the store and corpus that `place_of` finds. Raises UserError where it is missing, has other tokens than the model,
    or its tokenizer is missing. With an ``override``, also where it is not the store of the training (`check_fits`).
    """
    check_split(split)  # reports are named after it, so a path such as test/ will not do
    place, corpus = place_of(checkpoint, store, corpus)
    opened = SegmentStore.open(place, corpus, split, cache=checkpoint.meta["config"]["data"]["cache"])
    check_fits(checkpoint, opened, override)
    opened.check_tokenizer()
    return opened


def useful_segment_length(asked: int, trained: int, longest: int, block: int) -> int:
    """Tokens of a segment: as ``asked`` for, or with 0 as in training (``trained``), but no more than training or the ``longest``
    document needs, in whole blocks. Beyond that, longer segments take more memory and change nothing.
    """
    return min(asked, max(trained, -(-longest // block) * block)) or trained


def eos_ids(checkpoint: Snapshot, tokenizer: Tokenizer) -> list[int]:
    """The ids at which a model ends a text: those that an exported folder names, else those of the weights that the run began
    with, else those of the tokenizer's chat template.
    """
    chat = chat_of(tokenizer)
    named = checkpoint.eos_ids if isinstance(checkpoint, Exported) else ()
    begun_with = checkpoint.meta["config"]["model"].get("eos_token_ids") or ()
    of_chat = chat.eos_token_ids if chat else ()
    for ids in (named, begun_with, of_chat):
        found = [index for index in ids if index < bod_id(tokenizer)]
        if found:
            return found
    return []


def tokenizer_of(checkpoint: Snapshot, store: str = "", corpus: str = "") -> Tokenizer:
    """The run's tokenizer, from the store that it was trained on. An exported folder has a copy, which is read without a ``store``.

    Args:
        store: where that store is now.
        corpus: another corpus that was prepared with the same tokenizer.
    """
    own = checkpoint.folder / TOKENIZER_FOLDER
    if isinstance(checkpoint, Exported) and not store and own.is_dir():
        remedy = "export the checkpoint again, or name the store with --store"
        try:
            tokenizer = load_tokenizer(own)
        except TokenizerError:  # its remedy is that of a store
            raise TokenizerError(f"the tokenizer in {own} is damaged: {remedy}") from None
        check_is_of_training(checkpoint, tokenizer, own, remedy)
        return tokenizer
    place, found = place_of(checkpoint, store, corpus)
    folder = Place.parse(place) / found / TOKENIZER_FOLDER
    if corpus and not folder.parent.is_dir():
        raise TokenizerError(f"{folder.parent} does not exist: name another --store or --corpus")
    if not (folder / "tokenizer.json").is_file():
        raise TokenizerError(
            f"{folder} holds no tokenizer: name the store that {checkpoint.folder} was trained on with --store"
        )
    tokenizer = load_tokenizer(folder)
    check_is_of_training(checkpoint, tokenizer, folder, "name the right store with --store")
    return tokenizer


def check_is_of_training(checkpoint: Snapshot, tokenizer: Tokenizer, folder: Path | Place, remedy: str) -> None:
    """Raise TokenizerError, with the remedy, unless the tokenizer in a folder is the one that the checkpoint was trained with."""
    if tokenizer.fingerprint != checkpoint.meta["tokenizer"]:
        raise TokenizerError(
            f"the tokenizer in {folder} is not the one that {checkpoint.folder} was trained with: {remedy}"
        )
