"""LSTM: the sequential baseline (staircase paper, Table 1).

    LSTMConfig(layers=2, d_model=256).build(vocab_size=257)

Embeddings, layers of `torch.nn.LSTM` as wide as they, an output layer. State: ``layers.i.states`` [B, 2, D], hidden and cell
vector of layer i, counted from 0; zeros at a document's start.

Letters: B lanes · T tokens · K blocks of W tokens · n tokens of one block · D width · V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from recur_models.costs import Costs, product, scales, tied_logits
from recur_models.hidden import note
from recur_models.layers import Carried, relative_change
from recur_models.losses import untied_output
from recur_models.protocol import (
    IncrementalDecoder,
    ModelConfig,
    Places,
    Probe,
    RecurrentModel,
    State,
    check_sizes,
    reset_to_zeros,
)


@dataclass(frozen=True)
class LSTMConfig(ModelConfig):
    """LSTM: one vector of memory, token by token."""

    name: ClassVar[str] = "lstm"

    layers: int = 2
    """Layers."""
    d_model: int = 256
    """Width of embeddings, hidden vectors and cells."""
    window: int = 16
    """Tokens of a block, at whose beginning a document may begin. It changes no result otherwise."""
    dropout: float = 0.0
    """Share of activations dropped: of the embeddings and of each layer's output."""

    def __post_init__(self) -> None:
        check_sizes(self)

    @property
    def block(self) -> int:
        return self.window

    def build(self, vocab_size: int) -> LSTM:
        return LSTM(self, vocab_size)

    def costs(self, vocab_size: int) -> Costs:
        d = self.d_model
        W = self.window
        layer = product(W, d, 4 * d) * 2 + scales(8 * d)
        output = scales(vocab_size, vocab_size * d)  # an output layer of its own
        return tied_logits(W, d, vocab_size) + output + layer * self.layers


class LSTMLayer(nn.Module):
    """One layer over the tokens of a block, in float32 under autocast too: in bfloat16 its cell would lose small additions."""

    def __init__(self, config: LSTMConfig):
        super().__init__()
        self.lstm = nn.LSTM(config.d_model, config.d_model, batch_first=True)
        self.carried = Carried()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BnD: Tensor, state_B2D: Tensor) -> tuple[Tensor, Tensor]:
        device = x_BnD.device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self.forward(x_BnD.to(next(self.lstm.parameters()).dtype), state_B2D)
        h_1BD, c_1BD = (part[None].contiguous() for part in state_B2D.to(x_BnD.dtype).unbind(1))
        x_BnD, (h_1BD, c_1BD) = self.lstm(x_BnD, (h_1BD, c_1BD))
        return self.dropout(x_BnD), self.carried(state_B2D, torch.stack([h_1BD[0], c_1BD[0]], 1))


class LSTM(RecurrentModel):
    """Embeddings, LSTM layers that read one block after the other, and an output layer."""

    def __init__(self, config: LSTMConfig, vocab_size: int):
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.block = config.window
        self.embedding = nn.Embedding(vocab_size, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.layers: Any = nn.ModuleList(LSTMLayer(config) for _ in range(config.layers))
        self.output = nn.Linear(config.d_model, vocab_size)

    def initial_state(self, lanes: int) -> State:
        like = self.embedding.weight
        return {f"layers.{i}.states": like.new_zeros(lanes, 2, self.config.d_model) for i in range(self.config.layers)}

    def read_segment(
        self, tokens_BT: Tensor, state: State, fresh_BK: Tensor, targets_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        """Reads block by block: State is reset where a document begins."""
        x_BTD = self.dropout(self.embedding(tokens_BT))
        x_BTD, state = self.read_blocks(self.read, x_BTD, state, fresh_BK)
        return self.head(x_BTD, targets_BT), state

    def read(self, x_BnD: Tensor, state: State, fresh_B1: Tensor | None = None) -> tuple[Tensor, State]:
        """All layers over some tokens."""
        after: State = {}
        for i, layer in enumerate(self.layers):
            name = f"layers.{i}.states"
            before = state[name]
            if fresh_B1 is not None:
                before = reset_to_zeros(before, fresh_B1)
            note(i, x_BnD)
            x_BnD, made = self.recomputed("layer", layer)(x_BnD, before)
            after[name] = made.to(before.dtype)
        return x_BnD, after

    def head(self, x_BTD: Tensor, targets_BT: Tensor | None) -> Tensor:
        """Nats [B, T] where there are targets, else logits [B, T, V]."""
        return untied_output(x_BTD, self.output, targets_BT)

    def incremental_decoder(self) -> IncrementalDecoder:
        return LSTMIncrementalDecoder(self)

    def probes(self) -> list[Probe]:
        return [Probe("state_change", layer.carried, relative_change) for layer in self.layers]


class LSTMIncrementalDecoder(IncrementalDecoder):
    """The block is the State after its last token."""

    model: LSTM

    def open(self, state: State, lanes: int) -> State:
        return {name: tensor.clone() for name, tensor in state.items()}

    def extend(self, tokens_Bn: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        """Reads tokens one by one: padding leaves a lane's State as it is."""
        x_BnD = self.model.dropout(self.model.embedding(tokens_Bn))
        outputs = []
        for x_B1D, valid_B1 in zip(x_BnD.split(1, 1), places.valid_Bn.split(1, 1), strict=True):
            output_B1D, after = self.model.read(x_B1D, block)
            outputs.append(output_B1D)
            block = {name: torch.where(valid_B1[..., None], after[name], block[name]) for name in block}
        return self.model.head(torch.cat(outputs, 1), None), block

    def close(self, state: State, block: State) -> State:
        return block
