"""The weights that a new run begins with, where its config names a folder of them: `initial_weights`, or `model.pretrained`.

    initial = open_initial(config, train_store)        # an `Exported`, or None
    other_tokenizer(config.model, train_store)         # a sentence if pretrained weights know other tokens

A run that is resumed has its checkpoint and reads no such folder.
"""

from __future__ import annotations

from typing import Any

from data_prep.store import SegmentStore
from data_prep.tokenizers import tokenizer_from_spec
from pipelines.checkpoints.checkpoint import check_fits
from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.exported import Exported
from pipelines.config.run import ModelSettings, TrainConfig
from recur_models import model_from_json
from recur_models.pretrained_config import PretrainedConfig, typed
from recur_models.pretrained_weights import folder_of

PROBE = (
    "In 1851 the captain's three whalers sang: “Où allons-nous?” — 7,290 miles!\n\tdef area(r): return 3.14 * r ** 2\n"
)
"""Text whose ids tell most tokenizers apart, but not two that differ elsewhere alone, such as in another script."""


def open_initial(config: TrainConfig, store: SegmentStore) -> Exported | None:
    """The exported folder that the run begins with; None where it begins with weights of its own.

    Raises UserError where the folder is missing or damaged, its tokenizer is not the store's, or its model is not the run's.
    """
    if not config.initial_weights:
        return None
    exported = Exported.open(config.initial_weights)
    check_fits(exported, store, "")
    check_same_model(exported, config.model)
    return exported


def check_same_model(exported: Exported, model: ModelSettings) -> None:
    """Raise UserError naming a field that differs, unless it says only how a text is read, where it ends or how a model
    is trained."""
    given = exported.config["model"]
    if given["name"] != model.name:
        raise CheckpointError(
            f"{exported.folder} is a {given['name']}, and this run trains a {model.name}: name the folder in place of the preset"
        )
    theirs, ours = (sized_json(each) for each in (model_from_json(given), model))
    may_differ = (*model.reading_fields, *model.path_fields, *model.training_fields, "eos_token_ids")
    for name, value in ours.items():
        if name not in may_differ and theirs[name] != value:
            option = f"--model.{name.replace('_', '-')}"
            raise CheckpointError(
                f"{exported.folder} is a {model.name} with model.{name} {theirs[name]}, and this run has {value}: leave out "
                f"{option}, or give {option} {typed(theirs[name])}"
            )


def sized_json(model: ModelSettings) -> dict[str, Any]:
    """A model's fields, with the published model's sizes in place of empty ones."""
    return (model.sized() if isinstance(model, PretrainedConfig) else model).to_json()


def weights_folder(config: TrainConfig, initial: Exported | None) -> str:
    """The folder, or its name in Hugging Face's cache, of the weights that a new run begins with; empty for weights of its own."""
    if initial:
        return str(initial.folder)
    model = config.model
    return model.pretrained if isinstance(model, PretrainedConfig) and model.has_weights else ""


def other_tokenizer(model: ModelSettings, store: SegmentStore) -> str:
    """A sentence if the tokenizer in the folder of `model.pretrained` encodes texts otherwise than the store's; else ""."""
    if not isinstance(model, PretrainedConfig) or not model.has_weights or store.labelled:
        return ""
    try:
        folder = folder_of(model.pretrained)
        own: Any = tokenizer_from_spec(str(folder))
        if own.fingerprint == store.manifest.tokenizer.fingerprint:
            return ""
        if own.encode(PROBE).tolist() == store.tokenizer().encode(PROBE).tolist():
            return ""
    except (ValueError, OSError):  # no folder, no tokenizer in it, or one that cannot be read or cannot encode the text
        return ""
    return (
        f"{store.folder} was prepared with another tokenizer than the one in {folder}: its ids are not those that the weights "
        f"know; prepare the store with --tokenizer {folder}"
    )
