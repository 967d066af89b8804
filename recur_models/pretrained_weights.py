"""Sizes and weights of a pretrained model, out of a folder that transformers saved, or that `pipelines.export` made of one.

    folder = folder_of("gpt2")                        # a folder, or a name that Hugging Face's cache of this machine has
    sizes_of(GPT2, folder)                            {"layers": 12, "d_model": 768, ...}
    weights_of(GPT2, folder, vocab_size, like)        {"layers.0.attn.c_attn.weight": ..., ...}

Safetensors alone are read, and nothing is ever downloaded: a name is looked up where an earlier download has put it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from common.model_folder import eos_token_ids, read_json

MADE = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""How the names end of what is no weight, and older versions saved."""


@dataclass(frozen=True)
class Family:
    """Models of one architecture, as transformers saves them."""

    kind: str
    """config.json's model_type; also our name of the model, with -rec that of the one with recurrence."""
    article: str
    """As a sentence calls one."""
    saver: str
    """transformers' class that saves one with its output layer."""
    small: Mapping[str, Any]
    """Sizes of a small published one, under our names."""
    names: Mapping[str, str]
    """Name of each of them in config.json."""
    only: Mapping[str, Any]
    """The only values allowed in config.json, apart from sizes."""
    modules: Mapping[str, str]
    """Our name for a module of transformers'."""
    mark: str
    """config.json's name for the id that stands where a document begins, or between two."""
    config_values: Callable[[dict[str, Any]], dict[str, Any]]
    """config.json with what it leaves to its reader."""
    written: Callable[[dict[str, Any]], dict[str, Any]]
    """The values of config.json, from the sizes under its names and ``dropout``; `config_values` reads it."""
    prefix: str
    """Begins the names of all weights but those of the output layer."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Our names for a layer's weights, where they differ from transformers'."""
    squeezed: tuple[str, ...] = ()
    """Those of transformers' names below a layer whose weights have a second dimension of 1, which ours lack."""
    padded: bool = False
    """Whether embeddings may have rows that no id of the tokenizer has, up to a multiple of a power of two."""

    @property
    def remedy(self) -> str:
        return f"name a folder that transformers' {self.saver}.save_pretrained or pipelines.export has written"


def folder_of(pretrained: str) -> Path:
    """Raises ValueError where it is neither a folder nor a name of which this machine has a copy."""
    folder = Path(os.path.expanduser(pretrained)).absolute()
    if folder.is_dir():
        return folder
    remedy = "name a folder"
    if re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", pretrained):
        remedy = f"name a folder, or fetch it before with `hf download {pretrained}`"
        hub: Any = import_module("huggingface_hub")  # a second, which nobody else is to pay

        try:
            return Path(hub.snapshot_download(pretrained, local_files_only=True))
        except (OSError, ValueError):
            pass
    raise ValueError(
        f"model.pretrained is {pretrained}, which is neither a folder here nor a model in the Hugging Face cache: {remedy}; a run "
        "that has begun resumes without it from its config.json"
    )


def sizes_of(family: Family, folder: Path) -> dict[str, Any]:
    """The model's sizes, under our names. Raises ValueError where the folder's model is not one as this package computes it."""
    values = _config(family, folder)
    if "model" in values:
        return {name: type(small)(values["model"][name] or small) for name, small in family.small.items()}
    values = {**family.only, **family.config_values(values)}
    odd = [key for key, value in sorted(family.only.items()) if values[key] != value]
    if odd:
        raise ValueError(
            f"{folder} has {odd[0]}={values[odd[0]]}, and here it is {family.only[odd[0]]}: {family.remedy}"
        )
    sizes: dict[str, Any] = {}
    for ours, theirs in family.names.items():
        size = values.get(theirs)
        kind = type(family.small[ours])
        if not isinstance(size, (kind, int)):
            raise ValueError(f"{folder / 'config.json'} has {theirs}={size}, which is no size: {family.remedy}")
        sizes[ours] = kind(size)
    return sizes


def eos_ids_of(folder: Path) -> tuple[int, ...]:
    """The ids at which transformers ends a text of the folder's model; without begin-of-document, which no text has inside."""
    begin = read_json(folder / "config.json").get("begin_of_document_id")
    return tuple(index for index in eos_token_ids(folder) if index != begin)


