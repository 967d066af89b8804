"""The configs that pretrained models share: `PretrainedConfig` has their sizes and weights, `DecoderConfig` the windows and costs
of decoders, `RecurrentDecoderConfig` their recurrence.

The config of a family (gpt2.py, llama.py, mamba2_model.py) adds its layers, and builds the model.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from torch import nn

from recur_models.costs import Costs, attention, product, scales, tied_logits
from recur_models.pretrained_layers import DecoderLayer
from recur_models.pretrained_recurrence import LayerRecurrence, Pooling, Recurrence, StackRecurrence
from recur_models.pretrained_weights import Family, eos_ids_of, folder_of, recurrence_of, sizes_of, weights_of
from recur_models.protocol import ModelConfig, RecurrentModel, check_sizes

UNTRAINED = "none"
"""The value of `pretrained` for untrained weights."""

Model = TypeVar("Model", bound=RecurrentModel)


@dataclass(frozen=True)
class PretrainedConfig(ModelConfig):
    """A model whose sizes and weights may come from a folder that transformers saved. Empty sizes are the folder's."""

    family: ClassVar[Family]
    has_recurrence: ClassVar[bool] = False
    """Whether the model has a recurrence, which transformers' model lacks."""
    path_fields: ClassVar[tuple[str, ...]] = ("pretrained",)

    pretrained: str = ""
    """Folder that transformers or pipelines.export wrote, or the name of a model in Hugging Face's local cache: a new run begins
    with its weights. Nothing is downloaded, and a resumed run reads its checkpoint alone. none: untrained weights. Empty:
    untrained weights if a size is given; else a new run is refused."""
    eos_token_ids: tuple[int, ...] = ()
    """Ids that end a text where the model writes it, which training reads like any other. Empty: those of `pretrained`."""

    def __post_init__(self) -> None:
        if self.has_weights:
            self._take_from_folder()
        check_sizes(self.sized(), from_0=("overlap", "insert_layer"))

    def _take_from_folder(self) -> None:
        """Take empty sizes and the ids that end a text from the folder of `pretrained`. A config that is read back has all sizes,
        and needs no folder.
        """
        has_sizes = all(getattr(self, name) for name in self.family.small)
        is_path = Path(os.path.expanduser(self.pretrained)).is_dir()
        if has_sizes and not is_path:
            return
        folder = folder_of(self.pretrained)
        object.__setattr__(self, "eos_token_ids", self.eos_token_ids or eos_ids_of(folder))
        if is_path:
            object.__setattr__(self, "pretrained", str(folder))  # workers have another directory
        if not has_sizes:
            for name, size in sizes_of(self.family, folder).items():
                object.__setattr__(self, name, getattr(self, name) or size)

    @property
    def has_weights(self) -> bool:
        """Whether a run begins with pretrained weights."""
        return self.pretrained not in ("", UNTRAINED)

    def check_new(self) -> None:
        if not self.pretrained and not any(getattr(self, name) for name in self.family.small):
            raise ValueError(
                f"the model is {self.family.article} without weights to begin with: name their folder with --model.pretrained "
                f"FOLDER, or give --model.pretrained {UNTRAINED} to train untrained weights of its size"
            )

    def sized(self) -> Self:
        """This config with the small published model's sizes in place of empty ones."""
        lacking = {name: size for name, size in self.family.small.items() if not getattr(self, name)}
        return replace(self, **lacking) if lacking else self

    def plain_values(self) -> dict[str, Any]:
        """The config.json of transformers' own model of these sizes, without the vocabulary's ids."""
        sizes = self.sized()
        values = {theirs: getattr(sizes, ours) for ours, theirs in self.family.names.items()}
        return self.family.to_config_json({**values, "dropout": vars(self)["dropout"]})

    @property
    def longest(self) -> int | None:
        """The most tokens that transformers' own model reads; None if there is no limit."""
        return None

    @property
    @abstractmethod
    def plain_note(self) -> str:
        """How transformers' own model with these weights differs from ours, in a sentence or two for the folder's README.md."""

    def plain_config(self) -> Self:
        """The config whose first block has the logits of transformers' own model."""
        return self

    def load_pretrained(self, model: Model) -> Model:
        """The model with the weights that a run begins with, of which those that it does not train are frozen (`freeze`). For a
        model on the device `meta`, nothing is read.

        Raises ValueError if the weights have other sizes than the model.
        """
        self.freeze(model)
        if not self.has_weights or model.embedding.weight.is_meta:
            return model
        folder = folder_of(self.pretrained)
        options = self.options_for(sizes_of(self.family, folder))
        if options:
            raise ValueError(f"{folder} has other sizes than the model: give {options}; 0 takes the folder's number")
        options = self.options_for(self.fields_for(recurrence_of(self.family, folder)))
        if options:
            raise ValueError(f"{folder} has another recurrence than the model: give {options}")
        model.load_state_dict(weights_of(self.family, folder, model.vocab_size, model.state_dict()))
        return model

    def options_for(self, values: Mapping[str, Any]) -> str:
        """The options that give the fields these values, of those that have another one."""
        differing = {name: value for name, value in values.items() if getattr(self, name) != value}
        return " ".join(f"--model.{name.replace('_', '-')} {typed(value)}" for name, value in differing.items())

    def fields_for(self, recurrence: Mapping[str, Any]) -> dict[str, Any]:
        """The values of fields with which this model can take over a folder's recurrence (`recurrence_of`)."""
        return {}


