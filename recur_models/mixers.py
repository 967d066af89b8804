"""A stack of layers whose mixers are exchangeable: gated delta rule, Mamba-2, mLSTM, retention, RWKV-7, sLSTM, window.

    MixersConfig(layers=("delta", "delta", "window")).build(vocab_size=257)

A layer is pre-norm: x + mixer(norm(x)), then x + MLP(norm(x)) with a gated MLP (SwiGLU). The output layer is the embedding, or a
matrix of its own. Each mixer has its own file; mixer.py has their common code, mixer_stack.py that of models.

State: that of the mixers, under ``layers.i``. Letters: see mixer.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from common.errors import UserError, nearest
from recur_models.costs import Costs, product, scales, tied_logits
from recur_models.gated_delta import GatedDelta
from recur_models.layers import linear
from recur_models.linear_attention import Retention
from recur_models.losses import tied_output, untied_output
from recur_models.mamba2 import Mamba2
from recur_models.mixer import Mixer, Sizes, check_block
from recur_models.mixer_stack import StackLayer, StackModel
from recur_models.mlstm import MatrixLSTM
from recur_models.norms import RMSNorm
from recur_models.protocol import ModelConfig, check_sizes
from recur_models.rwkv7 import MAX_TOKENS, RWKV7
from recur_models.slstm import ScalarLSTM
from recur_models.window_mixer import WindowMixer

MixerName = Literal["delta", "mamba2", "mlstm", "retention", "rwkv7", "slstm", "window"]
MIXERS: dict[MixerName, type[Mixer]] = {
    "delta": GatedDelta,
    "mamba2": Mamba2,
    "mlstm": MatrixLSTM,
    "retention": Retention,
    "rwkv7": RWKV7,
    "slstm": ScalarLSTM,
    "window": WindowMixer,
}


READERS: dict[str, tuple[MixerName, ...]] = {
    "decays": ("delta",),
    "negative_eigenvalues": ("delta", "rwkv7"),
    "householders": ("delta",),
    "output_gate": ("delta",),
    "head_norm": ("delta",),
    "rotary": ("retention",),
    "conv": ("delta", "mamba2", "slstm"),
}
"""Options that change the model, and the mixers that read each. A new run with an option that no mixer reads is refused."""


@dataclass(frozen=True)
class MixersConfig(ModelConfig):
    """Layers with exchangeable mixers: delta, mamba2, mlstm, retention, rwkv7, slstm, window."""

    name: ClassVar[str] = "mixers"

    layers: tuple[MixerName, ...] = ("delta", "delta", "delta", "delta")
    """The mixer of each layer: delta (gated delta rule), mamba2, mlstm, retention (fixed decays), rwkv7, slstm, window
    (sliding window)."""
    d_model: int = 96
    """Width of the residual stream."""
    heads: int = 3
    """Heads of each mixer."""
    key_dim: int = 24
    """Size of a key and a query of one head; in Mamba-2 the size N of its state."""
    value_dim: int = 48
    """Size of a value of one head, and of a head of slstm. A window's values have the size of its keys."""
    mlp_dim: int = 280
    """Hidden size of the gated MLP; 0: there is none."""
    window: int = 64
    """Tokens in a block, and tokens that a window sees."""
    chunk: int = 64
    """Tokens that recurrent mixers compute at once: divides the window. It changes speed and memory, and no result. slstm
    computes tokens one by one."""
    conv: int = 4
    """Tokens that the short convolution of delta, mamba2 and slstm sees."""
    decays: bool = True
    """Whether delta forgets by a gate; without it, it is DeltaNet."""
    negative_eigenvalues: bool = False
    """delta, rwkv7: β goes to 2 in place of 1, on which state tracking depends."""
    householders: int = 1
    """delta: keys per token, each with a transition of its own."""
    output_gate: bool = True
    """delta: whether SiLU of a projection multiplies the output, as in Gated DeltaNet; DeltaNet has no such gate."""
    head_norm: bool = True
    """delta: whether each head's output is normed."""
    rotary: bool = False
    """retention: whether queries and keys turn with their positions, as published. Else no head sees the order of recent tokens."""
    output: Literal["tied", "own"] = "tied"
    """Whether the output layer is the embedding, or has a matrix of its own."""
    initial_std: float = 0.0
    """Standard deviation with which the projections of layers and an output layer of its own begin; 0: 1/√(their inputs)."""
    dropout: float = 0.0
    """Share that is dropped in training: of the embeddings, and of what each mixer and MLP adds to the residual stream."""

    def __post_init__(self) -> None:
        check_sizes(self, from_0=("mlp_dim",))
        if not self.layers:
            raise UserError("model.layers is empty: name a mixer for each layer, for example delta delta window")
        for name in self.layers:
            if name not in MIXERS:
                raise UserError(f"model.layers has {name!r}, which is no mixer: {nearest(name, MIXERS)}")
        check_block(self.window, self.chunk, self.conv if self.reads("conv") else 1)
        if self.rotary and self.reads("rotary") and self.key_dim % 2:
            raise UserError(
                f"model.key_dim is {self.key_dim}, and model.rotary turns pairs of it: give an even size, or --model.no-rotary"
            )
        if "rwkv7" in self.layers and min(self.chunk, self.window) > MAX_TOKENS:
            raise UserError(
                f"model.chunk is {self.chunk}, and rwkv7's decays over more than {MAX_TOKENS} tokens leave the range of float32: "
                f"give --model.chunk {MAX_TOKENS} or less"
            )
        if self.initial_std < 0:
            raise UserError(f"model.initial_std is {self.initial_std}: give 0 or more")

    def reads(self, option: str) -> bool:
        """Whether a layer reads one of the options in READERS."""
        return not set(READERS[option]).isdisjoint(self.layers)

    def check_new(self) -> None:
        for name, readers in READERS.items():
            if getattr(self, name) != getattr(type(self), name) and not self.reads(name):
                raise UserError(
                    f"model.{name} is {getattr(self, name)}, and no layer reads it: name {' or '.join(readers)} in "
                    "--model.layers, or leave the option out"
                )

    @property
    def block(self) -> int:
        return self.window

    @property
    def attention_window(self) -> int:
        return self.window if "window" in self.layers else 0

    @property
    def sizes(self) -> Sizes:
        """The sizes of its mixers."""
        fields = {name: getattr(self, name) for name in Sizes._fields}
        return Sizes(**fields | {"chunk": min(self.chunk, self.window)})

    def build(self, vocab_size: int) -> MixersModel:
        return MixersModel(self, vocab_size)

    def costs(self, vocab_size: int) -> Costs:
        mlp = product(self.window, self.d_model, 2 * self.mlp_dim) + product(self.window, self.mlp_dim, self.d_model)
        total = tied_logits(self.window, self.d_model, vocab_size) + scales(self.d_model)
        for name in self.layers:
            total += MIXERS[name].costs(self.sizes)
            if self.mlp_dim:
                total += mlp + scales(self.d_model)
        if self.output == "own":
            total += scales(vocab_size * self.d_model)
        return total


