"""Llama, with the recurrence of pretrained.py and without it: RMS norms, a gated feed-forward, rotary positions, shared keys.

    LlamaRecConfig(pretrained="llama-folder", window=300, overlap=50).build(vocab_size=49_153)

A window's positions count from 0, and h_prev's embeddings stand right before them, at −N … −1: no key lies ahead of its query, and
their distances are ones that the pretrained heads know from the token before a text. (GPT-2's h_prev has no position, since
positions are added below the layer that it is put into; here each layer turns its own keys.) Values have no position.

Letters: see pretrained_layers.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from recur_models.costs import Costs, product, scales
from recur_models.layers import rotate, rotation, split_heads
from recur_models.norms import rms_norm
from recur_models.pretrained import Decoder
from recur_models.pretrained_config import DecoderConfig, RecurrentDecoderConfig
from recur_models.pretrained_layers import DecoderLayer
from recur_models.pretrained_weights import Family

HEAD_DIM = "hidden_size / num_attention_heads"
"""The value of ``head_dim`` for a config.json whose heads have that size, the only one that is computed here."""


def from_config_json(values: dict[str, Any]) -> dict[str, Any]:
    """config.json's values, completed. It has rotary positions in one of two ways; the oldest folders lack them."""
    rope = dict[str, Any]()
    for name in ("rope_scaling", "rope_parameters"):
        found = values.get(name) or {}
        rope |= found if isinstance(found, dict) else {"rope_type": found}
    width = values.get("hidden_size") or 0
    heads = values.get("num_attention_heads") or 0
    head_dim = values.get("head_dim") or 0
    return {
        **values,
        "num_key_value_heads": values.get("num_key_value_heads") or heads,
        "rope_theta": rope.get("rope_theta") or values.get("rope_theta") or 10_000.0,
        "rope_type": rope.get("rope_type", rope.get("type", "default")),
        "head_dim": HEAD_DIM if not head_dim or head_dim * heads == width else head_dim,
        "output": "tied" if values.get("tie_word_embeddings") else "own",
    }


def to_config_json(values: dict[str, Any]) -> dict[str, Any]:
    """config.json's values, with rotary positions in both ways: a reader that knows only one would silently use its default."""
    output = values.pop("output")
    dropout = values.pop("dropout")
    theta = values["rope_theta"]
    rope = {"rope_type": "default", "rope_theta": theta}
    return {
        **values,
        "attention_dropout": dropout,
        "rope_parameters": rope,
        "tie_word_embeddings": output == "tied",
    }


SMOL: dict[str, Any] = {
    "layers": 30,
    "d_model": 576,
    "heads": 9,
    "mlp_dim": 1536,
    "positions": 2048,
    "kv_heads": 3,
    "rope_base": 10_000.0,
    "norm_eps": 1e-5,
    "output": "tied",
}
"""SmolLM-135M's sizes."""
LLAMA = Family(
    kind="llama",
    article="a Llama",
    saver="LlamaForCausalLM",
    small=SMOL,
    names={
        "layers": "num_hidden_layers",
        "d_model": "hidden_size",
        "heads": "num_attention_heads",
        "mlp_dim": "intermediate_size",
        "positions": "max_position_embeddings",
        "kv_heads": "num_key_value_heads",
        "rope_base": "rope_theta",
        "norm_eps": "rms_norm_eps",
        "output": "output",
    },
    required={
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "rope_type": "default",
        "head_dim": HEAD_DIM,
    },
    modules={"embed_tokens": "embedding", "norm": "final_norm", "lm_head": "output"},
    document_token="bos_token_id",
    from_config_json=from_config_json,
    to_config_json=to_config_json,
    prefix="model.",
)


