"""The embeddings of `vanilla`, `rmt`, `armt` and the models with windowed attention, which also make the logits.

    x_BTD = model.embed(tokens_BT)
    nats_BT = model.head(x_BTD, targets_BT)         # x_BTD: the last layer's output

Letters: B lanes · n tokens · D width · V vocabulary.
"""

from __future__ import annotations

from torch import Tensor, nn

from recur_models.layers import RMSNorm, StackConfig
from recur_models.losses import tied_output
from recur_models.protocol import RecurrentModel


class TiedModel(RecurrentModel):
    """Tied embeddings; logits are divided by √d. A subclass makes the modules, since their order decides how weights are drawn."""

    config: StackConfig
    dropout: nn.Dropout
    final_norm: RMSNorm
    final_dropout: nn.Dropout

    def embed(self, tokens_Bn: Tensor) -> Tensor:
        """The input of the first layer: [B, n, D]."""
        return self.dropout(self.embedding(tokens_Bn))

    def head(self, x_BnD: Tensor, targets_Bn: Tensor | None) -> Tensor:
        """Logits [B, n, V] of the last layer's output, or nats [B, n] when there are targets."""
        hidden_BnD = self.final_dropout(self.final_norm(x_BnD)) / self.config.d_model**0.5
        return tied_output(hidden_BnD, self.embedding.weight, targets_Bn)
