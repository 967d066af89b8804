"""Weights of the staircase authors' code (transformer-sequential), read from a mapping of its parameters' names to arrays.

    params = {"in_emb.weight": ..., "transformer.layers.0.attn.proj_query.weight": ...}
    model = model_from_params(params, "staircase", chunk=64, passes=2)

Layers, widths, heads and span follow from the shapes. ``sizes`` gives the rest: a staircase's ``chunk`` and ``passes``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from recur_models.arrays import Arrays, parameter
from recur_models.core import CoreConfig, CoreModel
from recur_models.feedback_transformer import FeedbackTransformerConfig
from recur_models.staircase import StaircaseConfig
from recur_models.transformer_xl import TransformerXLConfig

KINDS: dict[str, type[CoreConfig]] = {
    config.name: config for config in (StaircaseConfig, TransformerXLConfig, FeedbackTransformerConfig)
}
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)$")
IN_LAYER = {"attn.proj_out": "out", "norm1": "norm", "norm2": "mlp_norm", "ff.fc1": "hidden", "ff.fc2": "mlp_out"}
PROJECTIONS = tuple(f"attn.proj_{kind}.weight" for kind in ("query", "key", "val"))
MEMORY_WEIGHTS = "single_memory_attn_params"
MEMORY_BUFFER = "single_memory_attn_buf"
"""Names of a feedback transformer's memory weights, before the softmax and after it."""
OUTSIDE = {"in_emb": "embedding", "out.out_emb": "output", "out_norm": "final_norm"}


def model_from_params(
    params: Arrays,
    model: Literal["staircase", "transformer-xl", "feedback-transformer"],
    **sizes: int,
) -> CoreModel:
    """The model with these weights, where a document begins as in that code.

    Where ``window`` is not among the sizes, a block is one token, so that a segment may have any length.

    Raises ValueError where a name is missing or unknown, a shape does not fit the others, or the model or a size is unknown.
    """
    if model not in KINDS:
        raise ValueError(f"the model {model!r} is not of this code: choose among {', '.join(KINDS)}")
    layers, others = _sorted({name.removeprefix("module."): np.asarray(value) for name, value in params.items()})
    config = _config(layers, others, KINDS[model], sizes)
    made = config.build(parameter(others, "in_emb.weight").shape[0])
    assert isinstance(made, CoreModel)
    weights = _weights(layers, others, config)
    expected = made.state_dict()
    odd = sorted(expected.keys() ^ weights.keys())
    if odd:
        told = "lack" if odd[0] in expected else "have"
        raise ValueError(f"these parameters are not those of a {model}: they {told} {odd[0]!r}")
    for name, tensor in weights.items():
        if tensor.shape != expected[name].shape:
            raise ValueError(
                f"{name!r} has shape {tuple(tensor.shape)}, but a {model} of these sizes has {tuple(expected[name].shape)}"
            )
    made.load_state_dict(weights)
    return made


def _sorted(params: Arrays) -> tuple[dict[int, dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """The parameters of each layer, under their names in it, and all others."""
    layers: dict[int, dict[str, np.ndarray]] = {}
    others: dict[str, np.ndarray] = {}
    for name, value in params.items():
        found = LAYER.search(name)
        if found:
            layers.setdefault(int(found[1]), {})[found[2]] = value
        else:
            others[name] = value
    if 0 not in layers:
        raise ValueError("these parameters are not a transformer-sequential model: no '…layers.0.…' among the names")
    return layers, others


def _config(
    layers: dict[int, dict[str, np.ndarray]],
    others: dict[str, np.ndarray],
    kind: type[CoreConfig],
    sizes: dict[str, int],
) -> CoreConfig:
    distances = _distances(layers[0], others)
    width, d_model = parameter(layers[0], PROJECTIONS[0]).shape
    given: dict[str, Any] = {
        "layers": len(layers),
        "d_model": d_model,
        "heads": width // distances.shape[-2],
        "head_dim": distances.shape[-2],
        "mlp_dim": parameter(layers[0], "ff.fc1.weight").shape[0],
        "absent": "zeros",
    }
    if kind is StaircaseConfig:
        chunk = sizes.get("chunk", 0)
        passes = sizes.get("passes", 0)
        if chunk * passes != distances.shape[-1]:
            raise ValueError(
                f"chunk × passes is {chunk} × {passes}, and these parameters have {distances.shape[-1]} distances: "
                "give the chunk and the passes whose product that is"
            )
    else:
        given |= {"span": distances.shape[-1], "window": 1}
    if kind is FeedbackTransformerConfig and PROJECTIONS[1] not in layers[max(layers)]:
        given["keys"] = "shared"
    try:
        return kind(**given | dict[str, Any](sizes))
    except TypeError:
        known = ", ".join(sorted(each.name for each in fields(kind)))
        raise ValueError(
            f"{kind.name} does not have all of the sizes {', '.join(sizes)}: choose among {known}"
        ) from None


def _weights(
    layers: dict[int, dict[str, np.ndarray]], others: dict[str, np.ndarray], config: CoreConfig
) -> dict[str, Tensor]:
    first = layers[0]
    weights = {"distances_EP": _distances(layers[0], others)}
    for i, layer in sorted(layers.items()):
        if not np.array_equal(_distances({**first, **layer}, others), weights["distances_EP"]):
            raise ValueError(f"layer {i} has other embeddings of distances than layer 0: all layers share them here")
        shared = i > 0 and PROJECTIONS[1] not in layer  # the keys and their norm, named in the first layer alone
        rows = [parameter(layer, name) for name in (PROJECTIONS[:1] if shared else PROJECTIONS)]
        weights[f"layers.{i}.qkv.weight"] = np.concatenate(rows)
        norm = {name: value for name, value in first.items() if shared and name.startswith("norm1.")}
        weights |= _renamed({**norm, **layer}, IN_LAYER, f"layers.{i}.", ("key_pe", *PROJECTIONS))
    memory = (MEMORY_WEIGHTS, MEMORY_BUFFER) if isinstance(config, FeedbackTransformerConfig) else ()
    weights |= _renamed(others, OUTSIDE, "", ("key_pe", *memory))
    for name in (name for name in others if name.endswith(MEMORY_WEIGHTS)):
        weights["memory_weights_L"] = others[name].reshape(-1)
    return {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}


def _renamed(
    params: Arrays, names: Mapping[str, str], prefix: str, elsewhere: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Parameters under our names. Names that end in ``elsewhere`` are left out. Raises ValueError for any other name."""
    renamed = {}
    for name, value in params.items():
        module, _, kind = name.rpartition(".")
        if module in names:
            renamed[f"{prefix}{names[module]}.{kind}"] = value
        elif not name.endswith(elsewhere):
            raise ValueError(f"these parameters hold {name!r}, which is not a model's that is read here")
    return renamed


def _distances(layer: Arrays, others: Arrays) -> np.ndarray:
    """The table of key embeddings [E, P]: each layer names the same."""
    found = [value for names in (layer, others) for name, value in names.items() if name.endswith("key_pe")]
    if not found:
        raise ValueError("these parameters lack 'key_pe', the embeddings of distances")
    return found[0].reshape(found[0].shape[-2:])
