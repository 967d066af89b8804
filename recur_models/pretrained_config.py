"""The common part of the configs of models that transformers saves: where their sizes and weights are from; and that of the
pretrained decoders with recurrence and without: windows, costs.

A family's own config (gpt2.py, llama.py, mamba2_model.py) says which layers they are.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from torch import nn

from recur_models.costs import Costs, attention, product, scales
from recur_models.pretrained import Decoder
from recur_models.pretrained_layers import DecoderLayer, Pooling, Recurrence
from recur_models.pretrained_weights import Family, eos_ids_of, folder_of, sizes_of, weights_of
from recur_models.protocol import ModelConfig, RecurrentModel, check_sizes

UNTRAINED = "none"
"""`pretrained` of a model that begins with untrained weights."""

Model = TypeVar("Model", bound=RecurrentModel)


@dataclass(frozen=True)
class PretrainedConfig(ModelConfig):
    """A model whose sizes and weights may be those of a folder that transformers saved. Sizes that are empty are the folder's."""

    family: ClassVar[Family]
    has_recurrence: ClassVar[bool] = False
    """Whether it has a recurrence that transformers' model lacks."""
    path_fields: ClassVar[tuple[str, ...]] = ("pretrained",)

    pretrained: str = ""
    """Folder that transformers or pipelines.export wrote, or the name of a model in Hugging Face's cache: its weights are what a
    run begins with. Nothing is downloaded, and a resumed run reads its checkpoint alone. none: untrained weights, as a model with
    sizes of its own has them too. Empty, and no size given: a new run is refused."""
    eos_token_ids: tuple[int, ...] = ()
    """Ids that end a text where the model writes it, which training reads like any other. Empty: those of `pretrained`."""

    def __post_init__(self) -> None:
        if self.has_weights and Path(os.path.expanduser(self.pretrained)).is_dir():
            object.__setattr__(self, "pretrained", str(folder_of(self.pretrained)))  # workers have another directory
            object.__setattr__(self, "eos_token_ids", self.eos_token_ids or eos_ids_of(folder_of(self.pretrained)))
        sized = all(getattr(self, name) for name in self.family.small)
        if self.has_weights and not sized:  # not of a config that is read back
            for name, size in sizes_of(self.family, folder_of(self.pretrained)).items():
                object.__setattr__(self, name, getattr(self, name) or size)
        check_sizes(self.sized(), from_0=("overlap", "insert_layer"))

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
        """The same with the small published model's sizes where there are none."""
        lacking = {name: size for name, size in self.family.small.items() if not getattr(self, name)}
        return replace(self, **lacking) if lacking else self

    def plain_values(self) -> dict[str, Any]:
        """The config.json of transformers' own model of these sizes, the vocabulary's ids left out."""
        sizes = self.sized()
        values = {theirs: getattr(sizes, ours) for ours, theirs in self.family.names.items()}
        return self.family.to_config_json({**values, "dropout": vars(self)["dropout"]})

    @property
    def longest(self) -> int | None:
        """Tokens that transformers' own model reads at the most; None where there is no limit."""
        return None

    @property
    @abstractmethod
    def plain_note(self) -> str:
        """How transformers' own model with these weights reads, as against ours: a sentence or two of its folder's README.md."""

    def plain_config(self) -> Self:
        """The config whose first block has the logits of transformers' own model."""
        return self

    def begun(self, model: Model) -> Model:
        """The model as a run begins with it. A model on `meta` has shapes and no weights: nothing is read for it.

        Raises ValueError where the weights have other sizes than the model.
        """
        if not self.has_weights or model.embedding.weight.is_meta:
            return model
        folder = folder_of(self.pretrained)
        sizes = sizes_of(self.family, folder)
        odd = [
            f"--model.{key.replace('_', '-')} {typed(size)}"
            for key, size in sizes.items()
            if getattr(self, key) != size
        ]
        if odd:
            raise ValueError(f"{folder} has other sizes than the model: give {' '.join(odd)}, or 0, which takes its")
        model.load_state_dict(weights_of(self.family, folder, model.vocab_size, model.state_dict()))
        return model


def typed(size: Any) -> str:
    """A size as a command line has it."""
    return " ".join(map(str, size)) if isinstance(size, tuple) else str(size)


