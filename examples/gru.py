"""A model of your own: a gated recurrent unit (GRU). gru_preset.py is its plug-in; add_model.py trains and checks it.
Letters: B lanes · T tokens of a segment · K blocks of a segment · W tokens of a block · D width."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from recur_models import ModelConfig, RecurrentModel, State, register, reset
from recur_models.costs import Costs, product, scales
from recur_models.decoding import RecomputeDecoder
from recur_models.losses import tied_output
from recur_models.protocol import IncrementalDecoder, Probe


@register  # commands know the model by its name
@dataclass(frozen=True)
class GruConfig(ModelConfig):
    name = "gru"
    block: int = 16  # tokens of a block; documents begin at multiples
    width: int = 128  # each field is an option: --model.width 64

    def build(self, vocab_size: int) -> "Gru":
        return Gru(self, vocab_size)

    def costs(self, vocab_size: int) -> Costs:  # parameters, and FLOPs of a block
        gates = product(self.block, self.width, 6 * self.width) + scales(6 * self.width)
        total = gates + product(self.block, self.width, vocab_size)
        return replace(total, block=self.block, embedding_parameters=vocab_size * self.width)


class Gru(RecurrentModel):
    def __init__(self, config: GruConfig, vocab_size: int):
        super().__init__()
        self.block = config.block
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, config.width)
        self.layers = nn.ModuleList([nn.GRU(config.width, config.width, batch_first=True)])

    def initial_state(self, lanes: int) -> State:  # the first dimension of all State is the lane
        return {"layers.0.states": self.embedding.weight.new_zeros(lanes, self.embedding.embedding_dim)}

    def read_segment(self, tokens_BT: Tensor, state: State, fresh_BK: Tensor, targets_BT: Tensor | None):
        state_BD = state["layers.0.states"]
        outputs = []
        for k, x_BWD in enumerate(self.embedding(tokens_BT).split(self.block, dim=1)):
            state_BD = reset(state_BD, torch.zeros_like(state_BD), fresh_BK[:, k])  # where a document begins
            output_BWD, last_1BD = self.layers[0](x_BWD, state_BD[None].contiguous())
            state_BD = last_1BD[0]
            outputs.append(output_BWD)
        logits = tied_output(torch.cat(outputs, 1), self.embedding.weight, targets_BT)  # or losses
        return logits, {"layers.0.states": state_BD}

    def incremental_decoder(self) -> IncrementalDecoder:
        return RecomputeDecoder(self)  # generates token by token; right for every model

    def probes(self) -> list[Probe]:
        return []  # metrics of the State's health would be here
