"""Reads the sizes and weights of a pretrained model from a folder that transformers or `pipelines.export` wrote.

    folder = folder_of("gpt2")                        # a folder, or a name that Hugging Face's cache of this machine has
    sizes_of(GPT2, folder)                            {"layers": 12, "d_model": 768, ...}
    weights_of(GPT2, folder, vocab_size, like)        {"layers.0.attn.c_attn.weight": ..., ...}

Only safetensors are read. Nothing is downloaded: a name is looked up in the local Hugging Face cache.
"""

from __future__ import annotations

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

from common.model_folder import check_is_no_adapter, eos_token_ids, read_json, weight_files

GIT_LFS = b"version https://git-lfs"
"""The beginning of a file that stands for a large one in Git, until that is fetched."""
KINDS = ("gpt2", "llama", "mamba2")
"""The kinds of models that are read."""
SAME_AS: Mapping[Any, tuple[str, ...]] = {"silu": ("swish",), "gelu_new": ("gelu_pytorch_tanh",)}
"""Other names that transformers has for an activation."""
BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""Endings of names under which older versions of transformers saved buffers that are no weights."""
MOST_PADDING = 1.1
"""Rows of embeddings per id of the tokenizer, up to which the surplus may be padding. With more, the tokenizer is another one."""


@dataclass(frozen=True)
class Family:
    """Models of one architecture, as transformers saves them."""

    kind: str
    """config.json's model_type, and our name of the model; the name of the model with recurrence has ``-rec`` behind it."""
    article: str
    """The model's name with its article, as sentences have it."""
    saver: str
    """transformers' class that saves the model with its output layer."""
    small: Mapping[str, Any]
    """Sizes of a small published model, by our names."""
    names: Mapping[str, str]
    """config.json's names of these sizes, by ours."""
    required: Mapping[str, Any]
    """Values of config.json that are the only ones this package computes, and the defaults of those that it lacks."""
    modules: Mapping[str, str]
    """Our names of modules, by transformers'."""
    document_token: str
    """config.json's name of the id that begins a document, or separates two."""
    from_config_json: Callable[[dict[str, Any]], dict[str, Any]]
    """Completes config.json: adds the values that it leaves to its reader, and those that `names` has under other names."""
    to_config_json: Callable[[dict[str, Any]], dict[str, Any]]
    """Makes config.json from the sizes under its names and ``dropout``; the inverse of `from_config_json`."""
    prefix: str
    """Prefix of the names of all weights, except those of the output layer."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Our names of a layer's weights, by transformers', where they differ."""
    squeezed: tuple[str, ...] = ()
    """transformers' names of a layer's weights that have a second dimension of 1, which ours lack."""
    padded: bool = False
    """Whether the embeddings may have more rows than the tokenizer has ids, up to a multiple of 8 to 128."""

    @property
    def remedy(self) -> str:
        """The end of error messages: the folder to give instead."""
        return f"name a folder that transformers' {self.saver}.save_pretrained or pipelines.export has written"


