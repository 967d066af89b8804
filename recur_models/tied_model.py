"""The embeddings of `vanilla`, `rmt`, `armt` and the models with windowed attention, which also make the logits.

    x_BTD = model.embed(tokens_BT)
    nats_BT = model.head(x_BTD, targets_BT)         # x_BTD: the last layer's output

Letters: B lanes · n tokens · D width · V vocabulary.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from recur_models.losses import tied_output
from recur_models.norms import RMSNorm
from recur_models.protocol import RecurrentModel
from recur_models.token_layer import TokenLayersConfig, dropouts


class TiedModel(RecurrentModel):
    """Tied embeddings; logits are divided by √d. A subclass fills `layers`."""

    def __init__(self, config: TokenLayersConfig, vocab_size: int):
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.block = config.window
        self.embedding = nn.Embedding(vocab_size, config.d_model)  # N(0, 1)
        self.dropout = nn.Dropout(dropouts(config).embedding)
        self.layers: Any = nn.ModuleList()
        self.final_norm = RMSNorm(config.d_model)
        self.final_dropout = nn.Dropout(dropouts(config).final)

    def embed(self, tokens_Bn: Tensor) -> Tensor:
        """The input of the first layer: [B, n, D]."""
        return self.dropout(self.embedding(tokens_Bn))

    def head(self, x_BnD: Tensor, targets_Bn: Tensor | None) -> Tensor:
        """Logits [B, n, V] of the last layer's output, or nats [B, n] when there are targets."""
        hidden_BnD = self.final_dropout(self.final_norm(x_BnD)) / self.config.d_model**0.5
        return tied_output(hidden_BnD, self.embedding.weight, targets_Bn)
