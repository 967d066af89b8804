"""Weights and States of the authors' code (google-research/meliad), read from a mapping of slash-joined flax names to arrays.

    model = model_from_params({"embed/embedding": ..., "transformer0/tbase/_kvq/keys_layer/kernel": ...}, window=512)

Gate, configuration, sizes and feedback are inferred from the names and shapes. The parameters of a sliding window and of
Transformer-XL are the same, since only their gradients differ: ``baseline`` says which is meant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from recur_models.arrays import Arrays, parameter
from recur_models.block_recurrent import Cell, RecConfig, RecurrentLayer
from recur_models.protocol import State
from recur_models.sliding_window import SlideConfig, WindowedConfig, WindowedTransformer, XLConfig

Baseline = Literal["slide", "xl"]
Names = dict[str, list[str]]
"""Our name of a parameter, and the meliad names of the parameters that it is made of."""


def config_from_params(
    params: Arrays, window: int, dropout: float = 0.0, baseline: Baseline = "slide"
) -> WindowedConfig:
    """The config that these parameters belong to. Raises ValueError when a name or shape that it needs is missing."""
    found = [re.match(r"transformer(\d+)/", name) for name in params]
    layers = 1 + max((int(match[1]) for match in found if match), default=-1)
    if layers == 0 or "embed/embedding" not in params:
        raise ValueError(
            "these parameters are not a meliad decoder: no 'transformer0/…' or no 'embed/embedding' among the names"
        )
    heads = parameter(params, "transformer0/tbase/_kvq/attention_scale").shape[0]
    width, head_width = parameter(params, "transformer0/tbase/_kvq/keys_layer/kernel").shape
    sizes: dict[str, Any] = {
        "layers": layers,
        "d_model": width,
        "heads": heads,
        "head_dim": head_width // heads,
        "mlp_dim": parameter(params, "transformer0/tbase/ffn/hidden0/kernel").shape[1],
        "window": window,
        "dropout": dropout,
    }
    recurrent = [i for i in range(layers) if f"transformer{i}/recurrent_initial_state" in params]
    if not recurrent:
        return {"slide": SlideConfig, "xl": XLConfig}[baseline](**sizes)
    cell_prefix = f"transformer{recurrent[0]}/recurrent_tbase/"
    has_projection = f"{cell_prefix}post_attn_mlp/output_layer/kernel" in params
    has_mlp = f"{cell_prefix}ffn/output_layer/kernel" in params
    cell: Cell = "single"
    if has_projection:
        cell = "dual" if has_mlp else "skip"
    return RecConfig(
        **sizes,
        recurrent_layers=tuple(i + 1 for i in recurrent),
        states=params[f"transformer{recurrent[0]}/recurrent_initial_state"].shape[0],
        gate="lstm" if any(name.startswith(cell_prefix) and "forget_gate" in name for name in params) else "fixed",
        cell=cell,
        feedback=any(
            f"transformer{i}/tbase/_kvq/queries2_layer/kernel" in params for i in range(layers) if i not in recurrent
        ),
    )


def model_from_params(
    params: Arrays, window: int, dropout: float = 0.0, baseline: Baseline = "slide"
) -> WindowedTransformer:
    """The model with these weights, in float32. ``window``: the one it was trained with, which the parameters do not show.

    Raises ValueError naming a parameter that is missing, unknown or of another shape.
    """
    params = {name.removeprefix("params/"): array for name, array in params.items()}
    config = config_from_params(params, window, dropout, baseline)
    model = config.build(len(params["embed/embedding"]))
    tensors, used = state_dict_from_params(params, model)
    unknown = sorted(params.keys() - used)
    if unknown:
        raise ValueError(f"parameter {unknown[0]!r} has no place in {config}")
    for name, ours in model.named_parameters():
        if ours.shape != tensors[name].shape:
            raise ValueError(
                f"{name} has shape {tuple(tensors[name].shape)} in these parameters, not {tuple(ours.shape)}"
            )
    model.load_state_dict(tensors)
    return model


def state_dict_from_params(params: Arrays, model: WindowedTransformer) -> tuple[dict[str, Tensor], set[str]]:
    """Tensors by our names, from a tree of parameters (or of their gradients), and the meliad names that were used."""
    names = meliad_names(params, model)
    tensors = {ours: tensor_of(params, theirs) for ours, theirs in names.items()}
    return tensors, set().union(*names.values())


def tensor_of(params: Arrays, names: Sequence[str]) -> Tensor:
    """One of our tensors, in float32. Kernels are transposed, and several of them make one weight, one below the other."""
    arrays = [np.asarray(parameter(params, name), dtype=np.float32) for name in names]
    if names[0].endswith("/kernel"):
        return torch.from_numpy(np.concatenate([array.T for array in arrays]))
    return torch.from_numpy(arrays[0].copy())


def meliad_names(params: Arrays, model: WindowedTransformer) -> Names:
    """The meliad names of each parameter of the model."""
    names: Names = {"embedding.weight": ["embed/embedding"], "final_norm.scale": ["final_layernorm/scale"]}
    for i, layer in enumerate(model.layers):
        names |= token_names(i, cross=layer.tokens.project.cross_scale_H is not None)
        if isinstance(layer, RecurrentLayer):
            names |= state_names(i, layer, params)
    return names


def token_names(i: int, cross: bool) -> Names:
    """The names of a layer's parameters that read its tokens. ``cross``: whether they attend to the states too."""
    ours = f"layers.{i}.tokens"
    theirs = f"transformer{i}/tbase"
    return {
        **projector_names(f"{ours}.project", theirs, cross),
        f"{ours}.position_bias.table_HN": [f"transformer{i}/relative_positions/rel_embedding"],
        f"{ours}.out.weight": [f"{theirs}/post_attn_mlp/output_layer/kernel"],
        f"{ours}.mlp_norm.scale": [f"{theirs}/pre_ffn_layernorm/scale"],
        f"{ours}.mlp.hidden.weight": [f"{theirs}/ffn/hidden0/kernel"],
        f"{ours}.mlp.out.weight": [f"{theirs}/ffn/output_layer/kernel"],
    }