class GatedMLP(nn.Module):
    """RMSNorm, then SwiGLU: the SiLU of one half of the hidden layer multiplies the other (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.norm = RMSNorm(width)
        self.hidden = linear(width, 2 * hidden)
        self.out = linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.hidden(self.norm(x)).chunk(2, -1)
        return self.out(nn.functional.silu(gate) * value)


class MixerLayer(StackLayer):
    """A mixer and a gated MLP, each added to the residual stream."""

    def __init__(self, config: MixersConfig, name: MixerName):
        super().__init__(MIXERS[name](config.sizes))
        self.mlp = GatedMLP(config.d_model, config.mlp_dim) if config.mlp_dim else None
        self.dropout = nn.Dropout(config.dropout)

    def finish(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.dropout(y_BTD)
        return x_BTD if self.mlp is None else x_BTD + self.dropout(self.mlp(x_BTD))


class MixersModel(StackModel):
    """The model of a `MixersConfig`. Tied logits are divided by √d, as in rec and slide."""

    def __init__(self, config: MixersConfig, vocab_size: int):
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.block = config.window
        self.embedding = nn.Embedding(vocab_size, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(MixerLayer(config, name) for name in config.layers)
        self.final_norm = RMSNorm(config.d_model)
        self.output = linear(config.d_model, vocab_size) if config.output == "own" else None
        if config.initial_std:
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=config.initial_std)

    def embed(self, tokens_Bn: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens_Bn))

    def head(self, x_BnD: Tensor, targets_Bn: Tensor | None) -> Tensor:
        x_BnD = self.final_norm(x_BnD)
        if self.output is not None:
            return untied_output(x_BnD, self.output, targets_Bn)
        return tied_output(x_BnD / self.config.d_model**0.5, self.embedding.weight, targets_Bn)
