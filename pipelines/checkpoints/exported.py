"""A folder that `pipelines.export` made. Commands read it in place of a checkpoint.

    exported = Exported.open("exported/demo-rec")
    exported.meta["config"]["model"], exported.weights()

Its config.json records the run under ``trained`` (`record_of`). transformers' Trainer and PEFT copy config.json to the model that
they save, so a tuned model still knows its tokenizer and its corpus. The record holds no path of a machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from common.choices import MODEL_MODULE
from common.files import digest, parse_json
from common.model_folder import eos_token_ids, weight_files
from common.places import Place
from common.uris import is_local
from pipelines.checkpoints.checkpoint import Snapshot, load_tensors, shapes_in
from pipelines.checkpoints.errors import CheckpointError

if TYPE_CHECKING:  # commands look for a model before they need torch, which takes seconds to import
    from torch import Tensor

UNRECORDED: Mapping[str, Any] = {
    "run": "",
    "step": 0,
    "tokens": 0,
    "seed": 0,
    "corpus": "",
    "store": "",
    "tokenizer": "",
    "lanes": 8,
    "segment_length": 0,
}
"""Values of ``trained`` where config.json has none, as when a script made the folder with ThroughlineConfig. ``store`` and
``tokenizer`` are fingerprints; ``segment_length`` is 0 where it is not known."""
PREFIX = "model."
"""Prefix of the name of each weight in an exported folder."""
REMEDY = "export the checkpoint again"
CODE = f"{MODEL_MODULE}.py"
"""A file of an exported folder, by which it is known if its config.json is damaged or gone."""
MADE_BY_OTHERS = ("checkpoint.json", "optimizer.safetensors", "adapter_config.json")
"""Files of a checkpoint, damaged or not, or of an adapter: a folder with one of them is no exported folder."""


def record_of(snapshot: Snapshot) -> dict[str, Any]:
    """The record ``trained`` for the config.json of this checkpoint's export."""
    meta = snapshot.meta
    config = meta["config"]
    data = config["data"]
    known = {"run": config["run"], "step": snapshot.step, "seed": config["seed"]}
    known |= {name: meta[name] for name in ("tokens", "store", "tokenizer")}
    return known | {name: data[name] for name in ("corpus", "lanes", "segment_length")}


def is_exported(path: str | Path) -> bool:
    """Whether `pipelines.export` made this local folder, or transformers saved it from such a model; `Exported.open` reports damage
    to it.
    """
    kind = model_type(path)
    return kind == "throughline" or (not kind and _lost_its_config(path))


def is_saved_model(path: str | Path) -> bool:
    """Whether a folder of this machine holds a model that was saved, by `pipelines.export` or by transformers, and no run."""
    return bool(model_type(path)) or is_exported(path)


def _lost_its_config(path: str | Path) -> bool:
    """Whether a folder of this machine without a model_type has the code of an exported folder."""
    if not is_local(str(path)):
        return False
    folder = Path(Place.parse(path).path)
    is_other = any((folder / name).exists() for name in MADE_BY_OTHERS)
    return not is_other and (folder / CODE).exists()