def typed(size: Any) -> str:
    """A value as it is typed on the command line."""
    return " ".join(map(str, size)) if isinstance(size, tuple) else str(size)


@dataclass(frozen=True)
class DecoderConfig(PretrainedConfig):
    """A pretrained decoder over overlapping windows, without recurrence: the baseline."""

    embeds_positions: ClassVar[bool] = False
    """Whether positions have embeddings; otherwise each layer encodes them."""
    reading_fields: ClassVar[tuple[str, ...]] = ("window", "overlap")

    window: int = 300
    """Tokens that are read at once."""
    overlap: int = 0
    """Tokens of a window that the window before it has read too."""
    layers: int = 0
    """Transformer layers. 0, as for all sizes: those of `pretrained`; without it a small published model's."""
    d_model: int = 0
    """Width of the residual stream."""
    heads: int = 0
    """Attention heads."""
    mlp_dim: int = 0
    """Hidden size of the MLP."""
    positions: int = 0
    """Tokens that a window can have."""
    dropout: float = 0.1
    """Share of activations dropped: embeddings, attention's weights, what attention and MLP add."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = self.sized()
        if self.overlap >= self.window:
            raise ValueError(f"model.overlap is {self.overlap}, but a window has {self.window} tokens: it must be less")
        if self.window > sizes.positions:
            raise ValueError(
                f"model.window is {self.window}, but the model has only {sizes.positions} positions: give --model.window "
                f"{sizes.positions} or less"
            )
        if sizes.d_model % sizes.heads:
            raise ValueError(f"model.heads is {sizes.heads}: it must divide model.d_model, {sizes.d_model}")

    @property
    def block(self) -> int:
        return self.window - self.overlap

    @property
    def attention_window(self) -> int:
        return self.window

    @property
    def longest(self) -> int | None:
        return self.sized().positions

    @property
    def plain_note(self) -> str:
        return (
            f"It was trained over windows of {self.window} tokens that overlap by {self.overlap}. Here it attends to the whole "
            f"context instead, of at\n  most {self.longest} tokens. Within a window its logits are those of training. "
            "It was not trained on longer contexts here."
        )

    def plain_config(self) -> Self:
        return replace(self, overlap=0)  # its first window is a full one

    @abstractmethod
    def layer(self) -> DecoderLayer:
        """A new layer. All sizes must be set, as in `sized`."""

    @abstractmethod
    def norm(self) -> nn.Module:
        """A new final norm. All sizes must be set."""

    @property
    def kv_width(self) -> int:
        """Width of a token's keys, and of its values, over all heads."""
        return self.sized().d_model

    @property
    def own_output(self) -> bool:
        """Whether the output layer has a matrix of its own; otherwise it is the embedding."""
        return False

    @abstractmethod
    def layer_costs(self, tokens: int) -> Costs:
        """Costs of a layer over so many tokens, without the products of queries with keys and of weights with values.

        All sizes must be set.
        """

    def recurrence(self) -> Recurrence | None:
        """A new recurrence; None without one."""
        return None

    def costs(self, vocab_size: int) -> Costs:
        """All tokens of a window pass through the layers, those of the overlap again; only the block's through the output layer."""
        c = self.sized()
        T = self.window
        d = c.d_model
        layer = c.layer_costs(T) + attention(d, T * (T + 1) // 2, T * T)
        total = tied_logits(self.block, d, vocab_size) + layer * c.layers
        total += scales(sum(parameter.numel() for parameter in c.norm().parameters()))
        if c.embeds_positions:
            total += scales(c.positions * d)
        if c.own_output:
            total += scales(vocab_size * d)
        return total


@dataclass(frozen=True)
class RecurrentDecoderConfig(DecoderConfig):
    """A pretrained decoder with recurrence over overlapping windows."""

    has_recurrence: ClassVar[bool] = True
    training_fields: ClassVar[tuple[str, ...]] = (*DecoderConfig.training_fields, "trained")
    # With another window or overlap, h_prev would stand for another text (section 4.2).
    trained_reading_fields: ClassVar[tuple[str, ...]] = ("window", "overlap")

    source: Literal["stack", "layer"] = "stack"
    """What h_prev is made of. stack: the hidden states of all layers, as in the paper. layer: each layer from `insert_layer` on has
    a vector of its own, made of its inputs; `pooling` must be mean, and `embeddings` 1."""
    insert_layer: int = 2
    """The layer, counted from 1, that reads what the window before has left; with `source` layer, the first one that does. 0: every
    layer."""
    pooling: Pooling = "mean"
    """How a window's positions become one vector; attention: with weights by a learned key."""
    embeddings: int = 1
    """Vectors that pass from one window to the next."""
    hidden: tuple[int, ...] = (200, 200, 200)
    """Hidden sizes of the feed-forward that makes them; with `source` layer, of each."""
    trained: Literal["all", "recurrence"] = "all"
    """recurrence: the pretrained weights are frozen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self.sized().layers
        if self.insert_layer > layers:
            raise ValueError(
                f"model.insert_layer is {self.insert_layer}, but there are {layers} layers: give --model.insert-layer with one of "
                "them, or 0 for all"
            )
        for name, needed in (("pooling", "mean"), ("embeddings", 1)):
            value = getattr(self, name)
            if self.source == "layer" and value != needed:
                raise ValueError(f"model.{name} is {value}, but with model.source layer it must be {needed}")
        if any(size < 1 for size in self.hidden):
            raise ValueError(f"model.hidden is {self.hidden}: each size must be at least 1")

    def fields_for(self, recurrence: Mapping[str, Any]) -> dict[str, Any]:
        names = ["source", "pooling", "embeddings", "hidden"]
        if self.source == "layer":  # a feed-forward belongs to its layer
            names.append("insert_layer")
        values = {name: recurrence[name] for name in names if name in recurrence}
        return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}

    @property
    def least_blocks(self) -> int:
        return 2

    @property
    def reading_layers(self) -> tuple[int, ...]:
        """Indices of the layers that read h_prev, from 0."""
        first = max(self.insert_layer - 1, 0)
        if self.source == "stack" and self.insert_layer:
            return (first,)
        return tuple(range(first, self.sized().layers))

    def recurrence(self) -> Recurrence:
        if self.source == "layer":
            return LayerRecurrence(self.reading_layers, self.feed_forward_sizes)
        return StackRecurrence(
            self.reading_layers, self.sized().layers, self.pooling, self.feed_forward_sizes, self.embeddings
        )

    def freeze(self, model: nn.Module) -> None:
        """Freeze the pretrained weights where `trained` is recurrence."""
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(self.trained == "all" or name.startswith("recurrence."))

    def costs(self, vocab_size: int) -> Costs:
        """As those of the baseline, with h_prev read and made; counted as if all parameters were trained."""
        c = self.sized()
        d = c.d_model
        N = self.embeddings
        query = replace(product(N, d, d), flops=0)  # which h_prev does not need
        read = replace(product(N, d, 2 * self.kv_width) + query, parameters=0) + attention(d, N * self.window)
        made = sum((product(1, size, to) + scales(to) for size, to in pairwise(self.feed_forward_sizes)), start=Costs())
        total = super().costs(vocab_size) + read * len(self.reading_layers)
        if self.source == "layer":
            return total + made * len(self.reading_layers)
        if self.pooling == "attention":
            total += scales(d)
        return total + made + scales(c.layers)

    @property
    def feed_forward_sizes(self) -> tuple[int, ...]:
        """A feed-forward's sizes, from z to what a layer reads of h_prev."""
        d = self.sized().d_model
        return (d, *self.hidden, self.embeddings * d)