@dataclass(frozen=True)
class LlamaConfig(DecoderConfig):
    """Llama over windows that overlap: the baseline."""

    name: ClassVar[str] = "llama"
    family: ClassVar[Family] = LLAMA

    dropout: float = 0.0
    """Share of activations dropped: embeddings, attention's weights, what attention and feed-forward add."""
    kv_heads: int = 0
    """Heads of keys and values, which the attention heads share in equal groups."""
    rope_base: float = 0.0
    """Base of the rotary positions' wave lengths."""
    norm_eps: float = 0.0
    """Added to the mean square in a norm."""
    output: Literal["", "tied", "own"] = ""
    """Whether the output layer is the embedding, or has a matrix of its own; empty: as `pretrained` has it, else tied."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = self.sized()
        if sizes.heads % sizes.kv_heads:
            raise ValueError(f"model.kv_heads is {sizes.kv_heads}: it must divide model.heads, {sizes.heads}")
        if sizes.d_model // sizes.heads % 2:
            raise ValueError(
                f"model.heads is {sizes.heads} for a model.d_model of {sizes.d_model}: a head's size must be even to be rotated"
            )
        for name in ("rope_base", "norm_eps"):
            value = getattr(sizes, name)
            if value <= 0:
                raise ValueError(f"model.{name} is {value}: it must be above 0")

    @property
    def own_output(self) -> bool:
        return self.sized().output == "own"

    @property
    def kv_width(self) -> int:
        c = self.sized()
        return c.d_model // c.heads * c.kv_heads

    def build(self, vocab_size: int) -> Decoder:
        return self.load_pretrained(Decoder(self, vocab_size, self.recurrence()))

    def layer(self) -> LlamaLayer:
        return LlamaLayer(self)

    def norm(self) -> LlamaNorm:
        return LlamaNorm(self.d_model, eps=self.norm_eps)

    def layer_costs(self, tokens: int) -> Costs:
        d = self.d_model
        f = self.mlp_dim
        attends = product(tokens, d, d) + product(tokens, d, 2 * self.kv_width) + product(tokens, d, d)
        return attends + product(tokens, d, 2 * f) + product(tokens, f, d) + scales(2 * d)


@dataclass(frozen=True)
class LlamaRecConfig(LlamaConfig, RecurrentDecoderConfig):
    """Llama with recurrence over windows that overlap."""

    name: ClassVar[str] = "llama-rec"


class LlamaNorm(nn.RMSNorm):
    """Torch's norm; in training under autocast on a CPU its result is in bfloat16, so that no product has to cast it."""

    eps: float

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def unbiased(fan_in: int, fan_out: int) -> nn.Linear:
    """A linear layer without bias, its weights drawn as transformers draws a Llama's."""
    layer = nn.Linear(fan_in, fan_out, bias=False)
    nn.init.normal_(layer.weight, std=0.02)
    return layer


class LlamaLayer(DecoderLayer):
    """Attention, then the gated feed-forward, each after a norm."""

    def __init__(self, c: LlamaConfig):
        super().__init__(c.heads, c.kv_heads, c.d_model // c.heads, c.dropout)
        self.base = c.rope_base
        d = c.d_model
        f = c.mlp_dim
        self.input_layernorm = c.norm()
        self.post_attention_layernorm = c.norm()
        sizes = {"q_proj": d, "k_proj": c.kv_width, "v_proj": c.kv_width, "o_proj": d}
        self.self_attn: Any = nn.ModuleDict({name: unbiased(d, size) for name, size in sizes.items()})
        self.mlp: Any = nn.ModuleDict(
            {"gate_proj": unbiased(d, f), "up_proj": unbiased(d, f), "down_proj": unbiased(f, d)}
        )

    def project(self, x_BnD: Tensor, position_Bn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_BnD = self.input_layernorm(x_BnD)
        q = split_heads(self.self_attn["q_proj"](x_BnD), self.heads)
        k, v = (split_heads(self.self_attn[name](x_BnD), self.kv_heads) for name in ("k_proj", "v_proj"))
        turns = rotation(position_Bn, self.head_dim, self.base, q)
        return rotate(q, turns), rotate(k, turns), v

    def output(self, heads_BnC: Tensor) -> Tensor:
        return self.self_attn["o_proj"](heads_BnC)

    def feed_forward(self, x_BnD: Tensor) -> Tensor:
        x_BnD = self.post_attention_layernorm(x_BnD)
        mlp = self.mlp
        return mlp["down_proj"](F.silu(mlp["gate_proj"](x_BnD)) * mlp["up_proj"](x_BnD))
