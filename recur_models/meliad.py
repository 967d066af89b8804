"""Weights and States of the authors' code (google-research/meliad), read from a mapping of slash-joined flax names to arrays.

    model = model_from_params({"embed/embedding": ..., "transformer0/tbase/_kvq/keys_layer/kernel": ...}, window=512)

Gate, configuration, sizes and feedback are inferred from the names and shapes. The parameters of a sliding window and of
Transformer-XL are the same, since only their gradients differ: ``baseline`` says which is meant.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from recur_models.arrays import Arrays, parameter
from recur_models.block_recurrent import Cell, RecConfig, RecurrentLayer
from recur_models.protocol import State
from recur_models.sliding_window import SlideConfig, WindowedConfig, WindowedTransformer, XLConfig

Baseline = Literal["slide", "xl"]


def config_from_params(
    params: Arrays, window: int, dropout: float = 0.0, baseline: Baseline = "slide"
) -> WindowedConfig:
    """The config that these parameters belong to. Raises ValueError when a name or shape that it needs is missing."""
    layers = 1 + max((int(m[1]) for m in map(re.compile(r"transformer(\d+)/").match, params) if m), default=-1)
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
    out: dict[str, Tensor] = {}
    used: set[str] = set()

    def take(ours: str, *theirs: str, kernel: bool = False) -> None:
        arrays = [np.asarray(parameter(params, name), dtype=np.float32) for name in theirs]
        out[ours] = torch.from_numpy(np.concatenate([a.T for a in arrays]) if kernel else arrays[0].copy())
        used.update(theirs)

    def take_projector(ours: str, theirs: str, cross: bool) -> None:
        queries = ["queries_layer", "queries2_layer"] if cross else ["queries_layer"]
        kernels = [f"{theirs}/_kvq/{name}/kernel" for name in ("keys_layer", "values_layer", *queries)]
        take(f"{ours}.kvq.weight", *kernels, kernel=True)
        take(f"{ours}.norm.scale", f"{theirs}/_kvq/pre_attn_layernorm/scale")
        take(f"{ours}.scale_H", f"{theirs}/_kvq/attention_scale")
        if cross:
            take(f"{ours}.cross_scale_H", f"{theirs}/attention_scale2")

    def take_gate(ours: str, theirs: str) -> None:
        take(f"{ours}.candidate.weight", f"{theirs}/output_layer/kernel", kernel=True)
        if f"{theirs}/gate_bias" in params:
            take(f"{ours}.bias", f"{theirs}/gate_bias")
            return
        for name in ("input", "forget"):
            take(f"{ours}.{name}.weight", f"{theirs}/{name}_gate/kernel", kernel=True)
            take(f"{ours}.{name}.bias", f"{theirs}/{name}_gate/bias")

    take("embedding.weight", "embed/embedding")
    take("final_norm.scale", "final_layernorm/scale")
    for i, layer in enumerate(model.layers):
        ours = f"layers.{i}.tokens"
        theirs = f"transformer{i}/tbase"
        take_projector(f"{ours}.project", theirs, cross=layer.tokens.project.cross_scale_H is not None)
        take(f"{ours}.position_bias.table_HN", f"transformer{i}/relative_positions/rel_embedding")
        take(f"{ours}.out.weight", f"{theirs}/post_attn_mlp/output_layer/kernel", kernel=True)
        take(f"{ours}.mlp_norm.scale", f"{theirs}/pre_ffn_layernorm/scale")
        take(f"{ours}.mlp.hidden.weight", f"{theirs}/ffn/hidden0/kernel", kernel=True)
        take(f"{ours}.mlp.out.weight", f"{theirs}/ffn/output_layer/kernel", kernel=True)
        if not isinstance(layer, RecurrentLayer):
            continue
        ours = f"layers.{i}.states"
        theirs = f"transformer{i}/recurrent_tbase"
        take(f"{ours}.initial_SD", f"transformer{i}/recurrent_initial_state")
        take(f"{ours}.ids_SD", f"{theirs}/_kvq/position_embeddings")
        take_projector(f"{ours}.project", theirs, cross=True)
        if layer.states.attention_gate is not None:
            take_gate(f"{ours}.attention_gate", f"{theirs}/post_attn_mlp")
        if layer.states.mlp_norm is not None:
            take(f"{ours}.mlp_norm.scale", f"{theirs}/pre_ffn_layernorm/scale")
        if layer.states.mlp_gate is not None:
            take(f"{ours}.mlp_hidden.weight", f"{theirs}/ffn/hidden0/kernel", kernel=True)
            take_gate(f"{ours}.mlp_gate", f"{theirs}/ffn")
    return out, used


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
