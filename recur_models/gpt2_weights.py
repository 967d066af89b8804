"""Sizes and weights of a pretrained GPT-2, out of a folder that transformers saved, or that `pipelines.export` made of a `gpt2`.

    folder = folder_of("gpt2")                        # a folder, or a name that Hugging Face's cache of this machine has
    sizes_of(folder)                                  {"layers": 12, "d_model": 768, ...}
    weights_of(folder, vocab_size, like)              {"layers.0.attn.c_attn.weight": ..., ...}

Safetensors alone are read, and nothing is ever downloaded: a name is looked up where an earlier download has put it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

SMALL = {"layers": 12, "d_model": 768, "heads": 12, "mlp_dim": 3072, "positions": 1024}
"""The published GPT-2 small's."""
NAMES = {"layers": "n_layer", "d_model": "n_embd", "heads": "n_head", "mlp_dim": "n_inner", "positions": "n_positions"}
"""What transformers calls each size."""
ONLY = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
"""What a folder's config.json may say, as all published GPT-2s do, of what is no size."""
OURS = {"wte": "embedding", "wpe": "positions", "h": "layers", "ln_f": "final_norm"}
"""Our name for a module of transformers'; below a layer the names are the same."""
REMEDY = "name a folder that transformers' GPT2LMHeadModel.save_pretrained or pipelines.export has written"


def folder_of(pretrained: str) -> Path:
    """Raises ValueError where it is neither a folder nor a name of which this machine has a copy."""
    folder = Path(pretrained).expanduser().absolute()
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
        f"model.pretrained is {pretrained}, which is no folder of this machine, nor a model in its Hugging Face cache: {remedy}; a "
        "run that has begun goes on without it from its config.json"
    )


def sizes_of(folder: Path) -> dict[str, int]:
    """The model's sizes, under our names. Raises ValueError where the folder's model is no GPT-2 as this package computes it."""
    values = _config(folder)
    if "model" in values:
        return {name: values["model"][name] or small for name, small in SMALL.items()}
    if odd := sorted(key for key, value in ONLY.items() if values.get(key, value) != value):
        raise ValueError(f"{folder} has {odd[0]}={values[odd[0]]}, and here it is {ONLY[odd[0]]}: {REMEDY}")
    sizes: dict[str, int] = {}
    for ours, theirs in NAMES.items():
        size: Any = values.get(theirs)
        if ours == "mlp_dim" and size is None:
            size = 4 * sizes["d_model"]  # n_inner is null in all published ones
        if not isinstance(size, int):
            raise ValueError(f"{folder / 'config.json'} has {theirs}={size}, which is no size: {REMEDY}")
        sizes[ours] = size
    return sizes


def weights_of(folder: Path, vocab_size: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state_dict of the names and shapes of ``like``, in float32; recurrence's is left as it is where the folder has none.

    A tokenizer may have one id more than the folder's embeddings have rows: begin-of-document, the last one. Its row begins as
    that of the folder's own mark between documents (eos_token_id: <|endoftext|>), or as the mean of all rows where it has none.

    Raises ValueError where a weight is missing, left over or of another shape, or the vocabulary is another.
    """
    values, found = _config(folder), _tensors(folder)
    if "model" in values:
        named = {name.removeprefix("model."): tensor.float() for name, tensor in found.items()}
    else:
        named = {_ours(name): tensor.float() for name, tensor in found.items() if not _is_made(name)}
    recurrence = {name for name in like if name.startswith("recurrence.")}
    named = {name: tensor for name, tensor in named.items() if name in recurrence or not name.startswith("recurrence.")}
    named = {**{name: like[name] for name in recurrence}, **named}
    if odd := sorted(named.keys() ^ like.keys()):
        raise ValueError(f"{folder} {'lacks' if odd[0] in like else 'has'} the weight {odd[0]!r}: {REMEDY}")
    rows_VD = named["embedding.weight"]
    if vocab_size == len(rows_VD) + 1:
        mark = values.get("eos_token_id")
        known = isinstance(mark, int) and 0 <= mark < len(rows_VD)
        begin_D = rows_VD[mark] if known else rows_VD.mean(0)
        named["embedding.weight"] = torch.cat([rows_VD, begin_D[None]])
    elif vocab_size != len(rows_VD):
        raise ValueError(
            f"the vocabulary has {vocab_size:,} ids, and {folder} has embeddings of {len(rows_VD):,}: prepare the store with "
            "the tokenizer of these weights (its ids, and one for begin-of-document)"
        )
    for name, tensor in named.items():
        if tensor.shape != like[name].shape:
            raise ValueError(
                f"{folder} has {name} of shape {tuple(tensor.shape)}, and this model of {tuple(like[name].shape)}: give both the "
                "same sizes"
            )
    return named


def _config(folder: Path) -> dict[str, Any]:
    try:
        values: Any = json.loads((folder / "config.json").read_text("utf-8"))
    except OSError:
        raise ValueError(f"{folder} has no config.json that can be read: {REMEDY}") from None
    except ValueError:
        raise ValueError(f"{folder / 'config.json'} is not JSON: {REMEDY}") from None
    kind: Any = values.get("model_type") if isinstance(values, dict) else None
    if kind == "throughline":
        name: Any = (values.get("model") or {}).get("name")
        if name in ("gpt2", "gpt2-rec"):
            return values
        kind = name
    if kind != "gpt2":
        raise ValueError(f"{folder} is of a model {kind!r}, not of a GPT-2: {REMEDY}")
    return {key: value for key, value in values.items() if key != "model"}


def _tensors(folder: Path) -> dict[str, Tensor]:
    files, index = ["model.safetensors"], folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            files = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        return {name: tensor for file in files for name, tensor in load_file(folder / file).items()}
    except FileNotFoundError:
        other = next((path.name for path in sorted(folder.glob("*.bin"))), None)
        told = f"has {other}, which may run code and is not opened" if other else "has no weights"
        raise ValueError(f"{folder} {told}: {REMEDY}, with safe_serialization, which makes model.safetensors") from None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"the weights in {folder} cannot be read ({error}): {REMEDY}") from None


def _is_made(name: str) -> bool:
    """Whether older versions saved what is no weight, or the output layer, which is the embedding."""
    return name == "lm_head.weight" or name.endswith((".attn.bias", ".attn.masked_bias"))


def _ours(name: str) -> str:
    module, _, rest = name.removeprefix("transformer.").partition(".")
    return f"{OURS.get(module, module)}.{rest}"
