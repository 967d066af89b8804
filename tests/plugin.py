"""What a user outside this tree would write: a model, a corpus, a metric, a search space and a preset, in one module that
THROUGHLINE_PLUGINS names (pipelines/terminal/plugins.py). tests/pipelines/test_plugin.py uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from ray import tune
from torch import Tensor, nn

from data_prep.corpora import CORPORA
from data_prep.documents import Document, Source
from pipelines.config.run import CheckpointConfig, DataConfig, ScheduleConfig, TrainConfig
from pipelines.presets import PRESETS
from pipelines.tracking.metrics import METRICS, Metric
from recur_models import MODELS, ModelConfig, Recompute, RecurrentModel, State, reset
from recur_models.costs import Costs, product, scales
from recur_models.decoding import RecomputeDecoder
from recur_models.losses import tied_output
from recur_models.protocol import IncrementalDecoder, Probe
from tune_spaces import SPACES, Space


@dataclass(frozen=True)
class GruConfig(ModelConfig):
    """A gated recurrent unit over tokens."""

    name: ClassVar[str] = "gru"
    recomputes: ClassVar[tuple[Recompute, ...]] = ("nothing",)

    d_model: int = 16
    """Width of embeddings and state."""
    window: int = 4
    """Tokens in a block."""

    @property
    def block(self) -> int:
        return self.window

    def build(self, vocab_size: int) -> Gru:
        return Gru(self, vocab_size)

    def costs(self, vocab_size: int) -> Costs:
        d, W = self.d_model, self.window
        embedding = product(W, d, vocab_size)
        cell = product(W, d, 3 * d) + product(W, d, 3 * d) + scales(6 * d)
        total = Costs(block=W, embedding_parameters=embedding.parameters)
        return total + embedding + cell


class Cell(nn.Module):
    """The state after one token more."""

    def __init__(self, width: int):
        super().__init__()
        self.gru = nn.GRUCell(width, width)

    def forward(self, state_BD: Tensor, x_BD: Tensor) -> Tensor:
        return self.gru(x_BD, state_BD)


class Gru(RecurrentModel):
    """State: ``layers.0.states`` [B, D], zeros at a document's start."""

    def __init__(self, config: GruConfig, vocab_size: int):
        super().__init__()
        self.vocab_size = vocab_size
        self.block = config.window
        self.embedding = nn.Embedding(vocab_size, config.d_model)
        self.layers: Any = nn.ModuleList([Cell(config.d_model)])

    def initial_state(self, lanes: int) -> State:
        return {"layers.0.states": self.embedding.weight.new_zeros(lanes, self.embedding.embedding_dim)}

    def read_segment(
        self, tokens_BT: Tensor, state: State, fresh_BK: Tensor, targets_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        x_BTD = self.embedding(tokens_BT)
        c_BD = state["layers.0.states"]
        out = []
        for t in range(tokens_BT.shape[1]):
            if t % self.block == 0:
                c_BD = reset(c_BD, torch.zeros_like(c_BD), fresh_BK[:, t // self.block])
            c_BD = self.layers[0](c_BD, x_BTD[:, t])
            out.append(c_BD)
        return tied_output(torch.stack(out, 1), self.embedding.weight, targets_BT), {"layers.0.states": c_BD}

    def incremental_decoder(self) -> IncrementalDecoder:
        return RecomputeDecoder(self)

    def probes(self) -> list[Probe]:
        def change(before: Tensor, after: Tensor) -> Tensor:
            return (after - before).square().mean().sqrt() / after.square().mean().sqrt()

        return [Probe("state_change", self.layers[0], change)]


@dataclass(frozen=True)
class Counting:
    """Documents that count."""

    name: ClassVar[str] = "counting"

    documents: int = 8
    """Documents of each split."""

    def sources(self, split: str) -> Sequence[Source]:
        return [Source(f"{split}/{i}", f"From {i}", split, 500) for i in range(self.documents)]

    def read(self, sources: Sequence[Source]) -> Iterator[Document]:
        for source in sources:
            first = int(source.id.rpartition("/")[2])
            yield Document(source.id, source.title, " ".join(str(first + i) for i in range(150)))

    def options(self) -> dict[str, Any]:
        return {"documents": self.documents}


MODELS[GruConfig.name] = GruConfig
CORPORA[Counting.name] = Counting
METRICS["validation/perplexity"] = Metric(
    "validation/perplexity",
    "validation perplexity per token",
    "perplexity",
    ".2f",
    "lower",
    console="perplexity {:.2f}",
    of=lambda score: 2**score.bits_per_token,
)
SPACES["width"] = Space(
    "width, half and the same", ("model.d_model",), lambda values: {"model.d_model": tune.choice([8, 16])}
)
PRESETS["gru-counting"] = TrainConfig(
    model=GruConfig(),
    data=DataConfig(corpus="counting", lanes=4, segment_length=32),
    schedule=ScheduleConfig(warmup_steps=4),
    checkpoint=CheckpointConfig(every=5),
    run="gru-counting",
    steps=30,
    log_every=1,
    validate_every=10,
    validate_tokens=200,
)