def weights_of(family: Family, folder: Path, vocab_size: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state_dict of the names and shapes of ``like``, in float32; recurrence's is left as it is where the folder has none.

    A tokenizer may have one id more than the folder's embeddings have rows: begin-of-document, the last one. Its row begins as
    that of the folder's own mark of documents (of a GPT-2, <|endoftext|>), or as the mean of all rows where it has none. Where
    rows were padded beyond the tokenizer's ids, the last id takes the first of those, begun in the same way, and the others go.

    Raises ValueError where a weight is missing, left over or of another shape, or the vocabulary is another.
    """
    values = _config(family, folder)
    found = _tensors(family, folder)
    if "model" in values:
        named = {name.removeprefix("model."): tensor.float() for name, tensor in found.items()}
    else:
        named = {
            _ours(family, name): (tensor.squeeze(1) if name.endswith(family.squeezed) else tensor).float()
            for name, tensor in found.items()
            if not name.endswith(MADE)
        }
        if "output.weight" not in like:  # it is the embedding, and yet some have saved it
            named.pop("output.weight", None)
    recurrence = {name for name in like if name.startswith("recurrence.")}
    named = {name: tensor for name, tensor in named.items() if name in recurrence or not name.startswith("recurrence.")}
    named = {**{name: like[name] for name in recurrence}, **named}
    odd = sorted(named.keys() ^ like.keys())
    if odd:
        raise ValueError(f"{folder} {'lacks' if odd[0] in like else 'has'} the weight {odd[0]!r}: {family.remedy}")
    rows = len(named["embedding.weight"])
    mark = values.get(family.mark)
    ids = vocab_size - 1
    if ids == rows or (family.padded and ids < rows - 1 and rows in _paddings(ids)):
        for table in {"embedding.weight", "output.weight"} & named.keys():
            rows_VD = named[table][:ids]
            begin_D = rows_VD[mark] if isinstance(mark, int) and 0 <= mark < ids else rows_VD.mean(0)
            named[table] = torch.cat([rows_VD, begin_D[None]])
    elif vocab_size != rows:
        raise ValueError(
            f"the vocabulary has {vocab_size:,} ids, and {folder} has embeddings of {rows:,}: prepare the store with "
            "the tokenizer of these weights (its ids, and one for begin-of-document)"
        )
    for name, tensor in named.items():
        if tensor.shape != like[name].shape:
            raise ValueError(
                f"{folder} has {name} of shape {tuple(tensor.shape)}, and this model of {tuple(like[name].shape)}: give both the "
                "same sizes"
            )
    return named


def theirs_of(family: Family, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights under the names that transformers saves; an output layer that is the embedding has none."""
    modules = {ours: theirs for theirs, ours in family.modules.items()}
    parts = {ours: theirs for theirs, ours in family.parts.items()}
    named = {}
    for name, tensor in weights.items():
        module, _, rest = name.partition(".")
        if module == "layers":
            index, _, part = rest.partition(".")
            part = parts.get(part, part)
            tensor = tensor.unsqueeze(1) if part in family.squeezed else tensor
            rest = f"{index}.{part}"
        theirs = f"{modules.get(module, module)}.{rest}"
        named[theirs if module == "output" else family.prefix + theirs] = tensor
    return named


def _config(family: Family, folder: Path) -> dict[str, Any]:
    try:
        values: Any = json.loads((folder / "config.json").read_text("utf-8"))
    except OSError:
        raise ValueError(f"{folder} has no config.json that can be read: {family.remedy}") from None
    except ValueError:
        raise ValueError(f"{folder / 'config.json'} is not JSON: {family.remedy}") from None
    kind: Any = values.get("model_type") if isinstance(values, dict) else None
    if kind == "throughline":
        name: Any = (values.get("model") or {}).get("name")
        if name in (family.kind, f"{family.kind}-rec"):
            return values
        kind = name
    if kind != family.kind:
        raise ValueError(f"{folder} is of a model {kind!r}, not of {family.article}: {family.remedy}")
    return {key: value for key, value in values.items() if key != "model"}


def _tensors(family: Family, folder: Path) -> dict[str, Tensor]:
    files = ["model.safetensors"]
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            files = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        return {name: tensor for file in files for name, tensor in load_file(folder / file).items()}
    except FileNotFoundError:
        other = next((path.name for path in sorted(folder.glob("*.bin"))), None)
        told = f"has {other}, which may run code and is not opened" if other else "has no weights"
        raise ValueError(
            f"{folder} {told}: {family.remedy}, with safe_serialization, which makes model.safetensors"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"the weights in {folder} cannot be read ({error}): {family.remedy}") from None


def _ours(family: Family, name: str) -> str:
    module, _, rest = name.removeprefix(family.prefix).partition(".")
    module = family.modules.get(module, module)
    if module != "layers":
        return f"{module}.{rest}"
    index, _, part = rest.partition(".")
    return f"{module}.{index}.{family.parts.get(part, part)}"


def _paddings(ids: int) -> set[int]:
    """To how many rows so many ids are padded."""
    return {-(-ids // multiple) * multiple for multiple in (8, 16, 32, 64, 128)}