@dataclass(frozen=True)
class DecoderConfig(PretrainedConfig):
    """A pretrained decoder over windows that overlap: the baseline."""

    embeds_positions: ClassVar[bool] = False
    """Whether positions have embeddings; else a layer knows them."""
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
            raise ValueError(f"model.window is {self.window}, but the model has only {sizes.positions} positions")
        if sizes.d_model % sizes.heads:
            raise ValueError(f"model.heads is {sizes.heads}: it must divide model.d_model, {sizes.d_model}")

    @property
    def block(self) -> int:
        return self.window - self.overlap

    @property
    def longest(self) -> int | None:
        return self.sized().positions

    @property
    def plain_note(self) -> str:
        return (
            f"It was trained over windows of {self.window} tokens that overlap by {self.overlap}. Here it attends to the whole "
            f"context instead, of at\n  most {self.longest} tokens. Within a window its logits are those of training. "
            "Longer texts it has not seen in this training."
        )

    def plain_config(self) -> Self:
        return replace(self, overlap=0)  # its first window is a full one

    @abstractmethod
    def layer(self) -> DecoderLayer:
        """One of the stack's."""

    @abstractmethod
    def norm(self) -> nn.Module:
        """The final one."""

    @property
    def kv_width(self) -> int:
        """Width of a token's keys, and of its values: all heads together."""
        return self.sized().d_model

    @property
    def own_output(self) -> bool:
        """Whether the output layer has a matrix of its own; else it is the embedding."""
        return False

    @abstractmethod
    def layer_costs(self, tokens: int) -> Costs:
        """Costs of a layer over ``tokens``, without attention's pairs."""

    def build(self, vocab_size: int) -> Decoder:
        return self.begun(Decoder(self, vocab_size))

    def costs(self, vocab_size: int) -> Costs:
        """Every token of a window passes through all layers, the overlap's again; its own alone through the output layer."""
        c = self.sized()
        T = self.window
        d = c.d_model
        layer = c.layer_costs(T) + attention(d, T * (T + 1) // 2, T * T)
        logits = replace(product(self.block, d, vocab_size), block=self.block)
        beside = sum(p.numel() for p in c.norm().parameters()) + c.positions * d * c.embeds_positions
        total = sum([layer] * c.layers, start=logits + scales(beside, logits.parameters * c.own_output))
        return replace(total, embedding_parameters=logits.parameters)


@dataclass(frozen=True)
class RecurrentDecoderConfig(DecoderConfig):
    """The same with recurrence."""

    has_recurrence: ClassVar[bool] = True
    training_fields: ClassVar[tuple[str, ...]] = (*DecoderConfig.training_fields, "trained")
    trained_reading_fields: ClassVar[tuple[str, ...]] = (
        "window",
        "overlap",
    )  # GPT-2 paper, 4.2: h_prev stands for another text else

    insert_layer: int = 2
    """The layer, counted from 1, that reads what the window before has left; 0: every layer."""
    pooling: Pooling = "mean"
    """How a window's positions become one vector; attention: with weights by a learned key."""
    embeddings: int = 1
    """Vectors that pass from one window to the next."""
    hidden: tuple[int, ...] = (200, 200, 200)
    """Hidden sizes of the feed-forward that makes them."""
    trained: Literal["all", "recurrence"] = "all"
    """recurrence: what is of the pretrained decoder stays as it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.insert_layer > (layers := self.sized().layers):
            raise ValueError(
                f"model.insert_layer is {self.insert_layer}, but there are {layers} layers: 0 is all of them"
            )
        if any(size < 1 for size in self.hidden):
            raise ValueError(f"model.hidden is {self.hidden}: each size must be at least 1")

    @property
    def least_blocks(self) -> int:
        return 2

    @property
    def inserted(self) -> tuple[int, ...]:
        """The layers that read h_prev, counted from 0."""
        return (self.insert_layer - 1,) if self.insert_layer else tuple(range(self.sized().layers))

    def build(self, vocab_size: int) -> Decoder:
        sizes = self.sized()
        recurrence = Recurrence(sizes.layers, self.pooling, self.steps, self.embeddings)
        model = self.begun(Decoder(self, vocab_size, recurrence, self.inserted))
        self.freeze(model)
        return model

    def freeze(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(self.trained == "all" or name.startswith("recurrence."))

    def costs(self, vocab_size: int) -> Costs:
        """Counted as if all were trained."""
        c = self.sized()
        d = self.sized().d_model
        N = self.embeddings
        read = replace(product(N, d, 2 * self.kv_width), parameters=0) + attention(d, N * self.window)
        made = [product(1, size, to) + scales(to) for size, to in pairwise(self.steps)]
        weights = scales(c.layers, d if self.pooling == "attention" else 0)
        return sum([read] * len(self.inserted) + made, start=super().costs(vocab_size) + weights)

    @property
    def steps(self) -> tuple[int, ...]:
        """The feed-forward's sizes, from z to h_prev."""
        d = self.sized().d_model
        return (d, *self.hidden, self.embeddings * d)
