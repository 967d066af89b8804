"""The weights that a new run begins with, where its config names a folder of them: `initial_weights`.

    initial = open_initial(config, train_store)        # an `Exported`, or None

A run that is resumed has its checkpoint and reads no such folder.
"""

from __future__ import annotations

from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import CheckpointError, check_fits
from pipelines.checkpoints.exported import Exported
from pipelines.config.run import ModelSettings, TrainConfig
from recur_models import model_from_json


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
    theirs = model_from_json(given).to_json()
    free = (*model.reading_fields, *model.path_fields, *model.training_fields, "eos_token_ids")
    for name, value in model.to_json().items():
        if name not in free and theirs[name] != value:
            raise CheckpointError(
                f"{exported.folder} is a {model.name} with model.{name} {theirs[name]}, and this run has {value}: weights fit "
                f"their own model alone, so leave out --model.{name.replace('_', '-')}"
            )
