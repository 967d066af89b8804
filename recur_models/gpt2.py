"""GPT-2, with the recurrence of pretrained.py and without it: the paper's decoder.

    GPT2RecConfig(pretrained="gpt2-folder", window=300, overlap=50).build(vocab_size=50_258)

Letters: see pretrained_layers.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recur_models.costs import Costs, product, scales
from recur_models.layers import split_heads
from recur_models.pretrained import Decoder
from recur_models.pretrained_config import DecoderConfig, RecurrentDecoderConfig
from recur_models.pretrained_layers import DecoderLayer
from recur_models.pretrained_weights import Family


def to_config_json(values: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp's converter asks for ``n_ctx``, an older name of ``n_positions``."""
    rate = values.pop("dropout")
    rates = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), rate)
    return {**values, **rates, "n_ctx": values["n_positions"]}


GPT2 = Family(
    kind="gpt2",
    article="a GPT-2",
    saver="GPT2LMHeadModel",
    small={"layers": 12, "d_model": 768, "heads": 12, "mlp_dim": 3072, "positions": 1024},
    names={
        "layers": "n_layer",
        "d_model": "n_embd",
        "heads": "n_head",
        "mlp_dim": "n_inner",
        "positions": "n_positions",
    },
    required={
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    modules={"wte": "embedding", "wpe": "positions", "h": "layers", "ln_f": "final_norm", "lm_head": "output"},
    document_token="eos_token_id",
    from_config_json=lambda values: {**values, "n_inner": values.get("n_inner") or 4 * (values.get("n_embd") or 0)},
    to_config_json=to_config_json,
    prefix="transformer.",
)


@dataclass(frozen=True)
class GPT2Config(DecoderConfig):
    """GPT-2 over windows that overlap: the baseline."""

    name: ClassVar[str] = "gpt2"
    family: ClassVar[Family] = GPT2
    embeds_positions: ClassVar[bool] = True

    def build(self, vocab_size: int) -> Decoder:
        return self.load_pretrained(Decoder(self, vocab_size, self.recurrence()))

    def layer(self) -> GPT2Layer:
        return GPT2Layer(self)

    def norm(self) -> nn.Module:
        return nn.LayerNorm(self.d_model)

    def layer_costs(self, tokens: int) -> Costs:
        d = self.d_model
        f = self.mlp_dim
        products = product(tokens, d, 3 * d) + product(tokens, d, d) + product(tokens, d, f) + product(tokens, f, d)
        return products + scales(9 * d + f)


@dataclass(frozen=True)
class GPT2RecConfig(GPT2Config, RecurrentDecoderConfig):
    """GPT-2 with recurrence over windows that overlap."""

    name: ClassVar[str] = "gpt2-rec"


def affine(fan_in: int, fan_out: int, std: float = 0.02) -> nn.Module:
    """transformers' Conv1D: x·weight + bias, so that its weights [in, out] fit, and adapters know the layer as one of a GPT-2."""
    from transformers.pytorch_utils import Conv1D  # takes seconds, so only for a GPT-2

    with torch.device("meta"):  # its own initialisation draws nothing
        layer = Conv1D(fan_out, fan_in)
    layer.weight = nn.Parameter(torch.randn(fan_in, fan_out) * std)
    layer.bias = nn.Parameter(torch.zeros(fan_out))
    return layer


class GPT2Layer(DecoderLayer):
    """Attention, then the MLP, each after a norm."""

    def __init__(self, c: GPT2Config):
        super().__init__(c.heads, c.heads, c.d_model // c.heads, c.dropout)
        # GPT-2's projections into the residual stream begin with smaller weights, the more layers there are.
        std = 0.02 / (2 * c.layers) ** 0.5
        self.ln_1 = nn.LayerNorm(c.d_model)
        self.ln_2 = nn.LayerNorm(c.d_model)
        self.attn: Any = nn.ModuleDict(
            {"c_attn": affine(c.d_model, 3 * c.d_model), "c_proj": affine(c.d_model, c.d_model, std)}
        )
        self.mlp: Any = nn.ModuleDict(
            {"c_fc": affine(c.d_model, c.mlp_dim), "c_proj": affine(c.mlp_dim, c.d_model, std)}
        )

    def project(self, x_BnD: Tensor, position_Bn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (split_heads(part, self.heads) for part in self.attn["c_attn"](self.ln_1(x_BnD)).chunk(3, -1))
        return q, k, v

    def output(self, heads_BnC: Tensor) -> Tensor:
        return self.attn["c_proj"](heads_BnC)

    def feed_forward(self, x_BnD: Tensor) -> Tensor:
        return self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x_BnD)), approximate="tanh"))