def state_names(i: int, layer: RecurrentLayer, params: Arrays) -> Names:
    """The names of a recurrent layer's parameters that update its states."""
    ours = f"layers.{i}.states"
    theirs = f"transformer{i}/recurrent_tbase"
    names = {
        f"{ours}.initial_SD": [f"transformer{i}/recurrent_initial_state"],
        f"{ours}.ids_SD": [f"{theirs}/_kvq/position_embeddings"],
        **projector_names(f"{ours}.project", theirs, cross=True),
    }
    if layer.states.attention_gate is not None:
        names |= gate_names(f"{ours}.attention_gate", f"{theirs}/post_attn_mlp", params)
    if layer.states.mlp_norm is not None:
        names[f"{ours}.mlp_norm.scale"] = [f"{theirs}/pre_ffn_layernorm/scale"]
    if layer.states.mlp_gate is not None:
        names[f"{ours}.mlp_hidden.weight"] = [f"{theirs}/ffn/hidden0/kernel"]
        names |= gate_names(f"{ours}.mlp_gate", f"{theirs}/ffn", params)
    return names


def projector_names(ours: str, theirs: str, cross: bool) -> Names:
    """The names of the projection to keys, values and queries, which is one matrix here and several in meliad."""
    projections = ["keys_layer", "values_layer", "queries_layer"]
    if cross:
        projections.append("queries2_layer")
    names = {
        f"{ours}.kvq.weight": [f"{theirs}/_kvq/{name}/kernel" for name in projections],
        f"{ours}.norm.scale": [f"{theirs}/_kvq/pre_attn_layernorm/scale"],
        f"{ours}.scale_H": [f"{theirs}/_kvq/attention_scale"],
    }
    if cross:
        names[f"{ours}.cross_scale_H"] = [f"{theirs}/attention_scale2"]
    return names


def gate_names(ours: str, theirs: str, params: Arrays) -> Names:
    """The names of a gate's parameters: a fixed gate has one bias, an LSTM's has two gates."""
    candidate = {f"{ours}.candidate.weight": [f"{theirs}/output_layer/kernel"]}
    if f"{theirs}/gate_bias" in params:
        return {**candidate, f"{ours}.bias": [f"{theirs}/gate_bias"]}
    return {
        **candidate,
        f"{ours}.input.weight": [f"{theirs}/input_gate/kernel"],
        f"{ours}.input.bias": [f"{theirs}/input_gate/bias"],
        f"{ours}.forget.weight": [f"{theirs}/forget_gate/kernel"],
        f"{ours}.forget.bias": [f"{theirs}/forget_gate/bias"],
    }


def state_from_arrays(arrays: Arrays, mode: str = "train") -> State:
    """A State from meliad's arrays (``transformer1/previous_keys_train`` [B, W, H, E] …); ``mode`` is its train or test copy."""
    state: State = {}
    for name, array in arrays.items():
        found = re.fullmatch(rf"transformer(\d+)/(previous_keys|previous_values|recurrent_state)_{mode}", name)
        if found:
            kind = {"previous_keys": "keys", "previous_values": "values", "recurrent_state": "states"}[found[2]]
            tensor = torch.from_numpy(np.asarray(array, dtype=np.float32).copy())
            state[f"layers.{found[1]}.{kind}"] = tensor if kind == "states" else tensor.transpose(1, 2).contiguous()
    return state