def in_float32(tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The weights of a folder in float32. Raises ValueError for a dtype that torch cannot convert, and for values that are not
    numbers.
    """
    wide = {}
    for name, tensor in tensors.items():
        try:
            wide[name] = tensor.float()
        except NotImplementedError:
            raise ValueError(
                f"{folder} has {name} as {tensor.dtype}, which torch cannot convert: save the model in float32 or bfloat16"
            ) from None
        if not wide[name].isfinite().all():
            raise ValueError(
                f"{folder} has values in {name} that are not numbers, so it is damaged: name another folder"
            )
    return wide


def folder_of(pretrained: str) -> Path:
    """The folder at this path, or of the model of this name in Hugging Face's cache. Raises ValueError if there is neither."""
    folder = Path(os.path.expanduser(pretrained)).absolute()
    if folder.is_dir():
        return folder
    remedy = "name a folder"
    if folder.exists():
        remedy = "name the folder that holds this file"
    elif re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", pretrained):
        remedy = f"fetch it with `hf download {pretrained} --local-dir FOLDER`, and name that folder"
        hub: Any = import_module("huggingface_hub")  # takes a second, so only where it is used
        try:
            return Path(hub.snapshot_download(pretrained, local_files_only=True))
        except (OSError, ValueError):
            pass
    raise ValueError(
        f"model.pretrained is {pretrained}, which is neither a folder here nor a model in the Hugging Face cache: {remedy}; a run "
        "that has begun resumes without it from its config.json"
    )


def sizes_of(family: Family, folder: Path) -> dict[str, Any]:
    """The sizes of the folder's model, by our names. Raises ValueError if this package cannot compute that model."""
    values = _config(family, folder)
    if "model" in values:
        return {name: type(small)(values["model"].get(name) or small) for name, small in family.small.items()}
    values = {**family.required, **family.from_config_json(values)}
    odd = [
        key
        for key, value in sorted(family.required.items())
        if values[key] != value and values[key] not in SAME_AS.get(value, ())
    ]
    if odd:
        raise ValueError(
            f"{folder} has {odd[0]}={values[odd[0]]}, and only {odd[0]}={family.required[odd[0]]} is computed here: name another "
            "model"
        )
    sizes: dict[str, Any] = {}
    for ours, theirs in family.names.items():
        size = values.get(theirs)
        kind = type(family.small[ours])
        if not isinstance(size, (kind, int)) or (kind in (int, float) and size <= 0):
            raise ValueError(f"{folder / 'config.json'} has {theirs}={size}, which is no size: {family.remedy}")
        sizes[ours] = kind(size)
    return sizes


def recurrence_of(family: Family, folder: Path) -> dict[str, Any]:
    """The fields of a model with recurrence that `pipelines.export` wrote; empty for any other folder."""
    model = _config(family, folder).get("model", {})
    return model if model.get("name") == f"{family.kind}-rec" else {}


def eos_ids_of(folder: Path) -> tuple[int, ...]:
    """The ids at which transformers ends a text of the folder's model, except begin-of-document, which no text contains."""
    begin = read_json(folder / "config.json").get("begin_of_document_id")
    return tuple(index for index in eos_token_ids(folder) if index != begin)


def weights_of(family: Family, folder: Path, vocab_size: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The folder's weights as a state_dict with the names and shapes of ``like``, in float32.

    A recurrence that the folder lacks keeps the weights of ``like``. A tokenizer may have one id more than the folder's embeddings
    have rows: begin-of-document, the last one (`_with_begin_of_document`).

    Raises ValueError if a weight is missing, left over or of another shape, or if the vocabulary has another size.
    """
    values = _config(family, folder)
    named = _with_recurrence(_named_tensors(family, folder, values, like), like)
    odd = sorted(named.keys() ^ like.keys())
    if odd:
        raise ValueError(f"{folder} {'lacks' if odd[0] in like else 'has'} the weight {odd[0]!r}: {family.remedy}")
    named |= _tables(family, folder, named, vocab_size, values)
    for name, tensor in named.items():
        if tensor.shape != like[name].shape:
            raise ValueError(
                f"{folder} has {name} of shape {tuple(tensor.shape)}, and this model of {tuple(like[name].shape)}: give both the "
                "same sizes"
            )
    return named


def theirs_of(family: Family, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights under transformers' names, in its shapes. A tied output layer has no weight of its own."""
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
    check_is_no_adapter(folder)
    values = read_json(folder / "config.json")
    if not values:
        raise ValueError(f"{folder} has no config.json that can be read: {family.remedy}")
    kind: Any = values.get("model_type")
    if kind == "throughline":
        model: Any = values.get("model")
        name = model.get("name") if isinstance(model, dict) else None
        if name in (family.kind, f"{family.kind}-rec"):
            return values
        kind = name
    if kind is None and (folder / "checkpoints").is_dir():
        raise ValueError(f"{folder} is a run: export it first, with pipelines.export {folder} --output FOLDER")
    if kind != family.kind:
        remedy = f"give a preset of a {kind}" if kind in KINDS else family.remedy
        raise ValueError(f"{folder} is of a model {kind!r}, not of {family.article}: {remedy}")
    return {key: value for key, value in values.items() if key != "model"}


def _tensors(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name in weight_files(folder):
        file = folder / name
        try:
            tensors |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{file} cannot be read ({error}): {_remedy_for(file)}") from None
    return tensors


def _remedy_for(file: Path) -> str:
    """The remedy for a file of weights that is damaged, or that Git has not fetched."""
    with file.open("rb") as opened:
        is_pointer = opened.read(len(GIT_LFS)) == GIT_LFS
    return "it is a pointer of Git LFS, so run git lfs pull in its folder" if is_pointer else "fetch it again"


def _named_tensors(
    family: Family, folder: Path, values: Mapping[str, Any], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The folder's tensors under our names, in our shapes and float32. ``values``: its config.json."""
    tensors = _tensors(folder)
    if "model" in values:  # pipelines.export wrote them
        return in_float32({name.removeprefix("model."): tensor for name, tensor in tensors.items()}, folder)
    named = _renamed(family, tensors)
    if "output.weight" not in like:  # tied, but some folders have saved it
        named.pop("output.weight", None)
    return in_float32(named, folder)


def _with_recurrence(named: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the recurrence of ``like``, of which the folder's own parts take the place; others of its are left out."""
    recurrence = {name: tensor for name, tensor in like.items() if name.startswith("recurrence.")}
    kept = {name: tensor for name, tensor in named.items() if name in like or not name.startswith("recurrence.")}
    return recurrence | kept


def _tables(
    family: Family, folder: Path, named: Mapping[str, Tensor], vocab_size: int, values: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The embeddings, and an output layer of its own, with a row for begin-of-document where the folder has none; empty where
    they fit as they are. ``values``: the folder's config.json. Raises ValueError for another size of the vocabulary.
    """
    rows = named["embedding.weight"].shape[:1].numel()
    ids = vocab_size - 1  # without begin-of-document
    # With one row more than ids, it is begin-of-document's own: the caller may ask for all rows of the folder.
    padded = family.padded and ids < rows - 1 and rows in _paddings(ids)
    if "begin_of_document_id" not in values and (ids == rows or padded):
        tables = {"embedding.weight", "output.weight"} & named.keys()
        document_token = values.get(family.document_token)
        return {table: _with_begin_of_document(named[table], ids, document_token) for table in tables}
    if vocab_size != rows:
        cut = f"; if they have rows for no token, cut them with model.resize_token_embeddings({ids}) and save the model again"
        few_more = vocab_size < rows <= MOST_PADDING * ids
        raise ValueError(
            f"the vocabulary has {vocab_size:,} ids, and {folder} has embeddings of {rows:,}: prepare the store with "
            f"--tokenizer {folder} (its ids, and one for begin-of-document){cut if few_more else ''}"
        )
    return {}


def _with_begin_of_document(table_VD: Tensor, ids: int, document_token: Any) -> Tensor:
    """The rows of the tokenizer's ids, without padding, and one for begin-of-document: [ids + 1, D].

    It begins as the row of the folder's own document token (GPT-2's <|endoftext|>), or as the mean of all rows if it has none.
    """
    rows_VD = table_VD[:ids]
    has_token = isinstance(document_token, int) and 0 <= document_token < ids
    begin_D = rows_VD[document_token] if has_token else rows_VD.mean(0)
    return torch.cat([rows_VD, begin_D[None]])


def _renamed(family: Family, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """transformers' weights under our names and in our shapes; the inverse of `theirs_of`."""
    named = {}
    for name, tensor in tensors.items():
        if name.endswith(BUFFERS):
            continue
        if name.endswith(family.squeezed):
            tensor = tensor.squeeze(1)
        named[_ours(family, name)] = tensor
    return named


def _ours(family: Family, name: str) -> str:
    """Our name of one of transformers' weights."""
    module, _, rest = name.removeprefix(family.prefix).partition(".")
    module = family.modules.get(module, module)
    if module != "layers":
        return f"{module}.{rest}"
    index, _, part = rest.partition(".")
    return f"{module}.{index}.{family.parts.get(part, part)}"


def _paddings(ids: int) -> set[int]:
    """The numbers of embedding rows that ``ids`` ids may be padded to."""
    return {-(-ids // multiple) * multiple for multiple in (8, 16, 32, 64, 128)}