def model_type(path: str | Path) -> str:
    """The model_type in the config.json of a folder of this machine; empty where there is none."""
    if not is_local(str(path)):
        return ""
    try:
        found = parse_json(Path(Place.parse(path).path, "config.json").read_text("utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        return ""
    return found if isinstance(found, str) else ""


def check_is_ours(path: str | Path) -> None:
    """Raise CheckpointError for a folder with a model of transformers' own."""
    kind = model_type(path)
    if kind not in ("", "throughline"):
        raise CheckpointError(
            f"{path} is a model of transformers' own, {kind!r}: name a run, a checkpoint, or a folder that pipelines.export made "
            "without --format transformers; --model.pretrained begins a run with a gpt2, a llama or a mamba2"
        )


@dataclass(frozen=True)
class Exported:
    """An exported folder: a `Snapshot` without optimizer and State."""

    folder: Path
    config: Mapping[str, Any]
    """The contents of its config.json."""
    files: tuple[str, ...]
    """Names of the files with its weights."""

    @classmethod
    def open(cls, path: str | Path) -> Exported:
        """Open and check an exported folder. Raises UserError if it is incomplete, or its weights do not fit its model, and OSError
        where its config.json may not be read.
        """
        folder = Path(Place.parse(path).path)
        file = folder / "config.json"
        try:
            config: Any = parse_json(file.read_text("utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{folder} has no config.json, which names its model: {REMEDY}") from None
        except ValueError as error:
            raise CheckpointError(f"{file} is damaged ({error}): {REMEDY}") from None
        if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
            raise CheckpointError(f"{file} names no model: {REMEDY}")
        if type(config.get("vocab_size")) is not int or config["vocab_size"] < 1:
            raise CheckpointError(f"{file} has vocab_size={config.get('vocab_size')}: {REMEDY}")
        begin = config.get("begin_of_document_id")
        if begin is not None and not (type(begin) is int and 0 <= begin < config["vocab_size"]):
            raise CheckpointError(f"{file} has begin_of_document_id={begin!r}: {REMEDY}")
        recorded = config.get("trained") or {}
        for name, value in UNRECORDED.items():
            given = recorded.get(name, value) if isinstance(recorded, dict) else recorded
            if type(given) is not type(value):
                raise CheckpointError(f"{file} has trained.{name}={given!r}: {REMEDY}")
        exported = cls(folder, config, weight_files(folder, f"{REMEDY}, or save the model again with save_pretrained"))
        exported._check_weights()
        return exported

    @property
    def trained(self) -> dict[str, Any]:
        """The record of the run, with `UNRECORDED` for missing values."""
        return {**UNRECORDED, **(self.config.get("trained") or {})}

    @property
    def step(self) -> int:
        """Step of the run's checkpoint. Steps of a later tuning are not known."""
        return self.trained["step"]

    @cached_property
    def digest(self) -> str:
        """A checksum of the model's config and its weights."""
        checksums = [Place.parse(self.folder / name).xxh3() for name in self.files]
        return digest([self.config["model"], self.config["vocab_size"], checksums])

    @property
    def meta(self) -> Mapping[str, Any]:
        """The part of a checkpoint's meta that commands read. The run is named after the folder: it may be tuned after export."""
        trained = self.trained
        data = {name: trained[name] for name in ("corpus", "lanes", "segment_length")}
        known = {name: trained[name] for name in ("step", "tokens", "store", "tokenizer")}
        return {
            **known,
            "vocab_size": self.config["vocab_size"],
            "config": {
                "run": self.folder.name,
                "seed": trained["seed"],
                "model": self.config["model"],
                "data": {"store": "", "cache": "", **data},
                "tracking": {"backend": "mlflow", "uri": "", "experiment": ""},
                "exported": str(self.folder),
            },
        }

    @property
    def bod_id(self) -> int:
        """Id of the begin-of-document token, which precedes a text."""
        found = self.config.get("begin_of_document_id")
        return self.config["vocab_size"] - 1 if found is None else found

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids at which transformers ends a generated text."""
        return eos_token_ids(self.folder)

    def weights(self) -> dict[str, Tensor]:
        """The weights by name, in float32 whatever they were saved in. Raises CheckpointError for values that are not numbers."""
        from recur_models.pretrained_weights import in_float32

        tensors = {}
        for name in self.files:
            tensors |= load_tensors(self.folder / name)
        try:
            return {name.removeprefix(PREFIX): tensor for name, tensor in in_float32(tensors, self.folder).items()}
        except ValueError as error:
            raise CheckpointError(str(error)) from None

    def _check_weights(self) -> None:
        import torch

        from recur_models import model_from_json

        try:
            with torch.device("meta"):
                model = model_from_json(self.config["model"]).build(self.config["vocab_size"])
        except (ValueError, TypeError, RuntimeError) as error:
            why = " ".join(str(error).split())
            raise CheckpointError(
                f"{self.folder / 'config.json'} has no model that can be built ({why}): {REMEDY}"
            ) from None
        expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        found = dict[str, list[int]]()
        for file in self.files:
            try:
                found |= {name.removeprefix(PREFIX): shape for name, shape in shapes_in(self.folder / file).items()}
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{self.folder / file} cannot be read ({error}): {REMEDY}") from None
        odd = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        if odd:
            raise CheckpointError(
                f"the weights in {self.folder} are not those of the model in its config.json ({odd[0]}: {found.get(odd[0])}, not "
                f"{expected.get(odd[0])}; {len(odd)} in all): {REMEDY}, and merge adapters before saving"
            )
